//! The fake page tables keep the contract of `VmemmapSpace`, and the contract tests detect tables
//! that break it.

use framewright::units::{Order, PfnRange};
use framewright::vmemmap_space::{
    BlockNumber, BlockRange, FrameList, FrameSource, OutOfFrames, Unflushed,
    VMEMMAP_PAGES_PER_BLOCK, VmemmapSpace,
};
use framewright_testkit::contract::{FakeFixture, contract_pool};
use framewright_testkit::{AccessFault, VmemmapSpaceFixture, vmemmap_space_contract};
use proptest::prelude::*;
use std::collections::HashMap;
use std::ptr::NonNull;

const PAGES: usize = 4096;
const BLOCK_BYTES: usize = 8 * PAGES;

#[test]
fn the_contract_holds_with_large_frames() {
    vmemmap_space_contract(|| FakeFixture::new(contract_pool(Order::MAX)));
}

#[test]
fn the_contract_holds_without_large_mappings() {
    vmemmap_space_contract(|| FakeFixture::new(contract_pool(Order::new(3).expect("an order"))));
}

#[test]
fn the_contract_holds_in_fragmented_memory() {
    vmemmap_space_contract(|| FakeFixture::new(contract_pool(Order::MAX).fragmented()));
}

/// Tables that break one promise.
struct Broken {
    inner: FakeFixture,
    defect: Defect,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Defect {
    /// Frees frames at once, without a flush.
    NoFlush,
    /// Evicts only the first half.
    HalfEvict,
    /// A failed call leaks a frame.
    Leak,
    /// Preparing loses the content.
    PrepareLoses,
    /// Claims that no block is left.
    Boasts,
    /// Merging loses the content.
    MergeLoses,
}

// SAFETY: it breaks the promises on purpose. Frames are reached through simulated TLBs only, which
// report it.
unsafe impl VmemmapSpace for Broken {
    fn base(&self) -> NonNull<u8> {
        self.inner.paging.base()
    }

    unsafe fn populate(
        &self,
        blocks: BlockRange,
        frames: &mut dyn FrameSource,
        unflushed: &mut Unflushed,
    ) -> Result<(), OutOfFrames> {
        let result = self.inner.trial().populate(blocks, frames, unflushed);
        if result.is_err() && self.defect == Defect::Leak {
            let _ = frames.take(Order::PAGE);
            let _ = (&self.inner.pool).take(Order::PAGE);
        }
        result
    }

    unsafe fn prepare(
        &self,
        blocks: BlockRange,
        frames: &mut dyn FrameSource,
        unflushed: &mut Unflushed,
    ) -> Result<(), OutOfFrames> {
        self.inner.trial().prepare(blocks, frames, unflushed)?;
        if self.defect == Defect::PrepareLoses {
            let _ = self.inner.trial().evict(blocks, unflushed);
        }
        Ok(())
    }

    unsafe fn evict(&self, blocks: BlockRange, unflushed: &mut Unflushed) -> u32 {
        let half = BlockRange::new(blocks.start.0, blocks.start.0 + blocks.blocks() / 2);
        match self.defect {
            Defect::HalfEvict => self.inner.trial().evict(half, unflushed),
            Defect::Boasts => {
                let _ = self.inner.trial().evict(blocks, unflushed);
                0
            }
            _ => self.inner.trial().evict(blocks, unflushed),
        }
    }

    unsafe fn merge(
        &self,
        section: BlockRange,
        frames: &mut dyn FrameSource,
        unflushed: &mut Unflushed,
    ) -> Result<bool, OutOfFrames> {
        if self.defect == Defect::MergeLoses {
            let last = BlockRange { start: BlockNumber(section.end.0 - 1), ..section };
            let _ = self.inner.trial().evict(last, unflushed);
            return Ok(false);
        }
        self.inner.trial().merge(section, frames, unflushed)
    }

