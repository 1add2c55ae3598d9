//! Reserve areas, and the pools that take 1 GiB pages from them, under everything else that happens
//! to memory: movers that die, memory errors, demotion, isolation, and machines of all kinds.

use crate::common::pool_machine::check as verify;
use crate::common::{Fake, bring_up_with, gib, mib, order, parameters, retire, settled};
use framewright::Request;
use framewright::hugetlb::PoolSize;
use framewright::manager::{AreaCounts, AreaError, Budget};
use framewright::memblock::NodeChoice;
use framewright::units::{NodeId, Order, Pfn, PfnRange};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::{Grade, MigrateType};
use framewright_jobs::NoHelpers;
use framewright_testkit::workload::{Habits, Handles};
use framewright_testkit::{FakeMachine, FakeVmemmap, Owner, PoolOwner};
use std::panic::{AssertUnwindSafe, catch_unwind};

const GIB_PAGES: u64 = 1 << 18;
const GIB: PoolSize = PoolSize::OneGib;

fn leak(machine: &'static FakeMachine, line: &str) -> &'static Fake {
    Box::leak(Box::new(bring_up_with(machine, &[], &parameters(line)).expect("bring-up")))
}

/// Two nodes, of 4 and 2 GiB.
fn machine() -> &'static FakeMachine {
    let builder = FakeMachine::builder().ram(gib(4, 8)).ram(gib(8, 10)).cpus(9);
    builder.node(gib(4, 8), 0).node(gib(8, 10), 1).build()
}

fn area(manager: &Fake, node: usize) -> Option<(usize, PfnRange, AreaCounts)> {
    let number = manager.moving().area_named(&format!("hugetlb{node}"))?;
    manager.moving().area(number).map(|(_, range, counts)| (number, range, counts))
}

#[test]
fn areas_find_room_beside_one_another() {
    for line in [
        "hugetlb_cma=1G cma=64M",
        "hugetlb_cma=0:1G,1:1G cma=64M cma_pernuma=16M numa_cma=0:8M,1:32M",
        "cma=64M cma_pernuma=16M numa_cma=0:8M",
        "page_alloc.shuffle=1 hugetlb_cma=1G cma=64M",
        "zone_parts=4 hugetlb_cma=2G cma=64M",
    ] {
        let manager = leak(machine(), line);
        assert_eq!(manager.moving().failed_area_bytes(), 0, "{line}");
        verify(manager);
        retire(manager);
    }
}

/// Pages from areas stand before other pages in the free list.
#[test]
fn demotion_passes_by_pages_of_areas() {
    let manager = leak(FakeMachine::builder().ram(gib(4, 9)).build(), "hugetlb_cma=2G");
    let pool = manager.pool(GIB);
    assert_eq!(pool.resize(4, &NoHelpers).expect("nobody else resizes").reached, 4);
    assert_eq!(area(manager, 0).expect("made").2.available_pages, 0);
    assert_eq!(pool.demote(4), Ok(2));
    verify(manager);
    pool.resize(0, &NoHelpers).expect("nobody else resizes");
    manager.pool(PoolSize::TwoMib).resize(0, &NoHelpers).expect("nobody else resizes");
    verify(manager);
}

/// A mover that dies until it is told to live.
fn mortal(manager: &'static Fake) -> &'static Handles<'static, FakeMachine> {
    let handles = Handles::new(manager, 1 << 16).expect("memory");
    handles.set_habits(Habits { die_from: 1, ..Habits::default() });
    Box::leak(Box::new(handles))
}

#[test]
fn an_area_whose_mover_dies_has_all_of_its_frames_still() {
    let manager = leak(FakeMachine::builder().ram(mib(0, 192)).build(), "cma=16M");
    let mover = mortal(manager);
    let number = manager.moving().area_named("reserved").expect("made");
    let (_, range, counts) = manager.moving().area(number).expect("made");
    let inside = loop {
        let handle = mover.allocate(Order::PAGE).expect("memory");
        if mover.range(handle).is_some_and(|run| range.contains(run.start)) {
            break handle;
        }
    };
    settled(manager);
    let moving = manager.moving().by(mover);
    let get = || moving.allocate_in_area(number, range.pages(), Order::BLOCK, Budget::UNLIMITED);
    assert!(catch_unwind(AssertUnwindSafe(get)).is_err());
    let after = moving.area(number).expect("made").2;
    assert_eq!(after.available_pages, counts.available_pages);
    assert_eq!(after.fail_pages, range.pages());
    assert_eq!(manager.totals().isolated_pages, 0);
    mover.set_habits(Habits::default());
    assert_eq!(get(), Ok(range));
    mover.check(inside).expect("intact");
    // SAFETY: the area gave the run to this test, which no longer uses it.
    unsafe { moving.release_to_area(number, range) }.expect("ours");
    verify(manager);
}

