//! Why memory was not freed.

use crate::block::State;
use crate::debug::PageHistory;
use crate::units::{Order, Pfn, PfnRange};
use core::fmt;

/// Why a range was not freed. Nothing was changed.
///
/// A free of at most one block may go into the CPU's cache. If the cache is full it makes room
/// first, and one of the runs that leave it may turn out to be wrong, because it was freed twice
/// long ago. The current free then reports that error although its own run was freed:
/// [`concerns`](Self::concerns) tells the two cases apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FreeError {
    /// There is no frame in the range.
    Empty(PfnRange),
    /// No zone manages this frame: it is a hole, or lies beyond all memory.
    NotManaged(Pfn),
    /// The range lies in more than one zone, which no allocation does.
    SpansZones(PfnRange),
    /// This frame is not part of an allocation.
    NotAllocated {
        /// The first frame that is not allocated.
        pfn: Pfn,
        /// The state of its block. For a frame of a split block, [`State::Free`] if it is free and
        /// [`State::Reserved`] if it is not managed. [`State::Reserved`] also for what the manager
        /// keeps for itself, and [`State::Offline`] for a block that left a pool with a memory
        /// error.
        state: Option<State>,
        /// Who allocated and who freed it, with `page_owner=on`; none if it was never allocated.
        history: Option<PageHistory>,
    },
    /// The first frame is not aligned to the order, as that of every allocation is.
    NotAligned {
        /// The first frame.
        start: Pfn,
        /// The order.
        order: Order,
    },
    /// This frame is free and was never allocated (`page_owner=on`; without it this error is
    /// [`NotAllocated`](Self::NotAllocated)).
    NeverAllocated(Pfn),
    /// The range is larger than the allocation in which it begins (`page_owner=on`).
    WrongSize {
        /// The range.
        range: PfnRange,
        /// The allocation of its first frame.
        allocation: Option<PageHistory>,
        /// The first frame that belongs to another allocation.
        pfn: Pfn,
    },
}

impl fmt::Display for FreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty(range) => write!(f, "cannot free {range:?}: it is empty"),
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
    /// Whether the error is about frames of `range`. If the error of a free is not about the range
    /// to be freed, it reports an earlier free, and this free has succeeded.
    #[must_use]
    pub fn concerns(&self, range: PfnRange) -> bool {
        match *self {
            Self::Empty(of) | Self::SpansZones(of) => of == range,
            Self::WrongSize { range: of, .. } => !of.intersection(range).is_empty(),
            Self::NotManaged(pfn)
            | Self::NotAllocated { pfn, .. }
            | Self::NeverAllocated(pfn)
            | Self::NotAligned { start: pfn, .. } => range.start <= pfn && pfn < range.end,
        }
    }

    /// The error for a frame that is free already.
    pub(crate) const fn free_already(pfn: Pfn) -> Self {
        Self::NotAllocated { pfn, state: Some(State::Free), history: None }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn errors_concern_the_frames_that_they_name() {
        let range = PfnRange::new(512, 1024);
        let order = Order::BLOCK;
        let of = |pfn: u64| {
            let history = None;
            [
                FreeError::NotManaged(Pfn(pfn)),
                FreeError::NotAllocated { pfn: Pfn(pfn), state: None, history },
                FreeError::NeverAllocated(Pfn(pfn)),
                FreeError::NotAligned { start: Pfn(pfn), order },
            ]
        };
        for (pfn, does) in [(511, false), (512, true), (1023, true), (1024, false)] {
            assert!(of(pfn).iter().all(|error| error.concerns(range) == does), "{pfn}");
        }
        let ranges = [(range, true), (PfnRange::new(1024, 1536), false)];
        for (other, does) in ranges {
            let (allocation, pfn) = (None, other.start);
            assert_eq!(
                FreeError::WrongSize { range: other, allocation, pfn }.concerns(range),
                does
            );
            assert_eq!(FreeError::SpansZones(other).concerns(range), does);
        }
        let empty = PfnRange::new(7, 7);
        assert!(
            FreeError::Empty(empty).concerns(empty) && !FreeError::Empty(empty).concerns(range)
        );
    }
}
