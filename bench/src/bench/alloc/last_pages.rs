//! Memory that is full, and then full except for one page in each of many blocks.

use crate::bench::page_set::{BLOCK_PAGES, PageSet};
use crate::bench::random::Random;
use crate::bench::subject::Subject;
use framewright::units::{MAX_ORDER, Order};

/// All memory of an allocator.
pub struct LastPages {
    /// The runs outside the working set: first page and order.
    rest: Vec<(u64, Order)>,
    /// The allocated pages of the working set.
    pages: PageSet,
    /// The first pages of those blocks of the working set that were allocated completely.
    blocks: Vec<u64>,
}

impl LastPages {
    /// Allocates everything: `blocks` blocks page by page, the rest in runs as large as possible.
    /// Returns `None` if that is impossible.
    pub fn prepare<S: Subject>(subject: &S, blocks: u64) -> Option<Self> {
        let mut this = Self { rest: Vec::new(), pages: PageSet::default(), blocks: Vec::new() };
        // These blocks are kept aside while the rest is filled.
        let aside: Vec<u64> = (0..blocks).map_while(|_| subject.get(Order::BLOCK)).collect();
        for order in (0..=MAX_ORDER).rev().filter_map(Order::new) {
            this.rest.extend(std::iter::from_fn(|| subject.get(order)).map(|pfn| (pfn, order)));
        }
        aside.iter().for_each(|&pfn| subject.put(pfn, Order::BLOCK));
        subject.drain();
        while let Some(pfn) = subject.get(Order::PAGE) {
            assert!(this.pages.insert(pfn), "frame {pfn} was allocated twice");
        }
        this.blocks = this.pages.whole_blocks().collect();
        if aside.len() as u64 == blocks && this.blocks.len() as u64 > blocks / 2 {
            return Some(this);
        }
        this.end(subject);
        None
    }

    /// Frees one page of each block, at varying places, with the blocks in random order.
    pub fn free_one_page_a_block<S: Subject>(&mut self, subject: &S) {
        let mut random = Random::new(0);
        let mut blocks = self.blocks.clone();
        random.shuffle(&mut blocks);
        for block in blocks {
            let page = block + random.below(BLOCK_PAGES) as u64;
            self.pages.remove(page);
            subject.put(page, Order::PAGE);
        }
        subject.drain();
    }

    /// The number of blocks that have, or will have, one free page.
    pub fn blocks(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// Frees everything.
    pub fn end<S: Subject>(&mut self, subject: &S) {
        self.pages.pages().for_each(|pfn| subject.put(pfn, Order::PAGE));
        self.rest.drain(..).for_each(|(pfn, order)| subject.put(pfn, order));
        self.pages = PageSet::default();
        subject.drain();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::subject::Buddy;
    use framewright::units::PAGES_PER_BLOCK;

    #[test]
    fn memory_is_full_but_for_one_page_a_block() {
        let buddy = Buddy::new(64 << 20);
        let mut full = LastPages::prepare(&buddy, 8).expect("fills up");
        assert_eq!((full.blocks(), buddy.get(Order::PAGE)), (8, None));
        full.free_one_page_a_block(&buddy);
        let mut pages: Vec<u64> = std::iter::from_fn(|| buddy.get(Order::PAGE)).collect();
        pages.sort_unstable();
        let blocks: Vec<u64> =
            pages.iter().map(|page| page / PAGES_PER_BLOCK * PAGES_PER_BLOCK).collect();
        assert_eq!(blocks, full.blocks);
        pages.into_iter().for_each(|page| buddy.put(page, Order::PAGE));
        full.end(&buddy);
        assert!(buddy.get(Order::new(14).expect("an order")).is_some());
    }
}