/// The first place is free, and the second is lent to an owner whose mover dies: both places in one
/// area, or one on each node.
#[test]
fn a_pool_whose_mover_dies_loses_no_page() {
    for (machine, line, nodes) in [
        (FakeMachine::builder().ram(gib(4, 9)).cpus(2).build(), "hugetlb_cma=2G", 1),
        (machine(), "hugetlb_cma=0:1G,1:1G", 2),
    ] {
        let manager = leak(machine, line);
        let mover = mortal(manager);
        let (number, range, _) = area(manager, nodes - 1).expect("made");
        let first = (nodes == 1).then(|| {
            let moving = manager.moving();
            moving.allocate_in_area(number, GIB_PAGES, Order::MAX, Budget::UNLIMITED).expect("free")
        });
        let second = PfnRange { start: Pfn(range.end.0 - GIB_PAGES), ..range };
        let node = NodeChoice::Exact(NodeId::new(nodes - 1).expect("small"));
        let request = Request { node, ..Request::new(order(9)) };
        loop {
            let handle = mover.adopt(&request).expect("memory");
            if mover.range(handle).is_some_and(|run| second.contains(run.start)) {
                break;
            }
        }
        if let Some(first) = first {
            // SAFETY: the run was allocated for this test, which no longer uses it.
            unsafe { manager.moving().release_to_area(number, first) }.expect("ours");
        }
        settled(manager);
        manager.moving().set_mover(Some(mover));
        let pool = manager.pool(GIB);
        assert!(catch_unwind(AssertUnwindSafe(|| pool.resize(2, &NoHelpers))).is_err());
        verify(manager);
        let left: u64 = (0..nodes)
            .filter_map(|node| area(manager, node))
            .map(|(_, _, counts)| counts.available_pages)
            .sum();
        assert_eq!(left, (2 - pool.counts().all.nr) * GIB_PAGES);
        mover.set_habits(Habits::default());
        assert_eq!(pool.resize(2, &NoHelpers).expect("nobody else resizes").reached, 2);
        pool.resize(0, &NoHelpers).expect("nobody else resizes");
        mover.held().for_each(|handle| mover.check(handle).expect("intact"));
        verify(manager);
    }
}

/// An unmovable request finds no memory on a node that is reserved for movable memory: the hook is
/// not asked to reclaim there for it, and other nodes get their turn.
#[test]
fn a_node_for_what_can_be_moved_alone_lacks_nothing_for_the_rest() {
    let builder = FakeMachine::builder().ram(mib(4096, 4224)).ram(mib(8192, 8320));
    let builder = builder.node(mib(4096, 4224), 0).node(mib(8192, 8320), 1);
    let manager = leak(builder.build(), "pages=none");
    let all = BlockRange { start: BlockNumber(4096), end: BlockNumber(4096 + 64) };
    for block in all.start.0..all.end.0 {
        let one = BlockRange::new(block, block + 1);
        let _ = manager.moving().set_grade(one, Grade::MovableOnly);
    }
    let fixed = Request { migrate_type: MigrateType::Unmovable, ..Request::new(Order::PAGE) };
    let mut held = Vec::new();
    while let Ok(page) = manager.allocate(&fixed) {
        held.push(page);
    }
    let first = NodeId::new(0).expect("small");
    let mut asked = 0;
    while let Some(shortage) = manager.pressure().background() {
        assert_eq!(shortage.node, first);
        asked += 1;
        assert!(asked < 1 << 16);
        manager.give_back(held.pop().expect("more than that is held")).expect("ours");
        manager.drain().expect("in order");
    }
    assert_ne!(asked, 0);
    held.into_iter().for_each(|page| manager.give_back(page).expect("ours"));
    verify(manager);
}

