//! Free pages of pools in memory that a caller wants: other pages take their places.

use crate::common::pool_machine::{GIB, TWO, check, machine, nr_of, numbers};
use crate::common::{Fake, bring_up, bring_up_with, gib, is_careful, parameters, settled};
use framewright::hugetlb::{NodeMask, PoolSize};
use framewright::manager::{Budget, ObstacleKind, Poisoned, RangeError, VacateError};
use framewright::memblock::NodeChoice;
use framewright::units::{Order, PAGES_PER_BLOCK, Pfn, PfnRange};
use framewright::{MoveFailed, MoveToken, Mover, NotNow, Occupant, Platform, Request, Reserves};
use framewright_jobs::NoHelpers;
use framewright_testkit::{FakeMachine, FakeVmemmap, Owner, PoolOwner};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// A page that is free in its pool.
fn free_page(manager: &Fake, size: PoolSize) -> PfnRange {
    let pool = manager.pool(size);
    let page = pool.allocate(NodeChoice::Any, false).expect("one is free");
    pool.give_back_page(page.start).expect("allocated just now");
    page
}

fn take(manager: &Fake, range: PfnRange) -> Result<PfnRange, RangeError> {
    manager.moving().allocate_range(range, Budget::UNLIMITED)
}

fn kind(error: &RangeError) -> Option<ObstacleKind> {
    match error {
        RangeError::Vacate(VacateError::Obstacles { obstacles, .. }) => Some(obstacles.first.kind),
        _ => None,
    }
}

fn part(page: PfnRange, start: u64, end: u64) -> PfnRange {
    PfnRange { start: page.start.add(start), end: page.start.add(end) }
}

/// Allocates everything that belongs neither to a pool nor to an area, in blocks.
fn all_blocks(manager: &Fake) -> Vec<PfnRange> {
    let request = Request { reserves: Reserves::All, ..Request::new(Order::BLOCK) };
    std::iter::from_fn(|| manager.allocate(&request).ok()).collect()
}

#[test]
fn others_take_the_places_of_free_pages() {
    for (size, pages) in [(TWO, 20), (GIB, 2)] {
        let manager = bring_up(machine());
        let pool = manager.pool(size);
        assert_eq!(pool.resize(pages, &NoHelpers).expect("nobody else resizes").reached, pages);
        let used = pool.allocate(NodeChoice::Any, false).expect("is free");
        let before = (numbers(&pool), nr_of(&pool), settled(&manager).free_pages);
        // The whole page, parts of it, and the frames at its ends.
        for (start, end) in [(0, size.frames()), (100, 150), (0, 3), (size.frames() - 9, 0)] {
            let page = free_page(&manager, size);
            let end = if end == 0 { size.frames() } else { end };
            let range = part(page, start, end);
            let is_all = size == TWO || range == page;
            match take(&manager, range) {
                Ok(taken) => {
                    assert!(is_all && taken == range);
                    check(&manager);
                    manager.give_back(taken).expect("taken");
                }
                // A pool page is not divided.
                Err(error) => assert!(!is_all, "{size} {range:?}: {error}"),
            }
            check(&manager);
            let after = (numbers(&pool), nr_of(&pool), settled(&manager).free_pages);
            assert_eq!(after, before, "{size} {range:?}");
        }
        assert_eq!(kind(&take(&manager, used).expect_err("used")), Some(ObstacleKind::Pool));
        pool.give_back_page(used.start).expect("allocated");
        // Pages that back a reservation can be replaced, too, because as many as before remain.
        pool.reserve(pages, NodeMask::ALL).expect("all are free");
        let page = pool.allocate(NodeChoice::Any, true).expect("reserved");
        pool.give_back_page(page.start).expect("allocated");
        manager.give_back(take(&manager, page).expect("there are others")).expect("taken");
        check(&manager);
        assert_eq!(numbers(&pool)[..3], [pages, pages, pages]);
        let all: Vec<_> =
            (0..pages).map(|_| pool.allocate(NodeChoice::Any, true).expect("promised")).collect();
        all.iter().for_each(|page| pool.give_back_page(page.start).expect("allocated"));
    }
}

