//! Blocks out of circulation: isolating them, looking what is still in use, putting them back,
//! claiming them when all of them is free.
//!
//! Frames in the caches of CPUs are counted in no block, so caches are emptied once the blocks
//! are marked, and from then on keep out of the isolated range: what they keep is the larger part
//! of their zone that lies wholly below or above all isolated blocks.

use crate::debug::Place;
use crate::manager::facets::Isolation;
use crate::manager::parts::Piece;
use crate::manager::state::isolations::kept;
use crate::page::CpuCache;
use crate::platform::Platform;
use crate::units::{Pfn, PfnRange};
use crate::vmemmap::SectionState;
use crate::vmemmap_space::{BLOCKS_PER_CALL, BlockNumber, BlockRange};
use crate::zone::{Change, Grade, IsolateError, IsolatedPages, Segment, Zone};
use core::ops::Range;
use core::panic::Location;

/// Blocks that are changed under one hold of a zone lock: 256 MiB, 50 to 100 ns each.
const BLOCKS_AT_ONCE: u32 = 128;

/// Why blocks were not changed.
struct Failed {
    error: IsolateError,
    /// Those that others have changed meanwhile, so that they could not be changed back.
    left_blocks: u64,
}

impl<'m, P: Platform> Isolation<'m, P> {
    /// Isolates blocks: from when this returns nobody gets a page of them, and what is freed of
    /// them stays. Says what their pages are at that moment; what is in use then can be moved or
    /// freed by whoever has it. Blocks of 4 MiB to 1 GiB that only have a part in the range are
    /// divided, and perhaps those of more than 256 MiB. What is in use stays so, and is no longer
    /// the run that [`References::start`](super::References::start) wants, but what has a count is
    /// not divided. The range lies in one zone, without a hole of more than 128 MiB.
    ///
    /// Memory among them that is withheld
    /// ([`initialise_deferred`](super::Vmemmap::initialise_deferred)) comes up first, all of it
    /// here, and does so also where the call then fails: what is withheld is handed out when it
    /// comes up, so nothing else would keep it.
    ///
    /// Reserved blocks, and those that are no memory, are left alone: what is released there or
    /// comes online meanwhile is in circulation.
    ///
    /// Frees into isolated blocks do not go through the caches of CPUs, and as long as any block is
    /// isolated, neither do frees next to it, so that this is for a while, not for ever.
    ///
    /// # Errors
    /// See [`IsolateError`]. Nothing has then changed.
    pub fn isolate(self, range: BlockRange) -> Result<IsolatedPages, IsolateError> {
        if !self.reaches_caches() {
            return Err(IsolateError::CannotWait);
        }
        let pages = self.pages_of_blocks(range)?;
        for piece in self.pieces(pages) {
            self.bring_up_withheld(piece.zone, piece.range)?;
        }
        // Counted first, and as many as it can be: others may put them back as soon as they are
        // isolated, and what is counted must never be less than what is isolated.
        let most = u64::from(range.blocks());
        {
            let mut isolations = self.manager.isolations.lock(self.manager.platform);
            let hull = isolations.hull;
            isolations.hull = if isolations.blocks == 0 {
                pages
            } else {
                PfnRange { start: hull.start.min(pages.start), end: hull.end.max(pages.end) }
            };
            isolations.blocks += most;
        }
        let changed = self.change_blocks(pages, Change::Isolate, Change::PutBack);
        // What could not be put back either is lost, and was counted out by whoever lost it.
        let counted = match &changed {
            Ok(blocks) => *blocks,
            Err(failed) => failed.left_blocks,
        };
        if counted < most {
            self.forget(most - counted);
        }
        changed.map_err(|failed| failed.error)?;
        if !self.rehome_caches() {
            // What was isolated by this call is so still.
            let _ = self.unisolate(range);
            return Err(IsolateError::CannotWait);
        }
        Ok(self.survey_blocks(pages))
    }

