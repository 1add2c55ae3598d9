//! The manager case by case: zones, holes, straddling blocks, allocation under every constraint,
//! partial frees, errors.

use crate::common::{Fake, bring_up, bring_up_reserving, check, gib, mib, order, part};
use framewright::firmware::MemoryKind;
use framewright::manager::ZoneView;
use framewright::memblock::NodeChoice;
use framewright::units::{NodeId, Order, Pfn, PfnRange, PhysRange};
use framewright::vmemmap_space::BlockNumber;
use framewright::zone::{FreeError, ZoneId, ZoneKind};
use framewright::zone::{MigrateType, State};
use framewright::{AllocateError, Request, Reserves};
use framewright_testkit::{FakeMachine, Owner};

fn node(index: usize) -> NodeId {
    NodeId::new(index).expect("a node")
}

fn zone(manager: &Fake, index: usize, kind: ZoneKind) -> ZoneView<'static, FakeMachine> {
    manager.view(ZoneId { node: node(index), kind }).expect("the zone has memory")
}

fn take(manager: &Fake, request: Request) -> PfnRange {
    let taken = manager.allocate(&request).expect("there is memory");
    assert_eq!(taken.pages(), request.pages);
    assert!(
        taken
            .start
            .is_aligned(Order::for_pages(request.pages).expect("an order").max(request.align))
    );
    taken
}

fn emergency(of: u8) -> Request {
    Request { reserves: Reserves::All, ..Request::new(order(of)) }
}

#[test]
fn a_machine_of_64_mib_has_dma_and_dma32() {
    let manager = bring_up(FakeMachine::builder().ram(mib(0, 64)).build());
    let (dma, dma32) = (zone(&manager, 0, ZoneKind::Dma), zone(&manager, 0, ZoneKind::Dma32));
    assert_eq!((dma.span(), dma.present_pages()), (PfnRange::new(1, 4096), 159 + 3840));
    assert_eq!((dma32.span(), dma32.present_pages()), (PfnRange::new(4096, 16_384), 12_288));
    assert!(manager.view(ZoneId { node: node(0), kind: ZoneKind::Normal }).is_none());
    // The block of frame 0 is split; blocks 1 to 7 are whole.
    let first = manager.block_state(BlockNumber(0)).expect("a block");
    assert!(first.is(State::Split));
    assert_eq!((first.present_pages(), first.managed_pages(), first.free_pages()), (415, 415, 415));
    assert_eq!(dma.free_pages(), dma.managed_pages());
}

#[test]
fn tables_are_reserved_and_counted() {
    // Uses default parameters, because the tables of careful runs are counted elsewhere.
    let machine = FakeMachine::builder().ram(gib(0, 8)).build();
    let manager = crate::common::bring_up_with(machine, &[], &framewright::Parameters::default())
        .expect("bring-up");
    let totals = manager.totals();
    assert_eq!(totals.present_pages, (8 << 18) - 1 - 96);
    // `metadata_bytes` includes the manager itself, which lies where its user put it.
    let tables = (manager.metadata_bytes() - size_of_val(&manager) as u64).div_ceil(4096);
    assert!(
        totals.reserved_pages <= tables && totals.reserved_pages >= tables - 1,
        "{totals:?} {tables}"
    );
    assert!(
        manager.metadata_bytes() <= (8 << 30) / 10_000 + (64 << 10),
        "{}",
        manager.metadata_bytes()
    );
}

#[test]
fn every_order_comes_back_and_merges() {
    let manager = bring_up(FakeMachine::builder().ram(gib(0, 4)).build());
    let before: Vec<_> = manager.views().map(|zone| zone.free_blocks()).collect();
    for of in 9..=18 {
        let taken = take(&manager, Request::new(order(of)));
        check(&manager);
        manager.give_back_to_zone(taken).expect("it was allocated");
        check(&manager);
    }
    let after: Vec<_> = manager.views().map(|zone| zone.free_blocks()).collect();
    assert_eq!(before, after);
}

