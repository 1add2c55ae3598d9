//! Chains of a pool's pages, linked through the entries of their blocks.
//!
//! The links of a pool's blocks belong to the pools, not to the zone's lists. The links of free
//! pages are changed under the lock of the accounting, or by whoever has them in a chain that is in
//! no list. A page in use has a mark in place of its first link; no index has this value (invariant
//! 37).
//!
//! Pages that were reported to the hypervisor and pages that were not are in different chains. The
//! first link of a page shows which kind of chain it is in, so any page can be taken out without a
//! walk.

use crate::block::list::NONE;
use crate::block::table::BlockTable;

/// The first link of a page in use; its lower bits are flags.
pub(crate) const IN_USE: u32 = 0xffff_ff00;
/// Flag of a page in use: freeing the page restores the reservation that its allocation consumed.
pub(crate) const RESTORE: u32 = 1;
/// Flag of a page in use: the hypervisor holds it, and free page reporting is its user.
pub(crate) const LENT: u32 = 2;

/// Flag in the first link of a page that was reported and has another page before it in its chain.
/// No index has this bit: 2^31 blocks would fill all 52 address bits.
const REPORTED: u32 = 1 << 31;

/// Returns whether a first link is that of a page in use.
pub(crate) const fn is_in_use(link: u32) -> bool {
    link >= IN_USE && link != NONE
}

/// Returns the first link of a page that follows `previous` in a chain of reported or unreported
/// pages.
pub(crate) const fn first_link(previous: u32, reported: bool) -> u32 {
    if reported { previous | REPORTED } else { previous }
}

/// Where a page is in its chain, as its links show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Inside {
    /// Between two other pages of a chain; says whether its pages were reported.
    Reported(bool),
    /// At an end of a chain, or alone.
    Edge,
}

/// Returns where a page that is not in use is in its chain, as its links show.
pub(crate) fn inside(table: &BlockTable, index: u32) -> Inside {
    let (previous, next) = table.links(index);
    if previous == NONE || next == NONE {
        Inside::Edge
    } else {
        Inside::Reported(previous & REPORTED != 0)
    }
}

/// A chain of pages of one zone and size, by its ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Chain {
    pub(crate) first: u32,
    pub(crate) last: u32,
    pub(crate) pages: u64,
    /// Whether all of its pages were reported; otherwise none was.
    pub(crate) reported: bool,
}

impl Chain {
    pub(crate) const EMPTY: Self = Self { first: NONE, last: NONE, pages: 0, reported: false };
    /// An empty chain for reported pages.
    pub(crate) const EMPTY_REPORTED: Self = Self { reported: true, ..Self::EMPTY };

    /// Returns a chain of one page, whose links must be [`NONE`].
    pub(crate) const fn one(index: u32, reported: bool) -> Self {
        Self { first: index, last: index, pages: 1, reported }
    }

    /// Adds a page that is in no chain at the end.
    pub(crate) fn push_back(&mut self, table: &BlockTable, index: u32) {
        self.append(table, Self::one(link(table, index), self.reported));
    }

    /// Adds a page that is in no chain at the front.
    pub(crate) fn push_front(&mut self, table: &BlockTable, index: u32) {
        let mut chain = Self::one(link(table, index), self.reported);
        chain.append(table, *self);
        *self = chain;
    }

    /// Appends another chain of the same kind.
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

    /// Takes out a page, which must be in this chain.
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
            // Both neighbours are of the same kind, so the page's own first link can be reused.
            next => table.set_previous(next, previous),
        }
        self.pages -= 1;
    }

    /// Returns whether a page is the first or the last of this chain.
    pub(crate) const fn ends_with(&self, index: u32) -> bool {
        self.pages != 0 && (index == self.first || index == self.last)
    }

    /// Takes off the first page that `good` accepts. Pages before it go to the end, so that the
    /// search does not meet them again soon. Looks at no more than `left` pages and subtracts those
    /// that it looked at.
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

/// Returns the page after `index`.
pub(crate) fn following(table: &BlockTable, index: u32) -> u32 {
    #[cfg(test)]
    steps::count();
    table.links(index).1
}

/// Clears the links of a page, as in a chain of its own, and returns its index.
fn link(table: &BlockTable, index: u32) -> u32 {
    table.set_previous(index, NONE);
    table.set_next(index, NONE);
    index
}

/// The number of links followed, for tests that check how much work something takes.
#[cfg(test)]
pub(crate) mod steps {
    use std::cell::Cell;

    std::thread_local! {
        static STEPS: Cell<u64> = const { Cell::new(0) };
    }

    pub(super) fn count() {
        STEPS.with(|steps| steps.set(steps.get() + 1));
    }

    /// Returns the number of links followed in this thread since the last call.
    pub(crate) fn take() -> u64 {
        STEPS.with(Cell::take)
    }
}
