//! The contract of [`MapSpace`] as a suite that any implementation can be run through.

use crate::frames::{FaultyFrames, FramePool};
use crate::paging::{AccessFault, FakePaging};
use framewright::map_space::{
    BLOCKS_PER_CALL, BlockRange, FrameList, MAP_PAGES_PER_BLOCK, MapSpace, OutOfFrames, Unflushed,
};
use framewright::units::{Order, PfnRange};

/// A [`MapSpace`] together with what the suite needs to look at it from outside.
pub trait MapSpaceFixture {
    /// What is tested.
    fn space(&self) -> &dyn MapSpace;
    /// Where its frames come from.
    fn pool(&self) -> &FramePool;
    /// How many CPUs look at it, at least 2.
    fn cpus(&self) -> u32;
    /// Reads 64 bits of the array through the TLB of `cpu`.
    ///
    /// # Errors
    /// See [`AccessFault`].
    fn load(&self, cpu: u32, address: usize) -> Result<u64, AccessFault>;
    /// Writes 64 bits of the array through the TLB of `cpu`.
    ///
    /// # Errors
    /// See [`AccessFault`].
    fn store(&self, cpu: u32, address: usize, value: u64) -> Result<(), AccessFault>;
}

/// [`FakePaging`] over a pool of its own.
#[derive(Debug)]
pub struct FakeFixture {
    /// The tables.
    pub paging: FakePaging,
    /// Their frames.
    pub pool: FramePool,
}

impl FakeFixture {
    /// Empty tables over `pool`.
    ///
    /// # Panics
    /// When the pool has not even two frames.
    #[must_use]
    pub fn new(pool: FramePool) -> Self {
        let paging =
            FakePaging::new(pool.machine(), pool.ledger().clone(), &mut &pool).expect("two frames for the shared page");
        Self { paging, pool }
    }
}

impl MapSpaceFixture for FakeFixture {
    fn space(&self) -> &dyn MapSpace {
        &self.paging
    }
    fn pool(&self) -> &FramePool {
        &self.pool
    }
    fn cpus(&self) -> u32 {
        self.paging.cpus()
    }
    fn load(&self, cpu: u32, address: usize) -> Result<u64, AccessFault> {
        self.paging.load(cpu, address)
    }
    fn store(&self, cpu: u32, address: usize, value: u64) -> Result<(), AccessFault> {
        self.paging.store(cpu, address, value)
    }
}

/// Bytes of the array that describe one block: 512 descriptors of 64.
const BLOCK_BYTES: usize = 512 * 64;
/// The section in which the suite works; its neighbours must stay as they are.
const SECTION: u32 = 5;
/// Its first block.
const FIRST: u32 = SECTION * BLOCKS_PER_CALL;
/// Ranges of every shape: one block, the edges, a part, the whole.
const SHAPES: [(u32, u32); 6] = [(0, 1), (63, 64), (0, 63), (7, 29), (32, 64), (0, 64)];

fn shape((start, end): (u32, u32)) -> BlockRange {
    BlockRange::new(FIRST + start, FIRST + end)
}

/// Steps and checks, all of which panic with a message that says where.
struct Checker<'a, F> {
    fixture: &'a F,
    pool: &'a FramePool,
}

impl<'a, F: MapSpaceFixture> Checker<'a, F> {
    fn new(fixture: &'a F) -> Self {
        assert!(fixture.cpus() >= 2, "the suite needs a second CPU");
        Self { fixture, pool: fixture.pool() }
    }

    /// A word near each end of the block's part of the array.
    fn words(&self, block: u32) -> [usize; 2] {
        let start = self.fixture.space().base().addr().get() + block as usize * BLOCK_BYTES;
        [start + 8, start + BLOCK_BYTES - 8]
    }

    fn populate(&self, blocks: BlockRange) -> FrameList {
        let mut unflushed = Unflushed::new();
        let result = self.fixture.space().populate(blocks, &mut { self.pool }, &mut unflushed);
        result.unwrap_or_else(|error| panic!("populate {blocks:?}: {error}"));
        self.fixture.space().flush(unflushed)
    }

    fn prepare(&self, blocks: BlockRange) {
        let mut unflushed = Unflushed::new();
        let result = self.fixture.space().prepare(blocks, &mut { self.pool }, &mut unflushed);
        result.unwrap_or_else(|error| panic!("prepare {blocks:?}: {error}"));
        self.pool.free(self.fixture.space().flush(unflushed));
    }

