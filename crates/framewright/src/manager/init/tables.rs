//! Making a zone's tables over memory: what is always looked at, and what only groups that are
//! ready need.

use crate::block::deferred_merge::DeferredMerges;
use crate::block::free_heads::FreeHeads;
use crate::block::free_index::FreeIndex;
use crate::block::reported::ReportedBitmap;
use crate::block::table::BlockTable;
use crate::block::{BlockEntry, FreeMap};
use crate::carve::{Carver, room};
use crate::manager::init::plan::TableSize;
use crate::platform::Platform;
use crate::sync::table_atomic::AtomicU64;
use crate::zone::initialise::ZoneTables;

/// A word and an entry for each GiB: what is read of a GiB that is one block.
pub(crate) struct Heads {
    ready: &'static [AtomicU64],
    heads: &'static [BlockEntry],
    free_heads: FreeHeads,
}

impl Heads {
    /// Bytes that they take.
    pub(crate) const fn bytes(size: &TableSize) -> u64 {
        room::<AtomicU64>((size.ready_words + size.free_heads_words) as u64)
            + room::<BlockEntry>(size.groups as u64)
    }

    /// No group is ready.
    pub(crate) fn carve<P: Platform>(carver: &mut Carver<'_, P>, size: &TableSize) -> Self {
        let ready = carver.values(size.ready_words, |_| AtomicU64::new(0));
        let heads = carver.any(size.groups);
        let free_heads = FreeHeads::new(carver.any(size.free_heads_words));
        Self { ready, heads, free_heads }
    }

    /// All of a zone's tables, those beside the heads over memory of any content.
    pub(crate) fn with_rest<P: Platform>(
        self,
        carver: &mut Carver<'_, P>,
        size: &TableSize,
    ) -> ZoneTables {
        let free_index = FreeIndex::new(carver.any(size.free_index_words), size.entries);
        let deferred = DeferredMerges::new(carver.any(size.deferred_words), size.entries);
        let reported = ReportedBitmap::new(carver.any(size.reported_words));
        let entries: &'static [BlockEntry] = carver.any(size.entries);
        let free_maps: &'static [FreeMap] = carver.any(size.entries);
        let table = BlockTable::new(self.heads, entries, free_maps, self.ready, self.free_heads);
        ZoneTables { table, free_index, deferred, reported }
    }
}