    /// Puts isolated blocks back into circulation, what is free of them and what will be. A part of
    /// what was isolated may be put back alone.
    ///
    /// # Errors
    /// See [`IsolateError`]. Nothing has then changed.
    pub fn unisolate(self, range: BlockRange) -> Result<(), IsolateError> {
        let pages = self.pages_of_blocks(range)?;
        match self.change_blocks(pages, Change::PutBack, Change::Isolate) {
            Ok(blocks) => {
                self.forget(blocks);
                Ok(())
            }
            Err(failed) => {
                // Some may have been in circulation for a moment.
                self.forget(failed.left_blocks);
                self.rehome_if_possible();
                Err(failed.error)
            }
        }
    }

    /// Puts back what is isolated of blocks, of which others have changed some.
    #[cold]
    pub(super) fn unisolate_rest(self, range: BlockRange) {
        let pages = PfnRange { start: range.start.start(), end: range.end.start() };
        let blocks = u64::from(range.blocks());
        self.forget(blocks - self.undo(pages, Change::PutBack, blocks));
    }

    /// What the pages of blocks are: how many are in use still, of isolated ones. Other blocks can
    /// be looked at, too.
    ///
    /// # Errors
    /// [`IsolateError::Empty`], [`IsolateError::Place`].
    pub fn survey(self, range: BlockRange) -> Result<IsolatedPages, IsolateError> {
        Ok(self.survey_blocks(self.pages_of_blocks(range)?))
    }

    /// Takes isolated blocks, when all of them is free: they are the caller's, as if allocated, in
    /// one run of frames of any length, and are isolated no more. Free them as a whole or in parts.
    ///
    /// # Errors
    /// See [`IsolateError`]. Nothing has then changed.
    #[track_caller]
    pub fn claim(self, range: BlockRange) -> Result<PfnRange, IsolateError> {
        self.claim_for(range, Location::caller())
    }

    /// [`claim`](Self::claim) for somebody who called from `place`.
    pub(super) fn claim_for(
        self,
        range: BlockRange,
        place: Place,
    ) -> Result<PfnRange, IsolateError> {
        let pages = self.pages_of_blocks(range)?;
        let claimed = self.change_blocks(pages, Change::Claim, Change::Unclaim);
        let blocks = claimed.map_err(|failed| {
            self.forget(failed.left_blocks);
            match failed.error {
                // Some blocks at a time were looked at, and none behind those that are in use.
                IsolateError::InUse(_) => IsolateError::InUse(self.survey_blocks(pages)),
                error => error,
            }
        })?;
        let looked = if self.manager.pressure.epoch.wants_attention() {
            // Not before: what is isolated others may claim or put back, and use.
            self.manager.look_at_claimed(pages, place)
        } else {
            Ok(())
        };
        let left = match looked {
            Ok(()) => blocks,
            Err(_) => self.undo(pages, Change::Unclaim, blocks),
        };
        self.forget(left);
        looked.map(|()| pages).map_err(IsolateError::Damaged)
    }

    /// Gives isolated blocks a grade, if nothing in them is known not to move; else says which
    /// block is in the way.
    pub(super) fn regrade(self, range: BlockRange, grade: Grade) -> Result<(), Pfn> {
        let platform = self.manager.platform;
        let pages = PfnRange { start: range.start.start(), end: range.end.start() };
        if grade != Grade::Any {
            self.check_regrade(range)?;
        }
        self.each_slice(pages, &mut |Slice { zone, indices, .. }| {
            zone.regrade(platform, indices, grade);
            true
        });
        Ok(())
    }

    /// Whether nothing in isolated blocks is known not to move; else the block.
    #[inline(never)]
    pub(super) fn check_regrade(self, range: BlockRange) -> Result<(), Pfn> {
        let pages = PfnRange { start: range.start.start(), end: range.end.start() };
        let mut in_the_way = None;
        self.each_slice(pages, &mut |Slice { zone, segment, indices }| {
            let found = zone.check_regrade(self.manager.platform, indices).err();
            in_the_way = found.map(|index| segment.block_of(index).start());
            in_the_way.is_none()
        });
        in_the_way.map_or(Ok(()), Err)
    }