    /// Prepares, evicts, flushes and frees; returns how many frames came.
    fn evict(&self, blocks: BlockRange) -> u64 {
        self.prepare(blocks);
        let mut unflushed = Unflushed::new();
        let left = self.fixture.space().evict(blocks, &mut unflushed);
        assert_eq!(left, 0, "prepared blocks of {blocks:?} were left present");
        let list = self.fixture.space().flush(unflushed);
        let pages = list.pages();
        self.pool.free(list);
        pages
    }

    fn load(&self, cpu: u32, address: usize) -> u64 {
        self.fixture.load(cpu, address).unwrap_or_else(|fault| panic!("{fault}"))
    }

    fn is_present(&self, block: u32) -> bool {
        let [first, _] = self.words(block);
        let old = self.load(0, first);
        match self.fixture.store(0, first, old) {
            Ok(()) => true,
            Err(AccessFault::ReadOnly { .. }) => false,
            Err(fault) => panic!("{fault}"),
        }
    }

    /// Absent: zero to every CPU, and no CPU can write.
    fn assert_absent(&self, block: u32) {
        for (cpu, address) in self.each(block) {
            assert_eq!(self.load(cpu, address), 0, "absent block {block} at {address:#x} on CPU {cpu}");
            let fault = self.fixture.store(cpu, address, 1);
            assert!(matches!(fault, Err(AccessFault::ReadOnly { .. })), "write to absent block {block} on CPU {cpu}");
            assert_eq!(self.load(cpu, address), 0, "absent block {block} took a write on CPU {cpu}");
        }
    }

    /// Present: what one CPU writes all others read; leaves a value that only this block and word has.
    fn write_marks(&self, block: u32) {
        for (cpu, address) in self.each(block) {
            let stored = self.fixture.store(cpu, address, address as u64 ^ u64::from(cpu));
            stored.unwrap_or_else(|fault| panic!("block {block} should be present: {fault}"));
            self.assert_word(address, address as u64 ^ u64::from(cpu));
        }
    }

    fn assert_marks(&self, block: u32) {
        for address in self.words(block) {
            self.assert_word(address, address as u64 ^ u64::from(self.fixture.cpus() - 1));
        }
    }

    fn assert_word(&self, address: usize, value: u64) {
        for cpu in 0..self.fixture.cpus() {
            assert_eq!(self.load(cpu, address), value, "at {address:#x} on CPU {cpu}");
        }
    }

    fn each(&self, block: u32) -> impl Iterator<Item = (u32, usize)> {
        let cpus = self.fixture.cpus();
        self.words(block).into_iter().flat_map(move |address| (0..cpus).map(move |cpu| (cpu, address)))
    }

    /// The section has exactly `present` present, with its marks, and the sections around it nothing.
    fn assert_section(&self, present: BlockRange) {
        for block in FIRST - 1..=FIRST + BLOCKS_PER_CALL {
            if present.start.0 <= block && block < present.end.0 {
                self.assert_marks(block);
            } else {
                self.assert_absent(block);
            }
        }
    }

    /// `populate` with marks, so that [`assert_section`](Self::assert_section) can be asked.
    fn fill(&self, blocks: BlockRange) {
        let list = self.populate(blocks);
        assert_eq!(list.pages(), 0, "an absent section had a table of its own");
        (blocks.start.0..blocks.end.0).for_each(|block| self.write_marks(block));
    }
}

/// Runs everything that [`MapSpace`] promises. `make` returns a fixture that was never used.
///
/// # Panics
/// With what went wrong.
pub fn map_space_contract<F: MapSpaceFixture>(make: impl Fn() -> F) {
    for blocks in SHAPES.map(shape) {
        comes_and_goes(&Checker::new(&make()), blocks);
        failure_changes_nothing(&Checker::new(&make()), blocks);
    }
    what_is_there_stays(&Checker::new(&make()));
    absent_blocks_are_not_evicted(&Checker::new(&make()));
    unprepared_blocks_are_kept_or_evicted_whole(&Checker::new(&make()));
    room_is_respected(&Checker::new(&make()));
    frames_are_used_again(&Checker::new(&make()));
}

