//! Pools whose pages give up their part of the vmemmap: how much is saved, that freeing needs no
//! memory, eager restoring, demotion, boot, several threads.

use crate::common::{Fake, bring_up_with, gib, is_careful, parameters, settled};
use framewright::hugetlb::{NodeMask, PoolSize};
use framewright::memblock::NodeChoice;
use framewright::units::Order;
use framewright::{Request, Reserves};
use framewright_jobs::NoHelpers;
use framewright_testkit::{FakeMachine, FakeVmemmap, HelperPool, Owner, PoolOwner};

const TWO: PoolSize = PoolSize::TwoMib;
const GIB: PoolSize = PoolSize::OneGib;

fn machine(gibibytes: u64, line: &str) -> (Fake, &'static FakeVmemmap) {
    let machine = FakeMachine::builder().ram(gib(0, gibibytes)).cpus(3).build();
    let array = FakeVmemmap::install(machine);
    let manager = bring_up_with(machine, &[], &parameters(line)).expect("bring-up");
    manager.vmemmap().initialise_deferred(&NoHelpers);
    check(&manager);
    (manager, array)
}

fn check(manager: &Fake) {
    crate::common::check(manager);
    manager.hugetlb().verify().unwrap_or_else(|fault| panic!("{fault}"));
}

/// Allocates all free pages, the largest runs first.
fn use_up(manager: &Fake) -> Vec<framewright::units::PfnRange> {
    let mut held = Vec::new();
    for order in [Order::MAX, Order::BLOCK, Order::PAGE] {
        while let Ok(range) =
            manager.allocate(&Request { reserves: Reserves::All, ..Request::new(order) })
        {
            held.push(range);
        }
    }
    assert_eq!(settled(manager).free_pages, 0);
    held
}

#[test]
fn pages_in_a_pool_have_no_map_and_freeing_them_needs_nothing() {
    for (size, pages, blocks) in [(TWO, 64 * 3 + 5, 64 * 3 + 5), (GIB, 2, 1024)] {
        let (manager, _) = machine(5, "memmap_init=eager");
        let pool = manager.pool(size);
        // With the optimisation off, no map is given up.
        pool.resize(pages, &NoHelpers).expect("nobody else resizes");
        assert_eq!((manager.vmemmap().reclaimed_blocks(), manager.vmemmap().saved_pages()), (0, 0));
        // Once it is on, it applies to pages that enter the pool from now on.
        manager.hugetlb().set_optimize_vmemmap(true);
        assert_eq!(manager.vmemmap().reclaimed_blocks(), 0);
        pool.resize(0, &NoHelpers).expect("nobody else resizes");
        let before = settled(&manager).free_pages;
        pool.resize(pages, &NoHelpers).expect("nobody else resizes");
        check(&manager);
        assert_eq!(manager.vmemmap().reclaimed_blocks(), blocks);
        let flushes = manager.hugetlb().flushes();
        assert!((1..=2 * 8).contains(&flushes), "{flushes}");
        let saved = manager.vmemmap().saved_pages();
        // Eight pages per block are saved; a section that is not given up whole costs a page table.
        assert!(saved <= 8 * blocks as i64 && saved >= 8 * blocks as i64 - 2 * (5 * 8), "{saved}");
        assert_eq!(
            settled(&manager).free_pages as i64,
            before as i64 - (pages * size.frames()) as i64 + saved
        );
        // No page is left, and still all pool pages can be freed.
        let held = use_up(&manager);
        pool.resize(0, &NoHelpers).expect("nobody else resizes");
        check(&manager);
        assert_eq!(manager.hugetlb().flushes(), flushes);
        assert_eq!(
            (pool.counts().all.nr, settled(&manager).free_pages),
            (0, pages * size.frames())
        );
        // The freed pages can be used page by page.
        let page = manager
            .allocate(&Request { reserves: Reserves::All, ..Request::new(Order::PAGE) })
            .expect("is free");
        manager.give_back(page).expect("was allocated");
        held.into_iter().for_each(|range| manager.give_back(range).expect("was allocated"));
        check(&manager);
    }
}

#[test]
fn eager_restoring_gives_the_map_back() {
    let (manager, array) = machine(4, "memmap_init=eager");
    let (before, sections) = (settled(&manager), array.counts().sections);
    manager.hugetlb().set_optimize_vmemmap(true);
    manager.hugetlb().set_eager_restore(true);
    let (pool, gigantic) = (manager.pool(TWO), manager.pool(GIB));
    gigantic.resize(1, &NoHelpers).expect("nobody else resizes");
    pool.resize(200, &NoHelpers).expect("nobody else resizes");
    pool.set_overcommit(3).expect("2 MiB pages can");
    pool.reserve(203, NodeMask::ALL).expect("overcommit allows three");
    assert_eq!(manager.vmemmap().reclaimed_blocks(), 203 + 512);
    assert_eq!(gigantic.demote(1), Ok(1));
    assert_eq!(manager.vmemmap().reclaimed_blocks(), 203 + 512);
    check(&manager);
    pool.unreserve(203).expect("are promised");
    let page = pool.allocate(NodeChoice::Any, false).expect("is free");
    pool.give_back_page(page.start).expect("was allocated");
    pool.resize(0, &NoHelpers).expect("nobody else resizes");
    assert_eq!(manager.vmemmap().reclaimed_blocks(), 0);
    check(&manager);
    assert!(array.counts().sections <= sections);
    let after = settled(&manager);
    // Page tables that were needed for parts of sections stay.
    assert!(after.free_pages <= before.free_pages && after.free_pages + 64 >= before.free_pages);
}

