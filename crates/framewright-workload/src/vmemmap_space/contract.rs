//! The contract of [`VmemmapSpace`] as a test suite for any implementation, in a process and on a
//! machine.

use super::fault::AccessFault;
use super::faulty::FaultyFrames;
use super::fixture::VmemmapSpaceFixture;
use framewright::units::PfnRange;
use framewright::vmemmap_space::{
    BLOCKS_PER_CALL, BlockRange, FrameList, FrameSource, OutOfFrames, Unflushed,
    VMEMMAP_PAGES_PER_BLOCK,
};

#[cfg(doc)]
use framewright::vmemmap_space::VmemmapSpace;

/// Bytes of the vmemmap that describe one block: 512 descriptors of 64.
const BLOCK_BYTES: usize = 512 * 64;
/// The section in which the suite works. The sections around it must stay as they are.
const SECTION: u32 = 5;
/// The section's first block.
const FIRST: u32 = SECTION * BLOCKS_PER_CALL;
/// Distance from there to a section far away, in blocks.
const FAR: u32 = 10 * BLOCKS_PER_CALL;
/// Ranges of every shape: one block, parts at the edges, an inner part, the whole section.
const SHAPES: [(u32, u32); 6] = [(0, 1), (63, 64), (0, 63), (7, 29), (32, 64), (0, 64)];

fn shape((start, end): (u32, u32)) -> BlockRange {
    BlockRange::new(FIRST + start, FIRST + end)
}

/// Steps and checks of the suite. All of them panic with a message that says where.
struct Checker<'a, F> {
    fixture: &'a F,
    /// Frames that were in use at the start.
    outstanding: u64,
}

impl<'a, F: VmemmapSpaceFixture> Checker<'a, F> {
    fn new(fixture: &'a F) -> Self {
        Self { fixture, outstanding: fixture.outstanding() }
    }

    /// Returns a word near each end of the block's descriptors.
    fn words(&self, block: u32) -> [usize; 2] {
        let start = self.fixture.space().base().addr().get() + block as usize * BLOCK_BYTES;
        [start + 8, start + BLOCK_BYTES - 8]
    }

    fn populate(&self, blocks: BlockRange) -> FrameList {
        let mut unflushed = Unflushed::new();
        let result =
            self.fixture.trial().populate(blocks, &mut self.fixture.frames(), &mut unflushed);
        result.unwrap_or_else(|error| panic!("populate {blocks:?}: {error}"));
        self.fixture.trial().flush(unflushed)
    }

    fn prepare(&self, blocks: BlockRange) {
        let mut unflushed = Unflushed::new();
        let result =
            self.fixture.trial().prepare(blocks, &mut self.fixture.frames(), &mut unflushed);
        result.unwrap_or_else(|error| panic!("prepare {blocks:?}: {error}"));
        self.free(self.fixture.trial().flush(unflushed));
    }

    /// Prepares, evicts, flushes and frees. Returns how many frames came back.
    fn evict(&self, blocks: BlockRange) -> u64 {
        self.prepare(blocks);
        let mut unflushed = Unflushed::new();
        let left = self.fixture.trial().evict(blocks, &mut unflushed);
        assert_eq!(left, 0, "prepared blocks of {blocks:?} were left present");
        let list = self.fixture.trial().flush(unflushed);
        let pages = list.pages();
        self.free(list);
        pages
    }

    #[expect(clippy::needless_pass_by_value, reason = "the list is the right to free its frames")]
    fn free(&self, list: FrameList) {
        list.runs().for_each(|run| self.fixture.free(run));
    }

    /// Makes everything absent again, and checks that no frame is lost.
    fn clear(&self) {
        for section in [FIRST, FIRST + BLOCKS_PER_CALL, FIRST + FAR] {
            self.evict(BlockRange::new(section, section + BLOCKS_PER_CALL));
        }
        self.assert_section(BlockRange::new(0, 0));
        assert_eq!(
            self.fixture.outstanding(),
            self.outstanding,
            "an absent section holds no frame"
        );
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

    /// Checks that a block is absent: every CPU reads zero, and none can write.
    fn assert_absent(&self, block: u32) {
        for (cpu, address) in self.each(block) {
            assert_eq!(
                self.load(cpu, address),
                0,
                "absent block {block} at {address:#x} on CPU {cpu}"
            );
            let fault = self.fixture.store(cpu, address, 1);
            assert!(
                matches!(fault, Err(AccessFault::ReadOnly { .. })),
                "write to absent block {block} on CPU {cpu}"
            );
            assert_eq!(
                self.load(cpu, address),
                0,
                "absent block {block} took a write on CPU {cpu}"
            );
        }
    }

    /// Checks that a block is present: all CPUs read what one CPU writes. Leaves a value of its own
    /// in each word.
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
        self.words(block)
            .into_iter()
            .flat_map(move |address| (0..cpus).map(move |cpu| (cpu, address)))
    }