/// Pages of an area that have memory errors never come back, neither to the pool nor to the area.
#[test]
fn bad_pages_of_areas_stay_out() {
    for line in ["hugetlb_cma=0:2G", "hugetlb_cma=0:2G page_owner=on"] {
        let manager = leak(machine(), line);
        let (number, range, _) = area(manager, 0).expect("made");
        let pool = manager.pool(GIB);
        let first = NodeId::new(0).expect("small");
        pool.resize_node(first, 2, &NoHelpers).expect("nobody else resizes");
        // One page in use and one free.
        let used = pool.allocate(NodeChoice::Exact(first), false).expect("free");
        pool.poison(used.start.add(7)).expect("a pool's");
        let other =
            if used.start == range.start { range.start.add(GIB_PAGES) } else { range.start };
        pool.poison(other.add(1000)).expect("a pool's");
        verify(manager);
        pool.give_back_page(used.start).expect("held");
        verify(manager);
        pool.resize(0, &NoHelpers).expect("nobody else resizes");
        assert_eq!(area(manager, 0).expect("made").2.available_pages, 0, "{line}");
        let more = manager.moving().allocate_in_area(number, 1, Order::PAGE, Budget::UNLIMITED);
        assert_eq!(more, Err(AreaError::NoRun { pages: 1 }));
        // SAFETY: nobody uses the frames, and the call is refused.
        let refused = unsafe { manager.moving().release_to_area(number, range) };
        assert!(refused.is_err());
        verify(manager);
        retire(manager);
    }
}

/// An area yields no page where one of its blocks is isolated.
#[test]
fn isolated_places_of_areas_are_passed_by() {
    let manager = leak(machine(), "hugetlb_cma=0:2G");
    let (_, range, _) = area(manager, 0).expect("made");
    let pool = manager.pool(GIB);
    let block = BlockNumber::containing(range.start);
    let one = BlockRange { start: BlockNumber(block.0 + 3), end: BlockNumber(block.0 + 5) };
    manager.isolation().isolate(one).expect("can be");
    let first = NodeId::new(0).expect("small");
    pool.resize_node(first, 1, &NoHelpers).expect("nobody else resizes");
    verify(manager);
    // The second place of the area.
    assert_eq!(area(manager, 0).expect("made").2.available_pages, GIB_PAGES);
    pool.resize_node(first, 2, &NoHelpers).expect("nobody else resizes");
    verify(manager);
    assert_eq!(area(manager, 0).expect("made").2.available_pages, GIB_PAGES);
    manager.isolation().unisolate(one).expect("isolated");
    pool.resize(0, &NoHelpers).expect("nobody else resizes");
    verify(manager);
    assert_eq!(area(manager, 0).expect("made").2.available_pages, 2 * GIB_PAGES);
}

/// No caller can release frames that a pool took from an area, and the area stays as it is.
#[test]
fn what_a_pool_has_of_an_area_is_not_released_by_others() {
    let manager = leak(machine(), "hugetlb_cma=0:1G");
    let (number, range, _) = area(manager, 0).expect("made");
    let pool = manager.pool(GIB);
    pool.resize(1, &NoHelpers).expect("nobody else resizes");
    let before = area(manager, 0);
    for part in [range, PfnRange { end: range.start.add(5), ..range }] {
        // SAFETY: the call is refused.
        assert!(unsafe { manager.moving().release_to_area(number, part) }.is_err());
    }
    assert_eq!(area(manager, 0), before);
    verify(manager);
}

