//! Isolation holds whatever other features are on: withheld memory, page owners, pools that take
//! memory at the same time.

use crate::common::{Fake, bring_up_with, check, gib, order, parameters};
use framewright::debug::PageHistory;
use framewright::hugetlb::PoolSize;
use framewright::manager::Poisoned;
use framewright::memblock::NodeChoice;
use framewright::units::{Order, PfnRange};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::IsolateError;
use framewright::zone::{BlockState, MigrateType, State};
use framewright::{Request, Reserves};
use framewright_jobs::NoHelpers;
use framewright_testkit::{FakeMachine, FakeVmemmap, HelperPool, Owner, PoolOwner};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

fn blocks(start: u32, count: u32) -> BlockRange {
    BlockRange::new(start, start + count)
}

fn frames(range: BlockRange) -> PfnRange {
    PfnRange { start: range.start.start(), end: range.end.start() }
}

fn is_isolated(manager: &Fake, block: u32) -> bool {
    let state = manager.block_state(BlockNumber(block)).expect("a block");
    state.is(State::Isolated) || state.has(BlockState::ISOLATED)
}

fn deferred(cpus: u32) -> Fake {
    let machine = FakeMachine::builder().ram(gib(0, 8)).cpus(cpus).build();
    FakeVmemmap::install(machine);
    bring_up_with(machine, &[], &parameters("memmap_init=deferred")).expect("bring-up")
}

#[test]
fn withheld_memory_is_isolated_as_well() {
    for cpus in [1, 4] {
        let manager = deferred(cpus);
        let range = blocks(6 * 512 + 40, 64);
        let withheld = manager.totals().deferred_pages;
        assert!(withheld > 1 << 19);
        assert!(matches!(manager.isolation().unisolate(range), Err(IsolateError::NotIsolated(_))));
        assert!(manager.isolation().claim(range).is_err());
        let pages = manager.isolation().isolate(range).expect("free");
        assert_eq!((pages.free_pages, pages.reserved_pages), (64 * 512, 0));
        // Two sections of 128 MiB came up for the request.
        assert_eq!(manager.totals().deferred_pages, withheld - 2 * 32768);
        assert_eq!(manager.totals().isolated_pages, 64 * 512);
        check(&manager);
        manager.vmemmap().initialise_deferred(&NoHelpers);
        assert!((0..64).all(|block| is_isolated(&manager, range.start.0 + block)));
        let mut held = Vec::new();
        let wanted = Request { reserves: Reserves::All, ..Request::new(Order::BLOCK) };
        while let Ok(taken) = manager.allocate(&wanted) {
            assert!(
                taken.end <= frames(range).start || frames(range).end <= taken.start,
                "{taken:?} is isolated"
            );
            held.push(taken);
        }
        held.into_iter().for_each(|taken| manager.give_back(taken).expect("held"));
        let claimed = manager.isolation().claim(range).expect("all of it is free");
        manager.give_back(claimed).expect("held");
        check(&manager);
        assert_eq!(manager.totals().isolated_pages, 0);
    }
}

/// Isolation while other threads bring the memory up.
#[test]
fn isolating_while_memory_comes_up_misses_none() {
    for _ in 0..20 {
        let manager = deferred(6);
        let range = blocks(5 * 512, 1024);
        let pool = HelperPool::on_nodes(&[0, 0]);
        thread::scope(|scope| {
            let all = scope.spawn(|| manager.vmemmap().initialise_deferred(&pool));
            let pages = manager.isolation().isolate(range).expect("free");
            assert_eq!(pages.free_pages, 1024 * 512);
            all.join().expect("no panic");
        });
        assert!((0..1024).all(|block| is_isolated(&manager, range.start.0 + block)));
        check(&manager);
        manager.isolation().unisolate(range).expect("isolated");
        check(&manager);
        // SAFETY: the manager is no longer used.
        unsafe { manager.platform().retire() };
    }
}

