//! A random history of a [`VmemmapSpace`] whose page tables can be read. After every step each page
//! must be mapped with the rights that a model predicts, and every frame must be accounted for.

use super::fault::AccessFault;
use super::faulty::FaultyFrames;
use super::fixture::VmemmapSpaceFixture;
use crate::random::Random;
use framewright::vmemmap_space::{
    BLOCKS_PER_CALL, BlockRange, FrameList, Unflushed, VMEMMAP_PAGES_PER_BLOCK,
};

#[cfg(doc)]
use framewright::vmemmap_space::VmemmapSpace;

/// What the page tables in memory say about a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Translation {
    /// Physical address of the page.
    pub physical: u64,
    /// Whether it may be written.
    pub write: bool,
    /// Whether it may be executed.
    pub execute: bool,
}

/// A fixture whose page tables can be walked.
pub trait Walkable: VmemmapSpaceFixture {
    /// Returns the translation of `address` in the tables in memory.
    fn translate(&self, address: usize) -> Option<Translation>;
    /// Returns the physical address of the frame that is mapped for absent parts.
    fn zero_frame(&self) -> u64;
    /// Returns how many page tables belong to single sections now.
    fn tables(&self) -> u64;
}

impl<T: Walkable> Walkable for &T {
    fn translate(&self, address: usize) -> Option<Translation> {
        (**self).translate(address)
    }
    fn zero_frame(&self) -> u64 {
        (**self).zero_frame()
    }
    fn tables(&self) -> u64 {
        (**self).tables()
    }
}

/// Sections that the history changes. The section behind them stays absent.
const SECTIONS: u32 = 3;
const BLOCKS: usize = (SECTIONS * BLOCKS_PER_CALL) as usize;
const PAGES_PER_BLOCK: usize = 8;
const PAGE_BYTES: usize = 4096;
const _: () = assert!(PAGES_PER_BLOCK as u64 == VMEMMAP_PAGES_PER_BLOCK);

/// What a block should hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Block {
    Absent,
    /// Present, but its word was not written since it was populated.
    Fresh,
    /// Present, with this value in its word.
    Holds(u64),
}

struct History<'a, F> {
    fixture: &'a F,
    blocks: [Block; BLOCKS],
    random: Random,
    /// Frames that were in use at the start.
    resting: u64,
}

/// Runs `steps` random steps, chosen by `seed`, on the first sections of a space that is wholly
/// absent, and makes it absent again at the end.
///
/// # Panics
/// If the space differs from the model; the message says how.
pub fn vmemmap_space_history<F: Walkable>(fixture: &F, seed: u64, steps: u32) {
    let blocks = [Block::Absent; BLOCKS];
    let mut history =
        History { fixture, blocks, random: Random::new(seed), resting: fixture.outstanding() };
    history.check_tables();
    for _ in 0..steps {
        history.step();
        history.check_tables();
    }
    for section in 0..SECTIONS {
        history.evict(whole(section), true);
    }
    history.check_tables();
    assert_eq!(fixture.outstanding(), history.resting, "an absent section holds no frame");
}

fn whole(section: u32) -> BlockRange {
    BlockRange::new(section * BLOCKS_PER_CALL, (section + 1) * BLOCKS_PER_CALL)
}

fn indices(blocks: BlockRange) -> core::ops::Range<usize> {
    blocks.start.0 as usize..blocks.end.0 as usize
}