    /// The first of blocks that can have no grade, whatever is done with them, and those after it
    /// that are of the same head. Nothing is changed to find out: isolating divides what only has a
    /// part in a range, and huge pages that are kept from bring-up on are to stay whole.
    pub(super) fn without_grade(self, range: BlockRange) -> Option<BlockRange> {
        let pages = PfnRange { start: range.start.start(), end: range.end.start() };
        let mut first = None;
        self.each_slice(pages, &mut |Slice { zone, segment, indices }| {
            first = zone.without_grade(self.manager.platform, indices).map(|found| {
                let start = segment.block_of(found.start);
                BlockRange { start, end: BlockNumber(start.0 + (found.end - found.start)) }
            });
            first.is_none()
        });
        first
    }

    /// Brings up what is withheld among `pages`. What others are busy with is waited for.
    pub(super) fn bring_up_withheld(
        self,
        zone: &Zone,
        pages: PfnRange,
    ) -> Result<(), IsolateError> {
        if !zone.has_withheld() {
            return Ok(());
        }
        self.manager.grow_at(zone, pages);
        let (start, last) =
            (BlockNumber::containing(pages.start), BlockNumber::containing(Pfn(pages.end.0 - 1)));
        for section in start.0 / BLOCKS_PER_CALL..=last.0 / BLOCKS_PER_CALL {
            while zone.section_state(section) != SectionState::Done {
                if !self.manager.platform.can_wait() {
                    return Err(IsolateError::CannotWait);
                }
                self.manager.platform.relax();
            }
        }
        if self.manager.has_unaccepted(zone, pages) {
            // Others accept it, and cannot be waited for.
            return Err(IsolateError::CannotWait);
        }
        Ok(())
    }

    /// Whether all blocks could be changed at this moment.
    #[inline(never)]
    fn check_blocks(self, pages: PfnRange, change: Change) -> Result<(), IsolateError> {
        let mut result = Ok(());
        self.each_slice(pages, &mut |Slice { zone, segment, indices }| {
            result = zone.check_change(self.manager.platform, segment, &indices, change);
            result.is_ok()
        });
        result
    }

    /// Changes all blocks, some at a time; what was changed before one could not is changed back.
    fn change_blocks(self, pages: PfnRange, change: Change, undo: Change) -> Result<u64, Failed> {
        let platform = self.manager.platform;
        // What was put back may be taken by others at once, so it is looked at before.
        self.check_blocks(pages, change).map_err(|error| Failed { error, left_blocks: 0 })?;
        let mut failed = None;
        let (mut blocks, mut done) = (0, PfnRange { end: pages.start, ..pages });
        self.each_slice(pages, &mut |Slice { zone, segment, indices }| {
            let end = segment.block_of(indices.end).start();
            let changed = zone.change(platform, segment, indices, change);
            // What comes back into circulation is free to those who were refused.
            self.manager.pressure.epoch.note_free();
            match changed {
                Ok(changed) => (blocks, done.end) = (blocks + changed, end),
                Err(error) => failed = Some(error),
            }
            failed.is_none()
        });
        let Some(error) = failed else { return Ok(blocks) };
        Err(Failed { error, left_blocks: self.undo(done, undo, blocks) })
    }

    /// Changes back what was changed, so many blocks; how many could not be.
    #[cold]
    #[inline(never)]
    fn undo(self, done: PfnRange, change: Change, mut blocks: u64) -> u64 {
        let platform = self.manager.platform;
        // What was one head may be in pieces by now, and the other way round: it is cut anew, as
        // far as the change came, and not in as many slices.
        self.each_slice(done, &mut |Slice { zone, segment, indices }| {
            // Fails only where somebody else changes these blocks at the same time, or memory came
            // into them: then all of the others are changed back.
            let mut undo = |indices| {
                let undone = zone.change(platform, segment, indices, change);
                blocks = blocks.saturating_sub(*undone.as_ref().unwrap_or(&0));
                undone.is_ok()
            };
            if !undo(indices.clone()) {
                let mut index = indices.start;
                while index < indices.end {
                    // What cannot be divided is one.
                    let end = zone.slice_end(platform, index, 1);
                    if !undo(index..end) && change == Change::Unclaim {
                        // Others have isolated it, in use: so it is once it is free.
                        let [start, end] = [index, end].map(|at| segment.block_of(at).start());
                        let _ = self.manager.free_bare(PfnRange { start, end });
                    }
                    index = end;
                }
            }
            self.manager.pressure.epoch.note_free();
            true
        });
        blocks
    }

