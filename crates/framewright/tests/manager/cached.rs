//! Per-CPU caches: a frame that goes in comes out once, other CPUs get at cached frames when memory
//! is short, wrong frees are found, and nothing is lost when several CPUs allocate, free each
//! other's frames and drain at once.

use super::HERE;
use crate::common::{Fake, check, gib, idle_pages, mib, order};
use framewright::reporting::{Progress, ReportDevice, SubmitError};
use framewright::units::{Order, Pfn, PfnRange, PhysRange};
use framewright::zone::FreeError;
use framewright::zone::{MigrateType, ZoneKind};
use framewright::{Request, Reserves};
use framewright_testkit::{FakeMachine, Owner};
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

fn settle(manager: &Fake) {
    manager.drain().expect("only good frames are cached");
    assert_eq!(manager.caches().pages(), 0);
    check(manager);
}

#[test]
fn runs_are_aligned_and_handed_out_once() {
    let manager = HERE.bring_up(FakeMachine::builder().ram(gib(0, 6)).build());
    let free = idle_pages(&manager);
    for migrate_type in MigrateType::ALL {
        for of in 0..=18 {
            if migrate_type.fallbacks().is_empty() {
                continue;
            }
            let mut seen = BTreeSet::new();
            let count = if of > 9 { 1 } else { 700 >> (of / 2) };
            for _ in 0..count {
                let pfn = manager.allocate_order(order(of), migrate_type).expect("there is memory");
                assert!(pfn.is_aligned(order(of)));
                for page in pfn.0..pfn.0 + (1 << of) {
                    assert!(seen.insert(page), "{page:#x} twice, order {of}");
                }
            }
            check(&manager);
            let starts: Vec<u64> = seen.into_iter().step_by(1 << of).collect();
            // Every second run first, so that the frees are scattered.
            for start in starts.iter().step_by(2).chain(starts.iter().skip(1).step_by(2)) {
                manager.give_back_order(Pfn(*start), order(of)).expect("allocated");
            }
        }
    }
    settle(&manager);
    assert_eq!(idle_pages(&manager), free);
}

#[test]
fn a_pair_stays_in_the_cache() {
    let machine = FakeMachine::builder().ram(gib(0, 6)).build();
    let manager = HERE.bring_up(machine);
    for of in [0, 1, 2, 3, 9] {
        let first =
            manager.allocate_order(order(of), MigrateType::Movable).expect("there is memory");
        manager.give_back_order(first, order(of)).expect("allocated");
        let locks = machine.calls().irq_save;
        let again =
            manager.allocate_order(order(of), MigrateType::Movable).expect("there is memory");
        assert_eq!(machine.calls().irq_save, locks, "order {of} took a lock");
        manager.give_back_order(again, order(of)).expect("allocated");
    }
    settle(&manager);
}

/// The most blocks that CPU 0 keeps while these are freed one after the other.
fn most_kept(manager: &Fake, blocks: &[Pfn]) -> u64 {
    let kept = |&block: &Pfn| {
        manager.give_back_order(block, Order::BLOCK).expect("allocated");
        manager.caches().cpu(0).expect("it has one").pages / Order::BLOCK.pages()
    };
    blocks.iter().map(kept).max().unwrap_or(0)
}