    /// Checks that exactly the blocks in `present` are present in the section, with their marks,
    /// and none in the sections around it.
    fn assert_section(&self, present: BlockRange) {
        for block in FIRST - 1..=FIRST + BLOCKS_PER_CALL {
            if present.start.0 <= block && block < present.end.0 {
                self.assert_marks(block);
            } else {
                self.assert_absent(block);
            }
        }
    }

    /// Populates blocks and writes their marks, for [`assert_section`](Self::assert_section).
    fn fill(&self, blocks: BlockRange) {
        let list = self.populate(blocks);
        assert_eq!(list.pages(), 0, "an absent section had a table of its own");
        (blocks.start.0..blocks.end.0).for_each(|block| self.write_marks(block));
    }
}

/// Checks all promises of [`VmemmapSpace`]. `make` returns a fixture with everything absent. Each
/// part of the suite leaves everything absent again, so `make` may return the same fixture each
/// time.
///
/// # Panics
/// If the space breaks a promise; the message says how.
pub fn vmemmap_space_contract<F: VmemmapSpaceFixture>(make: impl Fn() -> F) {
    for blocks in SHAPES.map(shape) {
        part(&make, |check| comes_and_goes(check, blocks));
        part(&make, |check| failure_changes_nothing(check, blocks));
        part(&make, |check| merging_keeps_what_is_there(check, blocks));
    }
    part(&make, what_is_there_stays);
    part(&make, absent_blocks_are_not_evicted);
    part(&make, unprepared_blocks_are_kept_or_evicted_whole);
    part(&make, room_is_respected);
    part(&make, frames_are_used_again);
    part(&make, merging_needs_room_and_all_blocks);
}

fn part<F: VmemmapSpaceFixture>(make: impl Fn() -> F, body: impl FnOnce(&Checker<F>)) {
    let fixture = make();
    let check = Checker::new(&fixture);
    body(&check);
    check.clear();
}

fn comes_and_goes<F: VmemmapSpaceFixture>(check: &Checker<F>, blocks: BlockRange) {
    let nothing = BlockRange::new(0, 0);
    check.assert_section(nothing);
    let before = check.fixture.outstanding();
    check.fill(blocks);
    check.assert_section(blocks);
    check.prepare(blocks);
    check.assert_section(blocks);
    // Between eviction and flush, CPUs still use cached translations, whose frames must still
    // exist.
    let mut unflushed = Unflushed::new();
    assert_eq!(check.fixture.trial().evict(blocks, &mut unflushed), 0);
    assert!(unflushed.is_stale(), "an eviction needs a flush");
    for block in blocks.start.0..blocks.end.0 {
        for (cpu, address) in check.each(block) {
            let seen = check.load(cpu, address);
            assert!(
                seen == 0 || seen == address as u64 ^ u64::from(check.fixture.cpus() - 1),
                "{seen:#x} is neither"
            );
        }
    }
    let list = check.fixture.trial().flush(unflushed);
    let expected = u64::from(blocks.blocks()) * VMEMMAP_PAGES_PER_BLOCK;
    assert!(list.pages() >= expected, "{blocks:?} gave back {} frames of {expected}", list.pages());
    check.free(list);
    check.assert_section(nothing);
    assert_eq!(check.fixture.outstanding(), before, "an absent section holds no frame");
}

fn what_is_there_stays<F: VmemmapSpaceFixture>(check: &Checker<F>) {
    let whole = shape((0, 64));
    check.fill(shape((10, 20)));
    // Populating more keeps what is present.
    check.free(check.populate(whole));
    for block in FIRST + 10..FIRST + 20 {
        check.assert_marks(block);
    }
    (whole.start.0..whole.end.0).for_each(|block| check.write_marks(block));
    check.free(check.populate(whole));
    check.assert_section(whole);
    // Preparing and evicting a part keeps the rest, too.
    check.prepare(shape((3, 5)));
    check.assert_section(whole);
    check.evict(shape((32, 64)));
    check.assert_section(shape((0, 32)));
    check.prepare(shape((0, 32)));
    check.assert_section(shape((0, 32)));
    check.evict(shape((0, 1)));
    check.assert_section(shape((1, 32)));
    // A block that is populated elsewhere must not share pages with absent blocks.
    check.fill(BlockRange::new(FIRST + BLOCKS_PER_CALL, FIRST + BLOCKS_PER_CALL + 1));
    check.assert_absent(FIRST);
}

