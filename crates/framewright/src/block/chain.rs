//! Pages of a pool in a row, linked through the entries of their blocks.
//!
//! Links of a pool's blocks belong to the pools, not to the zone's lists: those of free pages are
//! changed under the lock on the accounting, or by whoever has a chain that is in no list. A page
//! that somebody uses has a mark in place of its first link, which no index can be (invariant 37).
//!
//! Pages that were reported to the hypervisor and others are in different chains. Which one a page
//! is in shows in its first link, so that it can be taken out wherever it stands without a walk.

use crate::block::list::NONE;
use crate::block::table::BlockTable;

/// First link of a page in use; the lower bits are flags.
pub(crate) const IN_USE: u32 = 0xffff_ff00;
/// Flag of a page in use: freeing it gives back the reservation that its allocation used up.
pub(crate) const RESTORE: u32 = 1;
/// Flag of a page in use: the hypervisor has it, and its user is free page reporting.
pub(crate) const LENT: u32 = 2;

/// Flag in the first link of a page that was reported and has one before it in its chain. Beyond
/// all indices: so many blocks would be the whole of 52 address bits.
const REPORTED: u32 = 1 << 31;

/// Whether a first link is that of a page in use.
pub(crate) const fn is_in_use(link: u32) -> bool {
    link >= IN_USE && link != NONE
}

/// The first link of a page behind `previous`, in a chain of pages that were reported or were not.
pub(crate) const fn first_link(previous: u32, reported: bool) -> u32 {
    if reported { previous | REPORTED } else { previous }
}

/// Where a page is, by its links alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Inside {
    /// Between two others of a chain of pages that were reported, or were not.
    Reported(bool),
    /// At an end of a chain, or alone.
    Edge,
}

/// Where a page that nobody uses is, by its links alone.
pub(crate) fn inside(table: &BlockTable, index: u32) -> Inside {
    let (previous, next) = table.links(index);
    if previous == NONE || next == NONE {
        Inside::Edge
    } else {
        Inside::Reported(previous & REPORTED != 0)
    }
}

/// Pages of one zone and size, ends included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Chain {
    pub(crate) first: u32,
    pub(crate) last: u32,
    pub(crate) pages: u64,
    /// All of them were reported; else none.
    pub(crate) reported: bool,
}

impl Chain {
    pub(crate) const EMPTY: Self = Self { first: NONE, last: NONE, pages: 0, reported: false };
    /// One for pages that were reported.
    pub(crate) const EMPTY_REPORTED: Self = Self { reported: true, ..Self::EMPTY };

    /// A page whose links are those of a chain of its own.
    pub(crate) const fn one(index: u32, reported: bool) -> Self {
        Self { first: index, last: index, pages: 1, reported }
    }

    /// Adds a page, whose links are in no chain, at the end.
    pub(crate) fn push_back(&mut self, table: &BlockTable, index: u32) {
        self.append(table, Self::one(link(table, index), self.reported));
    }

    /// Adds a page, whose links are in no chain, at the front.
    pub(crate) fn push_front(&mut self, table: &BlockTable, index: u32) {
        let mut chain = Self::one(link(table, index), self.reported);
        chain.append(table, *self);
        *self = chain;
    }

    /// Adds all of another chain of the same kind at the end.
    pub(crate) fn append(&mut self, table: &BlockTable, other: Self) {
        if other.pages == 0 {
            return;
        }
        debug_assert!(self.reported == other.reported, "reported pages and others are not mixed");
        if self.pages == 0 {
            *self = other;
            return;
        }
        table.set_next(self.last, other.first);
        table.set_previous(other.first, first_link(self.last, self.reported));
        self.last = other.last;
        self.pages += other.pages;
    }

    /// Takes the first `most` pages off.
    pub(crate) fn take(&mut self, table: &BlockTable, most: u64) -> Self {
        let empty = Self { reported: self.reported, ..Self::EMPTY };
        if most == 0 || self.pages == 0 {
            return empty;
        }
        if most >= self.pages {
            return core::mem::replace(self, empty);
        }
        let mut last = self.first;
        for _ in 1..most {
            last = following(table, last);
        }
        let taken = Self { last, pages: most, ..*self };
        self.first = following(table, last);
        self.pages -= most;
        table.set_previous(self.first, NONE);
        table.set_next(last, NONE);
        taken
    }

    /// Takes one page out, which is in this chain.
    pub(crate) fn remove(&mut self, table: &BlockTable, index: u32) {
        let (previous, next) = table.links(index);
        #[cfg(test)]
        steps::count();
        match previous {
            NONE => self.first = next,
            previous => table.set_next(previous & !REPORTED, next),
        }
        match next {
            NONE => self.last = if previous == NONE { NONE } else { previous & !REPORTED },
            // Of the same kind, the link before it is as it was.
            next => table.set_previous(next, previous),
        }
        self.pages -= 1;
    }

    /// Whether a page is the first or the last of this chain.
    pub(crate) const fn ends_with(&self, index: u32) -> bool {
        self.pages != 0 && (index == self.first || index == self.last)
    }

    /// Takes off the first page that `good` accepts; those before it go to the end, so that they
    /// are not met again soon. Looks at no more than `left` pages, and counts those that it looked
    /// at.
    pub(crate) fn take_good(
        &mut self,
        table: &BlockTable,
        good: &dyn Fn(u32) -> bool,
        left: &mut u64,
    ) -> Option<u32> {
        while *left != 0 && self.pages != 0 {
            *left -= 1;
            let index = self.first;
            self.remove(table, index);
            if good(index) {
                return Some(index);
            }
            self.push_back(table, index);
        }
        *left = (*left).min(self.pages);
        None
    }
}

/// The page behind another.
pub(crate) fn following(table: &BlockTable, index: u32) -> u32 {
    #[cfg(test)]
    steps::count();
    table.links(index).1
}

/// Makes a page a chain of its own and gives it back.
fn link(table: &BlockTable, index: u32) -> u32 {
    table.set_previous(index, NONE);
    table.set_next(index, NONE);
    index
}

/// How many links were followed, for tests of how long something takes.
#[cfg(test)]
pub(crate) mod steps {
    use std::cell::Cell;

    std::thread_local! {
        static STEPS: Cell<u64> = const { Cell::new(0) };
    }

    pub(super) fn count() {
        STEPS.with(|steps| steps.set(steps.get() + 1));
    }

    /// So many since the last call, in this thread.
    pub(crate) fn take() -> u64 {
        STEPS.with(Cell::take)
    }
}