#[test]
fn all_memory_can_be_taken_once_and_comes_back_in_any_pieces() {
    let manager = bring_up(FakeMachine::builder().ram(mib(0, 256)).build());
    let free = manager.totals().free_pages;
    let mut taken = Vec::new();
    while let Ok(block) = manager.allocate(&emergency(9)) {
        taken.push(block);
    }
    check(&manager);
    assert!(taken.len() >= 120, "{}", taken.len());
    let mut seen: Vec<_> = taken.iter().map(|block| block.start).collect();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), taken.len(), "a block was handed out twice");
    assert_eq!(
        manager.allocate(&emergency(9)),
        Err(AllocateError::OutOfMemory { order: Order::BLOCK })
    );
    // Neighbours may be freed in one call, whoever allocated them.
    let run = PfnRange::new(32 << 8, 128 << 8);
    assert!(seen.contains(&run.start));
    manager.give_back_to_zone(run).expect("all of it is allocated");
    for block in taken.iter().filter(|block| block.intersection(run).is_empty()) {
        manager.give_back_to_zone(*block).expect("allocated");
    }
    check(&manager);
    assert_eq!(manager.totals().free_pages, free);
}

#[test]
fn a_part_of_a_larger_run_goes_back_in_any_order() {
    let manager = bring_up(FakeMachine::builder().ram(gib(0, 6)).build());
    let free = manager.totals().free_pages;
    let taken = take(&manager, Request::new(Order::MAX));
    for (first, blocks) in [(100, 1), (0, 100), (300, 212), (101, 100), (202, 98), (201, 1)] {
        manager.give_back_to_zone(part(taken, first, blocks)).expect("still allocated");
        check(&manager);
    }
    assert_eq!(manager.totals().free_pages, free);
    assert!(
        manager
            .block_state(BlockNumber::containing(taken.start))
            .is_some_and(|state| state.order() == Order::MAX)
    );
}

#[test]
fn wrong_frees_are_named_and_change_nothing() {
    let machine =
        FakeMachine::builder().ram(mib(0, 64)).ram(mib(1024, 1088)).ram(gib(4, 5)).build();
    let manager = bring_up(machine);
    let taken = take(&manager, Request { zone: ZoneKind::Dma32, ..Request::new(order(11)) });
    let free = manager.totals().free_pages;
    let errors = [
        (PfnRange::new(taken.start.0, taken.start.0), "it is empty"),
        (PfnRange::new(taken.start.0, taken.end.0 + 1), "double free"),
        (PfnRange::new(taken.start.0, taken.end.0 + 512), "double free"),
        (PfnRange::new(1, 2), "double free"),
        (PfnRange::new(0, 1), "Reserved"),
        (PfnRange::new(512 << 8, 516 << 8), "no zone manages"),
        (PfnRange::new(1 << 45, (1 << 45) + 512), "no zone manages"),
        (PfnRange::new(u64::MAX - 511, u64::MAX), "no zone manages"),
    ];
    for (range, text) in errors {
        let error = manager.give_back_to_zone(range).expect_err("refused").to_string();
        // Page owners, which careful runs have, know that the frames were never allocated.
        let never = crate::common::is_careful()
            && text == "double free"
            && error.contains("never allocated");
        assert!(error.contains(text) || never, "{range:?}: {error}");
        assert_eq!(manager.totals().free_pages, free);
    }
    check(&manager);
    manager.give_back_to_zone(taken).expect("untouched by the errors");
    let again = manager.give_back_to_zone(taken);
    assert!(
        matches!(again, Err(FreeError::NotAllocated { state: Some(State::Free), .. })),
        "{again:?}"
    );
    check(&manager);
}

#[test]
fn a_free_across_zones_is_refused() {
    let manager = bring_up(FakeMachine::builder().ram(mib(0, 64)).build());
    let dma = manager.allocate_at(Pfn(14 << 8), Order::BLOCK, MigrateType::Movable).expect("free");
    let dma32 =
        manager.allocate_at(Pfn(16 << 8), Order::BLOCK, MigrateType::Movable).expect("free");
    let both = PfnRange { start: dma.start, end: dma32.end };
    assert_eq!(manager.give_back_to_zone(both), Err(FreeError::SpansZones(both)));
    check(&manager);
}

