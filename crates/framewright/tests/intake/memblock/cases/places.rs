//! Where an allocation is placed: alignment, direction, limits, nodes, hot-pluggable memory.

use super::*;

#[test]
fn alignment_0_is_a_cache_line_and_others_are_powers_of_two() {
    let (mut early, _) = plain();
    assert_eq!(early.allocate(&MemblockRequest::new(1, 0)).unwrap(), range(END - 64, END - 63));
    assert_eq!(early.allocate(&MemblockRequest::new(10, 1)).unwrap(), range(END - 10, END));
    assert_eq!(early.allocate(&MemblockRequest::new(3, 2)).unwrap(), range(END - 14, END - 11));
    let before = sets(&early);
    for align_bytes in [3, 65, 0xfff, u64::MAX] {
        assert_eq!(
            early.allocate(&MemblockRequest::new(8, align_bytes)),
            Err(MemblockError::BadAlignment { align_bytes })
        );
    }
    assert_eq!(early.allocate(&MemblockRequest::new(0, 3)), Err(MemblockError::ZeroSize));
    assert_eq!(early.allocate(&MemblockRequest::new(0, 0)), Err(MemblockError::ZeroSize));
    assert_eq!(sets(&early), before);
}

#[test]
fn sizes_and_alignments_of_any_height_are_ordinary_errors() {
    let (mut early, _) = plain();
    let before = sets(&early);
    for bottom_up in [false, true] {
        early.set_bottom_up(bottom_up);
        for size in [1, END - BASE, END - BASE + 1, 1 << 52, 1 << 63, u64::MAX] {
            for align in [1, 1 << 51, 1 << 52, 1 << 63] {
                for (min_address, max_address) in
                    [(0, u64::MAX), (u64::MAX, u64::MAX), (u64::MAX, 0), (END, BASE)]
                {
                    let request = MemblockRequest {
                        min_address,
                        max_address,
                        ..MemblockRequest::new(size, align)
                    };
                    match early.allocate(&request) {
                        Ok(got) => {
                            assert!(align == 1 && size <= END - BASE && max_address == u64::MAX);
                            early.free(got).unwrap();
                        }
                        Err(error) => {
                            assert!(matches!(error, MemblockError::OutOfMemory { .. }), "{error}")
                        }
                    }
                    assert_eq!(sets(&early), before);
                }
            }
        }
    }
}

#[test]
fn top_down_takes_the_highest_place_that_fits() {
    let (mut early, _) = plain();
    early.reserve(range(END - 0x3000, END - 0x2800)).unwrap();
    early.reserve(range(END - 0x1000, END)).unwrap();
    // Free memory, from above: 0x1800 bytes, not all of them aligned; then everything below END -
    // 0x3000.
    assert_eq!(early.allocate(&MemblockRequest::new(0x1001, 0x1000)).unwrap().start, END - 0x5000);
    assert_eq!(early.allocate(&MemblockRequest::new(0x1000, 0x1000)).unwrap().start, END - 0x2000);
    assert_eq!(early.allocate(&MemblockRequest::new(0x800, 1)).unwrap().start, END - 0x2800);
    assert_eq!(early.allocate(&MemblockRequest::new(1, 1)).unwrap().start, END - 0x3001);
}

#[test]
fn bottom_up_takes_the_lowest_place_that_fits() {
    let (mut early, _) = plain();
    early.set_bottom_up(true);
    early.reserve(range(BASE, BASE + 0x1000)).unwrap();
    early.reserve(range(BASE + 0x2800, BASE + 0x3000)).unwrap();
    assert_eq!(early.allocate(&MemblockRequest::new(0x1801, 1)).unwrap().start, BASE + 0x3000);
    assert_eq!(early.allocate(&MemblockRequest::new(0x800, 0x2000)).unwrap().start, BASE + 0x2000);
    assert_eq!(early.allocate(&MemblockRequest::new(0x1000, 0)).unwrap().start, BASE + 0x1000);
    assert_eq!(early.allocate(&MemblockRequest::new(1, 1)).unwrap().start, BASE + 0x4801);
}

#[test]
fn an_allocation_stays_inside_one_region() {
    let mut early = two_nodes();
    let half = BASE + 4 * MIB;
    early.reserve(range(half + 0x1000, END)).unwrap();
    // The free run around the middle is larger than either half of it, but it belongs to two nodes.
    assert_eq!(early.allocate(&MemblockRequest::new(0x2000, 0)).unwrap().start, half - 0x2000);
    assert_eq!(reserved(&early)[0].node, Some(node(0)));
}

