//! What can be found wrong.

use core::fmt;
use framewright::units::{Pfn, PfnRange};
use framewright::zone::{Fault, FreeError};
use framewright::{AllocateError, Request};

/// What was found wrong. None of these happens on a manager that works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// A frame does not hold what its owner wrote: two have it.
    Stamp {
        /// Which.
        pfn: Pfn,
        /// What its owner wrote.
        wanted: u64,
        /// What is there.
        found: u64,
    },
    /// Memory that was asked for zeroed holds something else.
    NotZero {
        /// In which frame.
        pfn: Pfn,
    },
    /// What was allocated is not what was asked for.
    NotAsAsked {
        /// What was asked for.
        request: Request,
        /// What came.
        range: PfnRange,
    },
    /// A request failed in a way that it should not.
    Allocate {
        /// What was asked for.
        request: Request,
        /// What the manager said.
        error: AllocateError,
    },
    /// Something that is held was not taken back.
    Free {
        /// What.
        range: PfnRange,
        /// What the manager said.
        error: FreeError,
    },
    /// Emptying the caches found a frame in them that does not belong there.
    Drain(FreeError),
    /// What nobody may do was done.
    NotRefused {
        /// What.
        what: &'static str,
    },
    /// The tables contradict themselves.
    Tables(Fault),
    /// The tables and the counters differ.
    Counters,
    /// Pages are lost, or are there twice.
    Pages {
        /// Pages that are held.
        held_pages: u64,
        /// Pages that the manager says are allocated, those in caches left out.
        allocated_pages: u64,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stamp { pfn, wanted, found } => {
                write!(
                    f,
                    "pfn {pfn} belongs to two: its owner wrote {wanted:#x}, it holds {found:#x}"
                )
            }
            Self::NotZero { pfn } => write!(f, "pfn {pfn} was allocated zeroed and is not zero"),
            Self::NotAsAsked { request, range } => {
                write!(f, "{range:?} is not what was asked for: {request:?}")
            }
            Self::Allocate { request, error } => write!(f, "{error}: {request:?}"),
            Self::Free { range, error } => write!(f, "{range:?} is held, but {error}"),
            Self::Drain(error) => write!(f, "a cache holds what it may not: {error}"),
            Self::NotRefused { what } => write!(f, "{what} was not refused"),
            Self::Tables(fault) => write!(f, "the tables are wrong: {fault}"),
            Self::Counters => f.write_str("the tables and the counters differ"),
            Self::Pages { held_pages, allocated_pages } => {
                write!(f, "{held_pages} pages are held, {allocated_pages} are allocated")
            }
        }
    }
}

impl core::error::Error for Failure {}
