//! Pages of a pool in a row, linked through the entries of their blocks.
//!
//! Links of a pool's blocks belong to the pools, not to the zone's lists: those of free pages are changed by who has the lock of the books, or by who has a chain
//! that is in no list. A page that somebody uses has a mark in place of its first link, which no index can be (invariant 37).

use crate::block::lists::NONE;
use crate::block::table::BlockTable;

/// First link of a page in use; the lower bits are flags.
pub(crate) const IN_USE: u32 = 0xffff_ff00;
/// Flag of a page in use: freeing it gives back the reservation that its allocation used up.
pub(crate) const RESTORE: u32 = 1;
/// Flag of a page in use: the hypervisor has it, and its user is free page reporting.
pub(crate) const LENT: u32 = 2;

/// Whether a first link is that of a page in use.
pub(crate) const fn is_in_use(link: u32) -> bool {
    link >= IN_USE && link != NONE
}

/// Pages of one zone and size, ends included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Chain {
    pub(crate) first: u32,
    pub(crate) last: u32,
    pub(crate) pages: u64,
}

impl Chain {
    pub(crate) const EMPTY: Self = Self { first: NONE, last: NONE, pages: 0 };

    /// Adds a page, whose links are in no chain, at the end.
    pub(crate) fn push_back(&mut self, table: &BlockTable, index: u32) {
        self.append(table, Self { first: link(table, index), last: index, pages: 1 });
    }

    /// Adds a page, whose links are in no chain, at the front.
    pub(crate) fn push_front(&mut self, table: &BlockTable, index: u32) {
        let mut chain = Self { first: link(table, index), last: index, pages: 1 };
        chain.append(table, *self);
        *self = chain;
    }

    /// Adds all of another chain at the end.
    pub(crate) fn append(&mut self, table: &BlockTable, other: Self) {
        if other.pages == 0 {
            return;
        }
        if self.pages == 0 {
            *self = other;
            return;
        }
        table.set_next(self.last, other.first);
        table.set_previous(other.first, self.last);
        self.last = other.last;
        self.pages += other.pages;
    }

    /// Takes the first `most` pages off.
    pub(crate) fn take(&mut self, table: &BlockTable, most: u64) -> Self {
        if most == 0 || self.pages == 0 {
            return Self::EMPTY;
        }
        if most >= self.pages {
            return core::mem::replace(self, Self::EMPTY);
        }
        let mut last = self.first;
        for _ in 1..most {
            last = table.links(last).1;
        }
        let taken = Self { first: self.first, last, pages: most };
        self.first = table.links(last).1;
        self.pages -= most;
        table.set_previous(self.first, NONE);
        table.set_next(last, NONE);
        taken
    }

    /// Takes one page out, which is in this chain.
    pub(crate) fn remove(&mut self, table: &BlockTable, index: u32) {
        let (previous, next) = table.links(index);
        match previous {
            NONE => self.first = next,
            previous => table.set_next(previous, next),
        }
        match next {
            NONE => self.last = previous,
            next => table.set_previous(next, previous),
        }
        self.pages -= 1;
    }

    /// Whether a page is in this chain.
    pub(crate) fn contains(&self, table: &BlockTable, wanted: u32) -> bool {
        let mut index = self.first;
        for _ in 0..self.pages {
            if index == wanted {
                return true;
            }
            index = table.links(index).1;
        }
        false
    }

    /// Takes off the first page that `good` accepts; those before it go to the end, so that they are not met again soon.
    pub(crate) fn take_good(&mut self, table: &BlockTable, good: &dyn Fn(u32) -> bool) -> Option<u32> {
        for _ in 0..self.pages {
            let index = self.first;
            self.remove(table, index);
            if good(index) {
                return Some(index);
            }
            self.push_back(table, index);
        }
        None
    }
}

/// Makes a page a chain of its own and gives it back.
fn link(table: &BlockTable, index: u32) -> u32 {
    table.set_previous(index, NONE);
    table.set_next(index, NONE);
    index
}
