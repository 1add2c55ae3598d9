//! The settings of free page reporting: those of the command line, and those that can be changed
//! later.

use crate::units::Order;

/// How reports are spread over time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Pace {
    /// Memory that stayed free for one tick (a tenth of a second, or the delay if that is shorter)
    /// is reported in the next tick.
    #[default]
    Adaptive = 0,
    /// As in Linux: one pass per delay, which reports a 16th of the free memory and a little more.
    Fixed = 1,
}

impl Pace {
    /// The name of the pace on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Adaptive => "adaptive",
            Self::Fixed => "fixed",
        }
    }

    /// Parses a pace's name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Adaptive, Self::Fixed].into_iter().find(|pace| pace.name() == name)
    }
}

/// The parameters of free page reporting (`page_reporting.`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReportingParameters {
    /// `page_reporting.page_reporting_order=`: the smallest order that is reported; if unset, the
    /// device's.
    pub order: Option<Order>,
    /// `page_reporting.page_reporting_delay_ms=`.
    pub delay_ms: u32,
    /// `page_reporting.pace=`.
    pub pace: Pace,
    /// `page_reporting.pools=`: free pages of huge-page pools are reported too.
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
