//! Filling huge-page pools: at boot, with helpers, with memory that a hook gives up on the way, and
//! with a hook that manages descriptors.

use crate::common::pool_machine::{GIB, TWO, check, machine, node, nr_of, numbers};
use crate::common::{Fake, bring_up, bring_up_with, gib, is_careful, parameters};
use framewright::hugetlb::{NodeMask, PoolError, PoolSize};
use framewright::manager::{PoolBatch, PoolVmemmap};
use framewright::memblock::NodeChoice;
use framewright::units::{Order, PfnRange};
use framewright::zone::MigrateType;
use framewright::{Reclaim, Request, Reserves, Shortage};
use framewright_jobs::NoHelpers;
use framewright_testkit::{FakeMachine, HelperPool, Owner, PoolOwner};
use std::sync::atomic::{AtomicU64, Ordering};

/// Frees one block at each call, and tries calls that a hook must not make.
struct Giver {
    calls: AtomicU64,
    manager: std::sync::OnceLock<&'static Fake>,
    blocks: std::sync::Mutex<Vec<PfnRange>>,
}

impl Reclaim for Giver {
    fn reclaim(&self, _wanted: &Shortage) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let manager = self.manager.get().expect("is set before the hook");
        assert_eq!(
            manager.pool(TWO).resize(1, &NoHelpers),
            Err(PoolError::Busy),
            "a resize inside a resize"
        );
        let Some(block) = self.blocks.lock().expect("nobody panicked").pop() else { return 0 };
        manager.give_back(block).expect("was allocated");
        512
    }
}

#[test]
fn a_resize_asks_for_memory_as_long_as_that_helps() {
    let manager: &'static Fake = Box::leak(Box::new(bring_up(machine())));
    let giver: &'static Giver = Box::leak(Box::new(Giver {
        calls: AtomicU64::new(0),
        manager: std::sync::OnceLock::new(),
        blocks: std::sync::Mutex::new(Vec::new()),
    }));
    giver.manager.set(manager).ok().expect("is set once");
    let mut held = giver.blocks.lock().expect("nobody panicked");
    while let Ok(block) =
        manager.allocate(&Request { fail_fast: true, ..Request::new(Order::BLOCK) })
    {
        held.push(block);
    }
    drop(held);
    manager.pressure().set_reclaim(Some(giver));
    let resized = manager.pool(TWO).resize(9, &NoHelpers).expect("nobody else resizes");
    assert_eq!(resized.reached, 9);
    assert!(giver.calls.load(Ordering::Relaxed) >= 9);
    manager.pressure().set_reclaim(None);
    check(manager);
}

#[test]
fn helpers_fill_and_empty_as_one_thread_does() {
    let helpers = HelperPool::on_nodes(&[0, 1, 0]);
    let machine = FakeMachine::builder()
        .ram(gib(4, 36))
        .node(gib(4, 36), 0)
        .ram(gib(40, 72))
        .node(gib(40, 72), 1)
        .cpus_on(0, 2)
        .cpus_on(1, 2)
        .build();
    let manager = bring_up(machine);
    let before = crate::common::settled(&manager).free_pages;
    if is_careful() {
        // Page by page this takes minutes.
        return;
    }
    for (size, pages) in [(TWO, 31 * 512), (GIB, 60), (TWO, 512 * 61 + 17)] {
        let pool = manager.pool(size);
        assert_eq!(pool.resize(pages, &helpers).expect("nobody else resizes").reached, pages);
        let [first, second] = nr_of(&pool);
        assert!(first.abs_diff(second) <= 1, "{first} {second}");
        check(&manager);
        pool.resize(pages / 3, &helpers).expect("nobody else resizes");
        check(&manager);
        let short = pool.resize(u64::MAX, &helpers).expect("nobody else resizes");
        assert!(short.is_short() && short.reached >= pages);
        check(&manager);
        pool.resize(0, &helpers).expect("nobody else resizes");
        check(&manager);
        assert_eq!(crate::common::settled(&manager).free_pages, before);
    }
}

