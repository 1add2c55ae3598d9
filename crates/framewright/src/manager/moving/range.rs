//! Taking exactly the frames that the caller names, whatever is in them now.
//!
//! The blocks around the range are isolated, what lies in the range is moved away, and the frames
//! are taken: whole blocks by a claim, parts of a block out of its free map. Frames of the same
//! blocks outside the range stay what they are.

use super::outcome::{Budget, Obstacle, ObstacleKind, Obstacles, Vacated};
use super::runs::offsets;
use super::vacate::VacateError;
use crate::debug::{Damage, Place};
use crate::manager::facets::Moving;
use crate::manager::parts::Piece;
use crate::manager::request::AllocateError;
use crate::platform::Platform;
use crate::units::{PAGES_PER_BLOCK, Pfn, PfnRange};
use crate::vmemmap_space::{BlockNumber, BlockRange};
use crate::zone::{FreeError, IsolateError, Occupied};
use core::fmt;
use core::panic::Location;

/// Why a range was not taken. Nothing of it is the caller's, and nothing is isolated; what was
/// moved stays where it is now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RangeError {
    /// There is no frame in it.
    Empty(PfnRange),
    /// Not all of it is memory of one zone.
    Place(FreeError),
    /// It could not be vacated.
    Vacate(VacateError),
    /// The memory had been written to while it was free (`page_poison=1`). It was filled again.
    Damaged(Damage),
}

impl fmt::Display for RangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty(range) => write!(f, "{range:?} holds no frame"),
            Self::Place(_) => f.write_str("the range does not lie in one zone"),
            Self::Vacate(error) => error.fmt(f),
            Self::Damaged(damage) => damage.fmt(f),
        }
    }
}

impl core::error::Error for RangeError {}

/// A part of a range that is taken by itself: frames at one end, within a block, or all blocks
/// between.
#[derive(Clone, Copy)]
struct Part {
    pages: PfnRange,
    /// Whether its blocks are isolated still.
    isolated: bool,
    taken: bool,
}

