//! The shuffle: chance decides which block comes next, and nothing else changes.

use crate::common::{bring_up_with, check, gib, mib, order, parameters, settled};
use framewright::Request;
use framewright::hugetlb::PoolSize;
use framewright::manager::Shortfall;
use framewright::memblock::NodeChoice;
use framewright::units::{NodeId, Order, Pfn, PfnRange, PhysRange};
use framewright::zone::{Grade, MigrateType};
use framewright_jobs::NoHelpers;
use framewright_testkit::{FakeMachine, FakeVmemmap, Owner};

const SHUFFLED: &str = "page_alloc.shuffle=1 page_alloc.shuffle_seed=5";

fn machine() -> &'static FakeMachine {
    FakeMachine::builder().ram(gib(4, 8)).ram(gib(9, 10)).build()
}

fn shuffled(manager: &crate::common::Fake) -> (u32, u32) {
    let all = manager.views().map(|zone| zone.shuffled());
    all.fold((0, 0), |sum, zone| (sum.0 + zone.pairs, sum.1 + zone.neighbours))
}

#[test]
fn blocks_come_in_no_order_and_a_seed_repeats_it() {
    let take = |line: &str| -> Vec<Pfn> {
        let manager = bring_up_with(machine(), &[], &parameters(line)).expect("bring-up");
        (0..500)
            .map(|_| manager.allocate(&Request::new(order(10))).expect("there is memory").start)
            .collect()
    };
    let runs = |starts: &[Pfn]| {
        starts.windows(2).filter(|pair| pair[1].0.abs_diff(pair[0].0) == 1024).count()
    };
    let first = take(SHUFFLED);
    assert!(runs(&first) < 25, "{} of 500 are neighbours", runs(&first));
    assert_ne!(first, take("page_alloc.shuffle=1 page_alloc.shuffle_seed=6"));
    if !crate::common::is_careful() {
        assert_eq!(first, take(SHUFFLED));
        assert!(runs(&take("page_alloc.shuffle=0")) > 450);
    }
    assert!(runs(&take("page_alloc.shuffle=Y")) < 25, "without a seed");
}

#[test]
fn the_statistic_tells() {
    let manager = bring_up_with(machine(), &[], &parameters(SHUFFLED)).expect("bring-up");
    let (pairs, neighbours) = shuffled(&manager);
    assert!(pairs > 1000 && neighbours < 30, "{neighbours} of {pairs}");
    for zone in manager.views() {
        assert!(zone.shuffle());
    }
    check(&manager);
    let plain = bring_up_with(machine(), &[], &parameters("")).expect("bring-up");
    assert_eq!(shuffled(&plain).1, shuffled(&plain).0, "what there is of that order is in order");
    assert!(plain.views().all(|zone| !zone.shuffle()));
    check(&plain);
}

/// Memory with a grade has lists of its own, and it gets the grade after it was freed.
#[test]
fn memory_with_a_grade_is_shuffled() {
    // Either end of the memory is half a block, so that the movable memory has free runs.
    let machine = || {
        let machine = FakeMachine::builder().ram(mib(4097, 4096 + 4999)).build();
        FakeVmemmap::install(machine);
        machine
    };
    for line in [
        "memmap_init=eager kernelcore=2G",
        "memmap_init=deferred kernelcore=2G",
        "memmap_init=on-demand kernelcore=2G",
        "memmap_init=eager kernelcore=1G cma=1G",
        "memmap_init=eager cma=3G",
        "memmap_init=eager kernelcore=1G hugetlb_cma=1G",
    ] {
        let all = parameters(&format!("{SHUFFLED} {line}"));
        let manager = bring_up_with(machine(), &[], &all).expect("bring-up");
        // What was asked for meanwhile leaves free runs of one more type.
        let request = Request { migrate_type: MigrateType::Reclaimable, ..Request::new(order(0)) };
        let page = manager.allocate(&request).expect("there is memory");
        manager.vmemmap().initialise_deferred(&NoHelpers);
        let (pairs, neighbours) = shuffled(&manager);
        assert!(pairs > 1000 && neighbours < 20, "{line}: {neighbours} of {pairs}");
        check(&manager);
        manager.give_back(page).expect("it is held");
    }
}