    #[inline(never)]
    fn survey_blocks(self, pages: PfnRange) -> IsolatedPages {
        let mut found = IsolatedPages::default();
        self.each_slice(pages, &mut |Slice { zone, indices, .. }| {
            found += zone.survey(self.manager.platform, &indices);
            true
        });
        found
    }

    /// So many blocks less are isolated. With the last, caches keep all of their zone again, if
    /// they can be reached from here.
    pub(super) fn forget(self, blocks: u64) {
        if self.uncount(blocks) {
            self.rehome_if_possible();
        }
    }

    /// [`forget`](Self::forget) for those who cannot wait for CPUs, whose caches keep what they do
    /// until the next isolation ends. Whether none is isolated any more.
    pub(super) fn uncount(self, blocks: u64) -> bool {
        let mut isolations = self.manager.isolations.lock(self.manager.platform);
        isolations.blocks = isolations.blocks.saturating_sub(blocks);
        let none = isolations.blocks == 0;
        if none {
            isolations.hull = PfnRange::new(0, 0);
        }
        none
    }

    fn rehome_if_possible(self) {
        if self.reaches_caches() {
            self.rehome_caches();
        }
    }

    /// Whether the caches of all CPUs that have any can be emptied from here.
    fn reaches_caches(self) -> bool {
        let platform = self.manager.platform;
        platform.cpus() == 1 || !self.manager.moving.is_up || platform.can_wait()
    }

    /// Empties the caches and tells them what they keep from now on; false when that is not
    /// possible from here.
    fn rehome_caches(self) -> bool {
        self.with_caches(&mut |cache| {
            let hull = self.manager.isolations.lock(self.manager.platform).hull;
            cache.keep_only(|near| kept(near, hull));
            // What is wrong in a cache is its user's fault and does not matter here; all else goes
            // back.
            let _ = self.manager.drain_cache(cache);
            self.manager.pressure.epoch.note_free();
        })
    }

    /// Calls `body` for each CPU's cache while it is ours; false when that is not possible from
    /// here.
    pub(super) fn with_caches(self, body: &mut dyn FnMut(&CpuCache)) -> bool {
        // Then nothing is in any.
        if !cfg!(feature = "smp") {
            return true;
        }
        // Until bring-up ends no other CPU knows of the manager.
        if self.manager.platform.cpus() == 1 || !self.manager.moving.is_up {
            return self.manager.inside(|cache| body(cache)).is_some();
        }
        let platform = self.manager.platform;
        self.manager.with_all_caches(&mut |cache| cache.ownership.alone(platform, || body(cache)));
        true
    }

    /// The frames of blocks that are all of one zone.
    fn pages_of_blocks(self, range: BlockRange) -> Result<PfnRange, IsolateError> {
        if range.blocks() == 0 {
            return Err(IsolateError::Empty(range));
        }
        let pages = PfnRange { start: range.start.start(), end: range.end.start() };
        self.manager.pieces(pages).map(|_| pages).map_err(IsolateError::Place)
    }

    /// What of frames that are all of one zone is in which of its parts.
    fn pieces(self, pages: PfnRange) -> impl Iterator<Item = Piece> + use<'m, P> {
        self.manager.pieces(pages).into_iter().flatten()
    }

    /// Calls `visit` for as much as is changed under one hold of a lock, one after the other, as
    /// long as it says so: a part of a range is cut as all of it is. In one copy for all.
    #[inline(never)]
    fn each_slice(self, pages: PfnRange, visit: &mut dyn FnMut(Slice) -> bool) {
        for Piece { zone, segment, range } in self.pieces(pages) {
            let mut from = segment.index_of(BlockNumber::containing(range.start));
            let end = segment.index_of(BlockNumber::containing(Pfn(range.end.0 - 1))) + 1;
            while from < end {
                let next = zone.slice_end(self.manager.platform, from, BLOCKS_AT_ONCE).min(end);
                let goes_on = visit(Slice { zone, segment, indices: from..next });
                if !goes_on {
                    return;
                }
                from = next;
            }
        }
    }
}

/// Blocks of one part of a zone that are changed together.
struct Slice {
    zone: &'static Zone,
    segment: &'static Segment,
    indices: Range<u32>,
}