#[test]
fn boot_fills_what_the_command_line_says() {
    let fill = |line: &str| {
        let machine = machine();
        let parameters = parameters(line);
        let manager = bring_up_with(machine, &[], &parameters).expect("comes up");
        let fill = manager.hugetlb().fill(&parameters, &NoHelpers);
        check(&manager);
        let nr = PoolSize::ALL.map(|size| {
            let pool = manager.pool(size);
            assert_eq!(pool.counts().all.nr, fill.pools[size as usize].got);
            [0, 1, 2].map(|index| pool.node_counts(node(index)).expect("exists").nr)
        });
        (nr, fill)
    };
    let (nr, _) = fill("hugepages=7 hugepagesz=1G hugepages=2");
    assert_eq!(nr, [[4, 3, 0], [1, 1, 0]]);
    let (nr, _) = fill("hugepages=0:4,1:2 hugepagesz=1G hugepages=1:3");
    assert_eq!(nr, [[4, 2, 0], [0, 3, 0]]);
    let (nr, filled) = fill("hugepages=2 default_hugepagesz=1G");
    assert_eq!((nr, filled.default_size), ([[0; 3], [1, 1, 0]], GIB));
    let (nr, filled) = fill("hugepages=256 hugepagesz=2M hugepages=512");
    assert_eq!((nr[0], filled.overridden), ([128, 128, 0], Some(512)));
    // A request for more than there is gets what there is, with a warning that has both numbers.
    if !is_careful() {
        let (nr, filled) = fill("hugepages=100000 hugepagesz=1G hugepages=2");
        assert_eq!(nr[1], [1, 1, 0]);
        assert_eq!(filled.pools[0].wanted, 100_000);
        assert!(filled.pools[0].got > 2800 && filled.pools[0].got < 3100, "{filled:?}");
    }
    // A node without memory gives nothing; a node that does not exist invalidates the whole
    // parameter.
    let (nr, filled) = fill("hugepages=0:3,2:5");
    assert_eq!((nr[0], filled.pools[0].on_node(node(2))), ([3, 0, 0], Some((5, 0))));
    let (nr, filled) = fill("hugepages=0:3,9:5 hugepagesz=1G hugepages=1");
    assert_eq!((nr[0], filled.absent_node), ([0; 3], Some(node(9))));
    assert_eq!(nr[1].iter().sum::<u64>(), 1);
    let (nr, filled) = fill("hugetlb_cma=0 hugepagesz=1G hugepages=2 hugepagesz=2M hugepages=2");
    assert_eq!((nr, filled.pools[1].got), ([[1, 1, 0], [1, 1, 0]], 2));
}

/// Knows which frames' descriptors were given up, and frees a block for each of the first batches.
struct Maps {
    given_up: std::sync::Mutex<std::collections::BTreeMap<u64, PoolSize>>,
    at_boot: AtomicU64,
    manager: std::sync::OnceLock<&'static Fake>,
    blocks: std::sync::Mutex<Vec<PfnRange>>,
}

impl Maps {
    fn leak(manager: &'static Fake) -> &'static Self {
        let maps = Box::leak(Box::new(Self {
            given_up: std::sync::Mutex::default(),
            at_boot: AtomicU64::new(0),
            manager: std::sync::OnceLock::new(),
            blocks: std::sync::Mutex::default(),
        }));
        maps.manager.set(manager).ok().expect("is set once");
        manager.hugetlb().set_vmemmap_hook(Some(maps));
        maps
    }

    /// Numbers of pages whose descriptors are given up, by size.
    fn pages(&self) -> [u64; 2] {
        let given_up = self.given_up.lock().expect("nobody panicked");
        PoolSize::ALL.map(|size| given_up.values().filter(|&&of| of == size).count() as u64)
    }
}

fn pages_of(batch: &PoolBatch<'_>) -> Vec<u64> {
    assert!(!batch.runs.is_empty() && batch.runs.len() <= 32);
    let frames = batch.size.frames();
    let pages = batch.runs.iter().flat_map(|run| {
        assert!(
            !run.is_empty()
                && run.start.is_aligned(batch.size.order())
                && run.end.is_aligned(batch.size.order())
        );
        (run.start.0 / frames..run.end.0 / frames).map(move |page| page * frames)
    });
    pages.collect()
}

impl PoolVmemmap for Maps {
    unsafe fn before_publish(&self, batch: &PoolBatch<'_>) -> u64 {
        let mut given_up = self.given_up.lock().expect("nobody panicked");
        for page in pages_of(batch) {
            assert_eq!(given_up.insert(page, batch.size), None, "twice");
        }
        drop(given_up);
        self.at_boot.fetch_add(u64::from(batch.at_boot), Ordering::Relaxed);
        let Some(block) = self.blocks.lock().expect("nobody panicked").pop() else { return 0 };
        self.manager.get().expect("is set").give_back(block).expect("was allocated");
        512
    }