#[test]
fn memory_that_is_added_is_shuffled() {
    let all = gib(4, 6);
    // Added as one piece, and in steps as a device adds it.
    for (step, most) in [(all.size(), 5), (128 << 20, 15)] {
        let orders = [SHUFFLED, SHUFFLED, "page_alloc.shuffle=1"].map(|line| {
            let machine = FakeMachine::builder().ram(mib(0, 256)).spare(all).build();
            let manager = bring_up_with(machine, &[], &parameters(line)).expect("bring-up");
            for start in (all.start..all.end).step_by(usize::try_from(step).expect("64 bits")) {
                let range = PhysRange::with_size(start, step);
                // SAFETY: the machine has this memory and nobody else uses it.
                unsafe { manager.hotplug().add(range, NodeId::ZERO, Grade::Any) }.expect("added");
            }
            check(&manager);
            for view in manager.views() {
                assert!(view.free_blocks()[2..].iter().all(|&blocks| blocks == 0), "4 MiB");
            }
            let added = || manager.views().last().expect("a zone").shuffled();
            let shuffled = added();
            assert!(
                shuffled.pairs > 400 && shuffled.neighbours * 100 < shuffled.pairs * most,
                "{shuffled:?}"
            );
            let starts: Vec<Pfn> = core::iter::from_fn(|| {
                Some(manager.allocate(&Request::new(order(10))).ok()?.start)
            })
            .filter(|&start| start.address() >= all.start)
            .collect();
            for &start in &starts {
                manager.give_back(PfnRange::of_order(start, order(10))).expect("it is held");
            }
            assert!(manager.views().all(|view| view.shuffle()), "all of it can be once more");
            let shuffled = added();
            assert!(shuffled.neighbours * 100 < shuffled.pairs * 5, "{shuffled:?}");
            check(&manager);
            starts
        });
        assert!(orders[0].len() > 400 && orders[0] != orders[2]);
        assert!(crate::common::is_careful() || orders[0] == orders[1], "a seed repeats it");
    }
}

#[test]
fn large_pieces_are_gathered_from_anywhere() {
    let manager = bring_up_with(machine(), &[], &parameters(SHUFFLED)).expect("bring-up");
    let before = manager.totals();
    let mut held = Vec::new();
    for of in (11..=18).rev() {
        let taken = manager.allocate(&Request::new(order(of))).expect("there is memory");
        assert!(taken.start.is_aligned(order(of)));
        held.push(taken);
        check(&manager);
    }
    // By place, and below an address limit.
    let free = (4..10_u64)
        .map(|gib| Pfn(gib << 18))
        .find_map(|start| manager.allocate_at(start, order(12), MigrateType::Movable).ok());
    held.push(free.expect("some GiB begins free"));
    assert!(manager.allocate_at(held[0].start, order(12), MigrateType::Movable).is_err());
    assert!(
        manager.allocate_at(Pfn(8 << 18), order(18), MigrateType::Movable).is_err(),
        "there is no memory"
    );
    let low = Request { max_address: 5 << 30, ..Request::new(order(13)) };
    if let Ok(taken) = manager.allocate(&low) {
        assert!(taken.end.address() <= 5 << 30);
        held.push(taken);
    }
    check(&manager);
    // Runs are freed in parts, and all memory is whole again.
    for range in held {
        let half = range.start.0 + range.pages() / 2;
        if crate::common::is_careful() {
            manager.give_back(range).expect("it is held");
        } else {
            manager.give_back(PfnRange::new(half, range.end.0)).expect("it is held");
            manager.give_back(PfnRange::new(range.start.0, half)).expect("it is held");
        }
        check(&manager);
    }
    assert_eq!(settled(&manager), before);
    let blocks = manager.views().map(|zone| zone.free_blocks());
    assert!(
        blocks.map(|orders| orders[2..].iter().sum::<u32>()).sum::<u32>() == 0,
        "nothing merges beyond 4 MiB"
    );
    manager.allocate(&Request::new(Order::MAX)).expect("a GiB can be gathered again");
}