#[test]
fn a_cpu_keeps_more_blocks_only_while_they_go_in_bulk_and_nobody_else_wants_them() {
    const USUAL: u64 = 64;
    const IN_BULK: u64 = 96;
    struct Silent;
    // SAFETY: nothing is ever discarded.
    unsafe impl ReportDevice for Silent {
        fn capacity(&self) -> usize {
            32
        }
        unsafe fn submit(&mut self, _ranges: &[PhysRange]) -> Result<(), SubmitError> {
            Ok(())
        }
        fn poll(&mut self) -> Progress {
            Progress::Pending
        }
        fn reset(&mut self) -> bool {
            true
        }
    }

    let manager = HERE.bring_up(FakeMachine::builder().ram(gib(0, 12)).build());
    let free = idle_pages(&manager);
    let take = |count: usize| -> Vec<Pfn> {
        (0..count)
            .map(|_| manager.allocate_order(Order::BLOCK, MigrateType::Movable).expect("memory"))
            .collect()
    };
    let most = manager.caches().cpu(0).expect("it has one").most_pages;
    let blocks = take(600);
    settle(&manager);
    // The first overflow alone does not count as bulk.
    assert_eq!(most_kept(&manager, &blocks[..65]), USUAL);
    assert_eq!(most_kept(&manager, &blocks[65..300]), IN_BULK);
    assert!(manager.caches().pages() <= most);
    // A drain ends bulk mode.
    settle(&manager);
    assert_eq!(most_kept(&manager, &blocks[300..365]), USUAL);
    assert_eq!(most_kept(&manager, &blocks[365..600]), IN_BULK);
    // If memory is short, bulk mode ends the next time that the cache is full.
    let blocks = take(3000);
    let marks = manager.sysctl().watermark_scale_factor();
    manager.sysctl().set_watermark_scale_factor(3000).expect("allowed");
    assert_eq!(most_kept(&manager, &blocks[..100]), IN_BULK);
    assert!(most_kept(&manager, &blocks[100..300]) <= USUAL);
    manager.sysctl().set_watermark_scale_factor(marks).expect("allowed");
    assert_eq!(most_kept(&manager, &blocks[300..600]), IN_BULK);
    // Bulk mode is also off while a host wants free memory reported. Not tested with poison,
    // because this device does not say what it leaves in memory.
    if crate::common::is_careful() {
        return;
    }
    let reporter =
        manager.register_reporting(Silent).map_err(|(error, _)| error).expect("the first");
    assert!(most_kept(&manager, &blocks[600..1000]) <= IN_BULK);
    assert!(most_kept(&manager, &blocks[1000..3000]) <= USUAL);
    drop(reporter);
    settle(&manager);
    assert_eq!(idle_pages(&manager), free);
}

#[test]
fn a_double_free_is_found_at_the_latest_when_it_leaves_the_cache() {
    let manager = HERE.bring_up(FakeMachine::builder().ram(gib(0, 6)).build());
    let pfn = manager.allocate_order(Order::PAGE, MigrateType::Movable).expect("there is memory");
    manager.give_back_order(pfn, Order::PAGE).expect("allocated");
    let twice = manager.give_back_order(pfn, Order::PAGE);
    assert!(
        matches!(twice, Err(FreeError::NotAllocated { pfn: named, .. }) if named == pfn),
        "{twice:?}"
    );
    // A block, with another one freed in between.
    let [block, other] = [(); 2]
        .map(|()| manager.allocate_order(Order::BLOCK, MigrateType::Movable).expect("memory"));
    for block in [block, other] {
        manager.give_back_order(block, Order::BLOCK).expect("allocated");
    }
    // Page owners, which careful runs have, notice at once, and so do builds with debug assertions.
    let again = manager.give_back_order(block, Order::BLOCK);
    assert_eq!(again.is_err(), crate::common::is_careful() || cfg!(debug_assertions));
    let found = again.and_then(|()| manager.drain());
    assert!(
        matches!(found, Err(FreeError::NotAllocated { pfn: named, .. }) if named == block),
        "{found:?}"
    );
    settle(&manager);
    assert_eq!(manager.totals().allocated_pages, 0);
}

/// Parts of a run that lie anywhere in their words of 64 frames, and ranges that overlap them by
/// one frame only.
#[test]
fn what_is_freed_with_a_frame_that_was_free_is_refused_in_debug_builds() {
    if !cfg!(debug_assertions) {
        return;
    }
    let manager = HERE.bring_up(FakeMachine::builder().ram(gib(0, 6)).build());
    let pieces = [(0, 1), (1, 1), (62, 1), (63, 1), (64, 1), (63, 2), (0, 64), (64, 64), (60, 8)];
    for (first, pages) in pieces {
        let start = manager.allocate_order(order(7), MigrateType::Movable).expect("memory");
        let run = PfnRange::of_order(start, order(7));
        let piece = PfnRange::new(start.0 + first, start.0 + first + pages);
        manager.give_back(piece).expect("held");
        let single = (piece.start.0..piece.end.0).map(|pfn| PfnRange::new(pfn, pfn + 1));
        let edges = [piece.start.0, piece.end.0].map(|at| PfnRange::new(at - 1, at + 1));
        let edges = edges.into_iter().filter(|edge| edge.start >= run.start && edge.end <= run.end);
        for wrong in single.chain(edges).chain([run]) {
            let refused = manager.give_back(wrong);
            assert!(refused.is_err(), "{piece:?} of {run:?}: {wrong:?}");
        }
        let rest = [
            PfnRange { start: run.start, end: piece.start },
            PfnRange { start: piece.end, end: run.end },
        ];
        for rest in rest.into_iter().filter(|rest| !rest.is_empty()) {
            manager.give_back(rest).expect("held");
        }
    }
    settle(&manager);
    assert_eq!(manager.totals().allocated_pages, 0);
}