fn comes_and_goes<F: MapSpaceFixture>(check: &Checker<F>, blocks: BlockRange) {
    let nothing = BlockRange::new(0, 0);
    check.assert_section(nothing);
    let before = check.pool.outstanding();
    check.fill(blocks);
    check.assert_section(blocks);
    check.prepare(blocks);
    check.assert_section(blocks);
    // Between eviction and flush the CPUs still use what they cached, and it must be there.
    let mut unflushed = Unflushed::new();
    assert_eq!(check.fixture.space().evict(blocks, &mut unflushed), 0);
    assert!(unflushed.is_stale(), "an eviction needs a flush");
    for block in blocks.start.0..blocks.end.0 {
        for (cpu, address) in check.each(block) {
            let seen = check.load(cpu, address);
            assert!(seen == 0 || seen == address as u64 ^ u64::from(check.fixture.cpus() - 1), "{seen:#x} is neither");
        }
    }
    let list = check.fixture.space().flush(unflushed);
    let expected = u64::from(blocks.blocks()) * MAP_PAGES_PER_BLOCK;
    assert!(list.pages() >= expected, "{blocks:?} gave back {} frames of {expected}", list.pages());
    check.pool.free(list);
    check.assert_section(nothing);
    assert_eq!(check.pool.outstanding(), before, "an absent section holds no frame");
}

fn what_is_there_stays<F: MapSpaceFixture>(check: &Checker<F>) {
    let whole = shape((0, 64));
    check.fill(shape((10, 20)));
    // Populating more keeps what is present.
    check.pool.free(check.populate(whole));
    for block in FIRST + 10..FIRST + 20 {
        check.assert_marks(block);
    }
    (whole.start.0..whole.end.0).for_each(|block| check.write_marks(block));
    check.pool.free(check.populate(whole));
    check.assert_section(whole);
    // So does preparing and evicting a part.
    check.prepare(shape((3, 5)));
    check.assert_section(whole);
    check.evict(shape((32, 64)));
    check.assert_section(shape((0, 32)));
    check.prepare(shape((0, 32)));
    check.assert_section(shape((0, 32)));
    check.evict(shape((0, 1)));
    check.assert_section(shape((1, 32)));
    // The shared page is as shared as ever.
    check.fill(BlockRange::new(FIRST + BLOCKS_PER_CALL, FIRST + BLOCKS_PER_CALL + 1));
    check.assert_absent(FIRST);
}

fn absent_blocks_are_not_evicted<F: MapSpaceFixture>(check: &Checker<F>) {
    let before = check.pool.outstanding();
    for blocks in SHAPES.map(shape).into_iter().chain([BlockRange::new(FIRST, FIRST)]) {
        assert_eq!(check.evict(blocks), 0, "{blocks:?} was absent and gave frames");
    }
    assert_eq!(check.pool.outstanding(), before, "absent blocks cost frames");
    check.assert_section(BlockRange::new(0, 0));
    check.fill(shape((7, 29)));
    assert!(check.evict(shape((0, 64))) >= 22 * MAP_PAGES_PER_BLOCK);
    assert_eq!(check.pool.outstanding(), before, "an absent section holds no frame");
}

fn unprepared_blocks_are_kept_or_evicted_whole<F: MapSpaceFixture>(check: &Checker<F>) {
    let (whole, part) = (shape((0, 64)), shape((7, 29)));
    check.fill(whole);
    let mut unflushed = Unflushed::new();
    let left = check.fixture.space().evict(part, &mut unflushed);
    check.pool.free(check.fixture.space().flush(unflushed));
    let present = (part.start.0..part.end.0).filter(|&block| check.is_present(block)).count();
    assert_eq!(present, left as usize, "evict did not say what it left present");
    for block in whole.start.0..whole.end.0 {
        if block < part.start.0 || part.end.0 <= block || check.is_present(block) {
            check.assert_marks(block);
        } else {
            check.assert_absent(block);
        }
    }
}

