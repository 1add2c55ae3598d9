//! Where contiguous runs come from: moved pages find room in other zones, free runs are taken
//! before anything is moved, and areas keep their grade.

use crate::common::{bring_up_with, check, gib, mib, order, settled, with_pages};
use framewright::hugetlb::PoolSize;
use framewright::manager::{AreaName, Budget, ContiguousRequest, GradeError};
use framewright::parameters::Pages;
use framewright::units::{NodeId, Order};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::{Grade, ZoneKind};
use framewright::{Request, Reserves};
use framewright_jobs::NoHelpers;
use framewright_testkit::workload::Handles;
use framewright_testkit::{FakeMachine, Owner};

/// A device wants memory below 4 GiB, where all is in use; above 4 GiB there is room.
#[test]
fn what_is_moved_finds_room_in_other_zones() {
    let machine = FakeMachine::builder().ram(mib(3072, 3200)).ram(mib(4096, 4352)).build();
    let manager = bring_up_with(machine, &[], &with_pages(Pages::None)).expect("bring-up");
    let handles = Handles::new(&manager, 1 << 16).expect("memory");
    let low = Request { zone: ZoneKind::Dma32, reserves: Reserves::All, ..Request::pages(1) };
    while handles.adopt(&low).is_ok() {}
    settled(&manager);
    let below = manager.views().find(|zone| zone.id().kind == ZoneKind::Dma32).expect("a zone");
    assert!(below.free_pages() < 512, "{}", below.free_pages());
    let moving = manager.moving().by(&handles);
    let request = ContiguousRequest { max_address: 4 << 30, ..ContiguousRequest::new(64 << 8) };
    let taken = moving.allocate_contiguous(&request, Budget::UNLIMITED).expect("all can move up");
    assert!(taken.end.address() <= 4 << 30);
    handles.held().for_each(|handle| handles.check(handle).expect("intact"));
    manager.give_back_to_zone(taken).expect("ours");
    check(&manager);
}

/// More than a GiB is free, beyond the places that a search looks at first.
#[test]
fn a_long_run_that_is_free_is_taken_as_it_is() {
    let machine = FakeMachine::builder().ram(gib(4, 16)).build();
    let manager = bring_up_with(machine, &[], &with_pages(Pages::None)).expect("bring-up");
    // Held, but never written to: it is too much memory.
    let large = Request { reserves: Reserves::All, ..Request::new(Order::MAX) };
    let mut held = Vec::new();
    while let Ok(run) = manager.allocate(&large) {
        held.push(run);
    }
    let free = gib(11, 14);
    held.retain(|run| {
        let stays = run.start.address() < free.start || run.end.address() > free.end;
        if !stays {
            manager.give_back(*run).expect("ours");
        }
        stays
    });
    settled(&manager);
    let moving = manager.moving();
    let request = ContiguousRequest::new(5 << 17);
    let found = moving.find_contiguous(&request).expect("free");
    assert!(free.start <= found.start.address() && found.end.address() <= free.end, "{found:?}");
    let taken = moving.allocate_contiguous(&request, Budget::UNLIMITED).expect("free");
    assert_eq!((taken, manager.moving().events().moved_pages), (found, 0));
    manager.give_back_to_zone(taken).expect("ours");
    held.into_iter().for_each(|run| manager.give_back(run).expect("ours"));
    check(&manager);
}

#[test]
fn blocks_of_an_area_keep_their_grade() {
    let machine = FakeMachine::builder().ram(mib(4096, 4352)).build();
    let manager = bring_up_with(machine, &[], &with_pages(Pages::None)).expect("bring-up");
    let name = AreaName::new("device").expect("a name");
    let range = BlockRange::new(2048 + 16, 2048 + 32);
    let number = manager.moving().create_area(name, range).expect("free");
    for (start, end) in [(16, 32), (31, 40), (0, 17), (20, 21)] {
        for grade in [Grade::Any, Grade::MovableOnly] {
            let some = BlockRange::new(2048 + start, 2048 + end);
            let first = BlockNumber(2048 + start.max(16)).start();
            assert_eq!(manager.moving().set_grade(some, grade), Err(GradeError::Area(first)));
        }
    }
    assert_eq!(
        GradeError::Area(range.start.start()).to_string(),
        format!("the block at pfn {} belongs to a reserve area", range.start.start())
    );
    manager.moving().set_grade(range, Grade::Removable).expect("it is");
    let beside = BlockRange::new(2048 + 32, 2048 + 34);
    manager.moving().set_grade(beside, Grade::MovableOnly).expect("free");
    let all = manager.moving().allocate_in_area(number, 16 * 512, order(9), Budget::UNLIMITED);
    let all = all.expect("all of it is as it was");
    // SAFETY: the run was just allocated, and nobody uses it.
    unsafe { manager.moving().release_to_area(number, all) }.expect("ours");
    check(&manager);
}

/// An area may have the name of a pool's area but lie on another node.
#[test]
fn a_pool_takes_pages_of_its_own_node_alone() {
    let builder = FakeMachine::builder().ram(gib(4, 7)).ram(gib(7, 9)).cpus(2);
    let builder = builder.node(gib(4, 7), 0).node(gib(7, 9), 1);
    let manager = bring_up_with(builder.build(), &[], &with_pages(Pages::None)).expect("bring-up");
    let name = AreaName::new("hugetlb1").expect("a name");
    let first = 5 << 9;
    let range = BlockRange::new(first, first + 512);
    let number = manager.moving().create_area(name, range).expect("free");
    let pool = manager.pool(PoolSize::OneGib);
    let second = NodeId::new(1).expect("small");
    let got = pool.resize_node(second, 2, &NoHelpers).expect("nobody else resizes");
    assert!(got.reached <= 2);
    let counts = manager.moving().area(number).expect("there").2;
    assert_eq!(counts.available_pages, 1 << 18, "it is not of that node");
    check(&manager);
    let got = pool.resize(0, &NoHelpers).expect("nobody else resizes");
    assert_eq!(got.reached, 0);
    check(&manager);
}

/// A limit as high as any address does not keep the search from finding memory.
#[test]
fn a_highest_address_above_all_memory_keeps_nothing_out() {
    let machine = FakeMachine::builder().ram(mib(4096, 4608)).build();
    let manager = bring_up_with(machine, &[], &with_pages(Pages::None)).expect("bring-up");
    for bits in 33..64 {
        for above in [0, 8 << 20] {
            let max_address = (1 << bits) + above;
            let request = ContiguousRequest { max_address, ..ContiguousRequest::new(1024) };
            let found = manager.moving().find_contiguous(&request);
            assert!(found.is_ok(), "{max_address:#x}: {found:?}");
        }
    }
}