#[test]
fn traffic_of_all_orders() {
    for line in [SHUFFLED, "page_alloc.shuffle=1 page_alloc.shuffle_seed=9 pages=inside"] {
        let machine = FakeMachine::builder()
            .ram(mib(4096 + 2, 4096 + 1500))
            .ram(mib(8192, 8192 + 1500))
            .build();
        let manager = bring_up_with(machine, &[], &parameters(line)).expect("bring-up");
        let before = settled(&manager);
        let mut seed = 11_u64;
        let mut random = |limit: usize| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(seed >> 33).expect("31 bits") % limit
        };
        let mut held: Vec<PfnRange> = Vec::new();
        for step in 0..if crate::common::is_careful() { 300 } else { 2000 } {
            if random(2) == 0 {
                let migrate_type = MigrateType::ALL[random(3)];
                let request = Request {
                    migrate_type,
                    ..Request::new(order(u8::try_from(random(18)).expect("small")))
                };
                if let Ok(taken) = manager.allocate(&request) {
                    assert!(
                        held.iter().all(|other| other.intersection(taken).is_empty()),
                        "{taken:?}"
                    );
                    held.push(taken);
                }
            } else if !held.is_empty() {
                let range = held.swap_remove(random(held.len()));
                manager.give_back(range).expect("it is held");
            }
            if step % 50 == 0 {
                check(&manager);
            }
        }
        held.into_iter().for_each(|range| manager.give_back(range).expect("it is held"));
        check(&manager);
        let after = settled(&manager);
        assert_eq!(
            after.free_pages + after.descriptor_pages,
            before.free_pages + before.descriptor_pages
        );
    }
}

/// No free block is as large as a GiB, so a pool has to gather its pages as requests do.
#[test]
fn pools_get_pages_of_a_gib() {
    let parameters = parameters("hugepagesz=1G hugepages=2 page_alloc.shuffle=1");
    let machine = FakeMachine::builder().ram(gib(4, 8)).build();
    let manager = bring_up_with(machine, &[], &parameters).expect("bring-up");
    manager.vmemmap().initialise_deferred(&NoHelpers);
    let fill = manager.hugetlb().fill(&parameters, &NoHelpers);
    assert_eq!(fill.pools[1].got, 2);
    let pool = manager.pool(PoolSize::OneGib);
    assert_eq!(pool.resize(3, &NoHelpers).expect("nobody else resizes").reached, 3);
    let gib_page = Request {
        node: NodeChoice::Exact(NodeId::ZERO),
        migrate_type: MigrateType::Unmovable,
        ..Request::new(Order::MAX)
    };
    assert_eq!(pool.resize(0, &NoHelpers).expect("nobody else resizes").reached, 0);
    let mut taken: Vec<PfnRange> =
        std::iter::from_fn(|| manager.allocate(&gib_page).ok()).collect();
    assert!(taken.len() >= 3, "{}", taken.len());
    assert_eq!(pool.resize(1, &NoHelpers).expect("nobody else resizes").reached, 0);
    manager.give_back(taken.pop().expect("some are held")).expect("allocated");
    assert_eq!(pool.resize(1, &NoHelpers).expect("nobody else resizes").reached, 1);
    taken.into_iter().for_each(|range| manager.give_back(range).expect("allocated"));
    check(&manager);
}

/// A pool gets as many pages of a GiB at boot as without the shuffle, also the last of a node.
#[test]
fn pools_get_as_many_pages_at_boot_as_without_the_shuffle() {
    let got = |line: &str| {
        let machine = FakeMachine::builder().ram(gib(4, 7)).ram(gib(8, 10)).cpus_on(0, 1);
        let machine = machine.node(gib(4, 7), 0).node(gib(8, 10), 1).build();
        let parameters = parameters(&format!("{line} hugepagesz=1G hugepages=5"));
        let manager = bring_up_with(machine, &[], &parameters).expect("bring-up");
        manager.vmemmap().initialise_deferred(&NoHelpers);
        let fill = manager.hugetlb().fill(&parameters, &NoHelpers);
        check(&manager);
        fill.pools[1].got
    };
    let usual = got("");
    assert!(usual > 0);
    assert_eq!(got(SHUFFLED), usual);
}

#[test]
fn the_explanation_knows_that_runs_are_gathered() {
    let machine = FakeMachine::builder().ram(gib(4, 6)).build();
    let manager = bring_up_with(machine, &[], &parameters(SHUFFLED)).expect("bring-up");
    let request = Request { fail_fast: true, ..Request::new(Order::MAX) };
    let free_pages = manager.totals().free_pages;
    assert_eq!(manager.shortfall(&request), Ok(Shortfall::None));
    assert_eq!(manager.totals().free_pages, free_pages, "nothing was taken");
    while manager.allocate(&request).is_ok() {}
    assert_ne!(manager.shortfall(&request), Ok(Shortfall::None));
    check(&manager);
}
