//! Gives back the memory map of blocks that are allocated whole, and restores it (Linux:
//! `mm/hugetlb_vmemmap.c`).
//!
//! A batch goes through five steps: descriptors are taken out of use, mappings are prepared, one
//! TLB flush, the parts of the array are made absent, one TLB flush; then their frames are free. To
//! free such a block later, none of this has to be undone: when the block is split, it gets its
//! descriptors inside, so freeing neither fails nor flushes.

use crate::block::MigrateType;
use crate::manager::facets::Vmemmap;
use crate::manager::request::Request;
use crate::manager::state::Manager;
use crate::manager::state::vmemmap::{VmemmapChange, VmemmapError};
use crate::platform::Platform;
use crate::units::{Order, PAGES_PER_BLOCK, Pfn, PfnRange};
use crate::vmemmap_space::{
    BLOCKS_PER_CALL, BlockNumber, BlockRange, FrameSource, OutOfFrames, Unflushed, VmemmapSpace,
};
use crate::zone::Zone;

/// How many pieces a batch has, each in one section.
const BATCH: usize = 64;

/// Frames for page tables and for parts of the array, from the manager itself.
pub(crate) struct OwnFrames<'a, P: Platform> {
    pub(crate) manager: &'a Manager<P>,
    pub(crate) near: &'a Zone,
    pub(crate) taken_pages: u64,
}

// SAFETY: the manager allocates memory as the platform describes it, which is nobody else's until
// it is freed (invariants 1 and 42).
unsafe impl<P: Platform> FrameSource for OwnFrames<'_, P> {
    fn take(&mut self, order: Order) -> Option<Pfn> {
        let node = crate::memblock::NodeChoice::Preferred(self.near.id().node);
        // Page tables must be reachable through the direct map.
        let request = Request {
            node,
            migrate_type: MigrateType::Unmovable,
            max_address: self.manager.platform.direct_limit(),
            fail_fast: true,
            ..Request::new(order)
        };
        let taken = self.manager.allocate_bare(&request).ok()?;
        // The content will be different when the frames go back.
        self.manager.forget_content(taken);
        self.taken_pages += taken.pages();
        Some(taken.start)
    }

    unsafe fn put_back(&mut self, start: Pfn, order: Order) {
        // This cannot fail, as the frames were just allocated.
        let _ = self.manager.free_bare(PfnRange::of_order(start, order));
        self.taken_pages -= order.pages();
    }
}

/// A piece of one section, and its zone.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) zone: &'static Zone,
    pub(crate) blocks: BlockRange,
}

impl Piece {
    const fn section(&self) -> u32 {
        self.blocks.start.0 / BLOCKS_PER_CALL
    }
}

