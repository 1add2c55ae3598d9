//! What happens when the set of unflushed frames is nearly full, and other cases that only the
//! tables reveal.

use super::cpus::Asked;
use super::fixture::{BASE, BLOCK_BYTES, Fixture};
use super::order;
use crate::common::table_memory::Memory;
use framewright::units::{Order, Pfn, PfnRange};
use framewright::vmemmap_space::{BlockRange, FrameSource, Unflushed};
use framewright_arch::paging::{Entry, PageSize, TableMemory, index_of};
use framewright_testkit::contract::contract_pool;
use framewright_testkit::{FramePool, VmemmapSpaceFixture};

/// The section in which these tests work.
const WHOLE: BlockRange = BlockRange::new(128, 192);
const ADDRESS: u64 = BASE + 128 * BLOCK_BYTES;
/// Above every frame of a pool.
const FILLER: u64 = 1 << 39;

/// Returns a set with room for this many runs.
fn with_room(room: usize) -> Unflushed {
    let mut unflushed = Unflushed::new();
    for frame in (FILLER..).step_by(2).take(Unflushed::CAPACITY - room) {
        assert!(unflushed.push(PfnRange::new(frame, frame + 1)));
    }
    unflushed
}

/// Flushes, frees all frames but filler, and returns how many that were.
fn flush(fixture: &Fixture, unflushed: Unflushed) -> u64 {
    let list = fixture.trial().flush(unflushed);
    let runs: Vec<PfnRange> = list.runs().filter(|run| run.start.0 < FILLER).collect();
    fixture.pool.free_runs(&runs);
    runs.into_iter().map(PfnRange::pages).sum()
}

/// A pool that has no large runs at the moment.
struct UpTo<'a>(&'a FramePool, Order);

// SAFETY: what it returns comes from the pool.
unsafe impl FrameSource for UpTo<'_> {
    fn take(&mut self, order: Order) -> Option<Pfn> {
        let Self(mut pool, largest) = *self;
        if order > largest { None } else { pool.take(order) }
    }
    unsafe fn put_back(&mut self, start: Pfn, order: Order) {
        let Self(mut pool, _) = *self;
        // SAFETY: passed on to the caller.
        unsafe { pool.put_back(start, order) };
    }
}

impl Fixture {
    fn entry(&self, address: u64, level: u32) -> Entry {
        let memory = Memory(self.pool.machine());
        let mut table = self.vmemmap.layout().root;
        for above in (level + 1..=4).rev() {
            table = memory.read(table, index_of(address, above)).address();
        }
        memory.read(table, index_of(address, level))
    }

    fn tables(&self) -> u64 {
        self.vmemmap.counts().tables
    }

    fn populate_small(&self, blocks: BlockRange) {
        let mut unflushed = Unflushed::new();
        self.trial()
            .populate(blocks, &mut UpTo(&self.pool, order(3)), &mut unflushed)
            .expect("frames");
        flush(self, unflushed);
    }

    /// A section that has its own table but nothing present.
    fn with_empty_table() -> Self {
        let fixture = Self::new(contract_pool(Order::MAX));
        fixture.populate_small(BlockRange::new(128, 130));
        // The two parts may or may not be adjacent; there is room for each run but not for the
        // table.
        let mut unflushed = with_room(2);
        assert_eq!(fixture.trial().evict(BlockRange::new(128, 129), &mut unflushed), 0);
        flush(&fixture, unflushed);
        let mut unflushed = with_room(1);
        assert_eq!(fixture.trial().evict(BlockRange::new(129, 130), &mut unflushed), 0);
        assert_eq!(flush(&fixture, unflushed), 8);
        assert_eq!((fixture.tables(), fixture.pool.outstanding()), (1, fixture.resting + 1));
        fixture.cpus.asked();
        fixture
    }
}

#[test]
fn a_large_page_stays_where_there_is_no_room_for_its_run() {
    let fixture = Fixture::new(contract_pool(Order::MAX));
    fixture.populate(WHOLE);
    let before = fixture.translate(ADDRESS);
    let mut unflushed = with_room(0);
    assert_eq!(fixture.trial().evict(WHOLE, &mut unflushed), 64);
    assert_eq!(flush(&fixture, unflushed), 0);
    assert_eq!(fixture.translate(ADDRESS), before);
    let mut unflushed = with_room(1);
    assert_eq!(fixture.trial().evict(WHOLE, &mut unflushed), 0);
    assert_eq!(flush(&fixture, unflushed), 512);
}

