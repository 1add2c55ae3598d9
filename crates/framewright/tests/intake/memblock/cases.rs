//! The rules of the memblock allocator, one case each.

mod places;

use super::platform::{DIRT, Early, FakePlatform, assert_well_formed, map, node, sets, topology};
use framewright::firmware::MemoryKind::{self, Conventional, HotPluggable, Unaccepted};
use framewright::memblock::{
    MemblockError, MemblockRequest, NodeChoice, Region, RegionFlags, SetName,
};
use framewright::units::{NodeId, PAGE_SIZE, PHYSICAL_ADDRESS_END, PfnRange, PhysRange};

const MIB: u64 = 1 << 20;
/// The start of the arena in most tests.
const BASE: u64 = 0x1000_0000;
const END: u64 = BASE + 8 * MIB;

fn range(start: u64, end: u64) -> PhysRange {
    PhysRange::new(start, end)
}

fn region(start: u64, end: u64, of: Option<usize>, flags: RegionFlags) -> Region {
    Region { range: range(start, end), node: of.map(node), flags }
}

/// A plain reservation.
fn taken(start: u64, end: u64) -> Region {
    region(start, end, None, RegionFlags::NONE)
}

/// 8 MiB on node 0.
fn plain() -> (Early, &'static FakePlatform) {
    let platform = FakePlatform::leak(BASE, END - BASE);
    let memory = map(&[(range(BASE, END), Conventional)]);
    (Early::new(platform, memory, &topology(&[])).unwrap(), platform)
}

/// Node 0 has the lower 4 MiB, node 1 the upper 4 MiB.
fn two_nodes() -> Early {
    let platform = FakePlatform::leak(BASE, END - BASE);
    let half = BASE + 4 * MIB;
    let topology = topology(&[(range(BASE, half), 0, false), (range(half, END), 1, false)]);
    Early::new(platform, map(&[(range(BASE, END), Conventional)]), &topology).unwrap()
}

/// Returns what is reserved above frame 0.
fn reserved(early: &Early) -> &[Region] {
    let (first, rest) = early.reserved().split_first().unwrap();
    assert_eq!(*first, taken(0, PAGE_SIZE));
    rest
}

fn free_runs(early: &Early) -> Vec<(PfnRange, NodeId)> {
    let mut runs = Vec::new();
    early.for_each_free(&mut |run, node| runs.push((run, node)));
    runs
}

/// Reserves 64 bytes of every second 128 from `start`, `count` times.
fn comb(early: &mut Early, start: u64, count: u64) {
    for tooth in 0..count {
        early.reserve(PhysRange::with_size(start + 128 * tooth, 64)).unwrap();
    }
}

fn frames(start: u64, end: u64) -> PfnRange {
    range(start, end).whole_frames()
}

#[test]
fn memory_is_what_is_present_with_node_and_flags() {
    let platform = FakePlatform::leak(BASE, END - BASE);
    let kinds = [
        (range(BASE, BASE + MIB), Conventional),
        (range(BASE + MIB, BASE + 2 * MIB), MemoryKind::Reserved),
        (range(BASE + 2 * MIB, BASE + 3 * MIB), Unaccepted),
        (range(BASE + 3 * MIB, BASE + 4 * MIB), HotPluggable),
        (range(BASE + 4 * MIB, BASE + 5 * MIB), MemoryKind::Persistent),
        (range(BASE + 5 * MIB, END), Conventional),
    ];
    let topology =
        topology(&[(range(0, BASE + 6 * MIB), 0, false), (range(BASE + 6 * MIB, END), 1, true)]);
    let early = Early::new(platform, map(&kinds), &topology).unwrap();
    assert_eq!(
        early.memory(),
        [
            region(BASE, BASE + MIB, Some(0), RegionFlags::NONE),
            region(BASE + 2 * MIB, BASE + 3 * MIB, Some(0), RegionFlags::UNACCEPTED),
            region(BASE + 3 * MIB, BASE + 4 * MIB, Some(0), RegionFlags::HOT_PLUGGABLE),
            region(BASE + 5 * MIB, BASE + 6 * MIB, Some(0), RegionFlags::NONE),
            region(BASE + 6 * MIB, END, Some(1), RegionFlags::HOT_PLUGGABLE),
        ]
    );
    assert_eq!(early.reserved(), [taken(0, PAGE_SIZE)]);
    assert_eq!(early.memory_bytes(), 6 * MIB);
    assert_eq!(early.reserved_bytes(), PAGE_SIZE);
    assert_eq!(early.storage(), [PhysRange::default(); 2]);
}