impl<P: Platform> Vmemmap<'_, P> {
    /// Gives back the memory map of those blocks in `runs` that are allocated whole or in a pool,
    /// and that the array describes; other blocks are left alone and cost no TLB flush. The caller
    /// owns the blocks. Their frames of the array are free when this returns, except frames that
    /// were never managed: those of sections that bring-up populated in pieces because the rest of
    /// the section has no map. A batch of up to 64 sections needs two flushes, or one if nothing
    /// had to be split.
    ///
    /// Process context: waits for other CPUs.
    ///
    /// # Errors
    /// See [`VmemmapError`]. A block stays as it was, and is counted, if no page table could be
    /// allocated for its mapping.
    ///
    /// # Safety
    /// See [*Owning memory*](crate::manager#owning-memory): the caller owns these blocks until this
    /// returns, and no reference to any of their descriptors is used any more.
    pub unsafe fn optimize(self, runs: &[PfnRange]) -> Result<VmemmapChange, VmemmapError> {
        self.in_batches(runs, Zone::unpublish, Self::evict_batch)
    }

    /// Makes the memory map of those blocks in `runs` present again that are allocated whole or in
    /// a pool, and that the array should describe but does not. The caller owns the blocks. When
    /// frames run out, up to 64 sections are passed by before it tries again; what was done until
    /// then stays.
    ///
    /// Process context: waits for other CPUs.
    ///
    /// # Errors
    /// See [`VmemmapError`].
    ///
    /// # Safety
    /// See [*Owning memory*](crate::manager#owning-memory): the caller owns these blocks until this
    /// returns.
    pub unsafe fn restore(self, runs: &[PfnRange]) -> Result<VmemmapChange, VmemmapError> {
        self.in_batches(runs, Zone::unpublished, Self::populate_batch)
    }

    /// Changes the pieces that `find` finds in `runs`, in batches of up to 64.
    fn in_batches(
        self,
        runs: &[PfnRange],
        find: impl Fn(&Zone, &'static P, BlockRange) -> Option<BlockRange>,
        change: impl Fn(Self, &dyn VmemmapSpace, &mut Batch) -> VmemmapChange,
    ) -> Result<VmemmapChange, VmemmapError> {
        let space = self.space_to_change()?;
        let mut total = VmemmapChange::default();
        let mut batch = Batch::new();
        self.for_each_piece(runs, find, &mut |piece| {
            if batch.push(piece) {
                total += change(self, space, &mut batch);
            }
        })?;
        total += change(self, space, &mut batch);
        Ok(total)
    }

    pub(crate) fn space_to_change(self) -> Result<&'static dyn VmemmapSpace, VmemmapError> {
        let space = self
            .manager
            .platform
            .vmemmap_space()
            .filter(|_| self.manager.vmemmap.is_array())
            .ok_or(VmemmapError::NoArray)?;
        if self.manager.platform.can_wait() { Ok(space) } else { Err(VmemmapError::CannotWait) }
    }

    /// Calls `each` with the pieces that `find` finds in `runs`; each piece lies in one section.
    fn for_each_piece(
        self,
        runs: &[PfnRange],
        find: impl Fn(&Zone, &'static P, BlockRange) -> Option<BlockRange>,
        each: &mut dyn FnMut(Piece),
    ) -> Result<(), VmemmapError> {
        // Check all runs before anything changes.
        for run in runs.iter().filter(|run| !run.is_empty()) {
            let pieces = self.manager.pieces(*run).map(drop);
            pieces.map_err(|_| VmemmapError::NotManaged(run.start))?;
        }
        for run in runs.iter().filter(|run| !run.is_empty()) {
            for part in self.manager.pieces(*run).into_iter().flatten() {
                let (zone, run) = (part.zone, part.range);
                let next = run.start.0.div_ceil(PAGES_PER_BLOCK);
                let mut next = u32::try_from(next).unwrap_or(u32::MAX);
                let end = BlockNumber::containing(run.end).0;
                while next < end {
                    let stop = end.min((next / BLOCKS_PER_CALL + 1) * BLOCKS_PER_CALL);
                    match find(zone, self.manager.platform, BlockRange::new(next, stop)) {
                        Some(blocks) => {
                            next = blocks.end.0;
                            each(Piece { zone, blocks });
                        }
                        None => next = stop,
                    }
                }
            }
        }
        Ok(())
    }

    fn evict_batch(self, space: &dyn VmemmapSpace, batch: &mut Batch) -> VmemmapChange {
        let mut change = VmemmapChange::default();
        let mut unflushed = Unflushed::new();
        let mut ready = Batch::new();
        for piece in batch.take() {
            let mut frames = OwnFrames { manager: self.manager, near: piece.zone, taken_pages: 0 };
            let prepared = self.prepare_piece(space, piece, &mut frames, &mut unflushed);
            if prepared.is_ok() {
                change.spent_pages += frames.taken_pages;
                ready.push(piece);
            } else {
                piece.zone.publish_again(piece.blocks);
                change.out_of_frames += u64::from(piece.blocks.blocks());
            }
        }
        change += self.flush(space, &mut unflushed);
        for piece in ready.take() {
            let (absent, evicted) = self.evict_or_undo(space, piece, &mut unflushed);
            change += evicted;
            if absent {
                change.blocks += u64::from(piece.blocks.blocks());
            }
        }
        change += self.flush(space, &mut unflushed);
        self.manager.vmemmap.note_reclaimed(&change);
        change
    }

    pub(crate) fn prepare_piece(
        self,
        space: &dyn VmemmapSpace,
        piece: Piece,
        frames: &mut OwnFrames<'_, P>,
        unflushed: &mut Unflushed,
    ) -> Result<(), OutOfFrames> {
        // SAFETY: the section is locked, so that nobody else calls for it; the piece's descriptors
        // were taken out of use under the zone lock, and all readers of them have left (invariants
        // 22 and 42).
        let prepare = || unsafe { space.prepare(piece.blocks, frames, unflushed) };
        self.manager.section_locks.with(self.manager.platform, piece.section(), prepare)
    }

    /// Makes a prepared piece absent; returns whether it is. If not, the whole piece is present
    /// again.
    pub(crate) fn evict_or_undo(
        self,
        space: &dyn VmemmapSpace,
        piece: Piece,
        unflushed: &mut Unflushed,
    ) -> (bool, VmemmapChange) {
        let mut change = VmemmapChange::default();
        let mut left = self.evict_piece(space, piece, unflushed);
        if left != 0 && unflushed.room() < Unflushed::CAPACITY {
            // There may have been no room to record its frames.
            change += self.flush(space, unflushed);
            left = self.evict_piece(space, piece, unflushed);
        }
        if left != 0 {
            // The platform has joined the section's mappings since they were prepared.
            change += self.flush(space, unflushed);
            change += self.populate_piece(space, piece, unflushed);
        }
        (left == 0, change)
    }

    fn evict_piece(self, space: &dyn VmemmapSpace, piece: Piece, unflushed: &mut Unflushed) -> u32 {
        // SAFETY: as for `prepare_piece`: nobody looks at these descriptors until they are
        // described again (invariants 22 and 42).
        let evict = || unsafe { space.evict(piece.blocks, unflushed) };
        self.manager.section_locks.with(self.manager.platform, piece.section(), evict)
    }

    fn fill_piece(
        self,
        space: &dyn VmemmapSpace,
        piece: Piece,
        frames: &mut OwnFrames<'_, P>,
        unflushed: &mut Unflushed,
    ) -> Result<(), OutOfFrames> {
        // SAFETY: as for `prepare_piece`: nobody looks at these descriptors until they are
        // described again (invariants 22 and 42).
        let populate = || unsafe { space.populate(piece.blocks, frames, unflushed) };
        self.manager.section_locks.with(self.manager.platform, piece.section(), populate)
    }

    fn populate_batch(self, space: &dyn VmemmapSpace, batch: &mut Batch) -> VmemmapChange {
        let mut change = VmemmapChange::default();
        let mut unflushed = Unflushed::new();
        let mut done = Batch::new();
        for piece in batch.take() {
            if unflushed.room() == 0 {
                change += self.flush(space, &mut unflushed);
            }
            let mut frames = OwnFrames { manager: self.manager, near: piece.zone, taken_pages: 0 };
            // Each try takes all frames that requests may have before it puts them back, so once
            // they run out, the rest of the batch is not tried.
            let populated = change.out_of_frames == 0
                && self.fill_piece(space, piece, &mut frames, &mut unflushed).is_ok();
            if populated {
                change.spent_pages += frames.taken_pages;
                done.push(piece);
            } else {
                change.out_of_frames += u64::from(piece.blocks.blocks());
            }
        }
        change += self.flush(space, &mut unflushed);
        // A block that was named twice counts once.
        change.blocks +=
            done.take().map(|piece| u64::from(piece.zone.publish_again(piece.blocks))).sum::<u64>();
        self.manager.vmemmap.note_restored(&change);
        change
    }

    /// Undoes a piece of which only a part could be made absent.
    pub(crate) fn populate_piece(
        self,
        space: &dyn VmemmapSpace,
        piece: Piece,
        unflushed: &mut Unflushed,
    ) -> VmemmapChange {
        let mut frames = OwnFrames { manager: self.manager, near: piece.zone, taken_pages: 0 };
        let populated = self.fill_piece(space, piece, &mut frames, unflushed);
        let mut change = self.flush(space, unflushed);
        if populated.is_ok() {
            change.spent_pages += frames.taken_pages;
            piece.zone.publish_again(piece.blocks);
            change.out_of_frames += u64::from(piece.blocks.blocks());
        } else {
            // Without frames, the present part stays unused and the absent part stays absent. The
            // blocks get their descriptors inside until somebody restores their map.
            change.blocks += u64::from(piece.blocks.blocks());
        }
        change
    }

    /// Flushes the TLBs if necessary, and frees the frames that this sets free.
    pub(crate) fn flush(
        self,
        space: &dyn VmemmapSpace,
        unflushed: &mut Unflushed,
    ) -> VmemmapChange {
        let mut change =
            VmemmapChange { flushes: u64::from(unflushed.is_stale()), ..VmemmapChange::default() };
        // SAFETY: the calls above filled it on this space, the platform's only one (invariant 12).
        let list = unsafe { space.flush(core::mem::take(unflushed)) };
        change.freed_pages = list.runs().map(|run| self.free_left(run)).sum();
        change
    }

    /// Frees frames that left the array; returns how many pages that are. A run consists of
    /// neighbouring frames, even of several zones, which no single free may span. Page tables of
    /// bring-up, and its pieces of sections with a partial map, were never managed: they stay
    /// reserved.
    fn free_left(self, run: PfnRange) -> u64 {
        if self.manager.free_kept(run).is_ok() {
            return run.pages();
        }
        let middle = Pfn(run.start.0 + run.pages() / 2);
        let halves = [PfnRange { end: middle, ..run }, PfnRange { start: middle, ..run }];
        let halves = halves.into_iter().filter(|half| half.pages() < run.pages());
        halves.filter(|half| !half.is_empty()).map(|half| self.free_left(half)).sum()
    }
}

/// Pieces that are processed together.
struct Batch {
    pieces: [Option<Piece>; BATCH],
    count: usize,
}

impl Batch {
    const fn new() -> Self {
        Self { pieces: [None; BATCH], count: 0 }
    }

    /// Adds a piece, for which there is room; returns whether the batch is now full.
    fn push(&mut self, piece: Piece) -> bool {
        self.pieces[self.count] = Some(piece);
        self.count += 1;
        self.count == BATCH
    }

    fn take(&mut self) -> impl Iterator<Item = Piece> + use<> {
        core::mem::replace(self, Self::new()).pieces.into_iter().flatten()
    }
}
