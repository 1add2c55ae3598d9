//! Random histories against a model of every frame and of what each page of the vmemmap must
//! translate to.

use super::cpus::Forgets;
use super::fixture::{BASE, BLOCK_BYTES, Fixture};
use framewright::units::{Order, PAGE_SIZE, PfnRange};
use framewright::vmemmap_space::{BlockRange, OutOfFrames, Unflushed};
use framewright_arch::paging::PageSize;
use framewright_testkit::contract::contract_pool;
use framewright_testkit::{AccessFault, FaultyFrames, VmemmapSpaceFixture};
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};

/// The number of sections in use, from the first.
const SECTIONS: u32 = 3;

#[derive(Clone, Debug)]
enum Step {
    Populate(BlockRange),
    Prepare(BlockRange),
    Evict(BlockRange),
    Merge(u32),
    /// One of the calls that take frames, with only this many frames available.
    Short(u8, BlockRange, u64),
    Flush,
    Store(u32, u32, u64),
    Load(u32, u32),
}

fn blocks() -> impl Strategy<Value = BlockRange> {
    let ends = prop_oneof![Just((0u32, 64u32)), (0u32..64, 1u32..=64), (0u32..64, 1u32..4)];
    (0..SECTIONS, ends).prop_map(|(section, (start, length))| {
        BlockRange::new(64 * section + start, 64 * section + (start + length).min(64))
    })
}

fn step() -> impl Strategy<Value = Step> {
    let block = 0..64 * SECTIONS;
    prop_oneof![
        3 => blocks().prop_map(Step::Populate),
        2 => blocks().prop_map(Step::Prepare),
        3 => blocks().prop_map(Step::Evict),
        2 => (0..SECTIONS).prop_map(Step::Merge),
        2 => (0u8..3, blocks(), 0u64..12)
            .prop_map(|(call, blocks, frames)| Step::Short(call, blocks, frames)),
        2 => Just(Step::Flush),
        3 => (0u32..3, block.clone(), any::<u64>())
            .prop_map(|(cpu, block, value)| Step::Store(cpu, block, value)),
        3 => (0u32..3, block).prop_map(|(cpu, block)| Step::Load(cpu, block)),
    ]
}

struct Run {
    fixture: Fixture,
    /// Present blocks and what was written to their word, if anything.
    present: HashMap<u32, Option<u64>>,
    unflushed: Unflushed,
    /// Frames in `unflushed`.
    waiting: usize,
}

fn list(blocks: BlockRange) -> impl Iterator<Item = u32> {
    blocks.start.0..blocks.end.0
}

impl Run {
    fn address(block: u32) -> usize {
        usize::try_from(BASE + u64::from(block) * BLOCK_BYTES + 5 * PAGE_SIZE + 16)
            .expect("64 bits")
    }

    fn flush(&mut self) {
        let list = self.fixture.trial().flush(std::mem::take(&mut self.unflushed));
        self.fixture.pool.free(list);
        self.waiting = 0;
    }

    /// Checks everything about the tables from outside: all translations, access rights and frames.
    fn check(&self) {
        let (vmemmap, fixture) = (&self.fixture.vmemmap, &self.fixture);
        let mut frames = HashSet::new();
        let mut small_sections = HashSet::new();
        for page in 0..u64::from(64 * SECTIONS + 64) * 8 {
            let block = u32::try_from(page / 8).expect("few");
            let (physical, size, access) =
                fixture.translate(BASE + page * PAGE_SIZE).expect("the vmemmap has no hole");
            assert!(!access.execute && !access.global);
            if self.present.contains_key(&block) {
                assert!(access.write, "page {page} of present block {block} is read-only");
                assert!(frames.insert(physical), "frame {physical:#x} is mapped twice");
                if size == PageSize::Small {
                    small_sections.insert(block / 64);
                }
            } else {
                assert_eq!(
                    physical,
                    vmemmap.zero_frame().address(),
                    "page {page} of absent block {block}"
                );
                assert!(!access.write, "page {page} of absent block {block} may be written");
            }
        }
        let counts = vmemmap.counts();
        // A table may outlive its last block if the unflushed set had no room for it.
        assert!(counts.tables >= small_sections.len() as u64, "{counts:?}");
        let expected = fixture.resting
            + frames.len()
            + usize::try_from(counts.tables).expect("few")
            + self.waiting;
        assert_eq!(fixture.pool.outstanding(), expected, "{counts:?}");
        assert_eq!(counts.populated_pages - counts.evicted_pages, frames.len() as u64);
    }

