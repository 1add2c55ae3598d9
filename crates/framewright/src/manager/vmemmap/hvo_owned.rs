//! Giving back the map of pages that the caller alone has: those on their way into a pool.
//!
//! What makes the general way dear is asking, block by block and under the zone lock, what a block
//! is. Here that is known. So a section is taken out of use by one word, all readers are waited for
//! once, a whole section leaves by one store, and all that a call sets free goes back after one
//! flush: a second one only where a mapping of 2 MiB has to be split.

use crate::manager::facets::Vmemmap;
use crate::manager::state::vmemmap::{VmemmapChange, VmemmapError};
use crate::manager::vmemmap::hvo::{OwnFrames, Piece};
use crate::platform::Platform;
use crate::units::PfnRange;
use crate::vmemmap_space::{BLOCKS_PER_CALL, BlockNumber, BlockRange, Unflushed, VmemmapSpace};
use crate::zone::Zone;

/// Sections whose frames wait for one flush: what is held back at most is 1 GiB, while 64 GiB join
/// a pool.
const SECTIONS_OF_A_FLUSH: u32 = 512;

impl<P: Platform> Vmemmap<'_, P> {
    /// Gives back the map of whole blocks of one zone that nobody but the caller has or sees. Their
    /// frames of the array are free when this returns, but for those that were never managed.
    ///
    /// Process context: waits for other CPUs.
    ///
    /// # Errors
    /// See [`VmemmapError`]. A block for whose mapping no page table could be made stays as it was
    /// and is counted.
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
        // With those that were absent before and came back in a piece that could not be split.
        let back = VmemmapChange { blocks: change.out_of_frames, ..VmemmapChange::default() };
        self.manager.vmemmap.note_restored(&back);
        change.blocks = withdrawn.saturating_sub(change.out_of_frames);
        Ok(change)
    }

    /// Splits the mapping of a piece. Where there is no frame for that the piece is made present
    /// and described again.
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
            // It could not be prepared.
            return VmemmapChange::default();
        }
        self.evict_or_undo(space, piece, unflushed).1
    }
}

/// Calls `each` with the parts of `runs` in each section, as far as they are in the zone.
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
