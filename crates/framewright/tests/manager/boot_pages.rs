//! Huge pages of the command line whose memory map is never built: no memory is taken, mapped,
//! written or flushed for their map, on several kinds of machine and whatever the command line asks
//! for.

use crate::common::pool_machine::{GIB, TWO, check, nr_of, numbers};
use crate::common::{Fake, bring_up_with, gib, is_careful, mib, parameters, retire, settled};
use framewright::manager::BootFill;
use framewright::units::{Order, Pfn, PhysRange};
use framewright::{Request, Reserves};
use framewright_jobs::NoHelpers;
use framewright_testkit::{FakeMachine, FakeVmemmap, Owner};
use proptest::prelude::*;

const POLICIES: [&str; 2] = ["eager", "deferred"];

fn with_array(machine: &'static FakeMachine, line: &str) -> (Fake, &'static FakeVmemmap) {
    let array = FakeVmemmap::install(machine);
    let manager = bring_up_with(machine, &[], &parameters(line)).expect("bring-up");
    manager.vmemmap().initialise_deferred(&NoHelpers);
    crate::common::check(&manager);
    (manager, array)
}

fn eight_gib() -> &'static FakeMachine {
    FakeMachine::builder().ram(gib(0, 8)).cpus(2).build()
}

fn fill(manager: &Fake, line: &str) -> BootFill {
    let filled = manager.hugetlb().fill(&parameters(line), &NoHelpers);
    check(manager);
    filled
}

#[test]
fn no_part_of_the_array_is_ever_made_for_them() {
    if is_careful() {
        return;
    }
    // Sixteen sections, three more, and 37 blocks of another one.
    const BLOCKS: u64 = 2 * 512 + 229;
    for policy in POLICIES {
        let words =
            format!("memmap_init={policy} hugepagesz=1G hugepages=2 hugepagesz=2M hugepages=229");
        let (plain, plain_array) = with_array(eight_gib(), &words);
        let line = format!("{words} hugetlb_free_vmemmap=on");
        let (manager, array) = with_array(eight_gib(), &line);
        let (whole, built) = (plain_array.counts(), array.counts());
        assert_eq!(whole.sections, 64, "{policy}");
        assert_eq!(built.sections, 64 - 16 - 3, "{policy}");
        // One page table for the section that is described in part.
        assert_eq!(built.frames, whole.frames - 8 * BLOCKS + 1, "{policy}");
        assert_eq!(
            (manager.vmemmap().unbuilt_blocks(), manager.vmemmap().reclaimed_blocks()),
            (BLOCKS, BLOCKS)
        );
        assert_eq!(manager.vmemmap().saved_pages(), 8 * BLOCKS as i64);
        let free = settled(&manager).free_pages;
        let filled = fill(&manager, &line);
        assert_eq!(
            filled.pools.map(|pool| (pool.got, pool.without_vmemmap)),
            [(229, 229), (2, 2)],
            "{policy}"
        );
        assert_eq!(numbers(&manager.pool(TWO)), [229, 229, 0, 0, 229]);
        assert_eq!(numbers(&manager.pool(GIB)), [2, 2, 0, 0, 2]);
        // Nothing was allocated or freed, and no CPU was interrupted.
        assert_eq!((array.counts(), settled(&manager).free_pages), (built, free), "{policy}");
        assert_eq!(manager.hugetlb().flushes(), 0, "{policy}");
        fill(&plain, &words);
        let more = free - settled(&plain).free_pages;
        assert!(
            (8 * BLOCKS - 256..=8 * BLOCKS).contains(&more),
            "{policy}: {more} of {} pages",
            8 * BLOCKS
        );
        // The pages leave their pool without a flush, and their memory can be used page by page.
        manager.pool(TWO).resize(0, &NoHelpers).expect("nobody else resizes");
        manager.pool(GIB).resize(0, &NoHelpers).expect("nobody else resizes");
        check(&manager);
        assert_eq!(manager.hugetlb().flushes(), 0);
        let mut held = Vec::new();
        while let Ok(page) =
            manager.allocate(&Request { reserves: Reserves::All, ..Request::new(Order::PAGE) })
        {
            held.push(page);
        }
        check(&manager);
        assert_eq!(array.counts(), built);
        held.into_iter().for_each(|page| manager.give_back(page).expect("was allocated"));
        check(&manager);
    }
}

