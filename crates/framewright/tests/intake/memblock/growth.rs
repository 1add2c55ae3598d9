//! How the memblock allocator's sets grow when they run out of storage.

use super::platform::{DIRT, Early, FakePlatform, assert_well_formed, map, node, sets, topology};
use framewright::firmware::MemoryKind::{Conventional, HotPluggable, Unaccepted};
use framewright::memblock::{
    MemblockError, MemblockRequest, Region, RegionFlags, SetName, largest_pieces,
};
use framewright::units::{Order, PAGE_SIZE, PHYSICAL_ADDRESS_END, Pfn, PfnRange, PhysRange};

const MIB: u64 = 1 << 20;
const BASE: u64 = 0x1000_0000;
const END: u64 = BASE + 8 * MIB;
/// The number of regions before a set grows.
const FIXED: u64 = 128;

fn range(start: u64, end: u64) -> PhysRange {
    PhysRange::new(start, end)
}

fn plain() -> (Early, &'static FakePlatform) {
    let platform = FakePlatform::leak(BASE, END - BASE);
    (
        Early::new(platform, map(&[(range(BASE, END), Conventional)]), &topology(&[])).unwrap(),
        platform,
    )
}

fn tooth(start: u64, index: u64) -> PhysRange {
    PhysRange::with_size(start + 128 * index, 64)
}

fn comb(early: &mut Early, start: u64, count: u64) {
    for index in 0..count {
        early.reserve(tooth(start, index)).unwrap();
    }
}

/// Returns the regions that hold the allocator's arrays.
fn own(early: &Early) -> Vec<PhysRange> {
    let kernel =
        early.reserved().iter().filter(|region| region.flags.contains(RegionFlags::KERNEL));
    kernel.map(|region| region.range).collect()
}

/// Checks that the arrays are where the reserved set says, and nowhere else.
fn assert_own_is_storage(early: &Early) {
    let mut storage: Vec<_> =
        early.storage().into_iter().filter(|range| !range.is_empty()).collect();
    storage.sort_by_key(|range| range.start);
    if let [low, high] = storage[..]
        && low.end == high.start
    {
        storage = vec![range(low.start, high.end)];
    }
    assert_eq!(own(early), storage);
}

#[test]
fn the_reserved_set_grows_into_memory_and_frees_its_old_array() {
    let (mut early, platform) = plain();
    comb(&mut early, BASE, FIXED - 1);
    assert_eq!((early.reserved().len(), early.storage()[1].size()), (128, 0));
    early.reserve(tooth(BASE, FIXED - 1)).unwrap();
    let first = early.storage()[1];
    assert_eq!(first, range(END - 2 * PAGE_SIZE, END));
    assert_eq!(early.reserved().len(), 130);
    assert_own_is_storage(&early);
    // On to the next growth, and the one after.
    comb(&mut early, BASE, 1500);
    assert_own_is_storage(&early);
    assert_eq!(early.reserved().len(), 1 + 1500 + 1);
    assert!(early.storage()[1].size() >= 1502 * 24);
    assert_ne!(early.storage()[1], first);
    assert_well_formed(early.reserved());
    assert!(
        (0..1500)
            .all(|index| early.reserved().iter().any(|region| region.range == tooth(BASE, index)))
    );
    // The array that was given back is allocated again.
    assert_eq!(early.allocate(&MemblockRequest::new(2 * PAGE_SIZE, PAGE_SIZE)).unwrap(), first);
    assert!(platform.is_full_of(first, 0));
    assert_eq!(early.reserved().len(), 1 + 1500 + 2);
}

#[test]
fn a_full_set_that_only_joins_does_not_grow() {
    let (mut early, _) = plain();
    comb(&mut early, BASE, FIXED - 1);
    // One reservation extends a region's end, one its start, and one joins two regions while a new
    // region elsewhere takes the entry that becomes free.
    early.reserve(range(BASE + 64, BASE + 72)).unwrap();
    early.reserve(range(BASE + 120, BASE + 128)).unwrap();
    assert_eq!(early.reserved().len(), 128);
    early.reserve(range(BASE + 72, BASE + 120)).unwrap();
    assert_eq!(early.reserved().len(), 127);
    early.reserve(range(BASE + MIB, BASE + MIB + 1)).unwrap();
    assert_eq!(early.reserved().len(), 128);
    assert!(early.storage()[1].is_empty());
    // A range over many regions joins all of them, whatever the order in which its gaps are filled.
    early.reserve(range(BASE - 1, BASE + MIB)).unwrap();
    assert_eq!(early.reserved().len(), 2);
    assert!(early.storage()[1].is_empty());
}

