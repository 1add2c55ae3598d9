//! The free pages of one size and zone: those that the hypervisor was not told of, and those that
//! it was.

use super::chain::{Chain, Inside, inside};
use crate::block::table::BlockTable;

/// Pages of one size and zone that the hypervisor was not told of, and such as it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PageList {
    /// Handed out first.
    pub(crate) fresh: Chain,
    /// Reported since they became free.
    pub(crate) told: Chain,
}

impl PageList {
    pub(crate) const EMPTY: Self = Self { fresh: Chain::EMPTY, told: Chain::EMPTY_REPORTED };

    /// Pages that were not reported.
    pub(crate) const fn fresh(chain: Chain) -> Self {
        Self { fresh: chain, told: Chain::EMPTY_REPORTED }
    }

    /// The pages of one chain, in their place.
    pub(crate) const fn of(chain: Chain) -> Self {
        if chain.told { Self { fresh: Chain::EMPTY, told: chain } } else { Self::fresh(chain) }
    }

    /// Both kinds.
    pub(crate) const fn chains(self) -> [Chain; 2] {
        [self.fresh, self.told]
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

/// Pages that a search for a good one looks at before it must let the lock go.
pub(crate) const LOOKS_OF_A_HOLD: u64 = 64;

/// How far a search for a good page has come in a list that may change between two steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Search {
    fresh: u64,
    told: u64,
}

impl Search {
    /// Nothing is left to look at.
    pub(crate) const OVER: Self = Self { fresh: 0, told: 0 };

    /// Whether all pages were looked at.
    pub(crate) const fn is_over(&self) -> bool {
        self.fresh == 0 && self.told == 0
    }
}

/// See the module documentation. Changed by who has the lock of the books.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FreeList {
    lot: PageList,
    /// The fewest fresh pages since [`take_floor`](Self::take_floor).
    floor: u64,
}

impl FreeList {
    pub(crate) const EMPTY: Self = Self { lot: PageList::EMPTY, floor: 0 };

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
    pub(crate) fn push_reported(&mut self, table: &BlockTable, index: u32) {
        self.lot.told.push_back(table, index);
    }

    /// Adds pages.
    pub(crate) fn append(&mut self, table: &BlockTable, pages: PageList) {
        self.lot.append(table, pages);
    }

    /// Takes `most` pages off, fresh ones first.
    pub(crate) fn take(&mut self, table: &BlockTable, most: u64) -> PageList {
        let taken = self.lot.take(table, most);
        self.note_floor();
        taken
    }

    /// A search of all pages.
    pub(crate) const fn search(&self) -> Search {
        Search { fresh: self.lot.fresh.pages, told: self.lot.told.pages }
    }

    /// Takes off the first page that `good` accepts, unreported ones first; whether it was reported
    /// stands beside it. A step of a search: looks at [`LOOKS_OF_A_HOLD`] pages at most.
    pub(crate) fn take_good(
        &mut self,
        table: &BlockTable,
        good: &dyn Fn(u32) -> bool,
        search: &mut Search,
    ) -> Option<(u32, bool)> {
        let before = search.fresh;
        if let Some(index) = self.take_unreported(table, good, search) {
            return Some((index, false));
        }
        let mut looks = search.told.min(LOOKS_OF_A_HOLD.saturating_sub(before));
        let rest = search.told - looks;
        let index = self.lot.told.take_good(table, good, &mut looks);
        search.told = if self.lot.told.pages == 0 { 0 } else { looks + rest };
        Some((index?, true))
    }

    /// [`take_good`](Self::take_good) among the unreported pages only.
    pub(crate) fn take_unreported(
        &mut self,
        table: &BlockTable,
        good: &dyn Fn(u32) -> bool,
        search: &mut Search,
    ) -> Option<u32> {
        let mut looks = search.fresh.min(LOOKS_OF_A_HOLD);
        let rest = search.fresh - looks;
        let index = self.lot.fresh.take_good(table, good, &mut looks);
        search.fresh = if self.lot.fresh.pages == 0 { 0 } else { looks + rest };
        self.note_floor();
        index
    }

