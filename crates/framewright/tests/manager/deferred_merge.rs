//! Freed blocks whose merge is deferred: every request for a block can have them, they merge with
//! their neighbours as soon as a request wants more, and they are as well protected against wrong
//! frees as any other block.

use crate::common::{Fake, bring_up, check, gib, idle_pages, mib, order};
use framewright::units::{BLOCK_ORDER, Order, PAGES_PER_BLOCK, Pfn, PfnRange};
use framewright::vmemmap_space::BlockRange;
use framewright::zone::{BlockRun, BlockUse, FreeError};
use framewright::zone::{MigrateType, State};
use framewright::{Request, Reserves};
use framewright_testkit::{FakeMachine, Owner};

const BLOCKS: u64 = 512;
const HALVED: BlockUse =
    BlockUse::Split { used_pages: PAGES_PER_BLOCK / 2, managed_pages: PAGES_PER_BLOCK };

/// A whole GiB of a machine that has little else, so that its blocks are where the test expects
/// them.
fn whole_gib(manager: &Fake) -> PfnRange {
    let start = manager.allocate_order(Order::MAX, MigrateType::Movable).expect("a whole GiB");
    PfnRange { start, end: start.add(Order::MAX.pages()) }
}

fn blocks(range: PfnRange) -> impl Iterator<Item = Pfn> {
    (0..range.pages() / PAGES_PER_BLOCK).map(move |block| range.start.add(block * PAGES_PER_BLOCK))
}

/// Frees the blocks one by one.
fn free_each(manager: &Fake, starts: impl IntoIterator<Item = Pfn>) {
    for start in starts {
        manager.give_back_order(start, Order::BLOCK).expect("allocated");
    }
    manager.drain().expect("good frames");
}

/// Frees the blocks of a GiB, those that `first` names first.
fn scatter(manager: &Fake, range: PfnRange, first: impl Fn(u64) -> bool) {
    let named = |start: &Pfn| first((start.0 - range.start.0) / PAGES_PER_BLOCK);
    free_each(manager, blocks(range).filter(|start| named(start)));
    check(manager);
    free_each(manager, blocks(range).filter(|start| !named(start)));
}

#[test]
fn what_comes_back_in_any_order_is_one_again() {
    let manager = bring_up(FakeMachine::builder().ram(gib(0, 8)).build());
    let free = idle_pages(&manager);
    for first in [
        |_| true,
        |block| block % 2 == 1,
        |block: u64| block.count_ones().is_multiple_of(2),
        |block| block % 64 < 63,
    ] {
        let range = whole_gib(&manager);
        scatter(&manager, range, first);
        check(&manager);
        assert_eq!(idle_pages(&manager), free);
        let zone = manager.views().find(|zone| zone.span().contains(range.start)).expect("a zone");
        assert!(zone.free_blocks()[usize::from(Order::MAX.get() - BLOCK_ORDER)] >= 1);
    }
}

#[test]
fn larger_requests_find_what_came_back_in_pieces() {
    let manager = bring_up(FakeMachine::builder().ram(gib(0, 8)).build());
    let mut ranges = Vec::new();
    while let Ok(start) = manager.allocate_order(Order::MAX, MigrateType::Movable) {
        ranges.push(PfnRange { start, end: start.add(Order::MAX.pages()) });
    }
    // Allocates everything else that is larger than a block.
    let larger = Request::new(order(10));
    while manager.allocate(&larger).is_ok() {}
    let (range, rest) = (ranges[0], BLOCKS / 2);
    // Every second block, which do not merge into anything larger.
    let odd = |start: &Pfn| (start.0 - range.start.0) / PAGES_PER_BLOCK % 2 == 1;
    free_each(&manager, blocks(range).filter(odd));
    // Other memory may be available now that watermarks kept back before.
    while let Ok(taken) = manager.allocate(&larger) {
        assert!(taken.end <= range.start || taken.start >= range.end, "{taken:?}");
    }
    check(&manager);
    free_each(
        &manager,
        blocks(range).filter(|start| !odd(start)).take(usize::try_from(rest).expect("small")),
    );
    let request = |of| Request { reserves: Reserves::All, ..Request::new(order(of)) };
    for of in [18, 12, 10] {
        let taken = manager.allocate(&request(of)).expect("all of it came back");
        assert!(taken.start >= range.start && taken.end <= range.end, "order {of}");
        manager.give_back(taken).expect("allocated");
        // Frees the GiB in pieces again for the next round.
        let whole = manager.allocate(&request(18)).expect("all of it came back");
        free_each(&manager, blocks(whole));
    }
    check(&manager);
}

