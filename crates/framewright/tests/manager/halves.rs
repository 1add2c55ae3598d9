//! Halves of blocks, which are freed by a short path if their block is in one of its two usual
//! states. The result is the same as by the long path, also for blocks in other states and for
//! wrong frees.

use crate::common::{Fake, bring_up, check, gib, idle_pages, mib, order, random_pieces, settled};
use framewright::units::{Order, PAGES_PER_BLOCK, Pfn, PfnRange};
use framewright::zone::FreeError;
use framewright::zone::MigrateType;
use framewright_testkit::{FakeMachine, Owner};

const MOVABLE: MigrateType = MigrateType::Movable;
const HALF_PAGES: u64 = PAGES_PER_BLOCK / 2;

fn half() -> Order {
    order(8)
}

/// First frames of blocks both of whose halves are allocated as halves.
fn in_halves(manager: &Fake, blocks: usize) -> Vec<Pfn> {
    let mut low = Vec::new();
    let mut others = Vec::new();
    let mut halves: Vec<Pfn> = (0..2 * blocks + 64)
        .map(|_| manager.allocate_order(half(), MOVABLE).expect("there is memory"))
        .collect();
    halves.sort_unstable();
    while let Some(start) = halves.pop() {
        match halves.last() {
            Some(&before)
                if before.is_aligned(Order::BLOCK)
                    && before.add(HALF_PAGES) == start
                    && low.len() < blocks =>
            {
                low.push(before);
                halves.pop();
            }
            _ => others.push(start),
        }
    }
    assert_eq!(low.len(), blocks);
    others.into_iter().for_each(|start| manager.give_back_order(start, half()).expect("held"));
    settled(manager);
    low
}

/// Frees a half and drains the cache, so that the half reaches its block or is refused.
fn try_free_half(manager: &Fake, start: Pfn) -> Result<(), FreeError> {
    manager.give_back_order(start, half()).and_then(|()| manager.drain().map(|_| ()))
}

fn free_half(manager: &Fake, start: Pfn) {
    try_free_half(manager, start).expect("held");
}

#[test]
fn halves_come_back_in_any_order_among_requests_of_all_sizes() {
    let manager = bring_up(FakeMachine::builder().ram(mib(0, 192)).build());
    random_pieces(&manager, 12_000, usize::MAX, |round, chance| {
        // Alternates between nothing but halves, and pieces of all sizes in the same blocks.
        let of = if round / 2000 % 2 == 0 { 8 } else { [8, 8, 8, 7, 6, 9, 3, 0][chance % 8] };
        (of, if chance >> 17 & 15 == 0 { MigrateType::Unmovable } else { MOVABLE })
    });
}

#[test]
fn a_half_that_is_free_already_is_refused_whatever_the_other_is() {
    let manager = bring_up(FakeMachine::builder().ram(gib(0, 1)).build());
    let free = idle_pages(&manager);
    let blocks = in_halves(&manager, 8);
    // The manager keeps one free block in pieces, so that the other blocks become whole.
    for (&block, number) in blocks.iter().zip(0_u64..) {
        let (one, other) =
            (block.add(number % 2 * HALF_PAGES), block.add((1 - number % 2) * HALF_PAGES));
        free_half(&manager, one);
        let before = settled(&manager);
        let again = try_free_half(&manager, one);
        assert!(
            matches!(again, Err(FreeError::NotAllocated { pfn, .. }) if pfn == one),
            "{again:?}"
        );
        assert_eq!(settled(&manager), before);
        check(&manager);
        free_half(&manager, other);
        check(&manager);
    }
    assert_eq!(idle_pages(&manager), free);
}

#[test]
fn a_half_twice_in_one_batch_is_refused_once() {
    let manager = bring_up(FakeMachine::builder().ram(gib(0, 1)).build());
    let free = idle_pages(&manager);
    for (one, other) in [(0, HALF_PAGES), (HALF_PAGES, 0)] {
        let blocks = in_halves(&manager, 6);
        let twice = blocks[0].add(one);
        // Another half lies between the two, because a cache notices a double free in a row at
        // once.
        for start in [twice, blocks[1].add(one)] {
            manager.give_back_order(start, half()).expect("allocated");
        }
        // Page owners and builds with debug assertions notice before the half leaves the cache.
        let again = manager.give_back_order(twice, half());
        assert_eq!(again.is_err(), crate::common::is_careful() || cfg!(debug_assertions));
        let error = again
            .and_then(|()| manager.drain().map(|_| ()))
            .expect_err("one of them was there twice");
        settled(&manager);
        assert!(matches!(error, FreeError::NotAllocated { pfn, .. } if pfn == twice), "{error}");
        check(&manager);
        let rest = [blocks[0].add(other), blocks[1].add(other)];
        let whole = blocks[2..].iter().flat_map(|block| [*block, block.add(HALF_PAGES)]);
        rest.into_iter().chain(whole).for_each(|start| free_half(&manager, start));
        check(&manager);
        assert_eq!(idle_pages(&manager), free);
    }
}

#[test]
fn half_of_the_frames_is_no_half_of_the_block() {
    let manager = bring_up(FakeMachine::builder().ram(gib(0, 1)).build());
    let free = idle_pages(&manager);
    let blocks = in_halves(&manager, 3);
    // Frees another block, so that the first one is not the block that is kept in pieces.
    free_half(&manager, blocks[2]);
    free_half(&manager, blocks[2].add(HALF_PAGES));
    // Every second frame of both halves.
    let even = |block: Pfn| (0..PAGES_PER_BLOCK).step_by(2).map(move |page| block.add(page));
    even(blocks[0]).for_each(|page| manager.give_back_order(page, Order::PAGE).expect("held"));
    let before = settled(&manager);
    for start in [blocks[0], blocks[0].add(HALF_PAGES)] {
        let refused = try_free_half(&manager, start);
        assert!(matches!(refused, Err(FreeError::NotAllocated { .. })), "{refused:?}");
        assert_eq!(settled(&manager), before);
        check(&manager);
    }
    for page in even(blocks[0]) {
        manager.give_back_order(page.add(1), Order::PAGE).expect("held");
    }
    // The lower half page by page, the upper half as one run.
    let pages = PfnRange { start: blocks[1], end: blocks[1].add(HALF_PAGES) };
    (0..HALF_PAGES).for_each(|page| {
        manager.give_back_order(pages.start.add(page), Order::PAGE).expect("held")
    });
    settled(&manager);
    free_half(&manager, pages.end);
    check(&manager);
    assert_eq!(idle_pages(&manager), free);
}