#[test]
fn a_page_for_which_there_is_no_other_stays() {
    let manager = bring_up(machine());
    let pool = manager.pool(TWO);
    pool.resize(8, &NoHelpers).expect("nobody else resizes");
    let page = free_page(&manager, TWO);
    let held = all_blocks(&manager);
    let before = (numbers(&pool), settled(&manager));
    let failed = take(&manager, page).expect_err("there is no other");
    assert_eq!(kind(&failed), Some(ObstacleKind::NoMemory));
    check(&manager);
    assert_eq!((numbers(&pool), settled(&manager)), before);
    held.into_iter().for_each(|range| manager.give_back(range).expect("was allocated"));
    manager.give_back(take(&manager, page).expect("now there is")).expect("taken");
    check(&manager);
}

/// The new page gives up its part of the memory map as the old page did; the old page has its
/// descriptors again.
#[test]
fn pages_without_a_map_are_replaced() {
    let machine = FakeMachine::builder().ram(gib(0, 2)).build();
    FakeVmemmap::install(machine);
    let manager = bring_up_with(machine, &[], &parameters("memmap_init=eager")).expect("bring-up");
    manager.hugetlb().set_optimize_vmemmap(true);
    let pool = manager.pool(TWO);
    for _ in 0..3 {
        pool.resize(200, &NoHelpers).expect("nobody else resizes");
        for _ in 0..70 {
            let page = free_page(&manager, TWO);
            let taken = take(&manager, page).expect("there are others");
            for frame in 0..PAGES_PER_BLOCK {
                manager.give_back_order(taken.start.add(frame), Order::PAGE).expect("taken");
            }
            check(&manager);
        }
        assert_eq!(numbers(&pool)[..2], [200, 200]);
        pool.resize(0, &NoHelpers).expect("nobody else resizes");
        check(&manager);
    }
}

#[test]
fn pages_are_used_resized_and_replaced_at_once() {
    let manager = bring_up(machine());
    let pool = manager.pool(TWO);
    pool.resize(24, &NoHelpers).expect("nobody else resizes");
    let ended = AtomicBool::new(false);
    let replaced = std::thread::scope(|scope| {
        let users: Vec<_> = (1..3)
            .map(|cpu| {
                let (machine, manager, ended) = (manager.platform(), &manager, &ended);
                scope.spawn(move || {
                    machine.run_on(cpu, || {
                        let pool = manager.pool(TWO);
                        for round in 0_u64.. {
                            if ended.load(Ordering::Relaxed) {
                                break;
                            }
                            let mut held = Vec::new();
                            for _ in 0..8 {
                                let Ok(page) = pool.allocate(NodeChoice::Any, false) else { break };
                                write(manager, page.start, u64::from(cpu) << 32 | page.start.0);
                                held.push(page);
                            }
                            for page in held {
                                let mark = u64::from(cpu) << 32 | page.start.0;
                                assert_eq!(read(manager, page.start), mark);
                                pool.give_back_page(page.start).expect("ours");
                            }
                            if cpu == 2 && round % 8 == 0 {
                                let _ = pool.resize(20 + round / 8 % 9, &NoHelpers);
                            }
                        }
                    });
                })
            })
            .collect();
        let (mut replaced, mut tries) = (0, 0);
        let least = if is_careful() { 10 } else { 200 };
        // No page is free while pages are on their way.
        while replaced < least && tries < 100_000 {
            tries += 1;
            let Ok(page) = pool.allocate(NodeChoice::Any, false) else { continue };
            pool.give_back_page(page.start).expect("ours");
            if let Ok(taken) = take(&manager, page) {
                write(&manager, page.start, 7);
                std::thread::yield_now();
                assert_eq!(read(&manager, page.start), 7);
                manager.give_back(taken).expect("taken");
                replaced += 1;
            }
        }
        ended.store(true, Ordering::Relaxed);
        users.into_iter().for_each(|user| user.join().expect("no user fails"));
        replaced
    });
    assert_ne!(replaced, 0);
    check(&manager);
    pool.resize(0, &NoHelpers).expect("nobody else resizes");
    check(&manager);
    assert_eq!(numbers(&pool), [0; 5]);
}

fn write(manager: &Fake, page: Pfn, word: u64) {
    // SAFETY: a page of the machine's memory, which the caller owns.
    unsafe { manager.platform().direct(page.address()).cast::<u64>().write(word) };
}

fn read(manager: &Fake, page: Pfn) -> u64 {
    // SAFETY: as above.
    unsafe { manager.platform().direct(page.address()).cast::<u64>().read() }
}

/// Owns one run, which can be moved.
struct OneRun<'m>(&'m FakeMachine, Mutex<PfnRange>);