#[test]
fn what_is_restored_gets_its_map_for_the_first_time() {
    if is_careful() {
        return;
    }
    let line = "memmap_init=eager hugetlb_free_vmemmap=on hugepages=200";
    let (manager, array) = with_array(eight_gib(), line);
    fill(&manager, line);
    let before = array.counts();
    manager.hugetlb().set_eager_restore(true);
    manager.pool(TWO).resize(0, &NoHelpers).expect("nobody else resizes");
    check(&manager);
    assert_eq!((manager.vmemmap().reclaimed_blocks(), array.counts().sections), (0, 64));
    assert!(array.counts().frames >= before.frames + 200 * 8 - 1);
    assert_eq!((0..4).filter(|&gib| array.is_junk(Pfn(gib << 18))).count(), 0, "described again");
}

#[test]
fn nodes_get_what_they_would_get_otherwise() {
    for words in [
        "hugepages=700",
        "hugepages=0:300,1:140",
        "hugepages=3 hugepagesz=1G hugepages=2",
        "hugepagesz=1G hugepages=1:2 hugepagesz=2M hugepages=0:5,2:7",
        "hugetlb_cma=0 hugepagesz=1G hugepages=2 hugepagesz=2M hugepages=200",
        "hugepages=0:3,9:5 hugepagesz=1G hugepages=1",
        "hugepages=256 hugepagesz=2M hugepages=512",
    ] {
        let nr = |line: &str| {
            let (manager, _) = with_array(crate::common::pool_machine::machine(), line);
            let filled = fill(&manager, line);
            assert_eq!(
                filled.pools.map(|pool| pool.got),
                [TWO, GIB].map(|size| manager.pool(size).counts().all.nr)
            );
            let unbuilt = manager.vmemmap().unbuilt_blocks();
            let numbers = (nr_of(&manager.pool(TWO)), nr_of(&manager.pool(GIB)), unbuilt);
            retire(&manager);
            numbers
        };
        for policy in POLICIES {
            let plain = nr(&format!("memmap_init={policy} {words}"));
            let without = nr(&format!("memmap_init={policy} {words} hugetlb_free_vmemmap=on"));
            assert_eq!((plain.0, plain.1), (without.0, without.1), "{policy} {words}");
            let blocks: u64 = without.0.iter().sum::<u64>() + 512 * without.1.iter().sum::<u64>();
            assert_eq!(
                (plain.2, without.2),
                (0, if is_careful() { 0 } else { blocks }),
                "{policy} {words}"
            );
        }
    }
}

#[test]
fn more_than_there_is_leaves_enough_for_a_machine() {
    if is_careful() {
        return;
    }
    for policy in POLICIES {
        for words in [
            "hugepages=100000",
            "hugepagesz=1G hugepages=8",
            "hugepagesz=1G hugepages=3 hugepagesz=2M hugepages=9999",
        ] {
            let line = format!("memmap_init={policy} {words}");
            let (plain, _) = with_array(eight_gib(), &line);
            let without_reclaim = fill(&plain, &line);
            let line = format!("{line} hugetlb_free_vmemmap=on");
            let (manager, _) = with_array(eight_gib(), &line);
            let filled = fill(&manager, &line);
            let bytes = |fill: &BootFill| fill.pools[0].got + 512 * fill.pools[1].got;
            assert!(
                bytes(&filled) >= bytes(&without_reclaim),
                "{line}: {filled:?} {without_reclaim:?}"
            );
            assert_eq!(manager.pool(TWO).counts().target, filled.pools[0].got);
            assert!(manager.allocate(&Request::new(Order::PAGE)).is_ok(), "{line}");
            [plain, manager].iter().for_each(retire);
        }
    }
}

#[test]
fn another_command_line_gives_back_what_it_does_not_want() {
    if is_careful() {
        return;
    }
    let line =
        "memmap_init=deferred hugetlb_free_vmemmap=on hugepages=100 hugepagesz=1G hugepages=1";
    let (manager, _) = with_array(eight_gib(), line);
    let filled = fill(&manager, "hugepages=30");
    assert_eq!(filled.pools.map(|pool| pool.got), [30, 0]);
    assert_eq!([TWO, GIB].map(|size| numbers(&manager.pool(size))), [[30, 30, 0, 0, 30], [0; 5]]);
    // Only the first call finds kept pages.
    fill(&manager, line);
    assert_eq!(numbers(&manager.pool(GIB)), [1, 1, 0, 0, 1]);
}