#[test]
fn limits_bind_and_the_lower_one_is_dropped_last() {
    let (mut early, _) = plain();
    let middle = MemblockRequest {
        min_address: BASE + 0x4000,
        max_address: BASE + 0x8000,
        ..MemblockRequest::new(0x2000, 0)
    };
    assert_eq!(early.allocate(&middle).unwrap().start, BASE + 0x6000);
    assert_eq!(early.allocate(&middle).unwrap().start, BASE + 0x4000);
    assert_eq!(early.allocate(&middle).unwrap().start, BASE + 0x2000);
    assert_eq!(early.allocate(&middle).unwrap().start, BASE);
    assert_eq!(
        early.allocate(&middle),
        Err(MemblockError::OutOfMemory {
            size_bytes: 0x2000,
            align_bytes: 64,
            max_address: BASE + 0x8000,
            node: NodeChoice::Any,
            largest_bytes: 0,
        })
    );
    // If the limits exclude each other, the upper one counts.
    let crossed = MemblockRequest {
        min_address: END,
        max_address: BASE + 0x9000,
        ..MemblockRequest::new(0x1000, 0)
    };
    assert_eq!(early.allocate(&crossed).unwrap().start, BASE + 0x8000);
    early.set_bottom_up(true);
    let high = MemblockRequest { min_address: BASE + 0x9001, ..MemblockRequest::new(0x10, 0x10) };
    assert_eq!(early.allocate(&high).unwrap().start, BASE + 0x9010);
}

#[test]
fn nodes_fall_back_within_the_limits_before_the_lower_limit_falls() {
    let mut early = two_nodes();
    let half = BASE + 4 * MIB;
    let on = |choice| MemblockRequest { node: choice, ..MemblockRequest::new(MIB, 0) };
    assert_eq!(early.allocate(&on(NodeChoice::Exact(node(0)))).unwrap().start, half - MIB);
    assert_eq!(early.allocate(&on(NodeChoice::Preferred(node(0)))).unwrap().start, half - 2 * MIB);
    assert_eq!(early.allocate(&on(NodeChoice::Any)).unwrap().start, END - MIB);
    // Node 0 has room only below the limit: a preferred node gives way before the limit does, an
    // exact node after it.
    let limited = |choice| MemblockRequest { min_address: half - MIB, ..on(choice) };
    assert_eq!(
        early.allocate(&limited(NodeChoice::Preferred(node(0)))).unwrap().start,
        END - 2 * MIB
    );
    assert_eq!(early.allocate(&limited(NodeChoice::Exact(node(0)))).unwrap().start, half - 3 * MIB);
    // A node without memory.
    assert!(matches!(
        early.allocate(&on(NodeChoice::Exact(node(5)))),
        Err(MemblockError::OutOfMemory { largest_bytes: 0, .. })
    ));
    assert_eq!(early.allocate(&on(NodeChoice::Preferred(node(5)))).unwrap().start, END - 3 * MIB);
    // With the upper node full, the limit is dropped and the preferred node is asked first again.
    let high = MemblockRequest { min_address: END - MIB, ..on(NodeChoice::Preferred(node(0))) };
    assert_eq!(early.allocate(&high).unwrap().start, BASE);
    assert!(matches!(
        early.allocate(&on(NodeChoice::Exact(node(0)))),
        Err(MemblockError::OutOfMemory { largest_bytes: 0, .. })
    ));
}

#[test]
fn movable_node_keeps_hot_pluggable_memory_for_those_who_ask_and_unaccepted_is_for_nobody() {
    let platform = FakePlatform::leak(BASE, END - BASE);
    let kinds = [
        (range(BASE, BASE + MIB), Conventional),
        (range(BASE + MIB, BASE + 2 * MIB), HotPluggable),
        (range(BASE + 2 * MIB, END), Unaccepted),
    ];
    let mut early = Early::new(platform, map(&kinds), &topology(&[])).unwrap();
    early.set_movable_node(true);
    assert_eq!(
        early.allocate(&MemblockRequest::new(0x1000, 0)).unwrap().start,
        BASE + MIB - 0x1000
    );
    let any = MemblockRequest { hot_pluggable: true, ..MemblockRequest::new(0x1000, 0) };
    assert_eq!(early.allocate(&any).unwrap().start, BASE + 2 * MIB - 0x1000);
    // Neither kind of memory has this much. Only the unaccepted memory has.
    assert!(
        early
            .allocate(&MemblockRequest { min_address: BASE + MIB, ..MemblockRequest::new(MIB, 0) })
            .is_err()
    );
    // Hot-pluggable memory is handed over; unaccepted memory is not.
    let runs = free_runs(&early);
    let expected = [frames(BASE, BASE + MIB - 0x1000), frames(BASE + MIB, BASE + 2 * MIB - 0x1000)]
        .map(|run| (run, node(0)));
    assert_eq!(runs, expected);
}

#[test]
fn hot_pluggable_memory_is_memory_and_under_movable_node_a_last_resort() {
    let kinds = [(range(BASE, BASE + MIB), Conventional), (range(BASE + MIB, END), HotPluggable)];
    let start =
        || Early::new(FakePlatform::leak(BASE, END - BASE), map(&kinds), &topology(&[])).unwrap();
    let page = MemblockRequest::new(0x1000, 0);
    assert_eq!(start().allocate(&page).unwrap().end, END);
    let mut early = start();
    early.set_movable_node(true);
    assert_eq!(early.allocate(&page).unwrap().end, BASE + MIB);
    // Other memory below the lower limit is preferred; an allocation that fits nowhere else is
    // placed in hot-pluggable memory after all.
    let high = MemblockRequest { min_address: BASE + MIB, ..page };
    assert_eq!(early.allocate(&high).unwrap().end, BASE + MIB - 0x1000);
    assert_eq!(early.allocate(&MemblockRequest::new(MIB, 0)).unwrap().end, END);
    early.set_movable_node(false);
    assert_eq!(early.allocate(&page).unwrap().end, END - MIB);
}

