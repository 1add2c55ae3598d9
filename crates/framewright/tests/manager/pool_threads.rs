//! Pools that several CPUs use at once while others resize them, demote, reserve, isolate, and
//! allocate and free other memory. No page has two owners, the rules among the counters hold at
//! every moment, and in the end every page is back where it was.

use crate::common::{bring_up, gib};
use framewright::Request;
use framewright::hugetlb::{NodeMask, PoolError, PoolSize};
use framewright::memblock::NodeChoice;
use framewright::units::{NodeId, Order, Pfn, PfnRange};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright_jobs::NoHelpers;
use framewright_testkit::{FakeMachine, HelperPool, Owner, PoolOwner};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// A small generator, so that threads need no crate and a failure can be repeated.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Which blocks are owned by some thread.
struct Owned(Vec<AtomicBool>);

impl Owned {
    fn mark(&self, range: PfnRange, was: bool) {
        for block in BlockNumber::containing(range.start).0..BlockNumber::containing(range.end).0 {
            assert_eq!(self.0[block as usize].swap(!was, Ordering::Relaxed), was, "block {block}");
        }
    }
}

fn rounds(of: u64) -> u64 {
    if crate::common::is_careful() { of / 500 } else { of }
}

#[test]
fn users_and_resizers_meet() {
    let machine = FakeMachine::builder()
        .ram(gib(0, 4))
        .node(gib(0, 4), 0)
        .ram(gib(4, 8))
        .node(gib(4, 8), 1)
        .cpus_on(0, 4)
        .cpus_on(1, 4)
        .build();
    let manager = bring_up(machine);
    let free = crate::common::settled(&manager).free_pages;
    let owned = Owned((0..8 * 512).map(|_| AtomicBool::new(false)).collect());
    let helpers = HelperPool::on_nodes(&[0, 1]);
    manager.pool(PoolSize::TwoMib).set_overcommit(40).expect("2 MiB pages can");
    thread::scope(|scope| {
        let (manager, owned, helpers) = (&manager, &owned, &helpers);
        // Users of pages, with reservations and without.
        for seed in 0..3 {
            scope.spawn(move || {
                let mut random = Random::new(seed);
                let mut held: Vec<(PoolSize, PfnRange)> = Vec::new();
                for _ in 0..rounds(30_000) {
                    let size = PoolSize::ALL[usize::from(random.below(8) == 0)];
                    let pool = manager.pool(size);
                    let node = NodeId::new(usize::from(random.below(2) == 0)).expect("a node");
                    let choice = if random.below(3) == 0 {
                        NodeChoice::Exact(node)
                    } else {
                        NodeChoice::Preferred(node)
                    };
                    match random.below(5) {
                        0 | 1 => {
                            if let Ok(page) = pool.allocate(choice, false) {
                                owned.mark(page, false);
                                held.push((size, page));
                            }
                        }
                        2 => {
                            let pages = 1 + random.below(3);
                            if pool.reserve(pages, NodeMask::ALL).is_ok() {
                                let mut promised = pages;
                                if let Ok(page) = pool.allocate(choice, true) {
                                    promised -= 1;
                                    owned.mark(page, false);
                                    if random.below(2) == 0 {
                                        owned.mark(page, true);
                                        pool.give_back_page(page.start).expect("held");
                                        promised += 1;
                                    } else {
                                        pool.commit(page.start).expect("held");
                                        held.push((size, page));
                                    }
                                }
                                pool.unreserve(promised).expect("are ours");
                            }
                        }
                        _ if held.is_empty() => {}
                        _ => {
                            let index =
                                usize::try_from(random.below(held.len() as u64)).expect("small");
                            let (size, page) = held.swap_remove(index);
                            owned.mark(page, true);
                            manager.pool(size).give_back_page(page.start).expect("held");
                        }
                    }
                }
                for (size, page) in held {
                    owned.mark(page, true);
                    manager.pool(size).give_back_page(page.start).expect("held");
                }
            });
        }
        // Threads that resize and demote; one of them has helpers.
        for seed in 3..5 {
            scope.spawn(move || {
                let mut random = Random::new(seed);
                for _ in 0..rounds(2000) {
                    let size = PoolSize::ALL[usize::from(random.below(3) == 0)];
                    let pool = manager.pool(size);
                    let pages = random.below(if size == PoolSize::TwoMib { 1200 } else { 4 });
                    let node = NodeId::new(usize::from(random.below(2) == 0)).expect("a node");
                    let resized = match random.below(4) {
                        0 => pool.resize_node(node, pages, &NoHelpers).map(drop),
                        1 if seed == 3 => pool.resize(pages, helpers).map(drop),
                        2 => pool.demote(1 + random.below(2)).map(drop),
                        _ => pool.resize(pages, &NoHelpers).map(drop),
                    };
                    match resized {
                        Ok(())
                        | Err(
                            PoolError::Busy
                            | PoolError::NothingToDemote
                            | PoolError::NotPossible(_),
                        ) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        // A thread that allocates other memory, and isolates.
        scope.spawn(move || {
            let mut random = Random::new(5);
            let mut held: Vec<PfnRange> = Vec::new();
            for _ in 0..rounds(15_000) {
                if random.below(2) == 0 {
                    let order = Order::new(u8::try_from(random.below(13)).expect("small"))
                        .expect("an order");
                    if let Ok(range) =
                        manager.allocate(&Request { fail_fast: true, ..Request::new(order) })
                    {
                        if order >= Order::BLOCK {
                            owned.mark(range, false);
                        }
                        held.push(range);
                    }
                } else if !held.is_empty() {
                    let index = usize::try_from(random.below(held.len() as u64)).expect("small");
                    let range = held.swap_remove(index);
                    if range.pages() >= 512 {
                        owned.mark(range, true);
                    }
                    manager.give_back(range).expect("held");
                }
            }
            for range in held {
                if range.pages() >= 512 {
                    owned.mark(range, true);
                }
                manager.give_back(range).expect("held");
            }
        });
        scope.spawn(move || {
            let mut random = Random::new(6);
            for _ in 0..rounds(1500) {
                let start = u32::try_from(random.below(8 * 512 - 8)).expect("small");
                let range = BlockRange {
                    start: BlockNumber(start),
                    end: BlockNumber(start + 1 + start % 7),
                };
                if manager.isolation().isolate(range).is_ok() {
                    thread::yield_now();
                    manager.isolation().unisolate(range).unwrap_or_else(|error| panic!("{error}"));
                }
                // Invalid calls change nothing.
                assert!(
                    manager
                        .pool(PoolSize::TwoMib)
                        .give_back_page(Pfn(random.below(1 << 21) | 1))
                        .is_err()
                );
            }
        });
    });
    crate::common::check(&manager);
    manager.hugetlb().verify().unwrap_or_else(|fault| panic!("{fault}"));
    for size in PoolSize::ALL {
        let pool = manager.pool(size);
        assert_eq!(pool.counts().reserved, 0);
        // Free surplus pages become persistent first.
        pool.resize(u64::MAX, &NoHelpers).expect("nobody else resizes");
        pool.resize(0, &NoHelpers).expect("nobody else resizes");
        assert_eq!(pool.counts().all.nr, 0);
    }
    assert_eq!(crate::common::settled(&manager).free_pages, free);
}