    unsafe fn before_free(&self, batch: &PoolBatch<'_>) {
        let mut given_up = self.given_up.lock().expect("nobody panicked");
        for page in pages_of(batch) {
            assert_eq!(given_up.remove(&page), Some(batch.size), "was not given up");
        }
    }
}

#[test]
fn descriptors_are_given_up_before_pages_are_seen_and_come_back_before_they_are_free() {
    let manager: &'static Fake = Box::leak(Box::new(bring_up(machine())));
    let maps = Maps::leak(manager);
    let (pool, gigantic) = (manager.pool(TWO), manager.pool(GIB));
    gigantic.resize(3, &NoHelpers).expect("nobody else resizes");
    pool.resize(700, &HelperPool::on_nodes(&[0, 1])).expect("nobody else resizes");
    assert_eq!(maps.pages(), [700, 3]);
    gigantic.demote(1).expect("three are free");
    assert_eq!(maps.pages(), [700 + 512, 2]);
    pool.set_overcommit(9).expect("2 MiB pages can");
    pool.reserve(700 + 512 + 5, NodeMask::ALL).expect("overcommit allows five");
    assert_eq!(maps.pages()[0], 700 + 512 + 5);
    pool.unreserve(700 + 512 + 5).expect("are promised");
    pool.resize(0, &NoHelpers).expect("nobody else resizes");
    let surplus = pool.allocate(NodeChoice::Any, false).expect("overcommit allows it");
    assert_eq!(maps.pages(), [1, 2]);
    pool.give_back_page(surplus.start).expect("was allocated");
    gigantic.resize(0, &NoHelpers).expect("nobody else resizes");
    assert_eq!((maps.pages(), maps.at_boot.load(Ordering::Relaxed)), ([0, 0], 0));
    check(manager);
    let parameters = parameters("hugepages=3");
    manager.hugetlb().fill(&parameters, &NoHelpers);
    assert_eq!(maps.pages(), [3, 0]);
    assert!(maps.at_boot.load(Ordering::Relaxed) > 0);
    // Freeing never fails, however little memory there is.
    let mut held = Vec::new();
    while let Ok(page) =
        manager.allocate(&Request { reserves: Reserves::All, ..Request::new(Order::PAGE) })
    {
        held.push(page);
        if held.len() > 6 << 18 {
            break;
        }
        if held.len() == 1 {
            while let Ok(block) =
                manager.allocate(&Request { reserves: Reserves::All, ..Request::new(Order::BLOCK) })
            {
                held.push(block);
            }
        }
    }
    assert_eq!(crate::common::settled(manager).free_pages, 0);
    pool.resize(0, &NoHelpers).expect("nobody else resizes");
    assert_eq!((maps.pages(), numbers(&pool)[0]), ([0, 0], 0));
    assert_eq!(crate::common::settled(manager).free_pages, 3 * 512);
    manager.hugetlb().set_vmemmap_hook(None);
    check(manager);
}

#[test]
fn memory_that_descriptors_give_back_makes_more_pages() {
    let manager: &'static Fake = Box::leak(Box::new(bring_up(machine())));
    let maps = Maps::leak(manager);
    let mut held = maps.blocks.lock().expect("nobody panicked");
    while let Ok(block) =
        manager.allocate(&Request { fail_fast: true, ..Request::new(Order::BLOCK) })
    {
        held.push(block);
    }
    // One block is left, and each batch frees one more.
    let count = held.len().min(20);
    let rest = held.split_off(count);
    drop(held);
    manager.give_back(rest[0]).expect("was allocated");
    let resized =
        manager.pool(TWO).resize(1 + count as u64, &NoHelpers).expect("nobody else resizes");
    assert_eq!(resized.reached, 1 + count as u64);
    manager.hugetlb().set_vmemmap_hook(None);
    check(manager);
}

/// Memory that only movable requests may have does not replace memory that all requests need.
#[test]
fn gigantic_pages_at_boot_leave_memory_for_those_who_cannot_have_a_grade() {
    let line = "kernelcore=2G hugepagesz=1G hugepages=8";
    let machine = FakeMachine::builder().ram(gib(1, 9)).cpus(1).build();
    let manager = bring_up_with(machine, &[], &parameters(line)).expect("bring-up");
    let filled = manager.hugetlb().fill(&parameters(line), &NoHelpers);
    check(&manager);
    assert!(filled.pools.iter().any(|pool| pool.got >= 1), "one of two and a half can be spared");
    let kernels = Request { migrate_type: MigrateType::Unmovable, ..Request::new(Order::PAGE) };
    for _ in 0..10_000 {
        manager.allocate(&kernels).expect("there is a GiB of it");
    }
}