#[test]
fn a_full_set_takes_a_range_that_joins_as_much_as_it_adds() {
    let (mut early, _) = plain();
    early.set_bottom_up(true);
    // Two allocations and two plain reservations, with 64 bytes between them: filling the first gap
    // adds a region, filling the last joins two.
    let held = [0, 1].map(|_| early.allocate(&MemblockRequest::new(64, 128)).unwrap());
    assert_eq!(held, [tooth(BASE, 0), tooth(BASE, 1)]);
    early.reserve(tooth(BASE, 2)).unwrap();
    early.reserve(tooth(BASE, 3)).unwrap();
    comb(&mut early, BASE + MIB, FIXED - 5);
    assert_eq!(early.reserved().len(), 128);
    early.reserve(range(held[0].end, tooth(BASE, 3).start)).unwrap();
    assert_eq!(early.reserved().len(), 128);
    assert!(early.storage()[1].is_empty());
    let found: Vec<_> = early.reserved()[1..5].iter().map(|region| region.range).collect();
    assert_eq!(
        found,
        [
            held[0],
            range(held[0].end, held[1].start),
            held[1],
            range(held[1].end, tooth(BASE, 3).end)
        ]
    );
}

#[test]
fn one_reservation_may_need_many_entries() {
    // Allocations have a node, and so do not join with what is reserved between them.
    let (mut early, _) = plain();
    early.set_bottom_up(true);
    for _ in 0..120 {
        early.allocate(&MemblockRequest::new(64, 128)).unwrap();
    }
    early.reserve(range(BASE + 64, BASE + MIB)).unwrap();
    assert_well_formed(early.reserved());
    assert_eq!(early.reserved().len(), 1 + 240 + 1);
    assert_eq!(own(&early), [range(BASE + MIB, BASE + MIB + early.storage()[1].size())]);
    // Freeing a hole in the middle of a region also needs an entry.
    let before = early.reserved().len();
    early.free(range(BASE + MIB - 128, BASE + MIB - 64)).unwrap();
    assert_eq!(early.reserved().len(), before + 1);
}

#[test]
fn the_new_array_avoids_what_is_being_reserved() {
    let (mut early, platform) = plain();
    comb(&mut early, BASE, FIXED - 1);
    early.reserve(range(BASE + 3 * MIB, END)).unwrap();
    let storage = early.storage()[1];
    assert_eq!(storage.end, BASE + 3 * MIB);
    assert!(
        platform.is_full_of(range(BASE + 3 * MIB, END), DIRT),
        "the array went into what was being reserved"
    );
    // And the memory that is being allocated.
    let (mut early, platform) = plain();
    comb(&mut early, BASE, FIXED - 1);
    let got = early.allocate(&MemblockRequest::new(MIB, 0)).unwrap();
    assert_eq!(got, range(END - MIB, END));
    assert!(platform.is_full_of(got, 0));
    assert_eq!(early.storage()[1].end, END - MIB);
    // Bottom-up, the array goes above.
    let (mut early, _) = plain();
    comb(&mut early, END - MIB, FIXED - 1);
    early.set_bottom_up(true);
    early.reserve(range(BASE, BASE + MIB)).unwrap();
    assert_eq!(early.storage()[1].start, BASE + MIB);
}

