//! Unpublishes descriptors of blocks that are allocated whole, and publishes them again.
//!
//! A descriptor is *published* while the array's bit says that it may be read. Before its memory is
//! given back (HVO) or the memory that it describes goes away, it is unpublished and its readers
//! are waited for.

use super::{Zone, segment};
use crate::block::State;
use crate::block::table::blocks_of;
use crate::platform::Platform;
use crate::vmemmap_space::{BlockNumber, BlockRange};

impl Zone {
    /// Unpublishes the first contiguous run of blocks in `blocks` that are allocated whole or in a
    /// pool and are described by the array. Returns the run; nobody reads its descriptors any more
    /// then.
    pub(crate) fn unpublish<P: Platform>(
        &self,
        platform: &P,
        blocks: BlockRange,
    ) -> Option<BlockRange> {
        let descriptors = self.descriptors.as_ref()?;
        let array = descriptors.array()?;
        let mut found: Option<BlockRange> = None;
        // Wait for readers under the lock, so that no block is split meanwhile.
        let _locked = self.read_coalesced(platform);
        for block in (blocks.start.0..blocks.end.0).map(BlockNumber) {
            let index = self.index_of_whole(block).filter(|&index| array.describes(index));
            match (index, &mut found) {
                (Some(index), found) => {
                    array.unpublish(index);
                    descriptors.wait(index);
                    let start = found.map_or(block, |found| found.start);
                    *found = Some(BlockRange { start, end: BlockNumber(block.0 + 1) });
                }
                (None, Some(_)) => break,
                (None, None) => {}
            }
        }
        found
    }

    /// Unpublishes the descriptors of blocks that only the caller has. Returns of how many. The
    /// caller must wait for readers that came before
    /// ([`wait_for_readers`](Self::wait_for_readers)).
    #[inline(never)]
    pub(crate) fn unpublish_owned(&self, blocks: BlockRange) -> u32 {
        let Some(array) = self.descriptors.as_ref().and_then(|descriptors| descriptors.array())
        else {
            return 0;
        };
        let Some(segment) = segment::find(self.segments, blocks.start) else { return 0 };
        let index = segment.index_of(blocks.start);
        array.unpublish_all(index..index + blocks.blocks())
    }

    /// Waits for all readers of descriptors.
    pub(crate) fn wait_for_readers(&self) {
        if let Some(descriptors) = &self.descriptors {
            descriptors.wait_for_all();
        }
    }

    /// Whether the array describes a block.
    pub(crate) fn is_described(&self, block: BlockNumber) -> bool {
        let array = self.descriptors.as_ref().and_then(|descriptors| descriptors.array());
        array
            .zip(segment::find(self.segments, block))
            .is_some_and(|(array, segment)| array.describes(segment.index_of(block)))
    }

    /// The first contiguous run in `blocks` of blocks that are allocated whole or in a pool and
    /// that the array could describe but does not.
    pub(crate) fn unpublished<P: Platform>(
        &self,
        platform: &P,
        blocks: BlockRange,
    ) -> Option<BlockRange> {
        let array = self.descriptors.as_ref()?.array()?;
        let _locked = self.read_coalesced(platform);
        let is_one = |&block: &u32| {
            self.index_of_whole(BlockNumber(block)).is_some_and(|index| !array.describes(index))
        };
        let start = (blocks.start.0..blocks.end.0).find(is_one)?;
        let end = (start..blocks.end.0).take_while(is_one).last()? + 1;
        Some(BlockRange::new(start, end))
    }

    /// Initialises and publishes descriptors of blocks that are allocated whole and whose part of
    /// the array is present. Returns how many were not published before.
    pub(crate) fn publish_again(&self, blocks: BlockRange) -> u32 {
        let array = self.descriptors.as_ref().and_then(|descriptors| descriptors.array());
        let found = array.zip(segment::find(self.segments, blocks.start));
        found.map_or(0, |(array, segment)| {
            let index = segment.index_of(blocks.start);
            array.describe(index..index + blocks.blocks(), blocks.start.start())
        })
    }

    /// The index of a block that is allocated whole or in a pool, on its own or as part of a larger
    /// one.
    fn index_of_whole(&self, block: BlockNumber) -> Option<u32> {
        let index = segment::find(self.segments, block)?.index_of(block);
        let (head, state) = self.table.head_of(index)?;
        let whole = state.is(State::Whole) || state.is(State::Pool);
        (whole && index - head < blocks_of(state.order())).then_some(index)
    }
}
