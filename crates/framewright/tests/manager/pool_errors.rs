//! Pool pages that must not be handed out, in pools in any order. Handling a memory error costs the
//! same for a pool of any size, also while pages are on their way, and a search skips isolated
//! pages.

use crate::common::pool_machine::{GIB, TWO, check, machine, numbers};
use crate::common::{Fake, bring_up, is_careful};
use framewright::hugetlb::{NodeMask, PoolSize};
use framewright::manager::{Poisoned, PoolBatch, PoolVmemmap};
use framewright::memblock::NodeChoice;
use framewright::units::{Order, Pfn, PfnRange};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::{Reclaim, Request, Shortage};
use framewright_jobs::NoHelpers;
use framewright_testkit::{FakeMachine, Owner, PoolOwner};
use std::iter::from_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, OnceLock};

/// A generator of random numbers.
fn random(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed | 1;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state >> 20).expect("64 bits") % below
    }
}

/// Fills a pool with `pages` free pages that stand in its lists in random order.
fn shuffled(manager: &Fake, size: PoolSize, pages: u64) -> Vec<Pfn> {
    let pool = manager.pool(size);
    pool.resize(pages, &NoHelpers).expect("nobody else resizes");
    let mut all: Vec<Pfn> =
        (0..pages).map(|_| pool.allocate(NodeChoice::Any, false).expect("is free").start).collect();
    let mut random = random(pages);
    for last in (1..all.len()).rev() {
        all.swap(last, random(last + 1));
    }
    all.iter().for_each(|&page| pool.give_back_page(page).expect("was allocated"));
    all
}

fn blocks_of(page: Pfn) -> BlockRange {
    let start = BlockNumber::containing(page);
    BlockRange { start, end: BlockNumber(start.0 + 1) }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_memory_error_costs_the_same_in_a_pool_of_any_size() {
    if is_careful() {
        return;
    }
    let cost = |pages: u64| {
        let manager = bring_up(machine());
        let pool = manager.pool(TWO);
        let all = shuffled(&manager, TWO, pages);
        let mut most = 0;
        for page in all.iter().step_by(all.len() / 12) {
            let (result, instructions) =
                framewright_testkit::count_instructions(|| pool.poison(page.add(5)));
            assert_eq!(result, Ok(Poisoned::Left));
            most = most.max(instructions);
        }
        check(&manager);
        most
    };
    let (small, large) = (cost(24), cost(2400));
    assert!(
        large < small + small / 2,
        "{small} instructions in a pool of 24 pages, {large} in one of 2400"
    );
}

#[test]
fn errors_in_any_order_leave_the_books_true() {
    for (size, pages) in [(TWO, 200), (GIB, 4)] {
        let manager = bring_up(machine());
        let pool = manager.pool(size);
        let mut all = shuffled(&manager, size, pages);
        let mut random = random(7);
        let mut left = pages;
        while let Some(page) = (!all.is_empty()).then(|| all.swap_remove(random(all.len()))) {
            if random(3) == 0 {
                let page = pool.allocate(NodeChoice::Any, false).expect("is free");
                pool.give_back_page(page.start).expect("was allocated");
            }
            assert_eq!(pool.poison(page), Ok(Poisoned::Left));
            left -= 1;
            assert_eq!(
                (numbers(&pool), pool.counts().leaked),
                ([left, left, 0, 0, left], pages - left)
            );
            if left.is_multiple_of(20) || size == GIB {
                check(&manager);
            }
        }
        assert!(pool.allocate(NodeChoice::Any, false).is_err());
    }
}

/// Reports memory errors while a resize has pages on their way.
struct Errors {
    manager: &'static Fake,
    /// A page that is free in the pool.
    there: OnceLock<Pfn>,
    found: Mutex<Vec<Poisoned>>,
}

impl Errors {
    fn strike(&self, batch: &PoolBatch<'_>) {
        let Some(&there) = self.there.get() else { return };
        // Only once, and not again if the error itself makes a page leave.
        let Ok(mut found) = self.found.try_lock() else { return };
        if found.is_empty() {
            let pool = self.manager.pool(batch.size);
            let moving: PfnRange = batch.runs[0];
            for page in [there, moving.start, there] {
                found.push(pool.poison(page).expect("is a pool's"));
            }
        }
    }
}

impl PoolVmemmap for Errors {
    unsafe fn before_publish(&self, batch: &PoolBatch<'_>) -> u64 {
        self.strike(batch);
        0
    }

    unsafe fn before_free(&self, batch: &PoolBatch<'_>) {
        self.strike(batch);
    }
}

#[test]
fn errors_during_a_resize_leave_when_it_ends() {
    for (size, pages) in [(TWO, 60), (GIB, 4)] {
        for to in [pages + 1, pages / 2] {
            let manager: &'static Fake = Box::leak(Box::new(bring_up(machine())));
            let pool = manager.pool(size);
            let all = shuffled(manager, size, pages);
            let maps: &'static Errors = Box::leak(Box::new(Errors {
                manager,
                there: OnceLock::new(),
                found: Mutex::default(),
            }));
            // The page that was freed first is handed out last, so that a resize to half the pages
            // leaves it there.
            maps.there.set(all[0]).expect("once");
            manager.hugetlb().set_vmemmap_hook(Some(maps));
            pool.resize(to, &NoHelpers).expect("nobody else resizes");
            assert_eq!(*maps.found.lock().expect("nobody panicked"), [Poisoned::Stays; 3]);
            manager.hugetlb().set_vmemmap_hook(None);
            // The page that was in the pool and the page that was on its way.
            assert_eq!(pool.counts().leaked, 2);
            let nr = if to > pages { to - 2 } else { to - 1 };
            assert_eq!(numbers(&pool), [nr, nr, 0, 0, nr]);
            check(manager);
            // No page of the pool is bad any more.
            assert_eq!(
                (0..nr).filter(|_| pool.allocate(NodeChoice::Any, false).is_ok()).count() as u64,
                nr
            );
            check(manager);
        }
    }
}

