//! The free pages of one size and zone: those that the hypervisor was not told of, and those that it was.

use super::chain::Chain;
use crate::block::table::BlockTable;

/// See the module documentation. Changed by who has the lock of the books.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FreeList {
    /// Handed out first.
    fresh: Chain,
    /// Reported since they became free.
    told: Chain,
    /// The fewest fresh pages since [`take_floor`](Self::take_floor).
    floor: u64,
}

impl FreeList {
    pub(crate) const EMPTY: Self = Self { fresh: Chain::EMPTY, told: Chain::EMPTY, floor: 0 };

    /// Both kinds, for those who recount them.
    pub(crate) const fn chains(&self) -> [Chain; 2] {
        [self.fresh, self.told]
    }

    /// Pages that were not reported.
    pub(crate) const fn fresh_pages(&self) -> u64 {
        self.fresh.pages
    }

    /// All pages.
    pub(crate) const fn pages(&self) -> u64 {
        self.fresh.pages + self.told.pages
    }

    /// The fewest fresh pages since the last call.
    pub(crate) fn take_floor(&mut self) -> u64 {
        core::mem::replace(&mut self.floor, self.fresh.pages).min(self.fresh.pages)
    }

    /// Adds a page that somebody had, to be handed out next.
    pub(crate) fn push_front(&mut self, table: &BlockTable, index: u32) {
        self.fresh.push_front(table, index);
    }

    /// Adds a page that was reported just now.
    pub(crate) fn push_told(&mut self, table: &BlockTable, index: u32) {
        self.told.push_back(table, index);
    }

    /// Adds pages that were not reported.
    pub(crate) fn append(&mut self, table: &BlockTable, pages: Chain) {
        self.fresh.append(table, pages);
    }

    /// Takes `most` pages off, fresh ones first.
    pub(crate) fn take(&mut self, table: &BlockTable, most: u64) -> Chain {
        let mut taken = self.fresh.take(table, most);
        let more = self.told.take(table, most - taken.pages);
        taken.append(table, more);
        self.note_floor();
        taken
    }

    /// Takes off the first page that `good` accepts, fresh ones first; whether it was reported stands beside it.
    pub(crate) fn take_good(&mut self, table: &BlockTable, good: &dyn Fn(u32) -> bool) -> Option<(u32, bool)> {
        if let Some(index) = self.take_fresh(table, good) {
            return Some((index, false));
        }
        self.told.take_good(table, good).map(|index| (index, true))
    }

    /// The same among fresh ones alone.
    pub(crate) fn take_fresh(&mut self, table: &BlockTable, good: &dyn Fn(u32) -> bool) -> Option<u32> {
        let index = self.fresh.take_good(table, good);
        self.note_floor();
        index
    }

    /// Whether a page is in this list.
    pub(crate) fn contains(&self, table: &BlockTable, wanted: u32) -> bool {
        self.fresh.contains(table, wanted) || self.told.contains(table, wanted)
    }

    /// Takes one page out, which is in this list.
    pub(crate) fn remove(&mut self, table: &BlockTable, index: u32) {
        if self.fresh.contains(table, index) {
            self.fresh.remove(table, index);
            self.note_floor();
        } else {
            self.told.remove(table, index);
        }
    }

    fn note_floor(&mut self) {
        self.floor = self.floor.min(self.fresh.pages);
    }
}
