//! Pools that take pages of reserve areas, devices that use areas, movable memory, compaction,
//! grades and isolation, all at once. No frame has two owners, and in the end each area has all of
//! its frames back.

use crate::common::pool_machine::{GIB, TWO, check, node};
use crate::common::{Fake, bring_up_with, gib, is_careful, order, parameters, retire, settled};
use framewright::manager::{Budget, ContiguousRequest, MOST_AREAS};
use framewright::memblock::NodeChoice;
use framewright::units::{Order, PfnRange};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::Grade;
use framewright_jobs::NoHelpers;
use framewright_testkit::workload::{Habits, Handle, Handles};
use framewright_testkit::{FakeMachine, FakeVmemmap, HelperPool, Owner, PoolOwner};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

fn random(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

fn below(seed: &mut u64, limit: usize) -> usize {
    usize::try_from(random(seed)).expect("31 bits") % limit
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs that some thread owns: start and end.
#[derive(Default)]
struct Owned(Mutex<BTreeMap<u64, u64>>);

impl Owned {
    fn take(&self, run: PfnRange) {
        let mut owned = self.0.lock().expect("no panic");
        let before = owned.range(..run.end.0).next_back();
        assert!(before.is_none_or(|(_, &end)| end <= run.start.0), "{run:?} was given twice");
        owned.insert(run.start.0, run.end.0);
    }

    fn give(&self, run: PfnRange) {
        let end = self.0.lock().expect("no panic").remove(&run.start.0);
        assert_eq!(end, Some(run.end.0));
    }
}

type Movable = Handles<'static, FakeMachine>;

/// Allocates and frees movable memory until `stop` is set.
fn use_movable(handles: &Movable, stop: &AtomicBool, mut seed: u64) {
    let mut mine = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let of = [0, 0, 1, 3, 5, 8, 9, 9, 10][below(&mut seed, 9)];
        if mine.len() < 2000
            && let Ok(handle) = handles.allocate(order(of))
        {
            mine.push(handle);
        }
        if mine.is_empty() {
            continue;
        }
        let at = below(&mut seed, mine.len());
        match below(&mut seed, 6) {
            0 => handles.check(mine[at]).expect("intact"),
            1 | 2 => handles.free(mine.swap_remove(at)).expect("mine"),
            _ => {}
        }
    }
    mine.into_iter().for_each(|handle| handles.free(handle).expect("mine"));
}

/// Uses pages of the pool and runs of areas until `stop` is set.
fn use_pages_and_areas(manager: &Fake, owned: &Owned, stop: &AtomicBool, mut seed: u64) {
    let (moving, pool) = (manager.moving(), manager.pool(GIB));
    let (mut pages, mut runs): (Vec<PfnRange>, Vec<(usize, PfnRange)>) = Default::default();
    let free = |page: PfnRange| {
        owned.give(page);
        pool.give_back_page(page.start).expect("held");
    };
    let release = |(area, run): (usize, PfnRange)| {
        owned.give(run);
        // SAFETY: the area gave the run to this thread, which no longer uses it.
        unsafe { moving.release_to_area(area, run) }.expect("ours");
    };
    while !stop.load(Ordering::Relaxed) {
        match below(&mut seed, 5) {
            0 if pages.len() < 2 => {
                if let Ok(page) = pool.allocate(NodeChoice::Any, false) {
                    owned.take(page);
                    pages.push(page);
                }
            }
            1 => pages.pop().into_iter().for_each(free),
            2 if runs.len() < 3 => {
                let area = below(&mut seed, 3);
                let size = [1, 77, 512, 3000, 70_000, 1 << 18][below(&mut seed, 6)];
                let align = order([0, 3, 9][below(&mut seed, 3)]);
                if let Ok(run) = moving.allocate_in_area(area, size, align, Budget::runs(3000)) {
                    owned.take(run);
                    runs.push((area, run));
                }
            }
            _ if !runs.is_empty() => release(runs.swap_remove(below(&mut seed, runs.len()))),
            _ => {}
        }
        thread::yield_now();
    }
    runs.into_iter().for_each(release);
    pages.into_iter().for_each(free);
}

/// One round of a thread that resizes pools.
fn resize(manager: &Fake, owned: &Owned, helpers: &HelperPool, seed: &mut u64) {
    let pool = manager.pool(GIB);
    match below(seed, 8) {
        0..=2 => _ = pool.resize(random(seed) % 4, helpers),
        3 => _ = pool.resize_node(node(0), random(seed) % 3, &NoHelpers),
        4 => _ = pool.demote(1 + random(seed) % 2),
        5 => _ = manager.pool(TWO).resize(random(seed) % 30, helpers),
        _ => {
            if let Ok(page) = pool.allocate(NodeChoice::Any, false) {
                owned.take(page);
                owned.give(page);
                pool.give_back_page(page.start).expect("held");
            }
        }
    }
}

/// One round of a thread that changes blocks.
fn change(manager: &Fake, owned: &Owned, regrades: bool, seed: &mut u64) {
    let (moving, isolation) = (manager.moving(), manager.isolation());
    let start = u32::try_from(2048 + random(seed) % 2500).expect("small");
    let range = BlockRange::new(start, start + 1 + u32::try_from(random(seed) % 8).expect("small"));
    match below(seed, 8) {
        0 | 1 if regrades => {
            let is_lent = moving.grade_of(range.start.start()) == Some(Grade::Removable);
            if moving.set_grade(range, Grade::Any).is_ok() && is_lent {
                let _ = moving.set_grade(range, Grade::Removable);
            }
        }
        2 | 3 => {
            if isolation.isolate(range).is_ok() {
                thread::yield_now();
                isolation.unisolate(range).expect("isolated");
            }
        }
        4 => {
            if moving.vacate(range, Budget::runs(3000)).is_ok() {
                isolation.unisolate(range).expect("isolated");
            }
        }
        _ => {
            let request = ContiguousRequest::new(1 + random(seed) % 9000);
            if let Ok(run) = moving.allocate_contiguous(&request, Budget::runs(5000)) {
                owned.take(run);
                owned.give(run);
                manager.give_back_to_zone(run).expect("ours");
            }
        }
    }
}

/// Runs everything named at the head of this file for some rounds.
fn hammer(manager: &'static Fake, handles: &'static Movable, regrades: bool, number: u64) {
    let rounds = std::env::var("HAMMER_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(8);
    let (owned, stop) = (Owned::default(), AtomicBool::new(false));
    thread::scope(|scope| {
        // Stops the workers however the scope is left.
        let _stop = Stop(&stop);
        let (owned, stop) = (&owned, &stop);
        for worker in 0..2_u64 {
            scope.spawn(move || use_movable(handles, stop, worker * 77 + number));
        }
        scope.spawn(move || use_pages_and_areas(manager, owned, stop, number + 1234));
        scope.spawn(move || {
            let (mut compactor, mut now) = (manager.moving().compactor(), 0);
            while !stop.load(Ordering::Relaxed) {
                now = compactor.poll(now);
                let _ = manager.pressure().background();
                thread::yield_now();
            }
        });
        let changers: Vec<_> = (0..3_u64)
            .map(|worker| {
                scope.spawn(move || {
                    let (mut seed, helpers) = (number * 3 + worker + 99, HelperPool::new(1));
                    for _ in 0..rounds {
                        if worker == 2 {
                            change(manager, owned, regrades, &mut seed);
                        } else {
                            resize(manager, owned, &helpers, &mut seed);
                        }
                    }
                })
            })
            .collect();
        changers.into_iter().for_each(|changer| changer.join().expect("no panic"));
    });
}

/// Checks that no run of any area is out, and that each area can be had as one run.
fn look_at_areas(manager: &Fake, line: &str) {
    let moving = manager.moving();
    for number in 0..MOST_AREAS {
        let Some((_, range, counts)) = moving.area(number) else { continue };
        assert_eq!(counts.available_pages, range.pages(), "{line}");
        let blocks = BlockNumber::containing(range.start).0..BlockNumber::containing(range.end).0;
        for block in blocks {
            let start = BlockNumber(block).start();
            assert_eq!(moving.grade_of(start), Some(Grade::Removable), "{line}");
        }
        let all = moving.allocate_in_area(number, range.pages(), Order::BLOCK, Budget::UNLIMITED);
        assert_eq!(all, Ok(range), "{line}");
        // SAFETY: the run was just allocated, and nobody uses it.
        unsafe { moving.release_to_area(number, range) }.expect("ours");
    }
}

#[test]
fn no_frame_of_an_area_is_lost_or_given_twice() {
    if is_careful() {
        return;
    }
    for (number, line) in (0_u64..).zip([
        "hugetlb_cma=0:2G,1:1G cma=64M",
        "hugetlb_cma=0:2G,1:1G page_owner=on",
        "hugetlb_cma=0:2G,1:1G zone_parts=4",
        "hugetlb_cma=0:2G hugetlb_cma_only=on hugetlb_free_vmemmap=on memmap_init=eager",
        "hugetlb_cma=0:2G,1:1G hugetlb_free_vmemmap=on memmap_init=deferred zone_parts=2",
        "hugetlb_cma=0:2G,1:1G page_alloc.shuffle=1",
        "hugetlb_cma=0:1G,1:1G pages=inside",
    ]) {
        let builder = FakeMachine::builder().ram(gib(4, 8)).ram(gib(8, 10)).cpus(9);
        let machine = builder.node(gib(4, 8), 0).node(gib(8, 10), 1).build();
        // Page tables of the memory map come and go, and lie anywhere.
        let has_array = line.contains("memmap_init");
        if has_array {
            FakeVmemmap::install(machine);
        }
        let manager: &'static Fake =
            Box::leak(Box::new(bring_up_with(machine, &[], &parameters(line)).expect("bring-up")));
        manager.hugetlb().fill(&parameters(line), &NoHelpers);
        manager.vmemmap().initialise_deferred(&NoHelpers);
        let handles: &'static Movable =
            Box::leak(Box::new(Handles::new(manager, 1 << 13).expect("memory")));
        handles.set_habits(Habits { refuse_every: 3001, fail_every: 3701, ..Habits::default() });
        manager.moving().set_mover(Some(handles));
        let before = settled(manager);
        for of in [9, 0, 8, 9].into_iter().cycle().take(900) {
            handles.allocate(order(of)).expect("memory");
        }
        let lent: Vec<Handle> = handles.held().collect();
        hammer(manager, handles, !has_array, number);
        check(manager);
        for handle in lent {
            handles.check(handle).expect("intact");
            handles.free(handle).expect("held");
        }
        for size in [GIB, TWO] {
            let resized = manager.pool(size).resize(0, &NoHelpers).expect("nobody else resizes");
            let counts = manager.pool(size).counts();
            assert_eq!((resized.reached, counts.all.nr, counts.leaked), (0, 0, 0), "{line}");
        }
        let after = settled(manager);
        assert_eq!(after.isolated_pages, 0, "{line}");
        // Giving up memory maps gains memory.
        let lost = after.allocated_pages.saturating_sub(before.allocated_pages);
        assert_eq!(lost, 0, "{line}: {before:?}, then {after:?}");
        assert!(has_array || after.allocated_pages == before.allocated_pages, "{line}");
        look_at_areas(manager, line);
        check(manager);
        manager.moving().set_mover(None);
        retire(manager);
    }
}