#[test]
fn claims_that_agree_are_one_region() {
    // Frames that firmware assigned to no node go to the node below them, as a range of their own
    // that joins.
    let platform = FakePlatform::leak(BASE, END - BASE);
    let topology =
        topology(&[(range(BASE, BASE + MIB), 2, false), (range(BASE + 3 * MIB, END), 2, false)]);
    let early = Early::new(platform, map(&[(range(BASE, END), Conventional)]), &topology).unwrap();
    assert_eq!(early.memory(), [region(BASE, END, Some(2), RegionFlags::NONE)]);
}

#[test]
fn the_struct_is_small() {
    assert!(size_of::<Early>() < 8 << 10, "{} bytes", size_of::<Early>());
}

#[test]
fn reservations_join_fill_gaps_and_keep_what_is_there() {
    let (mut early, _) = plain();
    early.reserve(range(BASE + 0x100, BASE + 0x200)).unwrap();
    early.reserve(range(BASE + 0x300, BASE + 0x400)).unwrap();
    assert_eq!(
        reserved(&early),
        [taken(BASE + 0x100, BASE + 0x200), taken(BASE + 0x300, BASE + 0x400)]
    );
    // Touching below, touching above, and the gap between two.
    early.reserve(range(BASE + 0x400, BASE + 0x410)).unwrap();
    early.reserve(range(BASE + 0xf0, BASE + 0x100)).unwrap();
    assert_eq!(
        reserved(&early),
        [taken(BASE + 0xf0, BASE + 0x200), taken(BASE + 0x300, BASE + 0x410)]
    );
    early.reserve(range(BASE + 0x180, BASE + 0x380)).unwrap();
    assert_eq!(reserved(&early), [taken(BASE + 0xf0, BASE + 0x410)]);
    // Inside, equal, empty and inverted ranges add nothing new.
    let before = sets(&early);
    for again in [
        range(BASE + 0x100, BASE + 0x101),
        range(BASE + 0xf0, BASE + 0x410),
        range(BASE + 0x800, BASE + 0x800),
        PhysRange { start: BASE + 0x900, end: BASE },
        range(0, 1),
    ] {
        early.reserve(again).unwrap();
        assert_eq!(sets(&early), before, "{again:?}");
    }
    // A range that covers all of it on both sides.
    early.reserve(range(BASE, BASE + PAGE_SIZE)).unwrap();
    assert_eq!(reserved(&early), [taken(BASE, BASE + PAGE_SIZE)]);
}

#[test]
fn an_overlapped_reservation_keeps_its_node_and_flags() {
    let (mut early, _) = plain();
    let request = MemblockRequest {
        no_init: true,
        max_address: BASE + 0x3000,
        ..MemblockRequest::new(0x1000, 0x1000)
    };
    assert_eq!(early.allocate(&request).unwrap(), range(BASE + 0x2000, BASE + 0x3000));
    early.reserve(range(BASE + 0x1000, BASE + 0x4000)).unwrap();
    assert_eq!(
        reserved(&early),
        [
            taken(BASE + 0x1000, BASE + 0x2000),
            region(BASE + 0x2000, BASE + 0x3000, Some(0), RegionFlags::NO_INIT),
            taken(BASE + 0x3000, BASE + 0x4000),
        ]
    );
}