#[test]
fn allocation_at_a_place() {
    let manager = bring_up(FakeMachine::builder().ram(gib(0, 6)).build());
    let start = Pfn((4 << 18) + 512 * 77);
    let taken = manager.allocate_at(start, Order::BLOCK, MigrateType::Unmovable).expect("free");
    assert_eq!(taken.start, start);
    check(&manager);
    let error = manager.allocate_at(Pfn(4 << 18), Order::MAX, MigrateType::Movable);
    assert_eq!(error, Err(AllocateError::NotFree(PfnRange::new(4 << 18, 5 << 18))));
    let error = manager.allocate_at(Pfn(start.0 + 512), order(10), MigrateType::Movable);
    assert!(matches!(error, Ok(range) if range.start.0 == start.0 + 512), "{error:?}");
    let unaligned = manager.allocate_at(Pfn(start.0 + 512), order(11), MigrateType::Movable);
    assert!(matches!(unaligned, Err(AllocateError::NotAligned { .. })));
    for hole in [Pfn(100 << 18), Pfn(1 << 50), Pfn(!511)] {
        let error = manager.allocate_at(hole, Order::BLOCK, MigrateType::Movable);
        assert!(matches!(error, Err(AllocateError::NotFree(_))), "{error:?}");
    }
    check(&manager);
}

#[test]
fn addresses_are_limited_by_zone_and_by_byte() {
    let manager = bring_up(FakeMachine::builder().ram(gib(0, 6)).build());
    assert!(take(&manager, Request::new(Order::MAX)).start.0 >= 4 << 18);
    let dma32 = take(&manager, Request { zone: ZoneKind::Dma32, ..Request::new(Order::MAX) });
    assert!(dma32.end.0 <= 4 << 18);
    for limit in [20 << 20, 64 << 20, (64 << 20) + 5, (128 << 20) - 1] {
        let taken = take(&manager, Request { max_address: limit, ..Request::new(Order::BLOCK) });
        assert!(taken.end.address() <= limit, "{taken:?} {limit:#x}");
        assert!(taken.start.0 >= 4096, "the DMA zone is kept for those who need it");
        check(&manager);
    }
    let request =
        Request { max_address: 1 << 20, reserves: Reserves::All, ..Request::new(Order::BLOCK) };
    assert_eq!(manager.allocate(&request), Err(AllocateError::OutOfMemory { order: Order::BLOCK }));
}

#[test]
fn nodes_are_asked_by_distance_and_exactness() {
    let machine = FakeMachine::builder()
        .ram(gib(0, 8))
        .node(gib(0, 4), 0)
        .node(gib(4, 6), 1)
        .node(gib(6, 8), 3)
        .nodes(4)
        .cpus_on(2, 1)
        .distance(2, 1, 30)
        .distance(2, 3, 15)
        .build();
    let manager = bring_up(machine);
    let fallback: Vec<_> = manager.nodes()[2].fallback.iter().collect();
    assert_eq!(fallback, [node(3), node(0), node(1)]);
    assert_eq!(manager.nodes()[2].cpus, 1);
    let near = |choice| Request { node: choice, ..Request::new(Order::MAX) };
    assert!(take(&manager, near(NodeChoice::Preferred(node(2)))).start.0 >= 6 << 18);
    assert!(take(&manager, near(NodeChoice::Exact(node(1)))).start.0 >= 4 << 18);
    let none = manager.allocate(&near(NodeChoice::Exact(node(2))));
    assert_eq!(none, Err(AllocateError::OutOfMemory { order: Order::MAX }));
    assert_eq!(
        manager.allocate(&near(NodeChoice::Exact(node(9)))),
        Err(AllocateError::NoNode(node(9)))
    );
    check(&manager);
}

#[test]
fn a_block_that_nodes_share_belongs_to_the_larger_part() {
    let border = (64 << 20) + (5 << 12);
    let machine = FakeMachine::builder()
        .ram(mib(0, 128))
        .node(PhysRange::new(0, border), 0)
        .node(PhysRange::new(border, 128 << 20), 1)
        .build();
    let manager = bring_up(machine);
    let (first, second) = (zone(&manager, 0, ZoneKind::Dma32), zone(&manager, 1, ZoneKind::Dma32));
    assert_eq!((first.present_pages(), first.stray_pages()), ((48 << 8) + 5, 5));
    assert_eq!((second.present_pages(), second.stray_pages()), ((64 << 8) - 5, 0));
    assert_eq!(second.span().start, Pfn((64 << 8) + 5));
    let state = manager.block_state(BlockNumber(32)).expect("a block");
    assert_eq!((state.present_pages(), state.managed_pages()), (507, 507));
}