#[test]
fn memory_is_cleared_unless_asked_not_to() {
    let (mut early, platform) = plain();
    let cleared = early.allocate(&MemblockRequest::new(0x2345, 0)).unwrap();
    assert!(platform.is_full_of(cleared, 0));
    assert!(platform.is_full_of(range(cleared.end, END), DIRT));
    assert!(platform.is_full_of(range(BASE, cleared.start), DIRT));
    let raw = early
        .allocate(&MemblockRequest { zeroed: false, ..MemblockRequest::new(0x2345, 0) })
        .unwrap();
    assert!(platform.is_full_of(raw, DIRT));
    let marked = early
        .allocate(&MemblockRequest { no_init: true, ..MemblockRequest::new(0x40, 0) })
        .unwrap();
    assert!(platform.is_full_of(marked, 0));
    assert!(early.reserved().contains(&Region {
        range: marked,
        node: Some(node(0)),
        flags: RegionFlags::NO_INIT
    }));
}

#[test]
fn what_is_touched_lies_below_the_direct_limit() {
    let (mut early, platform) = plain();
    platform.set_limit(BASE + 0x4000);
    assert_eq!(early.allocate(&MemblockRequest::new(0x1000, 0)).unwrap().end, BASE + 0x4000);
    // The caller will touch the memory, and so will the memory map.
    let raw = MemblockRequest { zeroed: false, ..MemblockRequest::new(0x1000, 0) };
    assert_eq!(early.allocate(&raw).unwrap().end, BASE + 0x3000);
    let marked = MemblockRequest { no_init: true, ..MemblockRequest::new(0x1000, 0) };
    assert_eq!(early.allocate(&marked).unwrap().end, BASE + 0x2000);
    let untouched =
        MemblockRequest { no_init: true, zeroed: false, ..MemblockRequest::new(0x1000, 0) };
    assert_eq!(early.allocate(&untouched).unwrap().end, END);
    assert!(matches!(
        early.allocate(&MemblockRequest::new(0x2000, 0)),
        Err(MemblockError::OutOfMemory { largest_bytes: 0x1000, max_address, .. })
            if max_address == BASE + 0x4000
    ));
    // Arrays are touched, too.
    platform.set_limit(BASE);
    comb(&mut early, BASE + MIB, 124);
    let before = sets(&early);
    assert!(matches!(
        early.reserve(range(BASE + 2 * MIB, BASE + 3 * MIB)),
        Err(MemblockError::NoRoomToGrow {
            set: SetName::Reserved,
            regions: 128,
            needed_bytes: 0x2000
        })
    ));
    assert_eq!(sets(&early), before);
    platform.set_limit(BASE + 2 * MIB);
    early.reserve(range(BASE + 2 * MIB, BASE + 3 * MIB)).unwrap();
    assert_eq!(early.storage()[1].end, BASE + 2 * MIB);
}

#[test]
#[cfg(feature = "moving")]
fn mirrored_memory_comes_first_where_somebody_wants_that() {
    let kinds = [(range(BASE, END), Conventional)];
    let start =
        || Early::new(FakePlatform::leak(BASE, END - BASE), map(&kinds), &topology(&[])).unwrap();
    let page = MemblockRequest::new(0x1000, 0);
    let mut early = start();
    early.set_mirrored_first(true);
    // Nothing is mirrored: the allocation uses ordinary memory.
    assert_eq!(early.allocate(&page).unwrap().end, END);
    // Bytes that do not fill a frame are left out.
    early.mark_mirrored(range(BASE + 0x2800, BASE + 0x4000)).unwrap();
    assert_eq!(early.memory().len(), 3);
    let flags: Vec<_> = early.memory().iter().map(|region| region.flags).collect();
    assert_eq!(flags, [RegionFlags::NONE, RegionFlags::MIRRORED, RegionFlags::NONE]);
    assert_eq!(early.allocate(&page).unwrap().start, BASE + 0x3000);
    assert_eq!(early.unmirrored_bytes(), 0);
    // There is no more mirrored memory.
    assert_eq!(early.allocate(&page).unwrap().end, END - 0x1000);
    assert_eq!(early.unmirrored_bytes(), 0x1000);
    early.mark_mirrored(range(BASE, END)).unwrap();
    assert_eq!(early.memory().len(), 1);
    early.set_mirrored_first(false);
    assert_eq!(early.allocate(&page).unwrap().end, END - 0x2000);
    // Addresses that are no memory do not become memory, and a range may end before it begins.
    early.mark_mirrored(range(0, u64::MAX)).unwrap();
    early.mark_mirrored(PhysRange { start: END, end: BASE }).unwrap();
    assert_eq!(early.memory_bytes(), END - BASE);
    early.discard();
    assert_eq!(early.mark_mirrored(range(BASE, END)), Err(MemblockError::Discarded));
}