/// A handler cannot wait for the section that the interrupted code is bringing up.
#[test]
fn a_handler_that_cannot_wait_isolates_what_it_can() {
    let manager = deferred(1);
    let range = blocks(6 * 512, 64);
    let pages = manager
        .platform()
        .interrupt(|| manager.isolation().isolate(range))
        .expect("nobody is at it");
    assert_eq!(pages.free_pages, 64 * 512);
    manager.isolation().unisolate(range).expect("isolated");
    check(&manager);
}

#[test]
fn claimed_memory_is_like_allocated_memory() {
    for line in [
        "",
        "page_owner=on",
        "init_on_alloc=1",
        "page_owner=on page_poison=1",
        "page_owner=on init_on_alloc=1",
        "careful=7",
    ] {
        let machine = FakeMachine::builder().ram(gib(0, 6)).build();
        let manager = bring_up_with(machine, &[], &parameters(line)).expect("bring-up");
        let idle = crate::common::in_use(&manager);
        let range = blocks(2 * 512 + 8, 16);
        // The memory is used once, so that it is not in its initial state.
        let before = manager
            .allocate_at(range.start.start(), order(12), MigrateType::Movable)
            .expect("free");
        manager.give_back(before).expect("held");
        manager.isolation().isolate(range).expect("free");
        let claimed = manager.isolation().claim(range).expect("all of it is free");
        let line_here = line!() - 1;
        check(&manager);
        // A careful run poisons memory, which takes precedence over clearing.
        if line.contains("init_on_alloc") && !crate::common::is_careful() {
            let zero =
                |pfn: u64| machine.load(pfn << 12) == 0 && machine.load(pfn << 12 | 0xff8) == 0;
            assert!((claimed.start.0..claimed.end.0).all(zero), "{line}");
        }
        let history: Option<PageHistory> = manager.debug().page_history(claimed.start.add(1000));
        if line.contains("page_owner") {
            let history = history.expect("it is recorded");
            assert!(history.allocated);
            assert_eq!(
                history.allocated_at.map(std::panic::Location::line),
                Some(line_here),
                "{history}"
            );
        }
        for part in [(0, 3), (3, 512), (512, 4096), (4096, 8192)] {
            let part = PfnRange::new(claimed.start.0 + part.0, claimed.start.0 + part.1);
            manager.give_back(part).unwrap_or_else(|error| panic!("{line}: {error}"));
            check(&manager);
            // A release build may find the error only when the frame leaves the cache.
            let is_found = manager.give_back(part).is_err()
                || !cfg!(debug_assertions) && manager.drain().is_err();
            assert!(is_found, "{line}: {part:?}");
        }
        manager.drain().expect("good frames");
        assert_eq!(crate::common::in_use(&manager), idle, "{line}");
    }
}

#[test]
fn damaged_memory_is_not_claimed() {
    let machine = FakeMachine::builder().ram(gib(0, 6)).build();
    let manager =
        bring_up_with(machine, &[], &parameters("page_owner=on page_poison=1")).expect("bring-up");
    let range = blocks(2 * 512 + 8, 4);
    let held =
        manager.allocate_at(range.start.start(), order(11), MigrateType::Movable).expect("free");
    manager.give_back(held).expect("held");
    manager.isolation().isolate(range).expect("free");
    let address = held.start.add(700).address() + 8;
    // SAFETY: nobody has the frame; that is the misuse.
    unsafe { machine.store(address, 1) };
    let error = manager.isolation().claim(range).expect_err("somebody wrote there");
    let IsolateError::Damaged(damage) = error else { panic!("{error}") };
    assert!((address..address + 8).contains(&damage.address));
    check(&manager);
    assert!((0..4).all(|block| is_isolated(&manager, range.start.0 + block)));
    assert_eq!(manager.debug().damage().map(|(times, _)| times), Some(1));
    let claimed = manager.isolation().claim(range).expect("it was filled again");
    manager.give_back(claimed).expect("held");
    check(&manager);
}