#[test]
fn a_block_that_came_back_cannot_come_back_again() {
    let manager = bring_up(FakeMachine::builder().ram(gib(0, 8)).build());
    let range = whole_gib(&manager);
    let starts: Vec<Pfn> = blocks(range).step_by(3).collect();
    free_each(&manager, starts.iter().copied());
    let before = manager.totals();
    for (number, &start) in starts.iter().enumerate() {
        let free = |error: FreeError| {
            matches!(
                error,
                FreeError::NotAllocated { pfn, state: Some(State::Free), .. } if pfn == start
            )
        };
        let refused = match number % 4 {
            0 => manager.give_back(PfnRange { start, end: start.add(PAGES_PER_BLOCK) }),
            1 => manager.give_back(PfnRange { start, end: start.add(1) }),
            // Together with a neighbour that is allocated.
            2 => manager.give_back(PfnRange { start, end: start.add(2 * PAGES_PER_BLOCK) }),
            _ if cfg!(debug_assertions) => manager.give_back_order(start, Order::BLOCK),
            _ => manager
                .give_back_order(start, Order::BLOCK)
                .and_then(|()| manager.drain().map(drop)),
        };
        assert!(refused.is_err_and(free), "{number}");
        assert_eq!(manager.totals().free_pages, before.free_pages, "{number}");
        // A frame that an error left in the cache is not there for the next round.
        assert_eq!(manager.caches().pages(), 0);
    }
    // Wrong frees among good ones of the same word: all good ones succeed.
    let good: Vec<Pfn> = blocks(range).skip(1).step_by(3).collect();
    for (&good, &bad) in good.iter().zip(&starts).take(20) {
        manager.give_back_order(good, Order::BLOCK).expect("allocated");
        if !cfg!(debug_assertions) {
            let _ = manager.give_back_order(bad, Order::BLOCK);
        }
    }
    let _ = manager.drain();
    assert_eq!(manager.totals().free_pages, before.free_pages + 20 * PAGES_PER_BLOCK);
    check(&manager);
}

#[test]
fn a_block_that_came_back_can_be_had_by_its_place_and_isolated() {
    let manager = bring_up(FakeMachine::builder().ram(gib(0, 8)).build());
    let range = whole_gib(&manager);
    free_each(&manager, blocks(range).step_by(2));
    let third = range.start.add(4 * PAGES_PER_BLOCK);
    let taken = manager.allocate_at(third, Order::BLOCK, MigrateType::Movable).expect("free");
    assert_eq!(taken.start, third);
    let page = manager.allocate_at(
        range.start.add(8 * PAGES_PER_BLOCK + 7),
        Order::PAGE,
        MigrateType::Movable,
    );
    assert!(page.is_ok());
    check(&manager);
    let first = u32::try_from(range.start.0 / PAGES_PER_BLOCK).expect("small") + 64;
    let some = BlockRange::new(first, first + 8);
    let pages = manager.isolation().isolate(some).expect("managed");
    assert_eq!((pages.free_pages, pages.in_use_pages), (4 * PAGES_PER_BLOCK, 4 * PAGES_PER_BLOCK));
    check(&manager);
    manager.isolation().unisolate(some).expect("isolated");
    check(&manager);
}

#[test]
fn other_types_get_what_came_back_when_there_is_nothing_else() {
    let manager = bring_up(FakeMachine::builder().ram(mib(0, 256)).build());
    let mut taken = Vec::new();
    while let Ok(start) = manager.allocate_order(Order::BLOCK, MigrateType::Movable) {
        taken.push(start);
    }
    let some: Vec<Pfn> = taken.iter().copied().step_by(5).collect();
    free_each(&manager, some.iter().copied());
    for _ in &some {
        let start = manager
            .allocate_order(Order::BLOCK, MigrateType::Unmovable)
            .expect("as many as came back");
        assert!(some.contains(&start) || crate::common::is_careful());
    }
    assert!(manager.allocate_order(Order::BLOCK, MigrateType::Reclaimable).is_err());
    check(&manager);
}

#[test]
fn batches_of_halves_begin_and_end_where_blocks_do() {
    if crate::common::is_careful() {
        return;
    }
    let manager = bring_up(FakeMachine::builder().ram(gib(4, 12)).build());
    let half = order(8);
    let get = || manager.allocate_order(half, MigrateType::Movable).expect("there is memory");
    let free_pages = || manager.totals().free_pages;
    let free = free_pages();
    // Counts blocks of which just one half is free.
    let halved = || {
        let mut halved = 0;
        let mut count = |run: BlockRun| halved += u32::from(run.what == HALVED) * run.blocks;
        manager.views().for_each(|zone| zone.for_each_block_run(&mut count));
        halved
    };
    // Halves that are alone; the tables may share a block with the first one. The next refill
    // begins with the rest of the block.
    let lone = [(); 2].map(|()| {
        let start = get();
        manager.drain().expect("good frames");
        start
    });
    assert_eq!(halved(), 1);
    let mut held = vec![get()];
    assert_eq!(halved(), 0, "a block was divided for half of it, or the half was left");
    held.extend((0..2000).map(|_| get()));
    // Only a half whose other half is held goes back alone.
    for start in held {
        manager.give_back_order(start, half).expect("held");
        assert!(halved() <= 1, "a block went back in halves");
    }
    lone.into_iter().for_each(|start| manager.give_back_order(start, half).expect("held"));
    manager.drain().expect("good frames");
    check(&manager);
    assert_eq!(free_pages(), free);
}