impl<P: Platform> Moving<'_, P> {
    /// Allocates the frames of `range`, of any length and alignment, in one zone: what is in them
    /// is moved elsewhere first (Linux: `mm/page_alloc.c`, `alloc_contig_range`). Watermarks are
    /// not looked at. For free pages of pools others of their node come into the pool. The frames
    /// are freed like any others, in one piece or in parts.
    ///
    /// # Errors
    /// [`RangeError`], which names what is in the way.
    #[track_caller]
    pub fn allocate_range(self, range: PfnRange, budget: Budget) -> Result<PfnRange, RangeError> {
        self.take_range(range, &mut { budget })
    }

    /// [`allocate_range`](Self::allocate_range) that takes from the budget what it needed, so that
    /// the rest is for another place.
    #[track_caller]
    pub(in crate::manager) fn take_range(
        self,
        range: PfnRange,
        budget: &mut Budget,
    ) -> Result<PfnRange, RangeError> {
        let place = Location::caller();
        if range.is_empty() {
            return Err(RangeError::Empty(range));
        }
        // Also of frames between blocks that there are.
        let _ = self.manager.pieces(range).map_err(RangeError::Place)?;
        let failed = |error| RangeError::Vacate(VacateError::Isolate(error));
        self.manager.isolation().isolate(BlockRange::around(range)).map_err(failed)?;
        let mut parts = parts_of(range);
        let taken = self.vacate_isolated(range, budget, None).map_err(RangeError::Vacate).and_then(
            |moved| parts.iter_mut().try_for_each(|part| self.take_part(part, moved, place)),
        );
        for part in parts.iter().filter(|part| taken.is_err() && part.taken) {
            // Just taken, so that this cannot fail. Into an isolated block, where that is.
            let _ = self.manager.free_uncached(part.pages, place);
        }
        self.put_back_parts(&parts);
        taken.map(|()| range)
    }

    /// Puts the blocks back that are isolated still. Those that lie side by side go together: what
    /// cannot be divided may lie in two parts.
    fn put_back_parts(self, parts: &[Part; 3]) {
        let mut together: Option<BlockRange> = None;
        for part in parts.iter().filter(|part| !part.pages.is_empty()) {
            let blocks = BlockRange::around(part.pages);
            if part.isolated {
                let start = together.map_or(blocks.start, |before| before.start);
                together = Some(BlockRange { start, ..blocks });
            } else if let Some(before) = together.take() {
                self.put_back(before);
            }
        }
        if let Some(before) = together {
            self.put_back(before);
        }
    }

    /// Takes frames all of which were vacated, in blocks that are isolated.
    // Not once for each of three parts.
    #[inline(never)]
    fn take_part(self, part: &mut Part, moved: Vacated, place: Place) -> Result<(), RangeError> {
        if part.pages.is_empty() {
            return Ok(());
        }
        let blocks = BlockRange::around(part.pages);
        if part.pages.pages() != u64::from(blocks.blocks()) * PAGES_PER_BLOCK {
            part.isolated = self.take_edge(part.pages, moved, place)?;
        } else {
            self.manager.isolation().claim_for(blocks, place).map_err(|error| match error {
                IsolateError::InUse(left) => RangeError::Vacate(VacateError::InUse {
                    moved,
                    pages: left.in_use_pages + left.descriptor_pages + left.reserved_pages,
                }),
                IsolateError::Damaged(damage) => RangeError::Damaged(damage),
                error => RangeError::Vacate(VacateError::Isolate(error)),
            })?;
            part.isolated = false;
        }
        part.taken = true;
        Ok(())
    }

    /// Takes a part of one isolated block, all of which is free. Says whether the block is isolated
    /// still.
    fn take_edge(self, part: PfnRange, moved: Vacated, place: Place) -> Result<bool, RangeError> {
        let block = BlockNumber::containing(part.start);
        let around = BlockRange::around(part);
        let Piece { zone, segment, .. } = self
            .manager
            .pieces(part)
            .map_err(RangeError::Place)?
            .next()
            .ok_or(RangeError::Empty(part))?;
        let platform = self.manager.platform;
        let index = segment.index_of(block);
        let first = usize::try_from(part.start.0 % PAGES_PER_BLOCK).unwrap_or(0);
        let frames = first..first + usize::try_from(part.pages()).unwrap_or(0);
        // What others free meanwhile can make the block whole, once.
        for _ in 0..2 {
            if zone.take_isolated(platform, index, frames.clone()) {
                if self.manager.pressure.epoch.wants_attention()
                    && let Err(AllocateError::Damaged(damage)) =
                        self.manager.after_allocation(core::iter::once(part), false, place)
                {
                    return Err(RangeError::Damaged(damage));
                }
                return Ok(true);
            }
            match self.manager.isolation().claim_for(around, place) {
                Ok(all) => {
                    // What was not asked for goes back at once: the block is in circulation again.
                    let before = PfnRange { end: part.start, ..all };
                    let after = PfnRange { start: part.end, ..all };
                    for rest in [before, after].into_iter().filter(|rest| !rest.is_empty()) {
                        let _ = self.manager.free_uncached(rest, place);
                    }
                    return Ok(false);
                }
                Err(IsolateError::Damaged(damage)) => return Err(RangeError::Damaged(damage)),
                Err(_) => {}
            }
        }
        Err(RangeError::Vacate(match zone.occupied(platform, segment, index) {
            // What is free in it waits for descriptors.
            Occupied::Frames(frames) if offsets(&frames.in_use, part).next().is_none() => {
                let first = Obstacle { run: part, kind: ObstacleKind::Descriptors };
                VacateError::Obstacles { moved, obstacles: Obstacles { first, count: 1 } }
            }
            _ => VacateError::InUse { moved, pages: part.pages() },
        }))
    }
}

/// A range as what lies in its first block, in the blocks that it has all of, and in its last.
fn parts_of(range: PfnRange) -> [Part; 3] {
    let first = Pfn(range.start.0.next_multiple_of(PAGES_PER_BLOCK)).min(range.end);
    let last = Pfn(range.end.0 & !(PAGES_PER_BLOCK - 1)).max(first);
    [(range.start, first), (first, last), (last, range.end)].map(|(start, end)| Part {
        pages: PfnRange { start, end },
        isolated: true,
        taken: false,
    })
}