#[test]
fn cutting_a_hole_in_a_full_set_grows_it() {
    let (mut early, _) = plain();
    early.reserve(range(BASE + MIB, BASE + 2 * MIB)).unwrap();
    comb(&mut early, BASE, FIXED - 2);
    assert_eq!(early.reserved().len(), 128);
    // Trimming a region needs no entry; a hole in it does.
    early.free(range(BASE + MIB, BASE + MIB + 8)).unwrap();
    early.free(range(BASE + 2 * MIB - 8, BASE + 3 * MIB)).unwrap();
    assert!(early.storage()[1].is_empty());
    early.free(range(BASE + MIB + 16, BASE + MIB + 24)).unwrap();
    assert!(!early.storage()[1].is_empty());
    let cut = [range(BASE + MIB + 8, BASE + MIB + 16), range(BASE + MIB + 24, BASE + 2 * MIB - 8)];
    let found: Vec<_> = early
        .reserved()
        .iter()
        .map(|region| region.range)
        .filter(|r| r.start > BASE + MIB)
        .collect();
    assert_eq!(found[..2], cut);
    assert_own_is_storage(&early);
}

#[test]
fn without_room_to_grow_nothing_changes() {
    let (mut early, platform) = plain();
    comb(&mut early, BASE, FIXED - 2);
    early.reserve(range(BASE + (FIXED - 2) * 128, END)).unwrap();
    assert_eq!(early.reserved().len(), 128);
    // None of it is free, so all other memory is second choice.
    early.mark_mirrored(range(END - 4 * PAGE_SIZE, END - 3 * PAGE_SIZE)).unwrap();
    early.set_mirrored_first(true);
    platform.fill(range(BASE, END), DIRT);
    let before = sets(&early);
    let no_room = MemblockError::NoRoomToGrow {
        set: SetName::Reserved,
        regions: 128,
        needed_bytes: 2 * PAGE_SIZE,
    };
    assert_eq!(early.reserve(range(BASE + 80, BASE + 90)), Err(no_room));
    assert_eq!(early.free(range(BASE + 20, BASE + 30)), Err(no_room));
    assert_eq!(early.free(range(BASE + 2 * MIB, BASE + 3 * MIB)), Err(no_room));
    assert_eq!(early.allocate(&MemblockRequest::new(32, 1)), Err(no_room));
    assert!(matches!(
        early.allocate(&MemblockRequest::new(65, 1)),
        Err(MemblockError::OutOfMemory { .. })
    ));
    assert_eq!(sets(&early), before);
    assert_eq!(early.unmirrored_bytes(), 0, "nothing was allocated");
    assert!(platform.is_full_of(range(BASE, END), DIRT));
    // Calls that need no entry still work, and once memory is freed all calls do.
    early.reserve(range(BASE + 64, BASE + 72)).unwrap();
    early.free(range(END - 2 * PAGE_SIZE, END)).unwrap();
    early.reserve(range(BASE + 80, BASE + 90)).unwrap();
    assert_eq!(early.storage()[1], range(END - 2 * PAGE_SIZE, END));
}

#[test]
fn arrays_cannot_be_freed_and_outlive_a_reservation_over_them() {
    let (mut early, _) = plain();
    comb(&mut early, BASE, 200);
    let storage = early.storage()[1];
    let before = sets(&early);
    for over in [
        storage,
        range(storage.start - 1, storage.start + 1),
        range(0, u64::MAX),
        range(storage.end - 1, END),
    ] {
        assert_eq!(early.free(over), Err(MemblockError::OwnStorage { storage }));
    }
    assert_eq!(sets(&early), before);
    // A caller that reserves the array's bytes, too, keeps them after the array has moved away.
    early.reserve(range(storage.start - PAGE_SIZE, storage.start + PAGE_SIZE)).unwrap();
    comb(&mut early, BASE, 600);
    assert_ne!(early.storage()[1], storage);
    let kept = early
        .reserved()
        .iter()
        .find(|region| region.range.start <= storage.start && storage.start < region.range.end);
    assert!(kept.is_some(), "the reservation went with the array");
    early.free(range(storage.start - PAGE_SIZE, storage.end)).unwrap();
    // This also holds at the end: the array is not given back.
    let storage = early.storage()[1];
    early.reserve(storage).unwrap();
    assert_eq!(early.discard(), [PhysRange::default(); 2]);
}