#[test]
fn a_block_that_nodes_share_evenly_belongs_to_the_lower_node() {
    for (low, high) in [(0, 1), (1, 0)] {
        let border = (64 << 20) + (1 << 20);
        let machine = FakeMachine::builder()
            .ram(mib(0, 128))
            .node(PhysRange::new(0, border), low)
            .node(PhysRange::new(border, 128 << 20), high)
            .build();
        let manager = bring_up(machine);
        assert_eq!(zone(&manager, 0, ZoneKind::Dma32).stray_pages(), 0);
        assert_eq!(zone(&manager, 1, ZoneKind::Dma32).stray_pages(), 256);
    }
}

#[test]
fn a_block_that_two_kinds_fill_is_whole() {
    let border = (32 << 20) + (5 << 12);
    let machine = FakeMachine::builder()
        .ram(mib(0, 20))
        .memory(PhysRange::new(20 << 20, border), MemoryKind::HotPluggable)
        .ram(PhysRange::new(border, 64 << 20))
        .build();
    let manager = bring_up_reserving(machine, &[mib(34, 48)]).expect("bring-up");
    let state = manager.block_state(BlockNumber(16)).expect("a block");
    assert!(state.is(State::Free), "{state:?}");
}

#[test]
fn a_zone_without_a_block_of_its_own_is_present_and_reserved() {
    let machine = FakeMachine::builder()
        .ram(mib(0, 128))
        .node(mib(0, 64), 0)
        .node(PhysRange::new(64 << 20, (64 << 20) + 0x3000), 1)
        .node(PhysRange::new((64 << 20) + 0x3000, 128 << 20), 2)
        .build();
    let manager = bring_up(machine);
    let tiny = zone(&manager, 1, ZoneKind::Dma32);
    assert_eq!((tiny.present_pages(), tiny.managed_pages(), tiny.reserved_pages()), (3, 0, 3));
    assert!(tiny.segments().next().is_none());
}

#[test]
fn holes_and_reservations_leave_split_blocks() {
    let machine = FakeMachine::builder()
        .ram(mib(0, 64))
        .memory(PhysRange::new(0x200_0000 + 0x5000, 0x200_0000 + 0x6000), MemoryKind::Reserved)
        .build();
    let kernel = PhysRange::new(0x240_0100, 0x288_0001);
    let manager = bring_up_reserving(machine, &[kernel]).expect("bring-up");
    let state = |block| manager.block_state(BlockNumber(block)).expect("a block");
    assert_eq!((state(16).present_pages(), state(16).free_pages()), (511, 511));
    assert!(state(18).is(State::Reserved), "{:?}", state(18));
    assert_eq!((state(20).present_pages(), state(20).free_pages()), (512, 512 - 129));
    assert!(state(21).is(State::Free) && state(17).is(State::Free));
}

#[test]
fn frames_that_were_never_managed_cannot_be_freed() {
    let hole = PhysRange::new(0x200_5000, 0x200_6000);
    let machine = FakeMachine::builder().ram(mib(0, 64)).memory(hole, MemoryKind::Reserved).build();
    let kernel = PhysRange::new(0x240_0000, 0x248_0000);
    let manager = bring_up_reserving(machine, &[kernel]).expect("bring-up");
    // Other frames of the same blocks are allocated, so that counts alone could not find the error.
    for start in [0x2000, 0x2010, 0x2480, 0x2500] {
        manager.allocate_at(Pfn(start), order(2), MigrateType::Movable).expect("free");
    }
    for (pfn, pages) in [(0x2005, 1), (0x2400, 1), (0x247f, 2), (0x2003, 4), (0x447, 0x10)] {
        let range = PfnRange::new(pfn, pfn + pages);
        assert!(manager.give_back_to_zone(range).is_err(), "{range:?}");
    }
    let error = manager.give_back_to_zone(PfnRange::new(0x2400, 0x2402));
    assert_eq!(
        error,
        Err(FreeError::NotAllocated {
            pfn: Pfn(0x2400),
            state: Some(State::Reserved),
            history: None
        })
    );
    check(&manager);
    for start in [0x2000, 0x2010, 0x2480, 0x2500] {
        manager.give_back_to_zone(PfnRange::new(start, start + 4)).expect("allocated");
    }
    check(&manager);
    assert_eq!(manager.totals().allocated_pages, 0);
}