// SAFETY: the mover owns the run, and the place that it moves to.
unsafe impl Mover for OneRun<'_> {
    fn occupant(&self, pfn: Pfn) -> Occupant {
        let run = *self.1.lock().expect("alive");
        if run.contains(pfn) { Occupant::Movable(run) } else { Occupant::Unknown }
    }

    fn begin(&self, _: PfnRange) -> Result<MoveToken, NotNow> {
        Ok(MoveToken(0))
    }

    unsafe fn relocate(&self, _: MoveToken, at: PfnRange, to: PfnRange) -> Result<(), MoveFailed> {
        let [from, into] = [at, to].map(|run| self.0.direct(run.start.address()).as_ptr());
        let bytes = usize::try_from(at.pages() * 4096).expect("at most a GiB");
        // SAFETY: as above.
        unsafe { into.copy_from_nonoverlapping(from, bytes) };
        *self.1.lock().expect("alive") = to;
        Ok(())
    }

    unsafe fn abort(&self, _: MoveToken, _: PfnRange) {}
}

#[test]
fn a_page_that_goes_costs_no_run_of_the_budget() {
    let manager = bring_up(machine());
    let pool = manager.pool(TWO);
    pool.resize(8, &NoHelpers).expect("nobody else resizes");
    let page = free_page(&manager, TWO);
    let before = PfnRange { start: Pfn(page.start.0 - PAGES_PER_BLOCK), end: page.start };
    let run = take(&manager, before).expect("free, or free in the pool");
    let both = PfnRange { end: page.end, ..run };
    let mover = OneRun(manager.platform(), Mutex::new(run));
    let moving = || manager.moving().by(&mover);
    moving().allocate_range(both, Budget::runs(0)).expect_err("there is one to be moved");
    moving().allocate_range(both, Budget::runs(1)).expect("there is only one");
    check(&manager);
    let page = free_page(&manager, TWO);
    manager.moving().allocate_range(page, Budget::runs(1)).expect("there is none to be moved");
    check(&manager);
    assert_eq!(numbers(&pool)[..2], [8, 8]);
}

#[test]
fn a_page_with_an_error_stays() {
    let manager = bring_up(machine());
    let pool = manager.pool(TWO);
    pool.resize(4, &NoHelpers).expect("nobody else resizes");
    let page = free_page(&manager, TWO);
    pool.reserve(4, NodeMask::ALL).expect("all are free");
    assert_eq!(pool.poison(page.start.add(1)), Ok(Poisoned::Stays));
    let before = numbers(&pool);
    let error = take(&manager, page).expect_err("it is bad");
    assert_eq!(kind(&error), Some(ObstacleKind::Poisoned));
    check(&manager);
    assert_eq!(numbers(&pool), before);
}

/// Nothing is moved out of an area for it, because that would cost more than the caller expects.
#[test]
fn no_area_gives_pages_for_others_that_go() {
    let machine = FakeMachine::builder().ram(gib(4, 8)).build();
    let manager = bring_up_with(machine, &[], &parameters("hugetlb_cma=1G")).expect("bring-up");
    let number = manager.moving().area_named("hugetlb0").expect("made at boot");
    let (_, area, before) = manager.moving().area(number).expect("there");
    let pool = manager.pool(GIB);
    assert_eq!(pool.resize(2, &NoHelpers).expect("nobody else resizes").reached, 2);
    let pages = [0, 1].map(|_| pool.allocate(NodeChoice::Any, false).expect("free"));
    let [inside, other] = if area.contains(pages[0].start) { pages } else { [pages[1], pages[0]] };
    assert!(area.contains(inside.start) && !area.contains(other.start));
    pool.give_back_page(inside.start).expect("used");
    pool.resize(1, &NoHelpers).expect("nobody else resizes");
    pool.give_back_page(other.start).expect("used");
    // Allocates everything but the area's memory.
    let _held = all_blocks(&manager);
    let error = take(&manager, other).expect_err("there is no other but in the area");
    assert_eq!(kind(&error), Some(ObstacleKind::NoMemory));
    match error {
        RangeError::Vacate(VacateError::Obstacles { obstacles, .. }) => {
            assert_eq!((obstacles.first.run, obstacles.count), (other, 1));
        }
        error => panic!("{error}"),
    }
    check(&manager);
    let (.., after) = manager.moving().area(number).expect("there");
    assert_eq!((numbers(&pool)[0], after.available_pages), (1, before.available_pages));
}
