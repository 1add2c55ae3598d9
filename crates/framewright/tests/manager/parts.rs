//! Two CPUs free parts of one run while a third CPU allocates from the same block, at every order.

use crate::common::{Fake, bring_up, check, gib, order, settled};
use framewright::Request;
use framewright::units::{Pfn, PfnRange};
use framewright::zone::MigrateType;
use framewright_testkit::{FakeMachine, Owner};
use std::collections::BTreeMap;
use std::sync::Barrier;
use std::thread;

/// Splitmix64.
fn random(state: &mut u64, limit: u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (*state ^ *state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (value ^ value >> 27) % limit
}

/// Cuts `range` into `count` parts at most, which need not be aligned, and shuffles them.
fn cut(range: PfnRange, count: u64, seed: &mut u64) -> Vec<PfnRange> {
    let mut edges: Vec<u64> = (1..count)
        .map(|_| range.start.0 + random(seed, range.pages()))
        .chain([range.start.0, range.end.0])
        .collect();
    edges.sort_unstable();
    edges.dedup();
    let mut parts: Vec<PfnRange> =
        edges.windows(2).map(|pair| PfnRange::new(pair[0], pair[1])).collect();
    for index in (1..parts.len()).rev() {
        parts.swap(index, usize::try_from(random(seed, index as u64 + 1)).expect("small"));
    }
    parts
}

/// Checks that no frame was handed out twice.
fn assert_disjoint(taken: &[PfnRange]) {
    let mut seen: BTreeMap<u64, u64> = BTreeMap::new();
    for range in taken {
        let before = seen.range(..range.end.0).next_back().map_or(0, |(_, &end)| end);
        assert!(before <= range.start.0, "{range:?} was given twice");
        seen.insert(range.start.0, range.end.0);
    }
}

/// Allocates in turn a place in the run that may be free by now, any run, and what a cache gives.
fn allocate_near(manager: &Fake, run: PfnRange, of: u8, seed: &mut u64) -> Option<PfnRange> {
    let wanted = order(u8::try_from(random(seed, u64::from(of) + 1)).expect("small"));
    let page = (run.start.0 + random(seed, run.pages())) & !(wanted.pages() - 1);
    let migrate_type = MigrateType::ALL[usize::try_from(random(seed, 3)).expect("small")];
    match random(seed, 4) {
        0 => manager.allocate(&Request { migrate_type, ..Request::new(wanted) }).ok(),
        1 => {
            let start = manager.allocate_order(wanted, migrate_type).ok()?;
            Some(PfnRange { start, end: start.add(wanted.pages()) })
        }
        _ => manager.allocate_at(Pfn(page), wanted, migrate_type).ok(),
    }
}

fn two_free_while_one_allocates(of: u8, rounds: u64) {
    let machine = FakeMachine::builder().ram(gib(4, 6)).cpus(4).build();
    let manager = bring_up(machine);
    let free = settled(&manager).free_pages;
    for round in 0..rounds {
        let mut seed = u64::from(of) << 32 | round;
        // A single frame has no parts, so that its neighbour plays the other half.
        let whole = order(of.max(1));
        let run = manager.allocate(&Request::new(whole)).expect("there is memory");
        let middle = run.start.add(run.pages() / 2);
        let halves =
            [PfnRange { start: run.start, end: middle }, PfnRange { start: middle, end: run.end }];
        let starting_line = Barrier::new(3);
        let taken = thread::scope(|scope| {
            for (cpu, half) in (1..).zip(halves) {
                let count = if of == 0 { 1 } else { 1 + random(&mut seed, 24) };
                let (parts, through_cache) =
                    (cut(half, count, &mut seed), random(&mut seed, 2) == 0);
                let (manager, starting_line) = (&manager, &starting_line);
                scope.spawn(move || {
                    machine.run_on(cpu, || {
                        starting_line.wait();
                        for part in parts {
                            let freed = if of == 0 && through_cache {
                                manager.give_back_order(part.start, order(0))
                            } else {
                                manager.give_back(part)
                            };
                            freed.expect("it was allocated");
                        }
                    });
                });
            }
            let (manager, starting_line) = (&manager, &starting_line);
            let allocator = scope.spawn(move || {
                machine.run_on(3, || {
                    starting_line.wait();
                    (0..24)
                        .filter_map(|_| allocate_near(manager, run, of, &mut seed))
                        .collect::<Vec<_>>()
                })
            });
            allocator.join().expect("no panic")
        });
        check(&manager);
        assert_disjoint(&taken);
        let held: u64 = taken.iter().map(|range| range.pages()).sum();
        assert_eq!(crate::common::in_use(&manager), held, "order {of}, round {round}");
        for range in taken {
            manager.give_back(range).expect("it is held");
        }
        assert_eq!(settled(&manager).free_pages, free, "order {of}, round {round}");
    }
    // SAFETY: the manager is no longer used.
    unsafe { machine.retire() };
}

#[test]
fn of_a_page() {
    two_free_while_one_allocates(0, 600);
}

#[test]
fn of_orders_within_a_block() {
    for of in 1..9 {
        two_free_while_one_allocates(of, 300);
    }
}

#[test]
fn of_orders_from_a_block_up() {
    for of in 9..=18 {
        two_free_while_one_allocates(of, 200);
    }
}