    fn take(
        &mut self,
        call: u8,
        blocks: BlockRange,
        frames: Option<u64>,
    ) -> Result<(), OutOfFrames> {
        let pool = &self.fixture.pool;
        let vmemmap = &self.fixture.vmemmap;
        let mut source = match frames {
            Some(count) => FaultyFrames::fail_after(pool, count),
            None => FaultyFrames::new(pool),
        };
        let before = self.fixture.pool.outstanding();
        let (room, tables, outside) =
            (self.unflushed.room(), vmemmap.counts().tables, vmemmap.counts().merges);
        let result = match call {
            0 => self.fixture.trial().populate(blocks, &mut source, &mut self.unflushed),
            1 => self.fixture.trial().prepare(blocks, &mut source, &mut self.unflushed),
            _ => self.fixture.trial().merge(blocks, &mut source, &mut self.unflushed).map(|_| ()),
        };
        if result.is_err() {
            assert_eq!(source.held_pages(), 0, "a failed call kept frames");
            assert_eq!(self.fixture.pool.outstanding(), before);
            assert_eq!((self.unflushed.room(), vmemmap.counts().tables), (room, tables));
        } else if call == 0 {
            for block in list(blocks) {
                self.present.entry(block).or_insert(None);
            }
            // A table that a large page replaced waits for the flush.
            self.waiting += usize::from(vmemmap.counts().tables < tables);
        } else if call == 2 && vmemmap.counts().merges > outside {
            self.waiting += 1 + usize::try_from(source.held_pages()).expect("taken");
        }
        result
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Populate(blocks) => self.take(0, blocks, None).expect("the pool is large"),
            Step::Prepare(blocks) => self.take(1, blocks, None).expect("the pool is large"),
            Step::Short(call, blocks, frames) => {
                let section = blocks.start.0 / 64;
                let whole = BlockRange::new(64 * section, 64 * section + 64);
                let _ = self.take(call, if call == 2 { whole } else { blocks }, Some(frames));
            }
            Step::Merge(section) => {
                // Without an aligned run this is an ordinary error.
                let _ = self.take(2, BlockRange::new(64 * section, 64 * section + 64), None);
            }
            Step::Evict(blocks) => self.evict(blocks),
            Step::Flush => self.flush(),
            Step::Store(cpu, block, value) => {
                self.flush();
                let stored = self.fixture.cpus.store(cpu, Self::address(block), value);
                match self.present.get_mut(&block) {
                    Some(known) => {
                        stored.expect("present");
                        *known = Some(value);
                    }
                    None => assert!(
                        matches!(stored, Err(AccessFault::ReadOnly { .. })),
                        "block {block}: {stored:?}"
                    ),
                }
            }
            Step::Load(cpu, block) => {
                let clean = !self.unflushed.is_stale();
                let seen = self
                    .fixture
                    .cpus
                    .load(cpu, Self::address(block))
                    .expect("nothing is freed before its flush");
                match self.present.get(&block) {
                    Some(&Some(value)) if clean => assert_eq!(seen, value, "block {block}"),
                    None if clean => assert_eq!(seen, 0, "block {block}"),
                    _ => {}
                }
            }
        }
        if self.unflushed.room() < Unflushed::CAPACITY / 4 {
            self.flush();
        }
    }

    /// What is left was not prepared or does not fit; the tables say which.
    fn evict(&mut self, blocks: BlockRange) {
        let fixture = &self.fixture;
        let (tables, evicted) =
            (fixture.vmemmap.counts().tables, fixture.vmemmap.counts().evicted_pages);
        let was_large = list(blocks).any(|block| {
            let size =
                fixture.translate(BASE + u64::from(block) * BLOCK_BYTES).map(|(_, size, _)| size);
            size == Some(PageSize::Medium)
        });
        let left = fixture.trial().evict(blocks, &mut self.unflushed) as usize;
        let counts = fixture.vmemmap.counts();
        self.waiting += usize::try_from(counts.evicted_pages - evicted + (tables - counts.tables))
            .expect("few");
        let is_present = |block: u32| {
            let (physical, ..) = fixture
                .translate(BASE + u64::from(block) * BLOCK_BYTES)
                .expect("the vmemmap has no hole");
            physical != fixture.vmemmap.zero_frame().address()
        };
        let mut still = 0;
        for block in list(blocks) {
            if is_present(block) {
                still += 1;
            } else {
                self.present.remove(&block);
            }
        }
        assert_eq!(still, left, "evict did not say what it left");
        let is_whole = blocks.blocks() == 64;
        let full = self.unflushed.room() < 8;
        assert!(
            left == 0 || full || was_large && !is_whole,
            "{left} of {blocks:?} were left without a reason"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(96)
    })]

    #[test]
    fn random_histories_agree_with_a_model(
        steps in proptest::collection::vec(step(), 1..50),
        shape in 0u8..3,
        limit in prop::sample::select(vec![0, 32, u64::MAX]),
    ) {
        let pool = match shape {
            0 => contract_pool(Order::MAX),
            1 => contract_pool(Order::new(3).expect("an order")),
            _ => contract_pool(Order::MAX).fragmented(),
        };
        let machine = pool.machine();
        let fixture = Fixture::with(pool, limit, Forgets::Nothing);
        let mut run =
            Run { fixture, present: HashMap::new(), unflushed: Unflushed::new(), waiting: 0 };
        for step in &steps {
            run.apply(step);
            run.check();
        }
        for section in 0..SECTIONS {
            run.flush();
            run.evict(BlockRange::new(64 * section, 64 * section + 64));
        }
        run.flush();
        run.check();
        prop_assert!(run.present.is_empty());
        prop_assert_eq!(run.fixture.pool.outstanding(), run.fixture.resting);
        let zero = run.fixture.vmemmap.zero_frame();
        let words = PfnRange::new(zero.0, zero.0 + 1).to_phys();
        prop_assert!(
            (words.start..words.end).step_by(8).all(|word| machine.load(word) == 0),
            "the zero frame was written"
        );
        drop(run);
        // SAFETY: the fixture was the machine's only user.
        unsafe { machine.retire() };
    }
}
