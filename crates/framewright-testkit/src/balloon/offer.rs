//! What the fake device offers to a driver.

/// Bytes of the whole configuration space.
pub const CONFIGURATION_BYTES: usize = 16;

/// How queues are numbered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Numbering {
    /// Those that exist, in order: what hosts do.
    Compact,
    /// By the specification.
    Fixed,
}

/// What the device offers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer {
    /// Feature bits, by number.
    pub features: u64,
    /// How queues are numbered.
    pub numbering: Numbering,
    /// Descriptors of the reporting queue at most.
    pub reporting_size: u32,
    /// Reporting is offered without its queue.
    pub lacks_reporting_queue: bool,
    /// Bytes of the configuration space; all of it has 16.
    pub configuration_bytes: usize,
}

impl Offer {
    /// Version 1, all features of QEMU but hints.
    pub const USUAL: Self = Self {
        features: 1 << 32 | 0b11_0111,
        numbering: Numbering::Compact,
        reporting_size: 32,
        lacks_reporting_queue: false,
        configuration_bytes: CONFIGURATION_BYTES,
    };

    /// With these feature bits besides version 1.
    #[must_use]
    pub const fn with(features: u64) -> Self {
        Self { features: 1 << 32 | features, ..Self::USUAL }
    }
}