#[test]
fn a_good_page_behind_many_isolated_ones_is_found() {
    let manager = bring_up(machine());
    let pool = manager.pool(TWO);
    let all = shuffled(&manager, TWO, 500);
    let (good, others) = all.split_first().expect("500");
    others.iter().for_each(|&page| assert!(manager.isolation().isolate(blocks_of(page)).is_ok()));
    let page = pool.allocate(NodeChoice::Any, false).expect("one is good");
    assert_eq!(page.start, *good);
    assert!(pool.allocate(NodeChoice::Any, false).is_err());
    // A reservation is served by the good page.
    pool.reserve(3, NodeMask::ALL).expect("499 are free");
    assert!(pool.allocate(NodeChoice::Any, true).is_err());
    pool.give_back_page(page.start).expect("was allocated");
    assert_eq!(pool.allocate(NodeChoice::Any, true), Ok(page));
    check(&manager);
    others
        .iter()
        .for_each(|&page| manager.isolation().unisolate(blocks_of(page)).expect("is isolated"));
    pool.give_back_page(page.start).expect("was allocated");
    pool.resize(0, &NoHelpers).expect("nobody else resizes");
    check(&manager);
}

#[test]
fn a_search_among_isolated_pages_lets_the_lock_go() {
    let manager = bring_up(machine());
    let pool = manager.pool(TWO);
    let all = shuffled(&manager, TWO, 1000);
    all.iter().for_each(|&page| assert!(manager.isolation().isolate(blocks_of(page)).is_ok()));
    let machine: &FakeMachine = manager.platform();
    let before = machine.calls().irq_save;
    assert!(pool.allocate(NodeChoice::Any, false).is_err());
    let holds = machine.calls().irq_save - before;
    assert!(holds >= 1000 / 64, "1000 pages in {holds} holds of the lock");
}

/// Isolates a page on its way into a pool, or reports a memory error in it.
struct Spoils {
    manager: &'static Fake,
    isolates: bool,
}

impl PoolVmemmap for Spoils {
    unsafe fn before_publish(&self, batch: &PoolBatch<'_>) -> u64 {
        let start = batch.runs[0].start;
        if self.isolates {
            self.manager.isolation().isolate(blocks_of(start)).expect("all of it");
        } else {
            self.manager.pool(batch.size).poison(start).expect("is a pool's");
        }
        0
    }

