//! The free pages of one size and zone: those that were not reported to the hypervisor, and those
//! that were.

use super::chain::{Chain, Inside, inside};
use crate::block::table::BlockTable;

/// Pages of one size and zone, in one chain of unreported pages and one of reported pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PageList {
    /// Pages that were not reported; they are handed out first.
    pub(crate) unreported: Chain,
    /// Pages that were reported since they became free.
    pub(crate) reported: Chain,
}

impl PageList {
    pub(crate) const EMPTY: Self =
        Self { unreported: Chain::EMPTY, reported: Chain::EMPTY_REPORTED };

    /// Returns a list of pages that were not reported.
    pub(crate) const fn unreported(chain: Chain) -> Self {
        Self { unreported: chain, reported: Chain::EMPTY_REPORTED }
    }

    /// Returns a list of one chain's pages, under the kind that the chain has.
    pub(crate) const fn of(chain: Chain) -> Self {
        if chain.reported {
            Self { unreported: Chain::EMPTY, reported: chain }
        } else {
            Self::unreported(chain)
        }
    }

    /// Returns both chains.
    pub(crate) const fn chains(self) -> [Chain; 2] {
        [self.unreported, self.reported]
    }

    /// Returns the number of pages in both chains.
    pub(crate) const fn pages(&self) -> u64 {
        self.unreported.pages + self.reported.pages
    }

    /// Appends another list.
    pub(crate) fn append(&mut self, table: &BlockTable, other: Self) {
        self.unreported.append(table, other.unreported);
        self.reported.append(table, other.reported);
    }

    /// Takes `most` pages off, unreported ones first.
    pub(crate) fn take(&mut self, table: &BlockTable, most: u64) -> Self {
        let unreported = self.unreported.take(table, most);
        Self { unreported, reported: self.reported.take(table, most - unreported.pages) }
    }
}

/// The number of pages that a search for a good page looks at before it must release the lock.
pub(crate) const LOOKS_OF_A_HOLD: u64 = 64;

/// How many pages a search for a good page has left, in a list that may change between two steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Search {
    unreported: u64,
    reported: u64,
}

impl Search {
    /// A search with nothing left to look at.
    pub(crate) const OVER: Self = Self { unreported: 0, reported: 0 };

    /// Returns whether the search has looked at all pages.
    pub(crate) const fn is_over(&self) -> bool {
        self.unreported == 0 && self.reported == 0
    }
}

/// See the module documentation. It is changed under the lock of the accounting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FreeList {
    list: PageList,
    /// The fewest unreported pages since the last [`take_floor`](Self::take_floor).
    floor: u64,
}

impl FreeList {
    pub(crate) const EMPTY: Self = Self { list: PageList::EMPTY, floor: 0 };

    /// Returns both chains, for verification.
    pub(crate) const fn chains(&self) -> [Chain; 2] {
        [self.list.unreported, self.list.reported]
    }

    /// Returns the number of pages that were not reported.
    pub(crate) const fn unreported_pages(&self) -> u64 {
        self.list.unreported.pages
    }

    /// Returns the number of all pages.
    pub(crate) const fn pages(&self) -> u64 {
        self.list.pages()
    }

    /// Returns the fewest unreported pages since the last call and starts over.
    pub(crate) fn take_floor(&mut self) -> u64 {
        core::mem::replace(&mut self.floor, self.list.unreported.pages)
            .min(self.list.unreported.pages)
    }

    /// Adds a page that was in use, to be handed out next.
    pub(crate) fn push_front(&mut self, table: &BlockTable, index: u32) {
        self.list.unreported.push_front(table, index);
    }

    /// Adds a page that was lent to the hypervisor. It goes last, so that a page that cannot be
    /// reported is not lent again at once.
    pub(crate) fn push_lent(&mut self, table: &BlockTable, index: u32, reported: bool) {
        let PageList { unreported, reported: done } = &mut self.list;
        let chain = if reported { done } else { unreported };
        chain.push_back(table, index);
    }

    /// Adds pages.
    pub(crate) fn append(&mut self, table: &BlockTable, pages: PageList) {
        self.list.append(table, pages);
    }

    /// Takes `most` pages off, unreported ones first.
    pub(crate) fn take(&mut self, table: &BlockTable, most: u64) -> PageList {
        let taken = self.list.take(table, most);
        self.note_floor();
        taken
    }

    /// Begins a search of all pages.
    pub(crate) const fn search(&self) -> Search {
        Search { unreported: self.list.unreported.pages, reported: self.list.reported.pages }
    }

