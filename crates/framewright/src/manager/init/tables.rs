//! Makes a zone's tables over memory: the part that is always read, and the part that only ready
//! groups need.

use crate::block::free_heads::FreeHeads;
use crate::block::lots::LotTable;
use crate::block::table::BlockTable;
use crate::block::{BlockEntry, FreeMap};
use crate::carve::{Carver, room};
use crate::manager::init::plan::TableSize;
use crate::platform::Platform;
use crate::sync::table_atomic::AtomicU64;
use crate::zone::initialise::ZoneTables;

/// The tables besides the heads.
struct Rest {
    free_index: &'static [AtomicU64],
    deferred: &'static [AtomicU64],
    reported: &'static [AtomicU64],
    lots: LotTable,
    entries: &'static [BlockEntry],
    free_maps: &'static [FreeMap],
}

impl Rest {
    fn carve<P: Platform>(carver: &mut Carver<'_, P>, size: &TableSize) -> Self {
        Self {
            free_index: carver.any(size.free_index_words),
            deferred: carver.any(size.deferred_words),
            reported: carver.any(size.reported_words),
            lots: LotTable::new(carver.any(size.lots_words)),
            entries: carver.any(size.entries),
            free_maps: carver.any(size.entries),
        }
    }
}

/// The words and the entry for each GiB: all that is read of a GiB that is one block.
pub(crate) struct Heads {
    ready: &'static [AtomicU64],
    heads: &'static [BlockEntry],
    free_heads: FreeHeads,
}

impl Heads {
    /// Returns their size in bytes.
    pub(crate) const fn bytes(size: &TableSize) -> u64 {
        room::<AtomicU64>((size.ready_words + size.free_heads_words) as u64)
            + room::<BlockEntry>(size.groups as u64)
    }

    /// Makes them with no group ready.
    pub(crate) fn carve<P: Platform>(carver: &mut Carver<'_, P>, size: &TableSize) -> Self {
        let ready = carver.values(size.ready_words, |_| AtomicU64::new(0));
        let heads = carver.any(size.groups);
        let free_heads = FreeHeads::new(carver.any(size.free_heads_words));
        Self { ready, heads, free_heads }
    }

    /// Returns those of a table that is made anew in its place.
    pub(crate) const fn of(table: &BlockTable) -> Self {
        let (ready, heads, free_heads) = table.heads_alone();
        Self { ready, heads, free_heads }
    }

    /// Makes all of a zone's tables; those besides the heads lie over memory of any content.
    pub(crate) fn with_rest<P: Platform>(
        self,
        carver: &mut Carver<'_, P>,
        size: &TableSize,
    ) -> ZoneTables {
        let rest = Rest::carve(carver, size);
        ZoneTables {
            free_index: rest.free_index,
            deferred: rest.deferred,
            reported: rest.reported,
            table: self.table(&rest),
        }
    }

    /// [`with_rest`](Self::with_rest) where the rest is not memory yet: nothing is read or written
    /// there.
    pub(crate) fn with_rest_to_come<P: Platform>(
        self,
        carver: &mut Carver<'_, P>,
        size: &TableSize,
    ) -> ZoneTables {
        ZoneTables { table: self.table(&Rest::carve(carver, size)), ..ZoneTables::EMPTY }
    }

    // It is called in several places, as windows have tables, too; a small program gains nothing.
    #[cfg_attr(feature = "files", inline(never))]
    const fn table(self, rest: &Rest) -> BlockTable {
        BlockTable::new(
            self.heads,
            rest.entries,
            rest.free_maps,
            self.ready,
            self.free_heads,
            rest.lots,
        )
    }
}