fn absent_blocks_are_not_evicted<F: VmemmapSpaceFixture>(check: &Checker<F>) {
    let before = check.fixture.outstanding();
    for blocks in SHAPES.map(shape).into_iter().chain([BlockRange::new(FIRST, FIRST)]) {
        assert_eq!(check.evict(blocks), 0, "{blocks:?} was absent and gave frames");
    }
    assert_eq!(check.fixture.outstanding(), before, "absent blocks cost frames");
    check.assert_section(BlockRange::new(0, 0));
    check.fill(shape((7, 29)));
    assert!(check.evict(shape((0, 64))) >= 22 * VMEMMAP_PAGES_PER_BLOCK);
    assert_eq!(check.fixture.outstanding(), before, "an absent section holds no frame");
}

fn unprepared_blocks_are_kept_or_evicted_whole<F: VmemmapSpaceFixture>(check: &Checker<F>) {
    let (whole, part) = (shape((0, 64)), shape((7, 29)));
    check.fill(whole);
    let mut unflushed = Unflushed::new();
    let left = check.fixture.trial().evict(part, &mut unflushed);
    check.free(check.fixture.trial().flush(unflushed));
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

fn room_is_respected<F: VmemmapSpaceFixture>(check: &Checker<F>) {
    // Single frames that do not merge into runs, far above every frame of the pool.
    let filler = |count: usize| (0..count as u64).map(|index| (1 << 39) + 2 * index);
    for room in [0, 1, 7, 8, 9, 20] {
        let blocks = shape((7, 29));
        check.fill(blocks);
        check.prepare(blocks);
        let mut unflushed = Unflushed::new();
        for frame in filler(Unflushed::CAPACITY - room) {
            assert!(unflushed.push(PfnRange::new(frame, frame + 1)));
        }
        let left = check.fixture.trial().evict(blocks, &mut unflushed);
        let list = check.fixture.trial().flush(unflushed);
        let came: u64 = list.runs().filter(|run| run.start.0 < 1 << 39).map(PfnRange::pages).sum();
        let gone = u64::from(blocks.blocks() - left);
        assert!(
            came >= gone * VMEMMAP_PAGES_PER_BLOCK,
            "with room for {room}: {gone} blocks gone, {came} frames came"
        );
        let present =
            (blocks.start.0..blocks.end.0).filter(|&block| check.is_present(block)).count();
        assert_eq!(
            present, left as usize,
            "with room for {room}: evict did not say what it left present"
        );
        for block in (blocks.start.0..blocks.end.0).filter(|&block| check.is_present(block)) {
            check.assert_marks(block);
        }
        // The filler is no real memory, so it is not freed.
        list.runs().filter(|run| run.start.0 < 1 << 39).for_each(|run| check.fixture.free(run));
        check.evict(blocks);
    }
}

fn frames_are_used_again<F: VmemmapSpaceFixture>(check: &Checker<F>) {
    let far = BlockRange::new(FIRST + FAR, FIRST + FAR + BLOCKS_PER_CALL);
    for blocks in SHAPES.map(shape) {
        check.fill(blocks);
        check.evict(blocks);
        // These frames are now used elsewhere, after every CPU has accessed the first place.
        check.fill(far);
        check.assert_section(BlockRange::new(0, 0));
        check.evict(far);
    }
    check.assert_absent(far.start.0);
}

/// Makes each call fail at every step that can fail, and checks that nothing has changed.
fn failure_changes_nothing<F: VmemmapSpaceFixture>(check: &Checker<F>, blocks: BlockRange) {
    let space = check.fixture.trial();
    let populate = |frames: &mut dyn FrameSource, unflushed: &mut Unflushed| {
        space.populate(blocks, frames, unflushed)
    };
    let prepare = |frames: &mut dyn FrameSource, unflushed: &mut Unflushed| {
        space.prepare(blocks, frames, unflushed)
    };
    // Start with everything absent.
    fails(check, populate, || check.assert_section(BlockRange::new(0, 0)));
    (blocks.start.0..blocks.end.0).for_each(|block| check.write_marks(block));
    // Prepare present blocks, including a part of a section that is wholly present.
    fails(check, prepare, || check.assert_section(blocks));
    check.evict(blocks);
    let whole = shape((0, 64));
    check.fill(whole);
    fails(check, prepare, || check.assert_section(whole));
    check.evict(whole);
    // Populate next to a present block.
    let neighbour = shape((40, 41));
    check.fill(neighbour);
    fails(check, populate, || check.assert_section(neighbour));
    check.assert_marks(neighbour.start.0);
}

fn merge<F: VmemmapSpaceFixture>(check: &Checker<F>, section: BlockRange) -> bool {
    let mut unflushed = Unflushed::new();
    let merged = check.fixture.trial().merge(section, &mut check.fixture.frames(), &mut unflushed);
    // Checked before the flush; callers check again after it.
    let is_in = |block: &u32| (section.start.0..section.end.0).contains(block);
    (FIRST..FIRST + BLOCKS_PER_CALL)
        .filter(is_in)
        .filter(|&block| check.is_present(block))
        .for_each(|block| {
            check.assert_marks(block);
        });
    check.free(check.fixture.trial().flush(unflushed));
    merged.unwrap_or(false)
}

/// Splits a section, evicts `blocks`, populates them again, and merges the section. Whether it is
/// merged in place, elsewhere or not at all, its content must not change.
fn merging_keeps_what_is_there<F: VmemmapSpaceFixture>(check: &Checker<F>, blocks: BlockRange) {
    let whole = shape((0, 64));
    check.fill(whole);
    check.prepare(shape((3, 5)));
    merge(check, whole);
    check.assert_section(whole);
    check.evict(blocks);
    check.free(check.populate(blocks));
    (blocks.start.0..blocks.end.0).for_each(|block| check.write_marks(block));
    let call = |frames: &mut dyn FrameSource, unflushed: &mut Unflushed| {
        check.fixture.trial().merge(whole, frames, unflushed).map(|_| ())
    };
    // If no frames are contiguous, no number of frames is enough.
    let _ = each_failure(check, 0..3, call, || check.assert_section(whole));
    check.assert_section(whole);
    if merge(check, whole) {
        // A merged section can be split, changed and evicted again.
        check.prepare(shape((7, 8)));
        check.evict(shape((7, 8)));
        (0..64).for_each(|block| {
            if block == 7 {
                check.assert_absent(FIRST + block)
            } else {
                check.assert_marks(FIRST + block)
            }
        });
    }
}

fn merging_needs_room_and_all_blocks<F: VmemmapSpaceFixture>(check: &Checker<F>) {
    let whole = shape((0, 64));
    assert!(!merge(check, whole), "nothing was merged to something");
    check.assert_section(BlockRange::new(0, 0));
    check.fill(shape((0, 63)));
    assert!(!merge(check, whole), "an absent block was merged");
    check.assert_section(shape((0, 63)));
    check.free(check.populate(whole));
    check.write_marks(FIRST + 63);
    // A merge sets frames free, those of the pages that it moves or of the table. The list is full,
    // so there is no room for any of them.
    let mut unflushed = Unflushed::new();
    for frame in (0..Unflushed::CAPACITY as u64).map(|index| (1 << 39) + 2 * index) {
        assert!(unflushed.push(PfnRange::new(frame, frame + 1)));
    }
    let merged = check.fixture.trial().merge(whole, &mut check.fixture.frames(), &mut unflushed);
    let list = check.fixture.trial().flush(unflushed);
    assert!(list.runs().all(|run| run.start.0 >= 1 << 39), "what did not fit came out");
    assert!(merged == Ok(false) || check.evict(whole) == 512, "a table was lost");
    check.evict(whole);
}

fn fails<F: VmemmapSpaceFixture>(
    check: &Checker<F>,
    call: impl Fn(&mut dyn FrameSource, &mut Unflushed) -> Result<(), OutOfFrames>,
    as_before: impl Fn(),
) {
    assert!(each_failure(check, 0..10_000, call, as_before), "no number of frames suffices");
}

/// Calls with each number of frames until one suffices. Returns false if none does.
fn each_failure<F: VmemmapSpaceFixture>(
    check: &Checker<F>,
    numbers: core::ops::Range<u64>,
    call: impl Fn(&mut dyn FrameSource, &mut Unflushed) -> Result<(), OutOfFrames>,
    as_before: impl Fn(),
) -> bool {
    for steps in numbers {
        let outstanding = check.fixture.outstanding();
        let mut frames = FaultyFrames::fail_after(check.fixture.frames(), steps);
        let mut unflushed = Unflushed::new();
        let result = call(&mut frames, &mut unflushed);
        if result.is_ok() {
            check.free(check.fixture.trial().flush(unflushed));
            return true;
        }
        assert_eq!(frames.held_pages(), 0, "failing at step {steps} kept frames");
        assert_eq!(check.fixture.outstanding(), outstanding, "failing at step {steps} kept frames");
        // In fragmented memory there are hundreds of steps, most of them alike, so only some are
        // checked.
        let look = steps < 4 || steps % 61 == 0;
        if look {
            as_before();
        }
        let list = check.fixture.trial().flush(unflushed);
        assert_eq!(list.pages(), 0, "failing at step {steps} set frames free");
        if look {
            as_before();
        }
    }
    false
}
