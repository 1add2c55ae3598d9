//! Why memory was not freed.

use crate::block::State;
use crate::debug::PageHistory;
use crate::units::{Order, Pfn, PfnRange};
use core::fmt;

/// Why a range was not freed. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FreeError {
    /// There is no frame in the range.
    Empty(PfnRange),
    /// No zone manages this frame: it is a hole, or lies beyond all memory.
    NotManaged(Pfn),
    /// The range lies in more than one zone; no allocation does.
    SpansZones(PfnRange),
    /// This frame is not part of an allocation; `state` says what its block is.
    NotAllocated {
        /// First frame that is not.
        pfn: Pfn,
        /// What its block is; [`State::Free`] and [`State::Reserved`] also for such a frame of a
        /// split block, [`State::Reserved`] for what the manager keeps for itself, and
        /// [`State::Offline`] for what left a pool with a memory error.
        state: Option<State>,
        /// Who had it and who freed it, with `page_owner=on` and unless it was never allocated.
        history: Option<PageHistory>,
    },
    /// The first frame is not aligned to the order, as that of each allocation is.
    NotAligned {
        /// The first frame.
        start: Pfn,
        /// The order.
        order: Order,
    },
    /// This frame is free and was never anything else (`page_owner=on`; without it this is
    /// [`NotAllocated`](Self::NotAllocated)).
    NeverAllocated(Pfn),
    /// The range holds more than the allocation that it begins in (`page_owner=on`).
    WrongSize {
        /// The range.
        range: PfnRange,
        /// That of its first frame.
        allocation: Option<PageHistory>,
        /// First frame that belongs to another.
        pfn: Pfn,
    },
}

impl fmt::Display for FreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty(range) => write!(f, "cannot free {range:?}: there is no frame in it"),
            Self::NotManaged(pfn) => write!(f, "cannot free pfn {pfn}: no zone manages it"),
            Self::SpansZones(range) => {
                write!(f, "cannot free {range:?}: it lies in more than one zone")
            }
            Self::NotAllocated { pfn, state, history } => {
                match state {
                    Some(State::Free) => {
                        write!(f, "cannot free pfn {pfn}: it is free already (double free)")?
                    }
                    Some(state) => write!(
                        f,
                        "cannot free pfn {pfn}: it was not allocated, its block is {state:?}"
                    )?,
                    None => write!(f, "cannot free pfn {pfn}: it was not allocated")?,
                }
                history.map_or(Ok(()), |history| write!(f, "; it was {history}"))
            }
            Self::NotAligned { start, order } => {
                write!(f, "cannot free pfn {start}: it is not aligned to {order:?}")
            }
            Self::NeverAllocated(pfn) => {
                write!(f, "cannot free pfn {pfn}: it is free and was never allocated")
            }
            Self::WrongSize { range, allocation, pfn } => {
                write!(
                    f,
                    "cannot free {range:?}: pfn {pfn} belongs to another allocation (wrong size)"
                )?;
                allocation.map_or(Ok(()), |history| write!(f, "; the first frame was {history}"))
            }
        }
    }
}

impl core::error::Error for FreeError {}

impl FreeError {
    /// A frame that is free already.
    pub(crate) const fn free_already(pfn: Pfn) -> Self {
        Self::NotAllocated { pfn, state: Some(State::Free), history: None }
    }
}
