//! The failures that a worker can detect.

use core::fmt;
use framewright::units::{Pfn, PfnRange};
use framewright::zone::{Fault, FreeError};
use framewright::{AllocateError, Request};

/// A failure. A correct manager causes none of these.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// A frame does not hold what its owner wrote, so it has two owners.
    Stamp {
        /// The frame.
        pfn: Pfn,
        /// What the owner wrote.
        wanted: u64,
        /// What the frame holds.
        found: u64,
    },
    /// Memory that was requested zeroed holds something else.
    NotZero {
        /// The frame.
        pfn: Pfn,
    },
    /// The allocated run does not match the request.
    NotAsAsked {
        /// The request.
        request: Request,
        /// What was allocated.
        range: PfnRange,
    },
    /// A request failed with an unexpected error.
    Allocate {
        /// The request.
        request: Request,
        /// What the manager said.
        error: AllocateError,
    },
    /// The manager refused to take back a run that is held.
    Free {
        /// The run.
        range: PfnRange,
        /// What the manager said.
        error: FreeError,
    },
    /// Draining the caches found a frame that does not belong there.
    Drain(FreeError),
    /// A wrong call was accepted.
    NotRefused {
        /// The call.
        what: &'static str,
    },
    /// The tables contradict themselves.
    Tables(Fault),
    /// The tables and the counters differ.
    Counters,
    /// The state that workers share belongs to another manager.
    OtherManager,
    /// Pages are lost, or counted twice.
    Pages {
        /// Pages that workers hold.
        held_pages: u64,
        /// Pages that the manager says are allocated, not counting those in caches.
        allocated_pages: u64,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stamp { pfn, wanted, found } => {
                write!(
                    f,
                    "pfn {pfn} has two owners: one wrote {wanted:#x}, but it holds {found:#x}"
                )
            }
            Self::NotZero { pfn } => write!(f, "pfn {pfn} was allocated zeroed and is not zero"),
            Self::NotAsAsked { request, range } => {
                write!(f, "{range:?} does not match the request: {request:?}")
            }
            Self::Allocate { request, error } => write!(f, "{error}: {request:?}"),
            Self::Free { range, error } => write!(f, "{range:?} is held, but {error}"),
            Self::Drain(error) => write!(f, "a cache holds a frame that it must not: {error}"),
            Self::NotRefused { what } => write!(f, "{what} was not refused"),
            Self::Tables(fault) => write!(f, "the tables are wrong: {fault}"),
            Self::OtherManager => {
                f.write_str("the workers share runs with those of another manager")
            }
            Self::Counters => f.write_str("the tables and the counters differ"),
            Self::Pages { held_pages, allocated_pages } => {
                write!(f, "{held_pages} pages are held, but {allocated_pages} are allocated")
            }
        }
    }
}

impl core::error::Error for Failure {}
