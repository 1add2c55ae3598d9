//! Counters of `/proc/vmstat` and `numastat` that count what was handed out, taken back and
//! described: they agree with one another and with what the test did.

use crate::common::{Fake, bring_up, bring_up_with, gib, mib, order, parameters};
use framewright::Request;
use framewright::hugetlb::PoolSize;
use framewright::memblock::NodeChoice;
use framewright::procfs::FileSystem;
use framewright::units::NodeId;
use framewright::zone::MigrateType;
use framewright_jobs::NoHelpers;
use framewright_testkit::{FakeMachine, FakeVmemmap, Owner};
use std::collections::BTreeMap;

fn read(manager: &Fake, path: &str) -> String {
    let mut text = String::new();
    let table = manager.files();
    FileSystem::new(&[&table])
        .read(path, &mut text)
        .unwrap_or_else(|error| panic!("{path}: {error}"));
    text
}

fn numbers(text: &str) -> BTreeMap<String, u64> {
    let split = |line: &str| {
        line.split_once(' ').map(|(name, value)| (name.to_owned(), value.parse().expect("number")))
    };
    text.lines().map(|line| split(line).expect("a name and a number")).collect()
}

fn vmstat(manager: &Fake) -> BTreeMap<String, u64> {
    numbers(&read(manager, "/proc/vmstat"))
}

fn numastat(manager: &Fake, node: usize) -> [u64; 6] {
    let text = read(manager, &format!("/sys/devices/system/node/node{node}/numastat"));
    let names =
        ["numa_hit", "numa_miss", "numa_foreign", "interleave_hit", "local_node", "other_node"];
    assert_eq!(
        text.lines().map(|line| line.split(' ').next().expect("a name")).collect::<Vec<_>>(),
        names
    );
    names.map(|name| numbers(&text)[name])
}

fn two_nodes() -> Fake {
    let builder =
        FakeMachine::builder().ram(mib(0, 3072)).ram(gib(4, 5)).cpus_on(0, 2).cpus_on(1, 1);
    bring_up(builder.node(mib(0, 3072), 0).node(gib(4, 5), 1).build())
}

/// Counts pages handed out, by kind of zone, and pages that came back.
fn flow(manager: &Fake) -> [u64; 4] {
    let counts = vmstat(manager);
    ["pgalloc_dma", "pgalloc_dma32", "pgalloc_normal", "pgfree"].map(|name| counts[name])
}

#[test]
fn what_left_zones_and_came_back_is_counted_exactly() {
    let manager = two_nodes();
    let before = flow(&manager);
    let large: Vec<_> =
        (0..5).map(|_| manager.allocate(&Request::new(order(11))).expect("is free")).collect();
    let mut odd = manager.allocate(&Request::pages(700)).expect("is free");
    let after = flow(&manager);
    let grown =
        |after: [u64; 4], before: [u64; 4]| [0, 1, 2, 3].map(|place| after[place] - before[place]);
    // All of the 1024 pages are taken for the odd size, and the rest comes back.
    let [dma, dma32, normal, freed] = grown(after, before);
    assert_eq!((dma, dma32 + normal, freed), (0, 5 * 2048 + 1024, 324));
    for range in large {
        manager.give_back(range).expect("was allocated");
    }
    odd.end = odd.start.add(600);
    manager.give_back(odd).expect("was allocated");
    let [dma, dma32, normal, freed] = grown(flow(&manager), after);
    assert_eq!((dma, dma32, normal, freed), (0, 0, 0, 5 * 2048 + 600));
}

#[test]
fn what_is_out_is_held_or_cached_and_counters_only_grow() {
    let manager = two_nodes();
    let start = flow(&manager);
    let mut held = Vec::new();
    let (mut pages, mut random, mut last) = (0, 1_u64, start);
    for step in 0..6000 {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let of = order([0, 0, 0, 1, 3, 5, 9, 10][(random >> 40) as usize % 8]);
        if random >> 60 < 9 || held.is_empty() {
            let Ok(page) = manager.allocate_order(of, MigrateType::Movable) else { continue };
            held.push((page, of));
            pages += of.pages();
        } else {
            let (page, of) = held.swap_remove((random >> 20) as usize % held.len());
            manager.give_back_order(page, of).expect("was allocated");
            pages -= of.pages();
        }
        if step % 500 == 0 {
            let (now, cached) = (flow(&manager), manager.caches().pages());
            assert!(now.iter().zip(last).all(|(now, last)| *now >= last), "{now:?} after {last:?}");
            let out = |flow: [u64; 4]| flow[0] + flow[1] + flow[2] - flow[3];
            assert_eq!(out(now) - out(start), pages + cached);
            last = now;
        }
    }
    assert!(last[3] > start[3] && last[1] > start[1], "{last:?}");
    crate::common::check(&manager);
}

