//! Takes exactly the frames that the caller names, whatever is in them.
//!
//! The blocks around the range are isolated, the contents of the range are moved away, and the
//! frames are taken: whole blocks by a claim, parts of a block from its free map. Frames of the
//! same blocks outside the range stay as they are.

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

/// Why a range was not taken. The caller owns nothing of it, and nothing is isolated; memory that
/// was moved stays in its new place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RangeError {
    /// There is no frame in this range.
    Empty(PfnRange),
    /// Not all of the range is memory of one zone.
    Place(FreeError),
    /// The range could not be vacated.
    Vacate(VacateError),
    /// The memory had been written to while it was free (`page_poison=1`). It was poisoned again.
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

/// A part of a range that is taken by itself: the frames in a partial block at one end, or all
/// whole blocks in between.
#[derive(Clone, Copy)]
struct Part {
    pages: PfnRange,
    /// Whether its blocks are still isolated.
    isolated: bool,
    taken: bool,
}

impl<P: Platform> Moving<'_, P> {
    /// Allocates the frames of `range`, of any length and alignment, in one zone. Their contents
    /// are moved elsewhere first (Linux: `mm/page_alloc.c`, `alloc_contig_range`). Watermarks do
    /// not matter. Free pages of pools in the range are replaced by other pages of their node. The
    /// frames are freed like any others, in one piece or in parts.
    ///
    /// # Errors
    /// [`RangeError`], which names the obstacle.
    #[track_caller]
    pub fn allocate_range(self, range: PfnRange, budget: Budget) -> Result<PfnRange, RangeError> {
        self.take_range(range, &mut { budget })
    }

    /// Does [`allocate_range`](Self::allocate_range) and subtracts what it used from the budget, so
    /// that the rest is left for another place.
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
        // This also checks the frames in gaps between existing blocks.
        let _ = self.manager.pieces(range).map_err(RangeError::Place)?;
        let failed = |error| RangeError::Vacate(VacateError::Isolate(error));
        self.manager.isolation().isolate(BlockRange::around(range)).map_err(failed)?;
        let mut parts = parts_of(range);
        let taken = self.vacate_isolated(range, budget, None).map_err(RangeError::Vacate).and_then(
            |moved| parts.iter_mut().try_for_each(|part| self.take_part(part, moved, place)),
        );
        for part in parts.iter().filter(|part| taken.is_err() && part.taken) {
            // This cannot fail, as the frames were just taken. They go into a block that may still
            // be isolated.
            let _ = self.manager.free_uncached(part.pages, place);
        }
        self.put_back_parts(&parts);
        taken.map(|()| range)
    }

    /// Puts back the blocks that are still isolated. Neighbouring blocks go together, because an
    /// indivisible page may lie in two parts.
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

    /// Takes frames that are all vacated, in isolated blocks.
    // Not inlined, as it would be three times.
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

    /// Takes a part of one isolated block; all of the part is free. Returns whether the block is
    /// still isolated.
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
        // Concurrent frees can make the block whole, but only once.
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
                    // The rest of the block goes back at once: the block is in circulation again.
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
            // The free frames of the block wait for descriptors.
            Occupied::Frames(frames) if offsets(&frames.in_use, part).next().is_none() => {
                let first = Obstacle { run: part, kind: ObstacleKind::Descriptors };
                VacateError::Obstacles { moved, obstacles: Obstacles { first, count: 1 } }
            }
            _ => VacateError::InUse { moved, pages: part.pages() },
        }))
    }
}

/// Divides a range into its part in the first block, the blocks that it covers wholly, and its part
/// in the last block.
fn parts_of(range: PfnRange) -> [Part; 3] {
    let first = Pfn(range.start.0.next_multiple_of(PAGES_PER_BLOCK)).min(range.end);
    let last = Pfn(range.end.0 & !(PAGES_PER_BLOCK - 1)).max(first);
    [(range.start, first), (first, last), (last, range.end)].map(|(start, end)| Part {
        pages: PfnRange { start, end },
        isolated: true,
        taken: false,
    })
}