#[test]
fn ranges_are_clipped_at_the_end_of_the_address_space() {
    let (mut early, _) = plain();
    early.reserve(range(PHYSICAL_ADDRESS_END - 0x1000, u64::MAX)).unwrap();
    assert_eq!(reserved(&early), [taken(PHYSICAL_ADDRESS_END - 0x1000, PHYSICAL_ADDRESS_END)]);
    let before = sets(&early);
    early.reserve(range(PHYSICAL_ADDRESS_END, u64::MAX)).unwrap();
    early.add_memory(range(PHYSICAL_ADDRESS_END + 0x1000, u64::MAX), node(0), false).unwrap();
    assert_eq!(sets(&early), before);
    early.reserve(range(0, u64::MAX)).unwrap();
    assert_eq!(early.reserved(), [taken(0, PHYSICAL_ADDRESS_END)]);
    assert!(free_runs(&early).is_empty());
    early.free(range(0, u64::MAX)).unwrap();
    assert_eq!(early.reserved(), [taken(0, PAGE_SIZE)]);
}

#[test]
fn freeing_affects_the_intersection_alone() {
    let (mut early, _) = plain();
    early.reserve(range(BASE + 0x1000, BASE + 0x2000)).unwrap();
    early.reserve(range(BASE + 0x3000, BASE + 0x4000)).unwrap();
    early.reserve(range(BASE + 0x5000, BASE + 0x6000)).unwrap();
    // A hole in a region.
    early.free(range(BASE + 0x1400, BASE + 0x1800)).unwrap();
    assert_eq!(
        reserved(&early)[..2],
        [taken(BASE + 0x1000, BASE + 0x1400), taken(BASE + 0x1800, BASE + 0x2000)]
    );
    // The end of one region, all of another, the start of a third.
    early.free(range(BASE + 0x1c00, BASE + 0x5400)).unwrap();
    let rest = [
        taken(BASE + 0x1000, BASE + 0x1400),
        taken(BASE + 0x1800, BASE + 0x1c00),
        taken(BASE + 0x5400, BASE + 0x6000),
    ];
    assert_eq!(reserved(&early), rest);
    // A region that only touches the range is not affected.
    assert_eq!(
        early.free(range(BASE + 0x1400, BASE + 0x1800)),
        Err(MemblockError::NotReserved { range: range(BASE + 0x1400, BASE + 0x1800) })
    );
    assert!(early.free(range(BASE + 0x6000, END)).is_err());
    early.free(range(BASE, BASE)).unwrap();
    early.free(PhysRange { start: END, end: BASE }).unwrap();
    assert_eq!(reserved(&early), rest);
    early.free(range(BASE + 0x1800, BASE + 0x6000)).unwrap();
    early.free(range(BASE, BASE + 0x1001)).unwrap();
    assert_eq!(reserved(&early), [taken(BASE + 0x1001, BASE + 0x1400)]);
}

#[test]
fn freed_memory_is_allocated_again() {
    let (mut early, _) = plain();
    let first = early.allocate(&MemblockRequest::new(0x1000, 0x1000)).unwrap();
    let second = early.allocate(&MemblockRequest::new(0x1000, 0x1000)).unwrap();
    assert_eq!((first, second), (range(END - 0x1000, END), range(END - 0x2000, END - 0x1000)));
    assert_eq!(reserved(&early), [region(END - 0x2000, END, Some(0), RegionFlags::NONE)]);
    early.free(first).unwrap();
    assert_eq!(early.allocate(&MemblockRequest::new(0x800, 0)).unwrap(), range(END - 0x800, END));
}