impl<F: Walkable> History<'_, F> {
    /// Returns the address of page `page` of the array.
    fn page(&self, page: usize) -> usize {
        self.fixture.space().base().addr().get() + page * PAGE_BYTES
    }

    /// Returns the address of the word that the history writes in a block. Its page differs from
    /// block to block.
    fn word(&self, block: usize) -> usize {
        self.page(PAGES_PER_BLOCK * block + 5 * block % PAGES_PER_BLOCK) + 24
    }

    #[expect(clippy::needless_pass_by_value, reason = "the list is the right to free its frames")]
    fn free(&self, list: FrameList) -> u64 {
        list.runs().for_each(|run| self.fixture.free(run));
        list.pages()
    }

    fn range(&mut self) -> BlockRange {
        let section = whole(u32::try_from(self.random.below(u64::from(SECTIONS))).unwrap_or(0));
        if self.random.one_in(4) {
            return section;
        }
        let longest = if self.random.one_in(2) { 4 } else { u64::from(BLOCKS_PER_CALL) };
        let start = section.start.0
            + u32::try_from(self.random.below(u64::from(BLOCKS_PER_CALL))).unwrap_or(0);
        let length = 1 + u32::try_from(self.random.below(longest)).unwrap_or(0);
        BlockRange::new(start, (start + length).min(section.end.0))
    }

    fn step(&mut self) {
        let blocks = self.range();
        match self.random.below(6) {
            0 | 1 => self.populate(blocks),
            2 => self.evict(blocks, true),
            3 => self.evict(blocks, false),
            4 => self.prepare_or_merge(blocks),
            _ => {}
        }
        // After each step one random block is checked, and now and then all of them.
        let look_at_all = self.random.one_in(8);
        let one = self.random.index(BLOCKS);
        for block in if look_at_all { 0..BLOCKS } else { one..one + 1 } {
            self.check_block(block);
        }
    }

    fn populate(&mut self, blocks: BlockRange) {
        let mut unflushed = Unflushed::new();
        let enough = !self.random.one_in(3);
        let limit = if enough { u64::MAX } else { self.random.below(12) };
        let mut frames = FaultyFrames::fail_after(self.fixture.frames(), limit);
        let done = self.fixture.trial().populate(blocks, &mut frames, &mut unflushed);
        assert!(done.is_ok() || frames.held_pages() == 0, "a failed call kept frames");
        assert!(done.is_ok() || !unflushed.is_stale(), "a failed call changed something");
        drop(frames);
        self.free(self.fixture.trial().flush(unflushed));
        if done.is_ok() {
            for block in
                self.blocks[indices(blocks)].iter_mut().filter(|block| **block == Block::Absent)
            {
                *block = Block::Fresh;
            }
        }
    }

    fn evict(&mut self, blocks: BlockRange, prepare: bool) {
        if prepare {
            let mut unflushed = Unflushed::new();
            let done =
                self.fixture.trial().prepare(blocks, &mut self.fixture.frames(), &mut unflushed);
            self.free(self.fixture.trial().flush(unflushed));
            if done.is_err() {
                return;
            }
        }
        let present =
            self.blocks[indices(blocks)].iter().filter(|block| **block != Block::Absent).count();
        let mut unflushed = Unflushed::new();
        let left = self.fixture.trial().evict(blocks, &mut unflushed) as usize;
        self.free(self.fixture.trial().flush(unflushed));
        // Everything was flushed before, so there was room for all. Blocks may be left only because
        // they were not prepared.
        assert!(
            left == 0 || !prepare && left == present,
            "{left} of {present} blocks in {blocks:?} were left"
        );
        if left == 0 {
            self.blocks[indices(blocks)].fill(Block::Absent);
        }
    }

    fn prepare_or_merge(&mut self, blocks: BlockRange) {
        let mut unflushed = Unflushed::new();
        if self.random.one_in(2) {
            // Without a frame nothing changes, which is checked after the step.
            let _ =
                self.fixture.trial().prepare(blocks, &mut self.fixture.frames(), &mut unflushed);
        } else {
            let section = whole(blocks.start.0 / BLOCKS_PER_CALL);
            let all = self.blocks[indices(section)].iter().all(|block| *block != Block::Absent);
            let merged =
                self.fixture.trial().merge(section, &mut self.fixture.frames(), &mut unflushed);
            assert!(all || merged != Ok(true), "an absent block was merged");
        }
        self.free(self.fixture.trial().flush(unflushed));
    }

    /// Reads and writes a block's word on every CPU.
    fn check_block(&mut self, block: usize) {
        let address = self.word(block);
        for cpu in 0..self.fixture.cpus() {
            let seen = self.fixture.load(cpu, address).unwrap_or_else(|fault| panic!("{fault}"));
            let value = self.random.bits();
            let stored = self.fixture.store(cpu, address, value);
            match self.blocks[block] {
                Block::Absent => {
                    assert_eq!(seen, 0, "absent block {block} on CPU {cpu}");
                    let refused = matches!(stored, Err(AccessFault::ReadOnly { .. }));
                    assert!(refused, "absent block {block} was written on CPU {cpu}");
                    continue;
                }
                Block::Fresh => {}
                Block::Holds(value) => assert_eq!(seen, value, "block {block} on CPU {cpu}"),
            }
            stored.unwrap_or_else(|fault| panic!("block {block} should be present: {fault}"));
            self.blocks[block] = Block::Holds(value);
        }
    }

    /// Walks the tables to every page and compares it with the model.
    fn check_tables(&self) {
        let mut present_pages = 0;
        for page in 0..(BLOCKS + BLOCKS_PER_CALL as usize) * PAGES_PER_BLOCK {
            let block = page / PAGES_PER_BLOCK;
            let found = self.fixture.translate(self.page(page));
            let found = found.unwrap_or_else(|| panic!("page {page} of the array is not mapped"));
            let present = self.blocks.get(block).is_some_and(|block| *block != Block::Absent);
            assert!(!found.execute, "page {page} of the array may be executed");
            assert_eq!(
                found.write,
                present,
                "page {page} of block {block}, {:?}",
                self.blocks.get(block)
            );
            assert_eq!(
                found.physical != self.fixture.zero_frame(),
                present,
                "page {page} of block {block}"
            );
            present_pages += u64::from(present);
        }
        assert!(present_pages.is_multiple_of(VMEMMAP_PAGES_PER_BLOCK));
        let expected = self.resting + present_pages + self.fixture.tables();
        assert_eq!(self.fixture.outstanding(), expected, "{present_pages} pages are present");
    }
}
