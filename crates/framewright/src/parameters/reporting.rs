//! How reporting behaves: what the command line says, and what may be changed later.

use crate::units::Order;

/// How reports are spread over time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Pace {
    /// What stayed free for a tick (a tenth of a second, or the delay if that is shorter) is
    /// reported in the next one.
    #[default]
    Adaptive = 0,
    /// As Linux does it: a pass every delay, which reports a 16th of what is free and a little.
    Fixed = 1,
}

impl Pace {
    /// As it is written on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Adaptive => "adaptive",
            Self::Fixed => "fixed",
        }
    }

    /// The pace of that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Adaptive, Self::Fixed].into_iter().find(|pace| pace.name() == name)
    }
}

/// Parameters of reporting (`page_reporting.`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReportingParameters {
    /// `page_reporting.page_reporting_order=`: the smallest order that is reported; unset: as the
    /// device says.
    pub order: Option<Order>,
    /// `page_reporting.page_reporting_delay_ms=`.
    pub delay_ms: u32,
    /// `page_reporting.pace=`.
    pub pace: Pace,
    /// `page_reporting.pools=`: free pages of huge-page pools are reported, too.
    pub pools: bool,
}

impl ReportingParameters {
    /// What it is where nothing is said.
    pub(crate) const fn usual() -> Self {
        Self { order: None, delay_ms: 2000, pace: Pace::Adaptive, pools: false }
    }
}

impl Default for ReportingParameters {
    fn default() -> Self {
        Self::usual()
    }
}