#[test]
fn frame_0_stays_reserved() {
    let platform = FakePlatform::leak(0, MIB);
    let mut early =
        Early::new(platform, map(&[(range(0, MIB), Conventional)]), &topology(&[])).unwrap();
    early.add_memory(range(0, PAGE_SIZE), node(0), false).unwrap();
    assert_eq!(early.memory()[0].range.start, 0);
    assert_eq!(early.free(range(0, PAGE_SIZE)), Err(MemblockError::FrameZero));
    assert_eq!(early.free(range(1, 2)), Err(MemblockError::FrameZero));
    early.reserve(range(0, 2 * PAGE_SIZE)).unwrap();
    early.free(range(0, u64::MAX)).unwrap();
    assert_eq!(early.reserved(), [taken(0, PAGE_SIZE)]);
    assert_eq!(free_runs(&early), [(PfnRange::new(1, 0xa0), node(0))]);
    early.set_bottom_up(true);
    assert_eq!(
        early.allocate(&MemblockRequest::new(1, 1)).unwrap(),
        range(PAGE_SIZE, PAGE_SIZE + 1)
    );
    early.set_bottom_up(false);
    let low = MemblockRequest { max_address: PAGE_SIZE, ..MemblockRequest::new(1, 1) };
    assert!(matches!(
        early.allocate(&low),
        Err(MemblockError::OutOfMemory { largest_bytes: 0, .. })
    ));
    // An empty allocator has frame 0 reserved, too.
    let mut early = Early::empty(platform, &topology(&[]));
    early.add_memory(range(0, 2 * PAGE_SIZE), node(0), false).unwrap();
    assert_eq!(
        early.allocate(&MemblockRequest::new(PAGE_SIZE, 0)).unwrap(),
        range(PAGE_SIZE, 2 * PAGE_SIZE)
    );
    assert!(early.allocate(&MemblockRequest::new(1, 1)).is_err());
}

#[test]
fn the_last_addresses_work() {
    let top = PHYSICAL_ADDRESS_END;
    let platform = FakePlatform::leak(top - MIB, MIB);
    let mut early =
        Early::new(platform, map(&[(range(top - MIB, top), Conventional)]), &topology(&[]))
            .unwrap();
    assert_eq!(early.allocate(&MemblockRequest::new(0x1000, 0)).unwrap(), range(top - 0x1000, top));
    assert_eq!(
        early.allocate(&MemblockRequest::new(u64::MAX, 1)).unwrap_err().to_string().lines().count(),
        1
    );
    comb(&mut early, top - 0x10_0000, 200);
    assert_well_formed(early.reserved());
    early.free(range(top - 0x800, u64::MAX)).unwrap();
    assert_eq!(
        early.allocate(&MemblockRequest::new(0x800, 0x800)).unwrap(),
        range(top - 0x800, top)
    );
    early.set_bottom_up(true);
    let high = MemblockRequest { min_address: top - 0x1000, ..MemblockRequest::new(0x20, 0x20) };
    early.free(range(top - 0x40, top)).unwrap();
    assert_eq!(early.allocate(&high).unwrap(), range(top - 0x40, top - 0x20));
    assert_eq!(early.allocate(&high).unwrap(), range(top - 0x20, top));
}

#[test]
fn hand_over_gives_whole_free_frames_by_node() {
    let mut early = two_nodes();
    let half = BASE + 4 * MIB;
    early.reserve(range(BASE + 0x1fff, BASE + 0x2001)).unwrap();
    early.reserve(range(BASE + 0x4800, BASE + 0x4801)).unwrap();
    early.reserve(range(half + 0x1000, END - 0xfff)).unwrap();
    let expected = [
        (frames(BASE, BASE + 0x1000), node(0)),
        (frames(BASE + 0x3000, BASE + 0x4000), node(0)),
        (frames(BASE + 0x5000, half), node(0)),
        (frames(half, half + 0x1000), node(1)),
    ];
    assert_eq!(free_runs(&early), expected);
    // The pieces cover the same frames, and each is as large as it can be.
    let mut pieces = Vec::new();
    early.for_each_free_piece(&mut |pfn, order, node| pieces.push((pfn, order, node)));
    let mut position = pieces.iter();
    for (run, owner) in expected {
        let mut next = run.start;
        while next < run.end {
            let &(pfn, order, node) = position.next().unwrap();
            assert_eq!((pfn, node), (next, owner));
            assert!(pfn.is_aligned(order) && pfn.0 + order.pages() <= run.end.0);
            next = pfn.add(order.pages());
        }
    }
    assert_eq!(position.next(), None);
}

