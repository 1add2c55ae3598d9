//! What the driver reports after each step.

use core::fmt;

/// How far plugged memory is from what the host wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// How much the host wants to be plugged.
    pub requested_bytes: u64,
    /// How much is plugged, as far as the device has acknowledged.
    pub plugged_bytes: u64,
    /// How much of the region may be plugged now.
    pub usable_bytes: u64,
    /// Whether a request has not been answered yet.
    pub waiting: bool,
    /// What stands in the way, if anything.
    pub obstacle: Option<Obstacle>,
    /// When the next call makes sense if nothing happens before, on the clock of
    /// [`work`](crate::VirtioMem::work). Answers raise no interrupt, so this is soon while a
    /// request is in flight: 50 us after it was sent, then after waits that double up to 10 ms.
    /// `None` if nothing changes before an event: an interrupt, another size that the host wants
    /// (poll for that if there are no interrupts), or
    /// [`memory_changed`](crate::VirtioMem::memory_changed).
    pub due_ns: Option<u64>,
    /// Whether memory was plugged or unplugged in this step.
    pub changed: bool,
}

impl Progress {
    /// Whether nothing is left to do: as much is plugged as whole units allow, and no request is in
    /// flight.
    #[must_use]
    pub const fn is_settled(&self) -> bool {
        !self.waiting && self.obstacle.is_none()
    }
}

/// Why less or more is plugged than the host wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Obstacle {
    /// The device has taken longer to answer than it may. It may be reset; until it has answered or
    /// was reset, the memory of the request counts as neither plugged nor unplugged.
    Silent,
    /// The device answered BUSY.
    Busy,
    /// The device answered NACK, although its configuration asks for the memory.
    Nack,
    /// The configuration changes all the time.
    Unsteady,
    /// The adopter took less than it was given, and nothing has changed since. The driver tries
    /// again only if the adopter may take more
    /// ([`may_take_more`](crate::PluggableMemory::may_take_more)).
    Unwanted,
    /// No unit of the usable region is left.
    NoSpace,
    /// There is no memory for the driver's records.
    NoMemory,
    /// The adopter cannot take anything out of use.
    InUse {
        /// How many things cannot be moved, as far as the adopter knows; there may be more.
        obstacles: u64,
    },
    /// The adopter took a run out of use that it must not, and got the run back. This is a bug in
    /// the adopter.
    BadRun {
        /// The first address of the run.
        start_bytes: u64,
        /// The size of the run.
        size_bytes: u64,
    },
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent => f.write_str("the device does not answer"),
            Self::Busy => f.write_str("the device is busy"),
            Self::Nack => f.write_str("the device refuses the request"),
            Self::Unsteady => f.write_str("the device's configuration keeps changing"),
            Self::Unwanted => f.write_str("new memory could not be used"),
            Self::NoSpace => f.write_str("the usable region is full"),
            Self::NoMemory => f.write_str("no memory to keep track of more"),
            Self::InUse { obstacles: 0 } => f.write_str("no memory can be taken out of use"),
            Self::InUse { obstacles } => {
                write!(f, "no memory can be taken out of use (at least {obstacles} in the way)")
            }
            Self::BadRun { start_bytes, size_bytes } => {
                write!(f, "{size_bytes:#x} bytes at {start_bytes:#x} were wrongly taken out of use")
            }
        }
    }
}

/// The number of requests so far, by kind, and how often the device put the driver off.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// PLUG.
    pub plug: u64,
    /// UNPLUG.
    pub unplug: u64,
    /// UNPLUG_ALL.
    pub unplug_all: u64,
    /// STATE.
    pub state: u64,
    /// Answers BUSY.
    pub busy: u64,
    /// Answers NACK.
    pub nack: u64,
}