    unsafe fn flush(&self, unflushed: Unflushed) -> FrameList {
        if self.defect == Defect::NoFlush {
            // SAFETY: this breaks the promise on purpose; see above.
            return unsafe { unflushed.into_flushed() };
        }
        self.inner.trial().flush(unflushed)
    }
}

// SAFETY: as for `FakeFixture`: a model without other users.
unsafe impl VmemmapSpaceFixture for Broken {
    fn space(&self) -> &dyn VmemmapSpace {
        self
    }
    fn frames(&self) -> impl FrameSource {
        &self.inner.pool
    }
    fn free(&self, run: PfnRange) {
        self.inner.pool.free_runs(&[run]);
    }
    fn outstanding(&self) -> u64 {
        self.inner.pool.outstanding() as u64
    }
    fn cpus(&self) -> u32 {
        self.inner.cpus()
    }
    fn load(&self, cpu: u32, address: usize) -> Result<u64, AccessFault> {
        self.inner.load(cpu, address)
    }
    fn store(&self, cpu: u32, address: usize, value: u64) -> Result<(), AccessFault> {
        self.inner.store(cpu, address, value)
    }
}

fn broken(defect: Defect) -> Broken {
    Broken { inner: FakeFixture::new(contract_pool(Order::MAX)), defect }
}

#[test]
fn the_contract_finds_every_defect() {
    for defect in [
        Defect::NoFlush,
        Defect::HalfEvict,
        Defect::Leak,
        Defect::PrepareLoses,
        Defect::Boasts,
        Defect::MergeLoses,
    ] {
        let outcome = std::panic::catch_unwind(|| vmemmap_space_contract(|| broken(defect)));
        assert!(outcome.is_err(), "{defect:?} went unnoticed");
    }
}

#[test]
fn a_frame_freed_before_its_flush_is_reported() {
    let fixture = broken(Defect::NoFlush);
    let blocks = BlockRange::new(64, 128);
    let address = fixture.base().addr().get() + 70 * BLOCK_BYTES;
    let mut unflushed = Unflushed::new();
    fixture.trial().populate(blocks, &mut &fixture.inner.pool, &mut unflushed).expect("frames");
    fixture.load(1, address).expect("present");
    assert_eq!(fixture.trial().evict(blocks, &mut unflushed), 0);
    let list = fixture.trial().flush(unflushed);
    let first = list.runs().next().expect("frames came").start;
    fixture.load(1, address).expect("the frame is not free yet");
    fixture.inner.pool.free(list);
    let frame = first.add(6 * 8);
    assert_eq!(fixture.load(1, address), Err(AccessFault::Stale { cpu: 1, address, frame }));
    assert_eq!(fixture.load(0, address), Ok(0), "CPU 0 had not looked");
    // When the frame is used again, the translation is still stale, for reads and for writes.
    let again = (&fixture.inner.pool).take(Order::BLOCK).expect("frames");
    assert_eq!(again, first);
    let fault = VmemmapSpaceFixture::store(&fixture, 1, address, 1).expect_err("stale");
    assert_eq!(fault, AccessFault::Stale { cpu: 1, address, frame });
    assert!(
        fault.to_string().contains("CPU 1 reached 0xffff800000230000 through frame"),
        "{fault}"
    );
}

#[test]
fn a_freed_page_table_is_stale_too() {
    let fixture = broken(Defect::NoFlush);
    let blocks = BlockRange::new(64, 66);
    let address = fixture.base().addr().get() + 64 * BLOCK_BYTES;
    let mut unflushed = Unflushed::new();
    fixture.trial().populate(blocks, &mut &fixture.inner.pool, &mut unflushed).expect("frames");
    fixture.load(0, address).expect("present");
    assert_eq!(fixture.trial().evict(blocks, &mut unflushed), 0);
    fixture.inner.pool.free(fixture.trial().flush(unflushed));
    // Another page of the section was not accessed, but the section's table was cached.
    let other = address + 40 * BLOCK_BYTES;
    assert!(matches!(fixture.load(0, other), Err(AccessFault::Stale { cpu: 0, .. })));
}

#[test]
fn a_whole_section_costs_no_table_and_two_flushes() {
    let fixture = FakeFixture::new(contract_pool(Order::MAX));
    let blocks = BlockRange::new(128, 192);
    let mut unflushed = Unflushed::new();
    fixture.trial().populate(blocks, &mut &fixture.pool, &mut unflushed).expect("frames");
    let counts = fixture.paging.counts();
    assert_eq!((counts.tables, counts.large, counts.populated_pages), (0, 1, 512));
    fixture.trial().prepare(blocks, &mut &fixture.pool, &mut unflushed).expect("no frame needed");
    let _ = fixture.trial().flush(unflushed);
    let mut unflushed = Unflushed::new();
    assert_eq!(fixture.trial().evict(blocks, &mut unflushed), 0);
    let list = fixture.trial().flush(unflushed);
    assert_eq!((list.runs().count(), list.pages()), (1, 512));
    let counts = fixture.paging.counts();
    assert_eq!((counts.tables, counts.large, counts.flushes, counts.evicted_pages), (0, 0, 2, 512));
    let _ = fixture.trial().flush(Unflushed::new());
    assert_eq!(fixture.paging.counts().flushes, 2, "nothing was stale");
}

#[test]
fn addresses_outside_the_array_are_refused() {
    let fixture = FakeFixture::new(contract_pool(Order::MAX));
    let address = fixture.paging.base().addr().get() - 8;
    assert_eq!(fixture.load(0, address), Err(AccessFault::Beyond { cpu: 0, address }));
}

/// A step of a random history over two sections.
#[derive(Clone, Debug)]
enum Step {
    Populate(u32, u32, u32),
    Evict(u32, u32, u32, bool),
    Fail(u32, u32, u32, u64),
    Flush,
    Store(u32, u32, u64),
    Load(u32, u32),
}

fn step() -> impl Strategy<Value = Step> {
    let range = (0u32..2, 0u32..64, 1u32..=64);
    prop_oneof![
        range.clone().prop_map(|(section, start, length)| Step::Populate(section, start, length)),
        (range.clone(), any::<bool>()).prop_map(|((section, start, length), prepare)| Step::Evict(
            section, start, length, prepare
        )),
        (range, 0u64..12).prop_map(|((section, start, length), steps)| Step::Fail(
            section, start, length, steps
        )),
        Just(Step::Flush),
        (0u32..3, 0u32..128, any::<u64>())
            .prop_map(|(cpu, block, value)| Step::Store(cpu, block, value)),
        (0u32..3, 0u32..128).prop_map(|(cpu, block)| Step::Load(cpu, block)),
    ]
}

/// The expected content of the vmemmap: `None` for a present block that was not written to yet.
#[derive(Default)]
struct Model {
    present: HashMap<u32, Option<u64>>,
}

struct Run {
    fixture: FakeFixture,
    model: Model,
    unflushed: Unflushed,
}

impl Run {
    fn flush(&mut self) {
        let unflushed = std::mem::take(&mut self.unflushed);
        self.fixture.pool.free(self.fixture.trial().flush(unflushed));
    }