#[test]
fn kinds_are_kept_apart() {
    let machine = FakeMachine::builder()
        .ram(mib(0, 64))
        .memory(mib(64, 96), MemoryKind::Unaccepted)
        .memory(mib(96, 128), MemoryKind::SoftReserved)
        .memory(mib(128, 160), MemoryKind::HotPluggable)
        .memory(mib(160, 192), MemoryKind::Persistent)
        .build();
    let manager = bring_up(machine);
    let dma32 = zone(&manager, 0, ZoneKind::Dma32);
    assert_eq!(dma32.present_pages(), (48 + 32 + 32) << 8);
    assert!(manager.block_state(BlockNumber(32)).is_some_and(|state| state.is(State::Unaccepted)));
    assert!(manager.block_state(BlockNumber(48)).is_none_or(|state| state.is(State::Inner)));
    assert!(manager.block_state(BlockNumber(64)).is_some_and(|state| state.is(State::Free)));
    assert!(manager.allocate_at(Pfn(64 << 8), Order::BLOCK, MigrateType::Movable).is_err());
}

#[test]
fn types_claim_from_one_another_and_stay_together() {
    let manager = bring_up(FakeMachine::builder().ram(gib(0, 6)).build());
    // Allocates what is left of the last GiB, so that only whole GiBs are free.
    let normal = zone(&manager, 0, ZoneKind::Normal);
    while let Some(slot) = normal.free_blocks()[..9].iter().position(|&blocks| blocks != 0) {
        take(&manager, Request::new(order(9 + u8::try_from(slot).expect("small"))));
    }
    let unmovable = Request { migrate_type: MigrateType::Unmovable, ..Request::new(Order::BLOCK) };
    let first = take(&manager, unmovable);
    check(&manager);
    let second = take(&manager, unmovable);
    assert_eq!(second.start, first.end, "the second comes from what the first claimed");
    let movable = take(&manager, Request::new(Order::BLOCK));
    assert!(
        movable.start.0 >> 12 != first.start.0 >> 12,
        "movable memory keeps out of the claimed 16 MiB"
    );
    for range in [first, second, movable] {
        manager.give_back_to_zone(range).expect("allocated");
    }
    check(&manager);
    for kind in [MigrateType::Cma, MigrateType::MovableOnly, MigrateType::Isolate] {
        let refused = Err(AllocateError::BadType(kind));
        assert_eq!(manager.allocate_at(Pfn(4 << 18), Order::MAX, kind), refused);
        let highest = manager.allocate(&Request { migrate_type: kind, ..emergency(9) });
        assert_eq!(highest, refused, "a type without fallbacks takes from nobody");
    }
    check(&manager);
}

#[test]
fn watermarks_keep_memory_for_emergencies() {
    let parameters = crate::common::parameters("min_free_kbytes=65536");
    let manager = crate::common::bring_up_with(
        FakeMachine::builder().ram(mib(0, 256)).build(),
        &[],
        &parameters,
    );
    let manager = manager.expect("bring-up");
    while manager.allocate(&Request::new(Order::BLOCK)).is_ok() {}
    for zone in manager.views() {
        let keep = zone.watermarks().min_pages + zone.lowmem_reserve()[ZoneKind::Normal as usize];
        assert!(
            zone.free_pages() >= keep && zone.free_pages() < keep + 512,
            "{} {keep}",
            zone.free_pages()
        );
    }
    assert!(manager.allocate(&emergency(9)).is_ok());
    check(&manager);
}

#[test]
fn a_gib_that_was_never_split_is_handed_out_and_divided() {
    // The tables lie at the top, so the groups of blocks below are not set up yet when this
    // happens.
    let manager = bring_up(FakeMachine::builder().ram(gib(0, 12)).build());
    let gib_at = |gib: u64| Pfn(gib << 18);
    let whole = manager.allocate_at(gib_at(6), Order::MAX, MigrateType::Movable).expect("free");
    check(&manager);
    manager.give_back_to_zone(part(whole, 511, 1)).expect("allocated");
    check(&manager);
    assert!(
        manager.allocate_at(Pfn(gib_at(7).0 + 512 * 3), Order::BLOCK, MigrateType::Movable).is_ok()
    );
    check(&manager);
    let again = manager.allocate_at(gib_at(8), Order::MAX, MigrateType::Movable).expect("free");
    manager.give_back_to_zone(again).expect("allocated");
    assert!(
        manager.block_state(BlockNumber(8 * 512 + 100)).is_some_and(|state| state.is(State::Free))
    );
    check(&manager);
}