#[test]
fn what_was_never_allocated_is_refused_at_the_call_in_debug_builds() {
    let manager = HERE.bring_up(FakeMachine::builder().ram(gib(0, 6)).build());
    let wrong = [Pfn(5 << 18), Pfn(1 << 30), Pfn(0)];
    for pfn in wrong {
        if cfg!(debug_assertions) {
            assert!(manager.give_back_order(pfn, Order::PAGE).is_err(), "{pfn}");
        }
    }
    settle(&manager);
}

#[test]
fn memory_short_on_one_cpu_comes_out_of_the_others_caches() {
    let machine = FakeMachine::builder().ram(mib(0, 64)).cpus(2).build();
    let manager = HERE.bring_up(machine);
    let all = Request { reserves: Reserves::All, ..Request::pages(1) };
    let mut pages = vec![Pfn(0); 20_000];
    let taken = manager.allocate_bulk(&all, &mut pages).expect("there is memory");
    // The other CPU frees thirty pages, which stay in its cache.
    thread::scope(|scope| {
        scope.spawn(|| {
            machine.run_on(1, || {
                // Frames of the home zone, DMA32.
                for page in pages[..taken].iter().filter(|page| page.0 >= 4096).take(30) {
                    manager.give_back_order(*page, Order::PAGE).expect("allocated");
                }
            });
        });
    });
    assert_eq!(manager.caches().pages(), 30);
    for left in (0..30).rev() {
        manager.allocate(&all).expect("thirty pages are in a cache");
        assert_eq!(manager.totals().free_pages, left);
    }
    assert!(manager.allocate(&all).is_err());
    // A bulk request gets them, too.
    manager.give_back_order(Pfn(8192), Order::PAGE).expect("allocated");
    assert_eq!(manager.caches().pages(), 1);
    assert_eq!(manager.allocate_bulk(&all, &mut [Pfn(0); 3]), Ok(1));
    settle(&manager);
}

#[test]
fn cpus_free_each_others_frames_while_others_drain() {
    let machine = FakeMachine::builder().ram(gib(0, 3)).cpus(6).build();
    let manager = HERE.bring_up(machine);
    let free = idle_pages(&manager);
    let owned: Vec<AtomicBool> = (0..3 << 18).map(|_| AtomicBool::new(false)).collect();
    let mark = |start: Pfn, of: u8, was: bool| {
        for page in start.0..start.0 + (1 << of) {
            let index = usize::try_from(page).expect("small");
            assert_eq!(owned[index].swap(!was, Ordering::Relaxed), was, "page {page:#x}");
        }
    };
    let exchange: Mutex<Vec<(Pfn, u8)>> = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for seed in 1..=4_u64 {
            let (manager, mark, exchange) = (&manager, &mark, &exchange);
            scope.spawn(move || {
                let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let mut random = |limit: u64| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    state % limit
                };
                let mut held: Vec<(Pfn, u8)> = Vec::new();
                for _ in 0..30_000 {
                    match random(16) {
                        0..7 => {
                            let of = [0, 0, 0, 1, 2, 3, 5, 8, 9]
                                [usize::try_from(random(9)).expect("small")];
                            let migrate_type =
                                MigrateType::ALL[usize::try_from(random(3)).expect("small")];
                            if let Ok(pfn) = manager.allocate_order(order(of), migrate_type) {
                                mark(pfn, of, false);
                                held.push((pfn, of));
                            }
                        }
                        7..14 if !held.is_empty() => {
                            let index = usize::try_from(random(held.len() as u64)).expect("small");
                            let (pfn, of) = held.swap_remove(index);
                            mark(pfn, of, true);
                            manager.give_back_order(pfn, order(of)).expect("held");
                        }
                        14 => {
                            // Swaps with another thread, which frees the run.
                            let mut exchange = exchange.lock().expect("no panic");
                            std::mem::swap(&mut *exchange, &mut held);
                        }
                        _ if random(50) == 0 => {
                            _ = manager.drain().expect("only good frames are cached")
                        }
                        _ => {}
                    }
                }
                for (pfn, of) in held {
                    mark(pfn, of, true);
                    manager.give_back_order(pfn, order(of)).expect("held");
                }
            });
        }
    });
    for (pfn, of) in exchange.into_inner().expect("no panic") {
        manager.give_back(PfnRange::new(pfn.0, pfn.0 + (1 << of))).expect("held");
    }
    settle(&manager);
    assert_eq!(idle_pages(&manager), free);
}

