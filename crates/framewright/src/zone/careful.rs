//! The search for a run when placement is random (`careful`): it takes any member of any set that
//! is large enough, and any run in it.

use super::locked::LockedZone;
use super::page_alloc::Found;
use crate::block::MigrateType;
use crate::block::free_index::ORDERS;
use crate::units::PAGES_PER_BLOCK;

/// How many random runs of a block are tried before its lowest free run is taken.
const TRIES: u32 = 4;

impl LockedZone {
    /// Searches as `find_split` does and corrects the index in the same way.
    #[cold]
    pub(super) fn find_anywhere(&mut self, order: u8, migrate_type: MigrateType) -> Option<Found> {
        while !self.is_cut_short() {
            let mut found = self.free_index.smallest(migrate_type, order)?;
            for larger in found + 1..u8::try_from(ORDERS).unwrap_or(0) {
                if self.free_index.first(migrate_type, larger).is_some()
                    && self.buddy.placement.coin()
                {
                    found = larger;
                }
            }
            let chance = self.buddy.placement.bits();
            let index = self.free_index.any(migrate_type, found, chance)?;
            let map = self.buddy.table.cold_free_map(index);
            let chances = (0..TRIES)
                .map(|_| (self.buddy.placement.bits() % PAGES_PER_BLOCK) >> order << order);
            let by_chance = chances
                .filter_map(|run| usize::try_from(run).ok())
                .find(|&run| map.is_run_free(run, order));
            if let Some(start) =
                by_chance.or_else(|| map.find(order)).and_then(|start| u16::try_from(start).ok())
            {
                return Some(Found { index, start });
            }
            self.looked_in_vain(index);
        }
        None
    }
}
