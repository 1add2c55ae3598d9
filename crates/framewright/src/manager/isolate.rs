//! Isolation: taking blocks out of circulation, surveying what is still in use, putting blocks
//! back, and claiming them when all of their frames are free.
//!
//! Frames in the caches of CPUs count as allocated in their blocks. So the caches are emptied once
//! the blocks are marked, and from then on keep out of the isolated range: each keeps only the
//! larger part of its zone that lies wholly below or above all isolated blocks.

use crate::debug::Place;
use crate::manager::facets::Isolation;
use crate::manager::parts::Piece;
use crate::manager::state::isolations::kept;
use crate::page::CpuCache;
use crate::platform::Platform;
use crate::units::{PAGES_PER_BLOCK, Pfn, PfnRange};
use crate::vmemmap::SectionState;
use crate::vmemmap_space::{BLOCKS_PER_CALL, BlockNumber, BlockRange};
use crate::zone::{Change, Grade, IsolateError, IsolatedPages, Segment, Zone};
use core::ops::Range;
use core::panic::Location;

/// Blocks that are changed under one hold of a zone lock: 256 MiB, at 50 to 100 ns a block.
const BLOCKS_AT_ONCE: u32 = 128;
/// How often an isolation brings up memory of its range that others withhold again, until it gives
/// up.
const ROUNDS: u32 = 8;

/// Why blocks were not changed.
struct Failed {
    error: IsolateError,
    /// Blocks that could not be changed back, as others have changed them meanwhile.
    left_blocks: u64,
}

impl<'m, P: Platform> Isolation<'m, P> {
    /// Isolates blocks: once this returns nobody gets a page of them, and pages that are freed
    /// there stay. Returns the state of their pages at that moment; the owners of pages that are
    /// still in use can move or free them. Blocks of 4 MiB to 1 GiB that lie only partly in the
    /// range are divided, and perhaps also blocks of more than 256 MiB. Memory in use stays in use,
    /// but a divided block is no longer the run that
    /// [`References::start`](super::References::start) wants; a block with a reference count is not
    /// divided. The range must lie in one zone, without a hole of more than 128 MiB.
    ///
    /// Withheld memory ([`initialise_deferred`](super::Vmemmap::initialise_deferred)) in the range
    /// is brought up first, all of it by this call, even if the call then fails: withheld memory is
    /// handed out as soon as it comes up, so nothing else could keep it.
    ///
    /// Reserved blocks, and blocks that are not memory, are left alone: memory that is released or
    /// comes online there meanwhile is in circulation. An isolation has no owner: if somebody else
    /// isolates that memory, that isolation ends when either of the two puts it back.
    ///
    /// Frees into isolated blocks bypass the caches of CPUs, and as long as any block is isolated
    /// so do frees next to it. So isolate blocks for a while, not for ever.
    ///
    /// # Errors
    /// See [`IsolateError`]. Nothing has then changed.
    pub fn isolate(self, range: BlockRange) -> Result<IsolatedPages, IsolateError> {
        if !self.reaches_caches() {
            return Err(IsolateError::CannotWait);
        }
        let pages = self.pages_of_blocks(range)?;
        let mut rounds = 0;
        loop {
            rounds += 1;
            match self.isolate_at_once(range, pages) {
                // Memory that was brought up has gone back to the hypervisor meanwhile.
                Err(IsolateError::CannotWait)
                    if rounds < ROUNDS && self.manager.platform.can_wait() =>
                {
                    self.manager.platform.yield_now();
                }
                result => return result,
            }
        }
    }