    unsafe fn before_free(&self, _: &PoolBatch<'_>) {}
}

/// A page that is not handed out in the end is not counted.
#[test]
fn a_surplus_page_that_goes_bad_on_its_way_was_never_in_the_pool() {
    for isolates in [true, false] {
        let manager: &'static Fake = Box::leak(Box::new(bring_up(machine())));
        let pool = manager.pool(TWO);
        pool.set_overcommit(1).expect("any number");
        let before = numbers(&pool);
        let spoils: &'static Spoils = Box::leak(Box::new(Spoils { manager, isolates }));
        manager.hugetlb().set_vmemmap_hook(Some(spoils));
        assert!(pool.allocate(NodeChoice::Any, false).is_err());
        manager.hugetlb().set_vmemmap_hook(None);
        assert_eq!(numbers(&pool), before, "{isolates}");
        check(manager);
        // The one page that overcommit allows can still be allocated.
        let page = pool.allocate(NodeChoice::Any, false).expect("there is memory");
        pool.give_back_page(page.start).expect("was allocated");
        assert_eq!(numbers(&pool), before, "{isolates}");
        check(manager);
    }
}

/// Frees what it holds at its first call, and panics at the second.
struct Mortal {
    manager: &'static Fake,
    held: Mutex<Vec<PfnRange>>,
}

impl Reclaim for Mortal {
    fn reclaim(&self, _wanted: &Shortage) -> u64 {
        let held = std::mem::take(&mut *self.held.lock().expect("nobody panicked"));
        assert!(!held.is_empty(), "the second call");
        held.iter().for_each(|&block| self.manager.give_back(block).expect("was allocated"));
        held.len() as u64 * 512
    }
}

#[test]
fn a_reclaim_hook_that_dies_loses_no_page_of_a_resize() {
    let manager: &'static Fake = Box::leak(Box::new(bring_up(machine())));
    let request = Request { fail_fast: true, ..Request::new(Order::BLOCK) };
    let mut held: Vec<PfnRange> = from_fn(|| manager.allocate(&request).ok()).collect();
    let last = held.split_off(held.len() - 4);
    let hook: &'static Mortal = Box::leak(Box::new(Mortal { manager, held: Mutex::new(last) }));
    manager.pressure().set_reclaim(Some(hook));
    let pool = manager.pool(TWO);
    assert!(catch_unwind(AssertUnwindSafe(|| pool.resize(8, &NoHelpers))).is_err());
    check(manager);
    manager.pressure().set_reclaim(None);
    assert_eq!(pool.resize(4, &NoHelpers).expect("nobody else resizes").reached, 4);
    check(manager);
}

/// Returns a free page that has a memory error while all free pages of its pool are reserved.
fn stuck(manager: &Fake, size: PoolSize, pages: u64) -> Pfn {
    let pool = manager.pool(size);
    let bad = shuffled(manager, size, pages)[1];
    pool.reserve(pages, NodeMask::ALL).expect("are free");
    assert_eq!(pool.poison(bad), Ok(Poisoned::Stays));
    assert_eq!((numbers(&pool), pool.counts().leaked), ([pages, pages, pages, 0, pages], 0));
    check(manager);
    bad
}

#[test]
fn a_bad_page_leaves_as_soon_as_a_free_page_is_not_reserved() {
    let ways: [fn(&Fake); 3] = [
        |manager| manager.pool(TWO).unreserve(1).expect("is reserved"),
        |manager| {
            let pool = manager.pool(TWO);
            let page = pool.allocate(NodeChoice::Any, true).expect("is reserved");
            pool.commit(page.start).expect("was allocated");
            assert_eq!(pool.counts().leaked, 0);
            pool.give_back_page(page.start).expect("was allocated");
        },
        |manager| {
            manager.pool(TWO).resize(5, &NoHelpers).expect("nobody else resizes");
        },
    ];
    for (number, (way, left)) in ways.iter().zip([3, 3, 4]).enumerate() {
        let manager = bring_up(machine());
        let pool = manager.pool(TWO);
        stuck(&manager, TWO, 4);
        way(&manager);
        let counts = pool.counts();
        let is = [counts.all.nr, counts.all.free, counts.reserved, counts.leaked];
        assert_eq!(is, [left, left, left, 1], "way {number}");
        // The remaining pages are good.
        for _ in 0..left {
            pool.allocate(NodeChoice::Any, true).expect("is reserved");
        }
        check(&manager);
    }
}

#[test]
fn a_bad_page_of_one_size_does_not_wait_for_that_of_another() {
    for first in [TWO, GIB] {
        let manager = bring_up(machine());
        let second = if first == TWO { GIB } else { TWO };
        stuck(&manager, first, 2);
        stuck(&manager, second, 2);
        for (size, leaked) in [(second, [0, 1]), (first, [1, 1])] {
            manager.pool(size).unreserve(1).expect("is reserved");
            assert_eq!([first, second].map(|size| manager.pool(size).counts().leaked), leaked);
            check(&manager);
        }
    }
}