#[test]
fn an_empty_table_waits_for_room_and_then_goes_with_a_flush() {
    let fixture = Fixture::with_empty_table();
    let mut unflushed = Unflushed::new();
    assert_eq!(fixture.trial().evict(BlockRange::new(150, 151), &mut unflushed), 0);
    assert_eq!(flush(&fixture, unflushed), 1);
    // No page is stale, but cached steps of walks are, so the flush must name at least one page.
    assert_eq!(fixture.cpus.asked(), [Asked::Ranges(1, 8)]);
    assert_eq!((fixture.tables(), fixture.pool.outstanding()), (0, fixture.resting));
}

#[test]
fn a_large_page_replaces_an_empty_table_if_there_is_room_for_it() {
    for (room, small) in [(0, true), (1, false)] {
        let fixture = Fixture::with_empty_table();
        let mut unflushed = with_room(room);
        fixture.trial().populate(WHOLE, &mut &fixture.pool, &mut unflushed).expect("frames");
        assert_eq!(flush(&fixture, unflushed), room as u64);
        let (_, size, _) = fixture.translate(ADDRESS).expect("mapped");
        assert_eq!((size == PageSize::Small, fixture.tables()), (small, u64::from(small)));
        assert_eq!(fixture.pool.outstanding(), fixture.resting + 512 + usize::from(small));
    }
}

#[test]
fn a_split_is_flushed_although_every_page_stays_where_it_is() {
    // No CPU may cache a page in two sizes when its frame changes.
    let fixture = Fixture::new(contract_pool(Order::MAX));
    fixture.populate(WHOLE);
    let mut unflushed = Unflushed::new();
    fixture
        .trial()
        .prepare(BlockRange::new(130, 131), &mut &fixture.pool, &mut unflushed)
        .expect("a frame");
    assert_eq!(unflushed.changed(), Some(&[WHOLE][..]));
    flush(&fixture, unflushed);
}

#[test]
fn one_run_that_is_not_aligned_moves_when_it_is_merged() {
    let fixture = Fixture::new(contract_pool(Order::MAX));
    fixture.populate_small(WHOLE);
    let first = fixture.translate(ADDRESS).expect("mapped").0;
    let last = fixture.translate(ADDRESS + 511 * 4096).expect("mapped").0;
    assert_eq!(
        (last - first, first.is_multiple_of(2 << 20)),
        (511 * 4096, false),
        "the pool gives one run"
    );
    let mut unflushed = Unflushed::new();
    assert_eq!(fixture.trial().merge(WHOLE, &mut &fixture.pool, &mut unflushed), Ok(true));
    assert_eq!(flush(&fixture, unflushed), 513);
    let (moved, size, _) = fixture.translate(ADDRESS).expect("mapped");
    assert_eq!((moved.is_multiple_of(2 << 20), size), (true, PageSize::Medium));
    assert!(fixture.entry(ADDRESS, 2).is_page(2));
}

#[test]
fn a_merge_needs_room_for_what_moves_and_for_the_table() {
    // One run of frames is copied, and the table is replaced.
    let fixture = Fixture::new(contract_pool(Order::MAX));
    fixture.populate_small(WHOLE);
    let outstanding = fixture.pool.outstanding();
    for room in [0, 1] {
        let mut unflushed = with_room(room);
        assert_eq!(fixture.trial().merge(WHOLE, &mut &fixture.pool, &mut unflushed), Ok(false));
        assert_eq!(flush(&fixture, unflushed), 0);
        assert_eq!((fixture.tables(), fixture.pool.outstanding()), (1, outstanding));
    }
    let mut unflushed = with_room(2);
    assert_eq!(fixture.trial().merge(WHOLE, &mut &fixture.pool, &mut unflushed), Ok(true));
    assert_eq!(flush(&fixture, unflushed), 513);
    // Only the table is replaced; the frames stay.
    fixture.prepare(BlockRange::new(128, 129));
    for (room, merged) in [(0, false), (1, true)] {
        let mut unflushed = with_room(room);
        assert_eq!(fixture.trial().merge(WHOLE, &mut &fixture.pool, &mut unflushed), Ok(merged));
        assert_eq!(flush(&fixture, unflushed), room as u64);
    }
}

#[test]
fn what_is_absent_is_protected_twice() {
    let fixture = Fixture::new(contract_pool(Order::MAX));
    fixture.populate(WHOLE);
    fixture.evict(WHOLE);
    for address in [ADDRESS, BASE] {
        let directory = fixture.entry(address, 2);
        assert_eq!(directory.address(), fixture.vmemmap.absent_table().address());
        assert!(!directory.access().write && !directory.access().execute);
        assert!(!fixture.entry(address, 1).access().write);
    }
}