    /// [`isolate`](Self::isolate), without another round where others withhold memory meanwhile.
    #[inline(never)]
    fn isolate_at_once(
        self,
        range: BlockRange,
        pages: PfnRange,
    ) -> Result<IsolatedPages, IsolateError> {
        for piece in self.pieces(pages) {
            self.bring_up_withheld(piece.zone, piece.range)?;
        }
        // Counted first, and as many as there can be: others may put the blocks back as soon as
        // they are isolated, and the count must never be less than the number of isolated blocks.
        let most = u64::from(range.blocks());
        self.count_in(pages, most);
        let changed = self.change_blocks(pages, Change::Isolate, Change::PutBack);
        // Blocks that could not be put back either were taken by others, who have counted them out,
        // so this call does not.
        let counted = match &changed {
            Ok(blocks) => *blocks,
            Err(failed) => failed.left_blocks,
        };
        if counted < most {
            self.forget(most - counted);
        }
        changed.map_err(|failed| failed.error)?;
        if !self.rehome_caches() {
            // The blocks that this call isolated are still isolated.
            let _ = self.unisolate(range);
            return Err(IsolateError::CannotWait);
        }
        Ok(self.survey_blocks(pages))
    }

    /// Puts isolated blocks back into circulation: their free frames, and those freed later. A part
    /// of an isolated range may be put back alone.
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
                // Some blocks may have been in circulation for a moment.
                self.forget(failed.left_blocks);
                self.rehome_if_possible();
                Err(failed.error)
            }
        }
    }

    /// Puts back those of the blocks that are isolated. Use it where
    /// [`unisolate`](Self::unisolate) fails because some are not: memory came online or was
    /// released in the range after it was isolated.
    ///
    /// # Errors
    /// [`IsolateError::Empty`], [`IsolateError::Place`].
    pub fn unisolate_rest(self, range: BlockRange) -> Result<(), IsolateError> {
        self.pages_of_blocks(range).map(|_| self.put_back_rest(range))
    }

    /// [`unisolate_rest`](Self::unisolate_rest) without a check of the range.
    pub(super) fn put_back_rest(self, range: BlockRange) {
        let pages = PfnRange { start: range.start.start(), end: range.end.start() };
        let blocks = u64::from(range.blocks());
        self.forget(blocks - self.undo(pages, Change::PutBack, blocks));
    }

    /// [`survey`](Self::survey) of blocks of which all are still isolated: it is an error if memory
    /// among them is in circulation, because it came online or was released meanwhile.
    pub(super) fn survey_isolated(self, range: BlockRange) -> Result<IsolatedPages, IsolateError> {
        let pages = PfnRange { start: range.start.start(), end: range.end.start() };
        self.check_blocks(pages, Change::PutBack)?;
        Ok(self.survey_blocks(pages))
    }

    /// The state of the pages of blocks, such as how many pages of isolated blocks are still in
    /// use. Blocks that are not isolated can be surveyed, too.
    ///
    /// # Errors
    /// [`IsolateError::Empty`], [`IsolateError::Place`].
    pub fn survey(self, range: BlockRange) -> Result<IsolatedPages, IsolateError> {
        Ok(self.survey_blocks(self.pages_of_blocks(range)?))
    }

    /// Claims isolated blocks when all of their frames are free. They become the caller's as if
    /// allocated, in one run of frames of any length, and are no longer isolated. Free them as a
    /// whole or in parts.
    ///
    /// # Errors
    /// See [`IsolateError`]. Nothing has then changed.
    #[track_caller]
    pub fn claim(self, range: BlockRange) -> Result<PfnRange, IsolateError> {
        self.claim_for(range, Location::caller())
    }

    /// [`claim`](Self::claim) for a caller at `place`.
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
                // Blocks are checked a few at a time, and none beyond the first in use, so survey
                // them all here.
                IsolateError::InUse(_) => IsolateError::InUse(self.survey_blocks(pages)),
                error => error,
            }
        })?;
        let looked = if self.manager.pressure.epoch.wants_attention() {
            // Not before: others may claim isolated memory, or put it back, and use it.
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

    /// Gives isolated blocks a grade, if they hold nothing that is known to be unmovable. The error
    /// names the block in the way. Returns a block of memory that does not have the grade, if there
    /// is one: others have put it back, or it has become memory meanwhile.
    pub(super) fn regrade(self, range: BlockRange, grade: Grade) -> Result<Option<Pfn>, Pfn> {
        let platform = self.manager.platform;
        let pages = PfnRange { start: range.start.start(), end: range.end.start() };
        if grade != Grade::Any {
            self.check_regrade(range)?;
        }
        let mut missed = None;
        self.each_slice(pages, &mut |Slice { zone, segment, indices }| {
            if let Some(index) = zone.regrade(platform, indices, grade) {
                missed = Some(segment.block_of(index).start());
            }
            true
        });
        Ok(missed)
    }

    /// Checks that isolated blocks hold nothing that is known to be unmovable. The error names the
    /// block in the way.
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

    /// Returns the first block that can never have a grade, with the blocks of the same head that
    /// follow it. Changes nothing to find out: isolation divides blocks that lie only partly in a
    /// range, and huge pages kept since bring-up have to stay whole.
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

    /// Brings up withheld memory among `pages`, and waits for sections that others are bringing up.
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
            // Others are accepting the memory, and this call cannot wait for them.
            return Err(IsolateError::CannotWait);
        }
        Ok(())
    }

    /// Checks whether all blocks could be changed at this moment.
    #[inline(never)]
    fn check_blocks(self, pages: PfnRange, change: Change) -> Result<(), IsolateError> {
        let mut result = Ok(());
        self.each_slice(pages, &mut |Slice { zone, segment, indices }| {
            result = zone.check_change(self.manager.platform, segment, &indices, change);
            result.is_ok()
        });
        result
    }

    /// Changes all blocks, some at a time. If one cannot be changed, those before it are changed
    /// back.
    fn change_blocks(self, pages: PfnRange, change: Change, undo: Change) -> Result<u64, Failed> {
        let platform = self.manager.platform;
        // Checked before, as others may take blocks at once when they are put back.
        self.check_blocks(pages, change).map_err(|error| Failed { error, left_blocks: 0 })?;
        let mut failed = None;
        let (mut blocks, mut done) = (0, PfnRange { end: pages.start, ..pages });
        self.each_slice(pages, &mut |Slice { zone, segment, indices }| {
            let end = segment.block_of(indices.end).start();
            let changed = zone.change(platform, segment, indices, change);
            // Memory that comes back into circulation is free to requests that were refused.
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

    /// Changes `blocks` blocks back. Returns how many could not be. Blocks that others isolated
    /// meanwhile are put back as well, and blocks that became memory are isolated as well; they are
    /// counted here.
    #[cold]
    #[inline(never)]
    fn undo(self, done: PfnRange, change: Change, blocks: u64) -> u64 {
        let platform = self.manager.platform;
        let mut all_undone = 0;
        let most = if change == Change::Isolate { done.pages() / PAGES_PER_BLOCK } else { 0 };
        if most != 0 {
            self.count_in(done, most);
        }
        // Heads may have been split or merged since, so the range is sliced anew, as far as the
        // change came, and perhaps into another number of slices.
        self.each_slice(done, &mut |Slice { zone, segment, indices }| {
            // This fails only where others change these blocks at the same time, or memory came
            // into them. Then the rest of the slice is changed back head by head.
            let mut undo = |indices| {
                let undone = zone.change(platform, segment, indices, change);
                all_undone += undone.as_ref().unwrap_or(&0);
                undone.is_ok()
            };
            if !undo(indices.clone()) {
                let mut index = indices.start;
                while index < indices.end {
                    // A head that cannot be divided counts as one.
                    let end = zone.slice_end(platform, index, 1);
                    if change == Change::Isolate && end > indices.end {
                        // Others have made this a part of something larger, so it stays theirs.
                        break;
                    }
                    if !undo(index..end) && change == Change::Unclaim {
                        // Others have isolated it while it was in use, so once freed it is free and
                        // isolated.
                        let [start, end] = [index, end].map(|at| segment.block_of(at).start());
                        let _ = self.manager.free_bare(PfnRange { start, end });
                    }
                    index = end;
                }
            }
            self.manager.pressure.epoch.note_free();
            true
        });
        let surplus = all_undone.saturating_sub(blocks);
        match change {
            Change::PutBack if surplus != 0 => self.forget(surplus),
            Change::Isolate if surplus < most => self.forget(most - surplus),
            _ => {}
        }
        blocks.saturating_sub(all_undone)
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

    /// Counts in `blocks` blocks among `pages` that are about to be isolated.
    fn count_in(self, pages: PfnRange, blocks: u64) {
        let mut isolations = self.manager.isolations.lock(self.manager.platform);
        let hull = isolations.hull;
        isolations.hull = if isolations.blocks == 0 {
            pages
        } else {
            PfnRange { start: hull.start.min(pages.start), end: hull.end.max(pages.end) }
        };
        isolations.blocks += blocks;
    }

    /// Counts `blocks` isolated blocks out. With the last one the caches may keep all of their zone
    /// again, if they can be reached from here.
    pub(super) fn forget(self, blocks: u64) {
        if self.uncount(blocks) {
            self.rehome_if_possible();
        }
    }

    /// [`forget`](Self::forget) for callers that cannot wait for CPUs. The caches keep their
    /// present ranges until the next isolation ends. Returns whether no block is isolated any more.
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

    /// Whether the caches of all CPUs can be emptied from here.
    fn reaches_caches(self) -> bool {
        let platform = self.manager.platform;
        platform.cpus() == 1 || !self.manager.moving.is_up || platform.can_wait()
    }

    /// Empties the caches and sets which frames they keep from now on. False when that is not
    /// possible from here.
    fn rehome_caches(self) -> bool {
        self.with_caches(&mut |cache| {
            let hull = self.manager.isolations.lock(self.manager.platform).hull;
            cache.keep_only(|near| kept(near, hull));
            // A bad frame in a cache is its user's mistake and does not matter here; all others go
            // back.
            let _ = self.manager.drain_cache(cache);
            self.manager.pressure.epoch.note_free();
        })
    }

    /// Calls `body` for each CPU's cache with exclusive access to it. False when that is not
    /// possible from here.
    pub(super) fn with_caches(self, body: &mut dyn FnMut(&CpuCache)) -> bool {
        // Without the feature nothing is in any cache.
        if !cfg!(feature = "smp") {
            return true;
        }
        // Until bring-up ends, no other CPU knows of the manager.
        if self.manager.platform.cpus() == 1 || !self.manager.moving.is_up {
            return self.manager.inside(|cache| body(cache)).is_some();
        }
        let platform = self.manager.platform;
        self.manager.with_all_caches(&mut |cache| cache.ownership.alone(platform, || body(cache)));
        true
    }

    /// The frames of blocks, which must all be of one zone.
    fn pages_of_blocks(self, range: BlockRange) -> Result<PfnRange, IsolateError> {
        if range.blocks() == 0 {
            return Err(IsolateError::Empty(range));
        }
        let pages = PfnRange { start: range.start.start(), end: range.end.start() };
        self.manager.pieces(pages).map(|_| pages).map_err(IsolateError::Place)
    }

    /// Splits frames of one zone by the parts of the zone that they lie in.
    fn pieces(self, pages: PfnRange) -> impl Iterator<Item = Piece> + use<'m, P> {
        self.manager.pieces(pages).into_iter().flatten()
    }

    /// Calls `visit` for one slice after the other, as long as it returns true. A slice is what is
    /// changed under one hold of a lock; a part of a range is cut as the whole range is. Compiled
    /// once for all callers.
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

/// Blocks of one part of a zone that are changed together, under one hold of its lock.
struct Slice {
    zone: &'static Zone,
    segment: &'static Segment,
    indices: Range<u32>,
}