#[test]
fn a_reservation_that_makes_the_array_under_it_move_covers_all_its_bytes() {
    let (mut early, _) = plain();
    comb(&mut early, BASE, FIXED);
    let old = early.storage()[1];
    let mut index = FIXED;
    while early.reserved().len() < 341 {
        early.reserve(tooth(BASE, index)).unwrap();
        index += 1;
    }
    assert_eq!(early.storage()[1], old, "two frames hold 341 regions");
    // The part below the array needs an entry, so the array moves, and the bytes that it leaves are
    // reserved as well.
    let over = range(old.start - PAGE_SIZE, old.end - 8);
    early.reserve(over).unwrap();
    assert!(early.storage()[1].end <= over.start);
    assert!(early.reserved().contains(&Region {
        range: over,
        node: None,
        flags: RegionFlags::NONE
    }));
    assert_own_is_storage(&early);
}

#[test]
fn a_map_of_hundreds_of_ranges_works() {
    for (count, bottom_up) in [(128, false), (129, false), (700, false), (700, true)] {
        let platform = FakePlatform::leak(BASE, END - BASE);
        let piece = |index: u64| PhysRange::with_size(BASE + 2 * PAGE_SIZE * index, PAGE_SIZE);
        let mut ranges: Vec<_> = (0..count - 1).map(|index| (piece(index), Conventional)).collect();
        // Only the last range is large enough for an array of hundreds of regions.
        ranges.push((range(BASE + 7 * MIB, END), Conventional));
        let mut early = Early::empty(platform, &topology(&[]));
        early.set_bottom_up(bottom_up);
        early.start(map(&ranges), &[]).unwrap();
        let found: Vec<_> = early.memory().iter().map(|region| region.range).collect();
        let expected: Vec<_> = ranges.iter().map(|&(range, _)| range).collect();
        assert_eq!(found, expected);
        let storage = early.storage()[0];
        assert_eq!(storage.is_empty(), count == 128);
        if count > 128 {
            assert!(if bottom_up { storage.start == BASE + 7 * MIB } else { storage.end == END });
        }
        assert_own_is_storage(&early);
        let got = early.allocate(&MemblockRequest::new(PAGE_SIZE, PAGE_SIZE)).unwrap();
        assert!(got.intersection(storage).is_empty());
        assert_eq!(early.discard()[0], storage);
    }
}

#[test]
fn arrays_at_the_start_avoid_all_that_is_reserved() {
    let platform = FakePlatform::leak(BASE, END - BASE);
    let mut ranges: Vec<_> = (0..300)
        .map(|index| (PhysRange::with_size(BASE + 2 * PAGE_SIZE * index, PAGE_SIZE), Conventional))
        .collect();
    ranges.push((range(BASE + 5 * MIB, END), Conventional));
    // In random order, with holes between them that are too small for an array, and more ranges
    // than fit without growing.
    let mut reserved: Vec<_> = (0..400).rev().map(|index| tooth(BASE + 5 * MIB, index)).collect();
    reserved.extend([
        range(BASE + 7 * MIB, END - PAGE_SIZE),
        range(BASE + 6 * MIB, BASE + 7 * MIB - PAGE_SIZE),
    ]);
    let early = Early::with_reserved(platform, map(&ranges), &topology(&[]), &reserved).unwrap();
    assert!(early.storage().iter().all(|storage| !storage.is_empty()));
    assert_own_is_storage(&early);
    for &hold in &reserved {
        assert!(platform.is_full_of(hold, DIRT), "{hold:?} was overwritten");
        assert!(early.storage().iter().all(|storage| storage.intersection(hold).is_empty()));
        assert!(early.reserved().iter().any(|region| region.range.intersection(hold) == hold));
    }
    assert_well_formed(early.reserved());
}