    fn address(&self, block: u32) -> usize {
        self.fixture.paging.base().addr().get() + block as usize * BLOCK_BYTES + 5 * PAGES + 16
    }

    fn apply(&mut self, step: &Step) {
        let blocks = |section: u32, start: u32, length: u32| {
            BlockRange::new(64 * section + start, 64 * section + (start + length).min(64))
        };
        let (trial, pool) = (self.fixture.trial(), &self.fixture.pool);
        match *step {
            Step::Populate(section, start, length) => {
                let range = blocks(section, start, length);
                trial
                    .populate(range, &mut { pool }, &mut self.unflushed)
                    .expect("the pool is large");
                for block in range.start.0..range.end.0 {
                    self.model.present.entry(block).or_insert(None);
                }
            }
            Step::Evict(section, start, length, prepare) => {
                let range = blocks(section, start, length);
                if prepare {
                    trial
                        .prepare(range, &mut { pool }, &mut self.unflushed)
                        .expect("the pool is large");
                    self.flush();
                }
                let trial = self.fixture.trial();
                let before: Vec<u32> = self
                    .model
                    .present
                    .keys()
                    .copied()
                    .filter(|&block| inside(range, block))
                    .collect();
                let left = trial.evict(range, &mut self.unflushed) as usize;
                // The last blocks are left: a large mapping is not split, and a full set takes no
                // more frames.
                let full = (self.unflushed.room() as u64) < VMEMMAP_PAGES_PER_BLOCK;
                assert!(
                    left == 0 || !prepare && left == before.len() || full,
                    "{left} of {before:?} were left"
                );
                for block in &before[..before.len() - left] {
                    self.model.present.remove(block);
                }
            }
            Step::Fail(section, start, length, steps) => {
                let range = blocks(section, start, length);
                let mut frames = framewright_testkit::FaultyFrames::fail_after(pool, steps);
                let mut unflushed = Unflushed::new();
                if trial.populate(range, &mut frames, &mut unflushed).is_ok() {
                    for block in range.start.0..range.end.0 {
                        self.model.present.entry(block).or_insert(None);
                    }
                } else {
                    assert_eq!(frames.held_pages(), 0);
                    assert!(!unflushed.is_stale());
                }
                pool.free(trial.flush(unflushed));
            }
            Step::Flush => self.flush(),
            Step::Store(cpu, block, value) => {
                self.flush();
                let stored = self.fixture.paging.store(cpu, self.address(block), value);
                match self.model.present.get_mut(&block) {
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
                    .paging
                    .load(cpu, self.address(block))
                    .expect("nothing is freed before its flush");
                match self.model.present.get(&block) {
                    Some(&Some(value)) if clean => assert_eq!(seen, value, "block {block}"),
                    None if clean => assert_eq!(seen, 0, "block {block}"),
                    _ => {}
                }
            }
        }
        // A call may need all the room of the set.
        if self.unflushed.room() < Unflushed::CAPACITY / 2 {
            self.flush();
        }
    }
}

fn inside(range: BlockRange, block: u32) -> bool {
    range.start.0 <= block && block < range.end.0
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(64)
    })]

    #[test]
    fn random_histories_agree_with_a_model(
        steps in proptest::collection::vec(step(), 1..60), shape in 0u8..3
    ) {
        let pool = match shape {
            0 => contract_pool(Order::MAX),
            1 => contract_pool(Order::new(3).expect("an order")),
            _ => contract_pool(Order::MAX).fragmented(),
        };
        let machine = pool.machine();
        let fixture = FakeFixture::new(pool);
        let resting = fixture.pool.outstanding();
        let mut run = Run { fixture, model: Model::default(), unflushed: Unflushed::new() };
        for step in &steps {
            run.apply(step);
        }
        for section in 0..2 {
            run.apply(&Step::Evict(section, 0, 64, true));
            run.flush();
        }
        prop_assert_eq!(run.fixture.pool.outstanding(), resting);
        prop_assert!(run.model.present.is_empty());
        drop(run);
        // SAFETY: the fixture was the machine's only user.
        unsafe { machine.retire() };
    }
}
