//! What the driver says after each step.

use core::fmt;

/// How far memory is from the host's wish.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// What the host wants to be plugged.
    pub requested_bytes: u64,
    /// What is plugged, as the device has acknowledged.
    pub plugged_bytes: u64,
    /// How much of the region may be plugged at the moment.
    pub usable_bytes: u64,
    /// A request has not been answered.
    pub waiting: bool,
    /// What stands in the way.
    pub obstacle: Option<Obstacle>,
    /// When the next call makes sense if nothing happens before, by the clock of
    /// [`work`](crate::VirtioMem::work). `None`: nothing changes before an event, which is an
    /// interrupt, another wish of the host (poll, if there are no interrupts), or
    /// [`memory_changed`](crate::VirtioMem::memory_changed).
    pub due_ns: Option<u64>,
    /// Memory was plugged or unplugged in this step.
    pub changed: bool,
}

impl Progress {
    /// Whether nothing is left to do: as much is plugged as whole units allow, and no request is on
    /// its way.
    #[must_use]
    pub const fn is_settled(&self) -> bool {
        !self.waiting && self.obstacle.is_none()
    }
}

/// Why the host's wish is not fulfilled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Obstacle {
    /// The device has not answered for longer than it may. It may be reset; before it has answered
    /// or was reset, the memory that the request is about is neither plugged nor unplugged.
    Silent,
    /// The device answered BUSY.
    Busy,
    /// The device answered NACK, although its configuration asks for the memory.
    Nack,
    /// The configuration changes all the time.
    Unsteady,
    /// The adopter took less than it was given, and nothing has changed since. Tried again only
    /// where it may take more ([`may_take_more`](crate::PluggableMemory::may_take_more)).
    Unwanted,
    /// No unit of the usable region is left.
    NoSpace,
    /// No memory for the driver's account.
    NoMemory,
    /// The adopter can take nothing out of use.
    InUse {
        /// How many things cannot be moved, as far as it knows.
        obstacles: u64,
    },
    /// The adopter took something out of use that it must not: it got it back. This is a mistake in
    /// the adopter.
    BadRun {
        /// Its first address.
        start_bytes: u64,
        /// Its size.
        size_bytes: u64,
    },
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent => f.write_str("the device does not answer"),
            Self::Busy => f.write_str("the device is busy"),
            Self::Nack => f.write_str("the device does not give what it is asked for"),
            Self::Unsteady => f.write_str("the device's configuration changes all the time"),
            Self::Unwanted => f.write_str("new memory could not be used"),
            Self::NoSpace => f.write_str("the usable region is full"),
            Self::NoMemory => f.write_str("no memory to keep account of more"),
            Self::InUse { obstacles: 0 } => f.write_str("nothing can be taken out of use"),
            Self::InUse { obstacles } => {
                write!(f, "nothing can be taken out of use ({obstacles} in the way)")
            }
            Self::BadRun { start_bytes, size_bytes } => {
                write!(f, "{size_bytes:#x} bytes at {start_bytes:#x} were taken out of use wrongly")
            }
        }
    }
}

/// Requests so far, by kind, and how often the device put the driver off.
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