#[test]
fn aids_see_every_page_so_that_all_have_a_map_first() {
    let line = "memmap_init=eager hugetlb_free_vmemmap=on hugepages=64 page_owner=on";
    let (manager, _) = with_array(eight_gib(), line);
    assert_eq!((fill(&manager, line).pools[0].got, manager.vmemmap().unbuilt_blocks()), (64, 0));
    assert_eq!(manager.vmemmap().reclaimed_blocks(), 64);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 24,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn memory_in_pieces(
        holes in prop::collection::vec((0_u64..6000, 1_u64..700), 0..8),
        small in 0_u64..2500,
        gigantic in 0_u64..5,
        deferred: bool,
        split_at in 0_u64..6144,
    ) {
        // Debug aids need a map for every page, and would write to all of these.
        if is_careful() {
            return Ok(());
        }
        // Reserved pieces cut up the memory of two nodes.
        let machine = FakeMachine::builder()
            .ram(mib(1, 6144))
            .node(mib(0, split_at), 0)
            .node(mib(split_at, 6144), 1)
            .nodes(2)
            .cpus(2)
            .build();
        let reserved: Vec<PhysRange> = holes
            .iter()
            .map(|&(at, size)| PhysRange::new(at << 20, (at + size).min(6143) << 20))
            .filter(|range| !range.is_empty())
            .collect();
        let policy = if deferred { "deferred" } else { "eager" };
        let line = format!(
            "memmap_init={policy} hugetlb_free_vmemmap=on hugepagesz=1G \
            hugepages={gigantic} hugepagesz=2M hugepages={small}"
        );
        FakeVmemmap::install(machine);
        // Holes make up less than 5 GiB of the machine.
        let manager = bring_up_with(machine, &reserved, &parameters(&line)).expect("bring-up");
        manager.vmemmap().initialise_deferred(&NoHelpers);
        let filled = fill(&manager, &line);
        prop_assert!(filled.pools[0].got <= small && filled.pools[1].got <= gigantic);
        let blocks: u64 =
            filled.pools.iter().map(|pool| pool.without_vmemmap * pool.size.frames() / 512).sum();
        prop_assert_eq!(blocks, manager.vmemmap().unbuilt_blocks());
        for size in [TWO, GIB] {
            manager.pool(size).resize(0, &NoHelpers).expect("nobody else resizes");
        }
        check(&manager);
        let counts = settled(&manager);
        prop_assert_eq!(counts.deferred_pages, 0);
    }
}

/// Where no map would have been made nothing is saved.
#[test]
fn pages_of_nodes_without_an_array_are_not_counted() {
    if is_careful() {
        return;
    }
    for (calls, nodes) in [(u32::MAX, 2), (40, 1), (0, 0)] {
        let builder = FakeMachine::builder().ram(gib(0, 8)).cpus(1);
        let machine = builder.node(gib(0, 4), 0).node(gib(4, 8), 1).build();
        let array = FakeVmemmap::install(machine);
        array.fail_after(calls);
        let line = "memmap_init=eager hugetlb_free_vmemmap=on hugepages=400";
        let manager = bring_up_with(machine, &[], &parameters(line)).expect("bring-up");
        assert_eq!(fill(&manager, line).pools[0].got, 400, "{nodes}");
        let vmemmap = manager.vmemmap();
        let blocks = (vmemmap.unbuilt_blocks(), vmemmap.reclaimed_blocks());
        assert_eq!(
            (blocks, vmemmap.saved_pages()),
            ((200 * nodes, 200 * nodes), 1600 * nodes as i64)
        );
        array.fail_after(u32::MAX);
        manager.hugetlb().set_eager_restore(true);
        manager.pool(TWO).resize(0, &NoHelpers).expect("nobody else resizes");
        check(&manager);
        assert_eq!(vmemmap.reclaimed_blocks(), 0, "{nodes}");
    }
}

/// Parts of the map that were never built count as saved, and not as part of the map's size.
#[test]
fn the_size_of_the_map_is_what_there_is_of_it() {
    if is_careful() {
        return;
    }
    let line = "memmap_init=eager hugetlb_free_vmemmap=on hugepages=3000";
    let (manager, array) = with_array(eight_gib(), line);
    assert!(manager.vmemmap().unbuilt_blocks() > 2000);
    let (pages, frames) = (manager.vmemmap().pages(), array.counts().frames);
    assert!(pages >= frames && pages < frames + 64, "{pages} of {frames}");
}