#[test]
fn an_interrupt_handler_allocates_wherever_it_strikes() {
    let machine = FakeMachine::builder().ram(gib(0, 6)).build();
    let manager = HERE.bring_up(machine);
    let outer = manager.allocate_order(Order::PAGE, MigrateType::Movable).expect("there is memory");
    let inner = machine.interrupt(|| {
        let pfn =
            manager.allocate_order(Order::PAGE, MigrateType::Movable).expect("there is memory");
        assert_ne!(pfn, outer);
        manager.give_back_order(outer, Order::PAGE).expect("allocated");
        pfn
    });
    manager.give_back_order(inner, Order::PAGE).expect("allocated");
    settle(&manager);
}

#[test]
fn a_cpu_uses_frames_again_whose_blocks_are_nearly_full() {
    const PAGES: usize = 512;
    let machine = FakeMachine::builder().ram(gib(0, 6)).build();
    let manager = HERE.bring_up(machine);
    let get = || manager.allocate_order(Order::PAGE, MigrateType::Movable).expect("memory");
    let mut pages: Vec<Pfn> = (0..20 * PAGES).map(|_| get()).collect();
    manager.drain().expect("only good frames are cached");
    pages.sort();
    let blocks: Vec<&[Pfn]> = pages.chunk_by(|one, next| one.0 / 512 == next.0 / 512).collect();
    let full: Vec<&[Pfn]> = blocks.into_iter().filter(|pages| pages.len() >= PAGES - 8).collect();
    let &[crowded, sparse, ..] = &full[..] else { panic!("two full blocks") };

    // All of the block is allocated except for these pages.
    let freed = BTreeSet::from([crowded[3], crowded[70], crowded[500]]);
    for &page in &freed {
        manager.give_back_order(page, Order::PAGE).expect("allocated");
    }
    let locks = machine.calls().irq_save;
    let again: BTreeSet<Pfn> = freed.iter().map(|_| get()).collect();
    assert_eq!(again, freed);
    assert_eq!(machine.calls().irq_save, locks, "a lock was taken");

    // Half of this block is free, so that frees into it go back to the zone.
    for &page in sparse.iter().skip(1).step_by(2) {
        manager.give_back_order(page, Order::PAGE).expect("allocated");
    }
    manager.drain().expect("only good frames are cached");
    manager.give_back_order(sparse[0], Order::PAGE).expect("allocated");
    assert_ne!(get(), sparse[0]);
    check(&manager);
}

#[test]
fn a_cpu_keeps_frames_of_all_zones_of_its_node() {
    let machine = FakeMachine::builder().ram(gib(0, 3)).ram(gib(4, 1)).build();
    let manager = HERE.bring_up(machine);
    let free = idle_pages(&manager);
    let below = |of| {
        let request = Request { zone: ZoneKind::Dma32, ..Request::new(order(of)) };
        manager.allocate(&request).expect("there is memory").start
    };
    // Enough runs that the cache overflows several times, with frames of the other zone between
    // them.
    for of in [0, 3, 5, 9] {
        let mut runs: Vec<Pfn> = (0..200).map(|_| below(of)).collect();
        runs.extend((0..200).map(|_| {
            manager.allocate_order(order(of), MigrateType::Movable).expect("there is memory")
        }));
        manager.drain().expect("only good frames are cached");
        manager.give_back_order(runs[0], order(of)).expect("allocated");
        assert_eq!(manager.caches().pages(), 1 << of, "order {of} went to its zone");
        for pair in 0..200 {
            if pair != 0 {
                manager.give_back_order(runs[pair], order(of)).expect("allocated");
            }
            manager.give_back_order(runs[200 + pair], order(of)).expect("allocated");
        }
        settle(&manager);
        assert_eq!(idle_pages(&manager), free);
    }
}