    /// Takes off the first page that `good` accepts, unreported pages first. Returns it with
    /// whether it was reported. This is one step of a search and looks at [`LOOKS_OF_A_HOLD`] pages
    /// at most.
    pub(crate) fn take_good(
        &mut self,
        table: &BlockTable,
        good: &dyn Fn(u32) -> bool,
        search: &mut Search,
    ) -> Option<(u32, bool)> {
        let before = search.unreported;
        if let Some(index) = self.take_unreported(table, good, search) {
            return Some((index, false));
        }
        let mut looks = search.reported.min(LOOKS_OF_A_HOLD.saturating_sub(before));
        let rest = search.reported - looks;
        let index = self.list.reported.take_good(table, good, &mut looks);
        search.reported = if self.list.reported.pages == 0 { 0 } else { looks + rest };
        Some((index?, true))
    }

    /// [`take_good`](Self::take_good) among the unreported pages only.
    pub(crate) fn take_unreported(
        &mut self,
        table: &BlockTable,
        good: &dyn Fn(u32) -> bool,
        search: &mut Search,
    ) -> Option<u32> {
        let mut looks = search.unreported.min(LOOKS_OF_A_HOLD);
        let rest = search.unreported - looks;
        let index = self.list.unreported.take_good(table, good, &mut looks);
        search.unreported = if self.list.unreported.pages == 0 { 0 } else { looks + rest };
        self.note_floor();
        index
    }

    /// Takes out a page that is not in use, without a walk. Returns false if the page is in no list
    /// but alone in a chain that is being moved. The caller must not pass a page of a longer chain
    /// that is in no list, because such a page looks as if it were in a list.
    pub(crate) fn remove(&mut self, table: &BlockTable, index: u32) -> bool {
        let chain = match inside(table, index) {
            Inside::Reported(false) => &mut self.list.unreported,
            Inside::Reported(true) => &mut self.list.reported,
            Inside::Edge if self.list.unreported.ends_with(index) => &mut self.list.unreported,
            Inside::Edge if self.list.reported.ends_with(index) => &mut self.list.reported,
            Inside::Edge => return false,
        };
        chain.remove(table, index);
        self.note_floor();
        true
    }

    fn note_floor(&mut self) {
        self.floor = self.floor.min(self.list.unreported.pages);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::chain::{first_link, steps};
    use super::*;
    use crate::block::free_heads::FreeHeads;
    use crate::block::list::NONE;
    use crate::block::lots::LotTable;
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
        let heads = entries(blocks.div_ceil(512));
        BlockTable::new(
            heads,
            entries(blocks),
            maps.leak(),
            ready.leak(),
            FreeHeads::EMPTY,
            LotTable::EMPTY,
        )
    }

    /// Returns all pages of both chains, after checking that their links fit.
    fn walk(list: &FreeList, table: &BlockTable) -> [Vec<u32>; 2] {
        list.chains().map(|chain| {
            let (mut found, mut previous, mut index) = (Vec::new(), NONE, chain.first);
            while index != NONE {
                let expected =
                    if previous == NONE { NONE } else { first_link(previous, chain.reported) };
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
        // 1237 and 4096 have no common divisor, so this visits every index once.
        let scattered = |number: u32| number * 1237 % 4096;
        for index in (0..4096).map(scattered) {
            if index % 3 == 0 {
                list.push_lent(&table, index, true);
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
            // A page alone in its chain is in no list.
            table.set_previous(index, NONE);
            table.set_next(index, NONE);
            assert!(!list.remove(&table, index));
        }
        assert_eq!((list.pages(), list.unreported_pages()), (0, 0));
    }

    #[test]
    fn a_step_of_a_search_is_short_and_a_search_looks_at_all_pages() {
        let table = table(1024);
        let mut list = FreeList::EMPTY;
        (0..500).for_each(|index| list.push_front(&table, index));
        (500..900).for_each(|index| list.push_lent(&table, index, true));
        for (wanted, reported) in [(3, false), (899, true), (1000, true)] {
            let (mut search, mut found) = (list.search(), None);
            while found.is_none() && !search.is_over() {
                steps::take();
                found = list.take_good(&table, &|index| index == wanted, &mut search);
                assert!(steps::take() <= LOOKS_OF_A_HOLD);
            }
            assert_eq!(found, (wanted < 900).then_some((wanted, reported)));
            walk(&list, &table);
        }
        assert_eq!(list.pages(), 898);
    }
}
