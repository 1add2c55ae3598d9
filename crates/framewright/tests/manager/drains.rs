//! What a request that finds too little memory takes out of the caches: first its own CPU's pages,
//! then no more of the other CPUs' than it needs. Also, a refill leaves some blocks for the other
//! CPUs.

use super::HERE;
use crate::common::{Fake, check, gib, mib, order};
use framewright::units::{BLOCK_ORDER, Order, Pfn};
use framewright::zone::MigrateType;
use framewright::{AllocateError, Request, Reserves};
use framewright_testkit::{FakeMachine, Owner};
use std::thread;

const BLOCK_PAGES: u64 = 1 << BLOCK_ORDER;

/// A machine with two CPUs that has enough free memory, but no whole free block.
struct Spoiled {
    machine: &'static FakeMachine,
    manager: Fake,
    /// A block that was allocated as one.
    whole: Pfn,
    /// Blocks whose pages were all allocated one by one.
    blocks: Vec<Pfn>,
}

fn spoiled() -> Spoiled {
    let machine = FakeMachine::builder().ram(mib(0, 512)).cpus(2).build();
    let manager = HERE.bring_up(machine);
    let whole = manager.allocate_order(Order::BLOCK, MigrateType::Movable).expect("memory");
    let all = Request { reserves: Reserves::All, ..Request::pages(1) };
    let mut pages = vec![Pfn(0); 1 << 17];
    let taken = manager.allocate_bulk(&all, &mut pages).expect("there is memory");
    pages.truncate(taken);
    pages.sort_unstable();
    let is_whole = |pages: &[Pfn]| {
        pages[0].is_aligned(Order::BLOCK) && pages[511].0 - pages[0].0 == BLOCK_PAGES - 1
    };
    let first = pages.iter().position(|page| page.0 >= 1 << 15).expect("it has 512 MiB");
    let (spoils, rest) = pages.split_at(first);
    for page in spoils.iter().step_by(2) {
        manager.give_back_order(*page, Order::PAGE).expect("allocated");
    }
    manager.drain().expect("only good frames are cached");
    let mut blocks = Vec::new();
    let mut rest = rest;
    while rest.len() >= 512 {
        let step = if is_whole(&rest[..512]) { 512 } else { 1 };
        if step == 512 {
            blocks.push(rest[0]);
        }
        rest = &rest[step..];
    }
    assert!(blocks.len() > 100, "{}", blocks.len());
    Spoiled { machine, manager, whole, blocks }
}

impl Spoiled {
    /// Frees the first `pages` pages of a block one by one.
    fn free(&self, block: usize, pages: u64) {
        for page in 0..pages {
            let page = self.blocks[block].add(page);
            self.manager.give_back_order(page, Order::PAGE).expect("allocated");
        }
    }

    /// Runs `work` on CPU 1, in another thread.
    fn elsewhere(&self, work: impl FnOnce(&Self) + Send) {
        thread::scope(|scope| {
            scope.spawn(|| self.machine.run_on(1, || work(self)));
        });
    }

    fn kept(&self) -> [u64; 2] {
        [0, 1].map(|cpu| self.manager.caches().cpu(cpu).expect("it has one").pages)
    }

    fn drains(&self) -> u64 {
        self.manager.pressure().events().drains
    }

    fn block(&self) -> Result<Pfn, AllocateError> {
        self.manager.allocate(&Request::new(Order::BLOCK)).map(|range| range.start)
    }
}

#[test]
fn what_its_own_cpu_keeps_serves_a_request_before_others_are_asked() {
    let spoiled = spoiled();
    spoiled.elsewhere(|spoiled| spoiled.free(1, 256));
    spoiled.free(0, BLOCK_PAGES);
    assert_eq!(spoiled.kept(), [BLOCK_PAGES, 256]);
    let drains = spoiled.drains();
    assert_eq!(spoiled.block(), Ok(spoiled.blocks[0]));
    assert_eq!((spoiled.drains(), spoiled.kept()), (drains, [0, 256]));
    check(&spoiled.manager);
}

#[test]
fn others_lose_what_is_large_enough_before_they_lose_the_rest() {
    let spoiled = spoiled();
    spoiled.elsewhere(|spoiled| {
        spoiled.free(0, 256);
        spoiled.manager.give_back_order(spoiled.whole, Order::BLOCK).expect("allocated");
    });
    assert_eq!(spoiled.kept(), [0, 256 + BLOCK_PAGES]);
    let drains = spoiled.drains();
    assert_eq!(spoiled.block(), Ok(spoiled.whole));
    assert_eq!((spoiled.drains(), spoiled.kept()), (drains + 1, [0, 256]));
    // A request that finds no block at all drains all caches completely.
    assert!(spoiled.block().is_err());
    assert_eq!((spoiled.drains(), spoiled.kept()), (drains + 2, [0, 0]));
    check(&spoiled.manager);
}

#[test]
fn pages_of_others_become_a_block_again() {
    let spoiled = spoiled();
    spoiled.elsewhere(|spoiled| spoiled.free(0, BLOCK_PAGES));
    assert_eq!(spoiled.kept(), [0, BLOCK_PAGES]);
    assert_eq!(spoiled.block(), Ok(spoiled.blocks[0]));
    assert_eq!(spoiled.kept(), [0, 0]);
    check(&spoiled.manager);
}

#[test]
fn a_refill_leaves_others_most_of_the_blocks_that_are_left() {
    let manager = HERE.bring_up(FakeMachine::builder().ram(gib(0, 8)).cpus(2).build());
    let take = || manager.allocate_order(Order::BLOCK, MigrateType::Movable);
    let high: Vec<Pfn> =
        std::iter::from_fn(|| take().ok()).filter(|block| block.0 >= 1 << 20).collect();
    let kept = || manager.caches().cpu(0).expect("it has one").pages / BLOCK_PAGES;
    // With plenty of memory a refill takes half of what the stack has room for.
    for (left, most) in [(1024, 32), (64, 10)] {
        for block in &high[..left] {
            manager.give_back_order(*block, order(9)).expect("allocated");
        }
        manager.drain().expect("only good frames are cached");
        let block = take().expect("some are left");
        assert!((1..=most).contains(&kept()), "{} of {left}", kept());
        assert!(left == 64 || kept() > 16, "{} of {left}", kept());
        manager.give_back_order(block, order(9)).expect("allocated");
        manager.drain().expect("only good frames are cached");
        // Allocates everything again, so that the next round begins with as little.
        assert!(std::iter::from_fn(|| take().ok()).count() >= left);
    }
    check(&manager);
}