#[test]
fn nodes_say_whose_pages_they_gave() {
    let manager = two_nodes();
    let machine = manager.platform();
    let before = [numastat(&manager, 0), numastat(&manager, 1)];
    let on = |node: usize| NodeId::new(node).expect("a node");
    let request = |node| Request { node, fail_fast: true, ..Request::new(order(10)) };
    let grown = |node: usize| {
        let now = numastat(&manager, node);
        [0, 1, 2, 3, 4, 5].map(|place| now[place] - before[node][place])
    };
    // Orders that no cache keeps. CPU 0 is on node 0: what it takes there by choice or by default
    // is local; what it requests from node 1 is not.
    machine.run_on(0, || {
        manager.allocate(&request(NodeChoice::Any)).expect("is free");
        manager.allocate(&request(NodeChoice::Exact(on(0)))).expect("is free");
        manager.allocate(&request(NodeChoice::Preferred(on(1)))).expect("is free");
    });
    assert_eq!((grown(0), grown(1)), ([2048, 0, 0, 0, 2048, 0], [1024, 0, 0, 0, 0, 1024]));
    // Node 1 has no more: node 0 serves in its place.
    let mut taken = 1024;
    machine.run_on(2, || {
        while manager.allocate(&request(NodeChoice::Exact(on(1)))).is_ok() {
            taken += 1024;
        }
        manager.allocate(&request(NodeChoice::Any)).expect("node 0 has some");
    });
    machine.run_on(0, || {
        manager.allocate(&request(NodeChoice::Preferred(on(1)))).map(drop).expect("node 0 has some")
    });
    assert_eq!(grown(1), [taken, 0, 2048, 0, taken - 1024, 1024]);
    assert_eq!(grown(0), [2048, 2048, 0, 0, 3072, 1024]);
    let sum = vmstat(&manager);
    let all = [numastat(&manager, 0), numastat(&manager, 1)];
    let names =
        ["numa_hit", "numa_miss", "numa_foreign", "numa_interleave", "numa_local", "numa_other"];
    for (place, name) in names.iter().enumerate() {
        assert_eq!(sum[*name], all[0][place] + all[1][place], "{name}");
    }
    assert_eq!(sum["numa_hit"] + sum["numa_miss"], flow(&manager)[..3].iter().sum::<u64>());
}

#[test]
fn pools_count_what_they_took() {
    let manager = two_nodes();
    let count = |name: &str| vmstat(&manager)[name];
    let pool = manager.pool(PoolSize::TwoMib);
    pool.resize(20, &NoHelpers).expect("nobody else resizes");
    assert_eq!((count("htlb_buddy_alloc_success"), count("htlb_buddy_alloc_fail")), (20, 0));
    pool.resize(0, &NoHelpers).expect("nobody else resizes");
    manager.pool(PoolSize::OneGib).resize(1, &NoHelpers).expect("nobody else resizes");
    assert_eq!((count("htlb_buddy_alloc_success"), count("htlb_buddy_alloc_fail")), (20, 0));
    let all = pool.resize(1 << 20, &NoHelpers).expect("nobody else resizes").reached;
    assert_eq!(count("htlb_buddy_alloc_success"), 20 + all);
    assert!(count("htlb_buddy_alloc_fail") >= 2);
}

#[test]
fn the_page_array_has_one_size() {
    let machine = FakeMachine::builder().ram(gib(0, 2)).cpus(1).build();
    FakeVmemmap::install(machine);
    let manager = bring_up_with(machine, &[], &parameters("memmap_init=eager")).expect("bring-up");
    let sizes = || {
        let meminfo = read(&manager, "/proc/meminfo");
        let line =
            meminfo.lines().find_map(|line| line.strip_prefix("MemMapArray:")).expect("a line");
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
        (kib / 4, vmstat(&manager)["nr_memmap_boot_pages"])
    };
    let (array, boot) = sizes();
    assert_eq!(array, boot);
    // 64 bytes of each page's 4096, and page tables.
    assert!((8192..8300).contains(&array), "{array}");
    manager.hugetlb().set_optimize_vmemmap(true);
    manager.pool(PoolSize::TwoMib).resize(64, &NoHelpers).expect("nobody else resizes");
    let saved = manager.vmemmap().saved_pages().unsigned_abs();
    assert!(saved > 500);
    assert_eq!(sizes(), (array - saved, array - saved));
    let names = vmstat(&manager);
    assert!(
        !names.contains_key("nr_memmap_array_pages") && names["nr_block_table_pages"] > 0,
        "{names:?}"
    );
}