    /// Takes out a page that nobody uses, in one step; false when it is in no list, but alone on
    /// its way. Not to be asked for a page of a longer chain that is in no list, for that looks as
    /// if it were in one.
    pub(crate) fn remove(&mut self, table: &BlockTable, index: u32) -> bool {
        let chain = match inside(table, index) {
            Inside::Told(false) => &mut self.lot.fresh,
            Inside::Told(true) => &mut self.lot.told,
            Inside::Edge if self.lot.fresh.ends_with(index) => &mut self.lot.fresh,
            Inside::Edge if self.lot.told.ends_with(index) => &mut self.lot.told,
            Inside::Edge => return false,
        };
        chain.remove(table, index);
        self.note_floor();
        true
    }

    fn note_floor(&mut self) {
        self.floor = self.floor.min(self.lot.fresh.pages);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::chain::{first_link, steps};
    use super::*;
    use crate::block::list::NONE;
    use crate::block::{BlockEntry, FreeMap};
    use crate::sync::table_atomic::AtomicU64;
    use std::vec::Vec;

    fn table(blocks: usize) -> BlockTable {
        let entries = |count: usize| -> &'static [BlockEntry] {
            (0..count).map(|_| BlockEntry::new()).collect::<Vec<_>>().leak()
        };
        let maps: Vec<FreeMap> = (0..blocks).map(|_| FreeMap::new()).collect();
        let ready: Vec<AtomicU64> =
            (0..blocks.div_ceil(512 * 64)).map(|_| AtomicU64::new(u64::MAX)).collect();
        BlockTable::new(entries(blocks.div_ceil(512)), entries(blocks), maps.leak(), ready.leak())
    }

    /// All pages of both chains, whose links fit.
    fn walk(list: &FreeList, table: &BlockTable) -> [Vec<u32>; 2] {
        list.chains().map(|chain| {
            let (mut found, mut previous, mut index) = (Vec::new(), NONE, chain.first);
            while index != NONE {
                let expected =
                    if previous == NONE { NONE } else { first_link(previous, chain.told) };
                assert_eq!(table.links(index).0, expected);
                found.push(index);
                (previous, index) = (index, table.links(index).1);
            }
            assert_eq!((previous, found.len() as u64), (chain.last, chain.pages));
            found
        })
    }

    #[test]
    fn any_page_is_taken_out_in_one_step_of_the_chain_that_it_is_in() {
        let table = table(4096);
        let mut list = FreeList::EMPTY;
        let mut expected = [Vec::new(), Vec::new()];
        // 1237 and 4096 have no common divisor: every index once.
        let scattered = |number: u32| number * 1237 % 4096;
        for index in (0..4096).map(scattered) {
            if index % 3 == 0 {
                list.push_reported(&table, index);
            } else {
                list.push_front(&table, index);
            }
            expected[usize::from(index % 3 == 0)].push(index);
        }
        expected[0].reverse();
        assert_eq!(walk(&list, &table), expected);
        for number in 0..4096 {
            let index = number * 2741 % 4096;
            steps::take();
            assert!(list.remove(&table, index));
            assert!(steps::take() <= 1);
            expected[usize::from(index % 3 == 0)].retain(|&other| other != index);
            if number % 256 == 0 || number > 4080 {
                assert_eq!(walk(&list, &table), expected);
            }
            // Alone it is in no list.
            table.set_previous(index, NONE);
            table.set_next(index, NONE);
            assert!(!list.remove(&table, index));
        }
        assert_eq!((list.pages(), list.fresh_pages()), (0, 0));
    }

    #[test]
    fn a_step_of_a_search_is_short_and_a_search_looks_at_all_pages() {
        let table = table(1024);
        let mut list = FreeList::EMPTY;
        (0..500).for_each(|index| list.push_front(&table, index));
        (500..900).for_each(|index| list.push_reported(&table, index));
        for (wanted, told) in [(3, false), (899, true), (1000, true)] {
            let (mut search, mut found) = (list.search(), None);
            while found.is_none() && !search.is_over() {
                steps::take();
                found = list.take_good(&table, &|index| index == wanted, &mut search);
                assert!(steps::take() <= LOOKS_OF_A_HOLD);
            }
            assert_eq!(found, (wanted < 900).then_some((wanted, told)));
            walk(&list, &table);
        }
        assert_eq!(list.pages(), 898);
    }
}