/// Blocks are isolated while a pool takes and gives back memory, page by page because each page is
/// recorded.
#[test]
fn pools_with_page_owners_leave_isolated_blocks_isolated() {
    for line in ["page_owner=on", ""] {
        let machine = FakeMachine::builder().ram(gib(0, 2)).cpus(3).build();
        let manager = bring_up_with(machine, &[], &parameters(line)).expect("bring-up");
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                machine.run_on(1, || {
                    let pool = manager.pool(PoolSize::TwoMib);
                    while !over.load(Ordering::Relaxed) {
                        pool.resize(700, &NoHelpers).expect("nobody else resizes");
                        pool.resize(0, &NoHelpers).expect("nobody else resizes");
                    }
                });
            });
            for round in 0..1500 {
                let range = blocks(20 + round % 13 * 64, 64);
                manager.isolation().isolate(range).expect("nothing has a count");
                for block in range.start.0..range.end.0 {
                    if !is_isolated(&manager, block) {
                        over.store(true, Ordering::Relaxed);
                        panic!("{line}: block {block} is isolated no more, round {round}");
                    }
                }
                if let Err(error) = manager.isolation().unisolate(range) {
                    over.store(true, Ordering::Relaxed);
                    panic!("{line}: {error}, round {round}");
                }
            }
            over.store(true, Ordering::Relaxed);
        });
        manager.pool(PoolSize::TwoMib).resize(0, &NoHelpers).expect("nobody else resizes");
        manager.drain().expect("good frames");
        check(&manager);
        assert_eq!(manager.totals().isolated_pages, 0, "{line}");
        assert_eq!(crate::common::in_use(&manager), 0, "{line}");
    }
}

/// An isolated page of a pool that is given back can be claimed, and the records about it are true.
#[test]
fn isolated_pages_of_pools_are_claimed() {
    for line in ["", "page_owner=on", "careful=5"] {
        let machine = FakeMachine::builder().ram(gib(0, 3)).build();
        let manager = bring_up_with(machine, &[], &parameters(line)).expect("bring-up");
        let pool = manager.pool(PoolSize::TwoMib);
        pool.resize(4, &NoHelpers).expect("nobody else resizes");
        let page = pool.allocate(NodeChoice::Any, false).expect("is free");
        let range = BlockRange {
            start: BlockNumber::containing(page.start),
            end: BlockNumber::containing(page.end),
        };
        manager.isolation().isolate(range).expect("a pool's");
        pool.give_back_page(page.start).expect("held");
        pool.resize(0, &NoHelpers).expect("nobody else resizes");
        check(&manager);
        let claimed = manager.isolation().claim(range).expect("free");
        manager.give_back(claimed).expect("held");
        check(&manager);
        manager.drain().expect("good frames");
        assert_eq!(crate::common::in_use(&manager), 0, "{line}");
    }
}

/// No caller can free a page that left a pool with a memory error.
#[test]
fn memory_with_errors_is_freed_by_nobody() {
    for line in ["", "page_owner=on"] {
        let machine = FakeMachine::builder().ram(gib(0, 3)).build();
        let manager = bring_up_with(machine, &[], &parameters(line)).expect("bring-up");
        let pool = manager.pool(PoolSize::TwoMib);
        pool.resize(2, &NoHelpers).expect("nobody else resizes");
        let page = pool.allocate(NodeChoice::Any, false).expect("is free");
        assert_eq!(pool.poison(page.start), Ok(Poisoned::Stays));
        pool.give_back_page(page.start).expect("held");
        pool.resize(0, &NoHelpers).expect("nobody else resizes");
        assert_eq!(pool.counts().leaked, 1);
        for of in [0, 3, 9] {
            assert!(
                !cfg!(debug_assertions) || manager.give_back_order(page.start, order(of)).is_err(),
                "{line}"
            );
        }
        for range in [page, PfnRange::new(page.start.0, page.start.0 + 7)] {
            assert!(manager.give_back(range).is_err(), "{line}: {range:?}");
        }
        assert!(manager.begin_references(page).is_err());
        check(&manager);
        assert!(
            manager
                .block_state(BlockNumber::containing(page.start))
                .is_some_and(|state| state.has(BlockState::POISONED))
        );
    }
}
