//! The purposes of the device's queues.

use core::fmt;

/// The purpose of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueKind {
    /// Pages that go into the balloon.
    Inflate,
    /// Pages that come out of the balloon.
    Deflate,
    /// Statistics.
    Statistics,
    /// Hints about free pages; not used.
    Hint,
    /// Reports of free pages.
    Reporting,
}

impl QueueKind {
    /// All kinds, in the specification's order.
    pub(crate) const IN_ORDER: [Self; 5] =
        [Self::Inflate, Self::Deflate, Self::Statistics, Self::Hint, Self::Reporting];

    /// The queue's number in the specification.
    pub(crate) const fn fixed(self) -> u16 {
        self as u16
    }
}

impl fmt::Display for QueueKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Inflate => "inflation",
            Self::Deflate => "deflation",
            Self::Statistics => "statistics",
            Self::Hint => "free page hints",
            Self::Reporting => "free page reporting",
        })
    }
}