#[test]
fn memory_grows_by_whole_frames_and_keeps_what_it_knows() {
    let (mut early, _) = plain();
    early.add_memory(range(END + 0x800, END + 0x3800), node(0), false).unwrap();
    early.add_memory(range(END + 0x5001, END + 0x5fff), node(0), false).unwrap();
    early.add_memory(range(BASE - 0x1000, BASE + 0x1000), node(1), true).unwrap();
    early.add_memory(range(BASE, END), node(1), true).unwrap();
    let grown = [
        region(BASE - 0x1000, BASE, Some(1), RegionFlags::HOT_PLUGGABLE),
        region(BASE, END, Some(0), RegionFlags::NONE),
        region(END + 0x1000, END + 0x3000, Some(0), RegionFlags::NONE),
    ];
    assert_eq!(early.memory(), grown);
    early.add_memory(range(END, END + 0x1000), node(0), false).unwrap();
    assert_eq!(early.memory()[1..], [region(BASE, END + 0x3000, Some(0), RegionFlags::NONE)]);
}

#[test]
fn a_discarded_allocator_refuses_everything() {
    let (mut early, _) = plain();
    comb(&mut early, BASE, 200);
    let storage = early.storage();
    assert!(storage[0].is_empty() && !storage[1].is_empty());
    let mut last_free = PhysRange::default();
    early.for_each_free(&mut |run, _| last_free = run.to_phys());
    assert!(last_free.intersection(storage[1]).is_empty(), "still reserved");
    assert_eq!(early.discard(), storage);
    assert_eq!(early.discard(), [PhysRange::default(); 2]);
    assert_eq!(early.reserve(range(BASE, END)), Err(MemblockError::Discarded));
    assert_eq!(early.free(range(BASE, END)), Err(MemblockError::Discarded));
    assert_eq!(early.free(range(BASE, BASE)), Err(MemblockError::Discarded));
    assert_eq!(early.allocate(&MemblockRequest::new(1, 1)), Err(MemblockError::Discarded));
    assert_eq!(early.add_memory(range(BASE, END), node(0), false), Err(MemblockError::Discarded));
    assert_eq!(
        early.start(map(&[(range(BASE, END), Conventional)]), &[]),
        Err(MemblockError::Discarded)
    );
    assert!(
        early.memory().is_empty() && early.reserved().is_empty() && free_runs(&early).is_empty()
    );
}

#[test]
fn an_empty_allocator_starts_once() {
    let platform = FakePlatform::leak(BASE, END - BASE);
    let map = map(&[(range(BASE, END), Conventional)]);
    let mut early = Early::empty(platform, &topology(&[]));
    assert!(matches!(
        early.allocate(&MemblockRequest::new(1, 1)),
        Err(MemblockError::OutOfMemory { .. })
    ));
    early.start(map, &[range(BASE, BASE + 0x10)]).unwrap();
    assert_eq!(reserved(&early), [taken(BASE, BASE + 0x10)]);
    assert_eq!(early.start(map, &[]), Err(MemblockError::AlreadyStarted));
    assert_eq!(early.memory_bytes(), END - BASE);
}

#[test]
fn errors_say_what_where_and_what_would_be_right() {
    let (mut early, _) = plain();
    let request =
        MemblockRequest { node: NodeChoice::Exact(node(3)), ..MemblockRequest::new(0x40, 3) };
    assert_eq!(
        early.allocate(&request).unwrap_err().to_string(),
        "an early allocation aligned to 0x3 bytes: give a power of two, or 0 for a cache line"
    );
    assert_eq!(
        early.allocate(&MemblockRequest { align_bytes: 0x40, ..request }).unwrap_err().to_string(),
        "no 0x40 bytes aligned to 0x40 are free below 0x10000000000000 on node 3 alone: \
         the largest free run there has 0x0 bytes"
    );
    assert_eq!(
        early.free(range(BASE, END)).unwrap_err().to_string(),
        "cannot free [mem 0x0000000010000000-0x00000000107fffff]: nothing in it is reserved; was \
         it freed before?"
    );
}