fn room_is_respected<F: MapSpaceFixture>(check: &Checker<F>) {
    // Runs of one frame that nothing joins, far above every frame of the pool.
    let filler = |count: usize| (0..count as u64).map(|index| (1 << 39) + 2 * index);
    for room in [0, 1, 7, 8, 9, 20] {
        let blocks = shape((7, 29));
        check.fill(blocks);
        check.prepare(blocks);
        let mut unflushed = Unflushed::new();
        for frame in filler(Unflushed::CAPACITY - room) {
            assert!(unflushed.push(PfnRange::new(frame, frame + 1)));
        }
        let left = check.fixture.space().evict(blocks, &mut unflushed);
        let list = check.fixture.space().flush(unflushed);
        let came: u64 = list.runs().filter(|run| run.start.0 < 1 << 39).map(PfnRange::pages).sum();
        let gone = u64::from(blocks.blocks() - left);
        assert!(came >= gone * MAP_PAGES_PER_BLOCK, "with room for {room}: {gone} blocks gone, {came} frames came");
        let present = (blocks.start.0..blocks.end.0).filter(|&block| check.is_present(block)).count();
        assert_eq!(present, left as usize, "with room for {room}: evict did not say what it left present");
        for block in (blocks.start.0..blocks.end.0).filter(|&block| check.is_present(block)) {
            check.assert_marks(block);
        }
        // Only what is not the filler goes back; it came first or not at all.
        let pool_runs: Vec<PfnRange> = list.runs().filter(|run| run.start.0 < 1 << 39).collect();
        check.pool.free_runs(&pool_runs);
        check.evict(blocks);
    }
}

fn frames_are_used_again<F: MapSpaceFixture>(check: &Checker<F>) {
    let far = BlockRange::new(FIRST + 10 * BLOCKS_PER_CALL, FIRST + 11 * BLOCKS_PER_CALL);
    for blocks in SHAPES.map(shape) {
        check.fill(blocks);
        check.evict(blocks);
        // The same frames serve elsewhere now, while every CPU has looked at the first place.
        check.fill(far);
        check.assert_section(BlockRange::new(0, 0));
        check.evict(far);
    }
    check.assert_absent(far.start.0);
}

/// Lets each call fail at every step that can fail, and looks whether anything shows.
fn failure_changes_nothing<F: MapSpaceFixture>(check: &Checker<F>, blocks: BlockRange) {
    let space = check.fixture.space();
    let populate =
        |frames: &mut FaultyFrames<&FramePool>, unflushed: &mut Unflushed| space.populate(blocks, frames, unflushed);
    let prepare =
        |frames: &mut FaultyFrames<&FramePool>, unflushed: &mut Unflushed| space.prepare(blocks, frames, unflushed);
    // From nothing.
    each_failure(check, populate, || check.assert_section(BlockRange::new(0, 0)));
    (blocks.start.0..blocks.end.0).for_each(|block| check.write_marks(block));
    // Preparing what is there, part of a section that is wholly present included.
    each_failure(check, prepare, || check.assert_section(blocks));
    check.evict(blocks);
    let whole = shape((0, 64));
    check.fill(whole);
    each_failure(check, prepare, || check.assert_section(whole));
    check.evict(whole);
    // Next to something that is there.
    let neighbour = shape((40, 41));
    check.fill(neighbour);
    each_failure(check, populate, || check.assert_section(neighbour));
    check.assert_marks(neighbour.start.0);
}

fn each_failure<'p, F: MapSpaceFixture>(
    check: &Checker<'p, F>,
    call: impl Fn(&mut FaultyFrames<&'p FramePool>, &mut Unflushed) -> Result<(), OutOfFrames>,
    as_before: impl Fn(),
) {
    for steps in 0.. {
        assert!(steps < 10_000, "no number of frames suffices");
        let outstanding = check.pool.outstanding();
        let mut frames = FaultyFrames::fail_after(check.pool, steps);
        let mut unflushed = Unflushed::new();
        let result = call(&mut frames, &mut unflushed);
        if result.is_ok() {
            check.pool.free(check.fixture.space().flush(unflushed));
            return;
        }
        assert_eq!(frames.held_pages(), 0, "failing at step {steps} kept frames");
        assert_eq!(check.pool.outstanding(), outstanding, "failing at step {steps} kept frames");
        // In fragmented memory there are hundreds of steps, most of them alike.
        let look = steps < 4 || steps % 61 == 0;
        if look {
            as_before();
        }
        let list = check.fixture.space().flush(unflushed);
        assert_eq!(list.pages(), 0, "failing at step {steps} set frames free");
        if look {
            as_before();
        }
    }
}

/// A pool for a fixture: as large as the suite needs, with frames of every order up to `largest`.
///
/// # Panics
/// When the machine has no usable memory from 64 MiB to 96 MiB.
#[must_use]
pub fn contract_pool(largest: Order) -> FramePool {
    use framewright::units::PhysRange;
    let machine = crate::FakeMachine::builder().ram(PhysRange::new(0, 96 << 20)).cpus(3).build();
    // SAFETY: the machine was made here and nobody else uses it.
    unsafe { FramePool::new(machine, PfnRange::new(0x4000, 0x6000)) }.up_to(largest)
}
