//! The free pages of one size and zone: those that the hypervisor was not told of, and those that it was.

use super::chain::Chain;
use crate::block::table::BlockTable;

/// Pages of one size and zone that the hypervisor was not told of, and such as it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lot {
    /// Handed out first.
    pub(crate) fresh: Chain,
    /// Reported since they became free.
    pub(crate) told: Chain,
}

impl Lot {
    pub(crate) const EMPTY: Self = Self { fresh: Chain::EMPTY, told: Chain::EMPTY };

    /// Pages that were not reported.
    pub(crate) const fn fresh(chain: Chain) -> Self {
        Self { fresh: chain, told: Chain::EMPTY }
    }

    /// Pages that were all reported, or none of them.
    pub(crate) const fn of(chain: Chain, told: bool) -> Self {
        if told { Self { fresh: Chain::EMPTY, told: chain } } else { Self::fresh(chain) }
    }

    /// Both kinds, and whether they were reported.
    pub(crate) const fn chains(self) -> [(Chain, bool); 2] {
        [(self.fresh, false), (self.told, true)]
    }

    /// All pages.
    pub(crate) const fn pages(&self) -> u64 {
        self.fresh.pages + self.told.pages
    }

    /// Adds all of another lot.
    pub(crate) fn append(&mut self, table: &BlockTable, other: Self) {
        self.fresh.append(table, other.fresh);
        self.told.append(table, other.told);
    }

    /// Takes `most` pages off, fresh ones first.
    pub(crate) fn take(&mut self, table: &BlockTable, most: u64) -> Self {
        let fresh = self.fresh.take(table, most);
        Self { fresh, told: self.told.take(table, most - fresh.pages) }
    }
}

/// See the module documentation. Changed by who has the lock of the books.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FreeList {
    lot: Lot,
    /// The fewest fresh pages since [`take_floor`](Self::take_floor).
    floor: u64,
}

impl FreeList {
    pub(crate) const EMPTY: Self = Self { lot: Lot::EMPTY, floor: 0 };

    /// Both kinds, for those who recount them.
    pub(crate) const fn chains(&self) -> [Chain; 2] {
        [self.lot.fresh, self.lot.told]
    }

    /// Pages that were not reported.
    pub(crate) const fn fresh_pages(&self) -> u64 {
        self.lot.fresh.pages
    }

    /// All pages.
    pub(crate) const fn pages(&self) -> u64 {
        self.lot.pages()
    }

    /// The fewest fresh pages since the last call.
    pub(crate) fn take_floor(&mut self) -> u64 {
        core::mem::replace(&mut self.floor, self.lot.fresh.pages).min(self.lot.fresh.pages)
    }

    /// Adds a page that somebody had, to be handed out next.
    pub(crate) fn push_front(&mut self, table: &BlockTable, index: u32) {
        self.lot.fresh.push_front(table, index);
    }

    /// Adds a page that was reported just now.
    pub(crate) fn push_told(&mut self, table: &BlockTable, index: u32) {
        self.lot.told.push_back(table, index);
    }

    /// Adds pages.
    pub(crate) fn append(&mut self, table: &BlockTable, pages: Lot) {
        self.lot.append(table, pages);
    }

    /// Takes `most` pages off, fresh ones first.
    pub(crate) fn take(&mut self, table: &BlockTable, most: u64) -> Lot {
        let taken = self.lot.take(table, most);
        self.note_floor();
        taken
    }

    /// Takes off the first page that `good` accepts, fresh ones first; whether it was reported stands beside it.
    pub(crate) fn take_good(&mut self, table: &BlockTable, good: &dyn Fn(u32) -> bool) -> Option<(u32, bool)> {
        if let Some(index) = self.take_fresh(table, good) {
            return Some((index, false));
        }
        self.lot.told.take_good(table, good).map(|index| (index, true))
    }

    /// The same among fresh ones alone.
    pub(crate) fn take_fresh(&mut self, table: &BlockTable, good: &dyn Fn(u32) -> bool) -> Option<u32> {
        let index = self.lot.fresh.take_good(table, good);
        self.note_floor();
        index
    }

    /// Whether a page is in this list.
    pub(crate) fn contains(&self, table: &BlockTable, wanted: u32) -> bool {
        self.lot.fresh.contains(table, wanted) || self.lot.told.contains(table, wanted)
    }

    /// Takes one page out, which is in this list.
    pub(crate) fn remove(&mut self, table: &BlockTable, index: u32) {
        if self.lot.fresh.contains(table, index) {
            self.lot.fresh.remove(table, index);
            self.note_floor();
        } else {
            self.lot.told.remove(table, index);
        }
    }

    fn note_floor(&mut self) {
        self.floor = self.floor.min(self.lot.fresh.pages);
    }
}