/// The pages give up their map, with and without eager restoring.
#[test]
fn pages_of_areas_give_up_their_map() {
    for eager in [false, true] {
        for memory in ["eager", "deferred"] {
            let machine = FakeMachine::builder().ram(gib(0, 6)).cpus(3).build();
            FakeVmemmap::install(machine);
            let line = format!(
                "memmap_init={memory} hugetlb_free_vmemmap=on hugetlb_cma=2G hugepagesz=1G \
                 hugepages=2"
            );
            let manager = leak(machine, &line);
            assert_eq!(manager.moving().failed_area_bytes(), 0, "{line}");
            let fill = manager.hugetlb().fill(&parameters(&line), &NoHelpers);
            let left = area(manager, 0).expect("made").2.available_pages;
            assert_eq!((fill.pools[1].got, left), (2, 0), "{line}");
            manager.hugetlb().set_eager_restore(eager);
            verify(manager);
            let handles: &'static Handles<'static, FakeMachine> =
                Box::leak(Box::new(Handles::new(manager, 1 << 13).expect("memory")));
            manager.moving().set_mover(Some(handles));
            for round in 0..2 {
                manager.pool(GIB).resize(0, &NoHelpers).expect("nobody else resizes");
                verify(manager);
                for number in 0..1000 {
                    let of = [0, 0, 3, 6, 9][(number + round) % 5];
                    if handles.allocate(order(u8::try_from(of).expect("small"))).is_err() {
                        break;
                    }
                }
                verify(manager);
                manager.pool(GIB).resize(2, &NoHelpers).expect("nobody else resizes");
                verify(manager);
                handles.held().for_each(|handle| handles.check(handle).expect("intact"));
                let held: Vec<_> = handles.held().collect();
                held.into_iter().for_each(|handle| handles.free(handle).expect("held"));
                settled(manager);
            }
            retire(manager);
        }
    }
}

type Build = fn() -> &'static FakeMachine;

/// Whatever the command line asks for on whatever machine: bring-up succeeds, the books are right,
/// and pools come and go.
#[test]
fn areas_on_machines_of_all_kinds() {
    let kinds: [(&str, Build); 6] = [
        ("holes", || {
            let builder = FakeMachine::builder().ram(mib(1, 900)).ram(mib(1000, 3100));
            builder.ram(mib(4096, 6200)).ram(mib(6300, 9217)).cpus(3).build()
        }),
        ("small", || FakeMachine::builder().ram(mib(0, 64)).build()),
        ("no whole GiB", || FakeMachine::builder().ram(mib(5 * 1024 - 1000, 6 * 1024 - 3)).build()),
        ("no memory", || {
            let builder = FakeMachine::builder().ram(gib(4, 7)).node(gib(4, 7), 1).nodes(3);
            builder.cpus_on(0, 1).cpus_on(1, 1).cpus_on(2, 1).build()
        }),
        ("high", || FakeMachine::builder().ram(gib(0, 1)).ram(gib((1 << 22) - 3, 1 << 22)).build()),
        ("two", || {
            let builder = FakeMachine::builder().ram(gib(4, 7)).ram(gib(7, 9)).cpus(2);
            builder.node(gib(4, 7), 0).node(gib(7, 9), 1).build()
        }),
    ];
    for (kind, build) in &kinds {
        for (nth, line) in [
            "hugetlb_cma=2G",
            "hugetlb_cma=1G",
            "hugetlb_cma=100G",
            "hugetlb_cma=16777215T",
            "hugetlb_cma=0:1G,63:2G",
            "hugetlb_cma=1:16777215T,0:1G hugetlb_cma_only=on",
            "hugetlb_cma=1G page_alloc.shuffle=1 page_alloc.shuffle_seed=3",
            "hugetlb_cma=1G zone_parts=4 page_owner=on",
            "hugetlb_cma=2G memmap_init=deferred",
            "hugetlb_cma=1G movablecore=30%",
            "hugetlb_cma=1G cma=16777215T cma_pernuma=16777215T",
            "hugetlb_cma=1G cma=16M cma_pernuma=8M numa_cma=0:4M,1:2M,2:8M",
        ]
        .into_iter()
        .enumerate()
        {
            // High memory takes the host much address space.
            if *kind == "high" && nth > 0 {
                continue;
            }
            for array in [false, true] {
                let machine = build();
                if array {
                    FakeVmemmap::install_with(machine, false, false);
                }
                let manager = leak(machine, line);
                manager.vmemmap().initialise_deferred(&NoHelpers);
                verify(manager);
                let pool = manager.pool(GIB);
                let available = |manager: &Fake| -> u64 {
                    (0..20)
                        .filter_map(|number| manager.moving().area(number))
                        .map(|(_, _, counts)| counts.available_pages)
                        .sum()
                };
                let before = (available(manager), settled(manager));
                for pages in [1, 3, 0, 2, 1, 100, 0] {
                    pool.resize(pages, &NoHelpers).expect("nobody else resizes");
                    verify(manager);
                }
                assert_eq!(before, (available(manager), settled(manager)), "{kind}: {line}");
                retire(manager);
            }
        }
    }
}
