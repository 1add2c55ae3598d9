//! Gives back the map of pages that only the caller has: pages on their way into a pool.
//!
//! The general way is expensive because it checks block by block, under the zone lock, what each
//! block is. Here that is known. So one word takes a section out of use, all readers are waited for
//! once, a whole section leaves by one store, and all frames that a call sets free go back after
//! one TLB flush. A second flush is needed only if a mapping of 2 MiB has to be split.

use crate::manager::facets::Vmemmap;
use crate::manager::state::vmemmap::{VmemmapChange, VmemmapError};
use crate::manager::vmemmap::hvo::{OwnFrames, Piece};
use crate::platform::Platform;
use crate::units::PfnRange;
use crate::vmemmap_space::{BLOCKS_PER_CALL, BlockNumber, BlockRange, Unflushed, VmemmapSpace};
use crate::zone::Zone;

/// How many sections' frames wait for one flush: at most 1 GiB is held back, while 64 GiB join a
/// pool.
const SECTIONS_OF_A_FLUSH: u32 = 512;

impl<P: Platform> Vmemmap<'_, P> {
    /// Gives back the map of whole blocks of one zone that only the caller has or sees. Their
    /// frames of the array are free when this returns, except those that were never managed.
    ///
    /// Process context: waits for other CPUs.
    ///
    /// # Errors
    /// See [`VmemmapError`]. A block stays as it was, and is counted, if no page table could be
    /// allocated for its mapping.
    pub(crate) fn optimize_own_vmemmap(
        self,
        zone: &'static Zone,
        runs: impl Iterator<Item = PfnRange> + Clone,
    ) -> Result<VmemmapChange, VmemmapError> {
        let space = self.space_to_change()?;
        let mut change = VmemmapChange::default();
        let mut withdrawn = 0;
        let mut partly = false;
        for_each_piece(zone, runs.clone(), &mut |piece| {
            let blocks = zone.unpublish_owned(piece.blocks);
            withdrawn += u64::from(blocks);
            partly |= blocks != 0 && piece.blocks.blocks() != BLOCKS_PER_CALL;
        });
        if withdrawn == 0 {
            return Ok(change);
        }
        zone.wait_for_readers();
        let mut unflushed = Unflushed::new();
        if partly {
            for_each_piece(zone, runs.clone(), &mut |piece| {
                if piece.blocks.blocks() != BLOCKS_PER_CALL {
                    change += self.prepare_owned(space, piece, &mut unflushed);
                }
            });
            change += self.flush(space, &mut unflushed);
        }
        let mut sections = 0;
        for_each_piece(zone, runs.clone(), &mut |piece| {
            if sections == SECTIONS_OF_A_FLUSH {
                change += self.flush(space, &mut unflushed);
                sections = 0;
            }
            sections += 1;
            change += self.evict_owned(space, piece, &mut unflushed);
        });
        change += self.flush(space, &mut unflushed);
        change.blocks = withdrawn;
        self.manager.vmemmap.note_reclaimed(&change);
        // This includes blocks that were absent before and came back with a piece that could not be
        // split.
        let back = VmemmapChange { blocks: change.out_of_frames, ..VmemmapChange::default() };
        self.manager.vmemmap.note_restored(&back);
        change.blocks = withdrawn.saturating_sub(change.out_of_frames);
        Ok(change)
    }

    /// Splits the mapping of a piece. If no frame is left for that, makes the piece present and
    /// described again.
    fn prepare_owned(
        self,
        space: &dyn VmemmapSpace,
        piece: Piece,
        unflushed: &mut Unflushed,
    ) -> VmemmapChange {
        let mut change = VmemmapChange::default();
        let mut frames = OwnFrames { manager: self.manager, near: piece.zone, taken_pages: 0 };
        if self.prepare_piece(space, piece, &mut frames, unflushed).is_ok() {
            change.spent_pages = frames.taken_pages;
        } else {
            // Some of its blocks may have been absent before.
            change = self.populate_piece(space, piece, unflushed);
        }
        change
    }

    fn evict_owned(
        self,
        space: &dyn VmemmapSpace,
        piece: Piece,
        unflushed: &mut Unflushed,
    ) -> VmemmapChange {
        if piece.zone.is_described(piece.blocks.start) {
            // The piece could not be prepared.
            return VmemmapChange::default();
        }
        self.evict_or_undo(space, piece, unflushed).1
    }
}

/// Calls `each` with the parts of `runs` in each section.
fn for_each_piece(
    zone: &'static Zone,
    runs: impl Iterator<Item = PfnRange>,
    each: &mut dyn FnMut(Piece),
) {
    for run in runs {
        let (mut next, end) =
            (BlockNumber::containing(run.start).0, BlockNumber::containing(run.end).0);
        while next < end {
            let stop = end.min((next / BLOCKS_PER_CALL + 1) * BLOCKS_PER_CALL);
            each(Piece { zone, blocks: BlockRange::new(next, stop) });
            next = stop;
        }
    }
}