#[test]
fn a_start_without_room_leaves_the_allocator_empty() {
    let platform = FakePlatform::leak(BASE, END - BASE);
    let small: Vec<_> = (0..200)
        .map(|index| (PhysRange::with_size(BASE + 2 * PAGE_SIZE * index, PAGE_SIZE), Conventional))
        .collect();
    let mut early = Early::empty(platform, &topology(&[]));
    let error = early.start(map(&small), &[]).unwrap_err();
    assert_eq!(
        error,
        MemblockError::NoRoomToGrow {
            set: SetName::Memory,
            regions: 0,
            needed_bytes: 2 * PAGE_SIZE
        }
    );
    assert!(early.memory().is_empty());
    // Plenty of memory that must not hold arrays.
    let mut large = small.clone();
    large.push((range(BASE + 6 * MIB, BASE + 7 * MIB), Unaccepted));
    large.push((range(BASE + 7 * MIB, END), Unaccepted));
    assert_eq!(early.start(map(&large), &[]), Err(error));
    // Room for the memory set's array, but not for the reserved set's.
    large[200] = (range(BASE + 7 * MIB, BASE + 7 * MIB + 2 * PAGE_SIZE), Conventional);
    large.truncate(201);
    let many: Vec<_> = (0..200).map(|index| tooth(BASE, index)).collect();
    let error = early.start(map(&large), &many).unwrap_err();
    assert!(matches!(error, MemblockError::NoRoomToGrow { set: SetName::Reserved, .. }), "{error}");
    assert!(early.memory().is_empty() && early.storage() == [PhysRange::default(); 2]);
    assert_eq!(early.reserved().len(), 1);
    early.start(map(&large), &many[..50]).unwrap();
    assert_eq!(early.memory().len(), 201);
}

#[test]
fn arrays_lie_in_hot_pluggable_memory_when_there_is_no_other() {
    let small: Vec<_> = (0..200)
        .map(|index| (PhysRange::with_size(BASE + 2 * PAGE_SIZE * index, PAGE_SIZE), Conventional))
        .collect();
    let hot = range(BASE + 6 * MIB, BASE + 7 * MIB);
    let plain = range(BASE + 2 * MIB, BASE + 3 * MIB);
    for (movable_node, with_plain) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut ranges = small.clone();
        ranges.push((hot, HotPluggable));
        if with_plain {
            ranges.push((plain, Conventional));
        }
        let mut early = Early::empty(FakePlatform::leak(BASE, END - BASE), &topology(&[]));
        early.set_movable_node(movable_node);
        early.start(map(&ranges), &[]).unwrap();
        let expected = if movable_node && with_plain { plain } else { hot };
        assert_eq!(early.storage()[0].intersection(expected), early.storage()[0]);
        for index in 0..300 {
            early.reserve(PhysRange::with_size(BASE + 128 * index, 64)).unwrap();
        }
        assert_eq!(early.storage()[1].intersection(expected), early.storage()[1]);
    }
}

#[test]
fn both_sets_can_grow_in_one_call() {
    let (mut early, platform) = plain();
    platform.set_limit(END);
    comb(&mut early, BASE, FIXED - 1);
    let high = END + MIB;
    for index in 0..FIXED - 1 {
        early
            .add_memory(
                PhysRange::with_size(high + 2 * PAGE_SIZE * index, PAGE_SIZE),
                node(1),
                false,
            )
            .unwrap();
    }
    assert_eq!((early.memory().len(), early.reserved().len()), (128, 128));
    assert_eq!(own(&early), []);
    early.add_memory(range(high + 8 * MIB, high + 9 * MIB), node(1), false).unwrap();
    assert_eq!(early.memory().len(), 129);
    // The memory set's array is placed first, so it is the higher one.
    assert_eq!(early.storage(), [range(END - 0x2000, END), range(END - 0x4000, END - 0x2000)]);
    assert_own_is_storage(&early);
    // The arrays were one region, which splits when one of them moves.
    comb(&mut early, BASE, 400);
    assert_eq!(early.storage()[0], range(END - 0x2000, END));
    assert_own_is_storage(&early);
}

#[test]
fn a_direct_map_that_loses_alignment_is_refused() {
    let platform = FakePlatform::leak_skewed(BASE, END - BASE, 4);
    let mut early =
        Early::new(platform, map(&[(range(BASE, END), Conventional)]), &topology(&[])).unwrap();
    comb(&mut early, BASE, FIXED - 1);
    let before = sets(&early);
    let error = early.reserve(tooth(BASE, FIXED)).unwrap_err();
    assert_eq!(error, MemblockError::MisalignedDirectMap { address: END - 2 * PAGE_SIZE });
    assert_eq!(sets(&early), before);
}