#[test]
fn helpers_give_up_maps_together() {
    if is_careful() {
        return;
    }
    let (manager, _) = machine(12, "memmap_init=deferred");
    manager.hugetlb().set_optimize_vmemmap(true);
    let helpers = HelperPool::new(2);
    let pool = manager.pool(TWO);
    for pages in [3000, 10, 5000, 0, 4000] {
        assert_eq!(pool.resize(pages, &helpers).expect("nobody else resizes").reached, pages);
        check(&manager);
    }
    // Blocks that were in the pool before have their descriptors inside, or their map still absent:
    // no map is given up twice.
    assert!(manager.vmemmap().reclaimed_blocks() >= 4000);
    // All memory, including what the maps give back.
    let most = pool.resize(u64::MAX, &helpers).expect("nobody else resizes").reached;
    check(&manager);
    assert!(most > 6000, "{most}");
    pool.resize(0, &helpers).expect("nobody else resizes");
    check(&manager);
}

/// Where no page table can be made, some blocks of a section may be absent already.
#[test]
fn maps_that_cannot_be_given_up_are_whole_again() {
    let (manager, array) = machine(1, "memmap_init=eager");
    manager.hugetlb().set_optimize_vmemmap(true);
    let pool = manager.pool(TWO);
    for pages in [3, 0] {
        pool.resize(pages, &NoHelpers).expect("nobody else resizes");
    }
    for refuses in [true, false] {
        array.refuse_to_prepare(refuses);
        assert_eq!(pool.resize(9, &NoHelpers).expect("nobody else resizes").reached, 9);
        check(&manager);
        // Maps that were given up before are restored, too.
        assert_eq!(manager.vmemmap().reclaimed_blocks(), if refuses { 0 } else { 9 });
        pool.resize(0, &NoHelpers).expect("nobody else resizes");
        check(&manager);
        // Every page has a descriptor, in the array or in its block.
        use_up(&manager).into_iter().for_each(|range| {
            manager.give_back(range).expect("was allocated");
        });
        check(&manager);
    }
}

#[test]
fn several_cpus_give_up_maps_in_the_same_sections() {
    let (manager, _) = machine(2, "memmap_init=eager");
    manager.hugetlb().set_optimize_vmemmap(true);
    let pool = manager.pool(TWO);
    pool.set_overcommit(1000).expect("2 MiB pages can");
    // Surplus pages come one by one, each from a section from which other CPUs take pages at the
    // same time.
    let work = || {
        for round in 0..20 {
            let pages: Vec<_> =
                (0..10).filter_map(|_| pool.allocate(NodeChoice::Any, false).ok()).collect();
            assert!(pages.len() == 10 || round > 0, "there is memory");
            pages.iter().for_each(|page| pool.give_back_page(page.start).expect("was allocated"));
        }
    };
    std::thread::scope(|scope| {
        for cpu in 1..3 {
            let (machine, work) = (manager.platform(), &work);
            scope.spawn(move || machine.run_on(cpu, work));
        }
        work();
    });
    check(&manager);
    assert_eq!(pool.counts().all.nr, 0);
    assert!(manager.vmemmap().reclaimed_blocks() >= 10);
    // Freed blocks have their descriptors inside once they are split, one for every page.
    let held = use_up(&manager);
    held.into_iter().for_each(|range| manager.give_back(range).expect("was allocated"));
    check(&manager);
}

#[test]
fn boot_says_whether_maps_are_given_up() {
    for (line, reclaimed) in [
        ("memmap_init=eager hugepages=10 hugetlb_free_vmemmap=on", 10),
        ("memmap_init=eager hugepages=10", 0),
        ("memmap_init=on-demand hugepages=10 hugetlb_free_vmemmap=on", 0),
    ] {
        let (manager, _) = machine(4, line);
        let fill = manager.hugetlb().fill(&parameters(line), &NoHelpers);
        assert_eq!(
            (fill.pools[0].got, manager.vmemmap().reclaimed_blocks()),
            (10, reclaimed),
            "{line}"
        );
        assert_eq!(manager.hugetlb().optimizes_vmemmap(), line.contains("vmemmap=on"));
        check(&manager);
    }
}

#[test]
fn pools_bring_up_what_is_withheld() {
    let machine = FakeMachine::builder().ram(gib(0, 6)).build();
    FakeVmemmap::install(machine);
    let manager =
        bring_up_with(machine, &[], &parameters("memmap_init=deferred")).expect("bring-up");
    // Nobody initialised the deferred memory; 2 GiB of it make two pages of 1 GiB and more.
    let resized = manager.pool(GIB).resize(3, &NoHelpers).expect("nobody else resizes");
    assert_eq!(resized.reached, 3);
    check(&manager);
}