#[test]
fn memory_runs_out_with_ordinary_errors() {
    // 256 KiB in pieces that never join, so that the array has to grow again and again in the
    // memory that is left.
    for (size, bottom_up) in [(64, false), (64, true), (200, false), (48, true)] {
        let platform = FakePlatform::leak(BASE, MIB / 4);
        let all = platform.range();
        let mut early = Early::new(platform, map(&[(all, Conventional)]), &topology(&[])).unwrap();
        early.set_bottom_up(bottom_up);
        let mut held: Vec<PhysRange> = Vec::new();
        let mut arrays = vec![early.storage()[1]];
        let error = loop {
            let marked = held.len().is_multiple_of(2);
            let before = sets(&early);
            match early
                .allocate(&MemblockRequest { no_init: marked, ..MemblockRequest::new(size, 8) })
            {
                Ok(got) => {
                    platform.fill(got, 0x5a);
                    held.push(got);
                }
                Err(error) => {
                    assert_eq!(sets(&early), before);
                    break error;
                }
            }
            if arrays.last() != Some(&early.storage()[1]) {
                arrays.push(early.storage()[1]);
            }
        };
        assert!(
            matches!(error, MemblockError::NoRoomToGrow { .. } | MemblockError::OutOfMemory { .. }),
            "{error}"
        );
        assert!(arrays.len() >= 3, "grew {} times", arrays.len() - 1);
        assert_own_is_storage(&early);
        assert_well_formed(early.reserved());
        assert!(
            held.iter().all(|&piece| platform.is_full_of(piece, 0x5a)),
            "somebody wrote into an allocation"
        );
        held.sort_by_key(|piece| piece.start);
        assert!(held.windows(2).all(|pair| pair[0].end <= pair[1].start));
        // Everything can be given back, and then forms one run again except for the array.
        for piece in held {
            early.free(piece).unwrap();
        }
        assert_eq!(early.reserved().len(), 2);
        let mut free = 0;
        early.for_each_free(&mut |run, _| free += run.pages() * PAGE_SIZE);
        assert_eq!(free + early.storage()[1].size(), all.size());
    }
}

#[test]
fn pieces_are_the_largest_that_are_aligned() {
    let cut = |start, end| -> Vec<(u64, u8)> {
        largest_pieces(PfnRange::new(start, end)).map(|(pfn, order)| (pfn.0, order.get())).collect()
    };
    assert_eq!(cut(1, 9), [(1, 0), (2, 1), (4, 2), (8, 0)]);
    assert_eq!(cut(8, 15), [(8, 2), (12, 1), (14, 0)]);
    assert_eq!(cut(0, 3 << 18), [(0, 18), (1 << 18, 18), (2 << 18, 18)]);
    assert_eq!(cut(512, 1 << 18).last(), Some(&(1 << 17, 17)));
    assert_eq!(cut(5, 5), []);
    let last = PHYSICAL_ADDRESS_END / PAGE_SIZE;
    assert_eq!(cut(last - (1 << 18), last), [(last - (1 << 18), 18)]);
    // No frame has such a number, but a range can.
    assert_eq!(cut(u64::MAX - 1, u64::MAX), [(u64::MAX - 1, 0)]);
    assert_eq!(largest_pieces(PfnRange { start: Pfn(9), end: Pfn(3) }).count(), 0);
    assert_eq!(largest_pieces(PfnRange::new(0, u64::MAX)).next(), Some((Pfn(0), Order::MAX)));
}

#[test]
fn flags_print_by_name() {
    let both = RegionFlags::NO_INIT.union(RegionFlags::KERNEL);
    assert!(both.contains(RegionFlags::KERNEL) && !RegionFlags::KERNEL.contains(both));
    let region = Region { range: range(0x1000, 0x2000), node: Some(node(1)), flags: both };
    assert_eq!(format!("{region:?}"), "0x1000..0x2000 node 1 no-init|kernel");
    assert_eq!(format!("{:?}", RegionFlags::NONE), "-");
}
