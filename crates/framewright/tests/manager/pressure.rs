//! Memory gets short: watermarks are kept to the page, caches are drained once, the reclaim hook is
//! called in the contexts that allow it and never from within itself, and everything is accounted
//! for afterwards.

use crate::common::{Fake, bring_up_with, check, gib, mib, order, parameters};
use framewright::memblock::NodeChoice;
use framewright::units::{NodeId, Order, Pfn, PfnRange};
use framewright::zone::MigrateType;
use framewright::zone::{Zone, ZoneKind};
use framewright::{AllocateError, Reclaim, Request, Reserves, Shortage};
use framewright_testkit::{FakeMachine, Owner};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

const LEVELS: [Reserves; 4] = [Reserves::None, Reserves::Half, Reserves::Atomic, Reserves::All];

const NO_MEMORY: AllocateError = AllocateError::OutOfMemory { order: Order::PAGE };

/// A manager that lives for ever, as hooks do.
pub(crate) fn up(machine: &'static FakeMachine) -> &'static Fake {
    Box::leak(Box::new(
        bring_up_with(machine, &[], &parameters("min_free_kbytes=1024")).expect("bring-up"),
    ))
}

fn one() -> Request {
    Request::pages(1)
}

/// Allocates everything that `request` gets, page by page.
fn take_all(manager: &Fake, request: &Request) -> Vec<Pfn> {
    let mut taken = Vec::new();
    while let Ok(range) = manager.allocate(request) {
        taken.push(range.start);
    }
    taken
}

pub(crate) fn give(manager: &Fake, pages: &[Pfn]) {
    for page in pages {
        manager.give_back_to_zone(PfnRange::new(page.0, page.0 + 1)).expect("allocated");
    }
}

fn free_pages(manager: &Fake) -> Vec<u64> {
    manager.zones().iter().map(Zone::free_pages).collect()
}

/// What each zone keeps back from requests for `highest`, above a watermark.
fn keeps(manager: &Fake, highest: ZoneKind, mark: fn(&Zone) -> u64) -> Vec<u64> {
    manager
        .zones()
        .iter()
        .map(|zone| mark(zone) + zone.lowmem_reserve()[highest as usize])
        .collect()
}

/// A hook that does what a test says, and counts its calls.
pub(crate) struct Hook {
    pub(crate) calls: AtomicU32,
    body: Box<dyn Fn(&Shortage) -> u64 + Sync + Send>,
}

impl Hook {
    pub(crate) fn set(
        manager: &'static Fake,
        body: impl Fn(&Shortage) -> u64 + Sync + Send + 'static,
    ) -> &'static Self {
        let hook: &'static Self =
            Box::leak(Box::new(Self { calls: AtomicU32::new(0), body: Box::new(body) }));
        manager.pressure().set_reclaim(Some(hook));
        hook
    }

    pub(crate) fn calls(&self) -> u32 {
        self.calls.swap(0, Ordering::Relaxed)
    }
}

impl Reclaim for Hook {
    fn reclaim(&self, wanted: &Shortage) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed);
        (self.body)(wanted)
    }
}

#[test]
fn each_mark_is_kept_to_the_page() {
    // Three zones on one node: Normal 1 GiB, DMA32 64 MiB, DMA 16 MiB.
    let machine = FakeMachine::builder().ram(mib(0, 80)).ram(gib(4, 5)).build();
    let manager = up(machine);
    let free = free_pages(manager);
    for highest in [ZoneKind::Dma, ZoneKind::Dma32, ZoneKind::Normal] {
        let request = Request { zone: highest, ..one() };
        let low = keeps(manager, highest, |zone| zone.watermarks().low_pages);
        let min = keeps(manager, highest, |zone| zone.watermarks().min_pages);
        let zones = highest as usize + 1;
        // Zones are used down to their low watermarks, the highest zone first; only then does any
        // zone go below.
        let mut taken = Vec::new();
        for zone in (0..zones).rev() {
            while manager.zones()[zone].free_pages() > low[zone] {
                let before = manager.zones()[zone].free_pages();
                taken.push(manager.allocate(&request).expect("above the low mark").start);
                assert_eq!(manager.zones()[zone].free_pages(), before - 1, "taken elsewhere");
            }
        }
        for zone in (0..zones).rev() {
            // A zone that keeps back more than it has is not touched at all.
            let left = |mark: &[u64]| mark[zone].min(free[zone]);
            assert_eq!(manager.zones()[zone].free_pages(), left(&low));
            while manager.zones()[zone].free_pages() > min[zone] {
                taken.push(manager.allocate(&request).expect("above the min mark").start);
            }
            assert_eq!(manager.zones()[zone].free_pages(), left(&min));
        }
        assert_eq!(manager.allocate(&request), Err(NO_MEMORY));
        assert_eq!(manager.allocate_bulk(&request, &mut [Pfn(0); 2]), Err(NO_MEMORY));
        assert_eq!(manager.allocate(&Request { fail_fast: true, ..request }), Err(NO_MEMORY));
        // One page above the watermark serves one request.
        give(manager, &taken.split_off(taken.len() - 1));
        taken.push(manager.allocate(&request).expect("one above the mark").start);
        assert_eq!(manager.allocate(&request), Err(NO_MEMORY));
        // The reserves, to the last page.
        taken.extend(take_all(manager, &Request { reserves: Reserves::All, ..request }));
        assert!(free_pages(manager)[..zones].iter().all(|&pages| pages == 0));
        check(manager);
        give(manager, &taken);
        assert_eq!(free_pages(manager), free);
    }
}

#[test]
fn marks_hold_for_larger_orders_and_for_many_at_once() {
    let manager = up(FakeMachine::builder().ram(mib(0, 80)).build());
    let min = keeps(manager, ZoneKind::Normal, |zone| zone.watermarks().min_pages);
    let taken = take_all(manager, &Request::new(order(3)));
    let left = free_pages(manager);
    assert!(
        left.iter().zip(&min).all(|(left, min)| (*min..min + 8).contains(left)),
        "{left:?} {min:?}"
    );
    let mut pages = [Pfn(0); 64];
    let spare = usize::try_from(left.iter().sum::<u64>() - min.iter().sum::<u64>()).expect("small");
    let got = manager.allocate_bulk(&one(), &mut pages);
    assert_eq!(got, if spare == 0 { Err(NO_MEMORY) } else { Ok(spare) });
    assert_eq!(free_pages(manager), min);
    give(manager, &pages[..spare]);
    for start in taken {
        manager.give_back_to_zone(PfnRange::new(start.0, start.0 + 8)).expect("allocated");
    }
    check(manager);
}

#[test]
fn a_hook_that_frees_is_asked_until_it_suffices() {
    let manager = up(FakeMachine::builder().ram(mib(0, 64)).build());
    let held: &'static Mutex<Vec<Pfn>> = Box::leak(Box::new(Mutex::new(take_all(manager, &one()))));
    let hook = Hook::set(manager, move |wanted| {
        // Frees ten at a time, some of them into this CPU's cache.
        let mut held = held.lock().expect("no panic");
        let keep = held.len().saturating_sub(10);
        let pages = held.split_off(keep);
        give(manager, &pages[pages.len() / 2..]);
        for page in &pages[..pages.len() / 2] {
            manager.give_back_order(*page, Order::PAGE).expect("allocated");
        }
        assert!(
            wanted.pages >= 1 && wanted.node == NodeChoice::Any && wanted.zone == ZoneKind::Normal
        );
        pages.len() as u64
    });
    let mut got = vec![manager.allocate(&one()).expect("the hook frees").start];
    assert_eq!(hook.calls(), 1);
    // Ten were freed, and one of them was allocated.
    let mut pages = [Pfn(0); 24];
    assert_eq!(manager.allocate_bulk(&one(), &mut pages), Ok(24));
    assert_eq!(hook.calls(), 2);
    got.extend(pages);
    for _ in 0..6 {
        got.push(
            manager.allocate_order(Order::PAGE, MigrateType::Movable).expect("the hook frees"),
        );
    }
    assert_eq!(hook.calls(), 1);
    let more = take_all(manager, &Request { fail_fast: true, ..one() });
    assert_eq!(hook.calls(), 0, "who fails fast asks nobody");
    give(manager, &more);
    give(manager, &got);
    let rest = std::mem::take(&mut *held.lock().expect("no panic"));
    give(manager, &rest);
    manager.drain().expect("good frames");
    assert_eq!(manager.totals().allocated_pages, 0);
    check(manager);
}

/// Memory that is freed where the request may not have it does not help.
#[test]
fn the_hook_is_told_where_memory_will_do() {
    let limit = 32 << 20;
    let machine = FakeMachine::builder().ram(mib(0, 64)).direct_limit(limit).build();
    let manager = up(machine);
    let asked = Arc::new(Mutex::new(None));
    let ours = Arc::clone(&asked);
    Hook::set(manager, move |wanted| {
        *ours.lock().expect("not poisoned") = Some((wanted.zone, wanted.max_address));
        0
    });
    let told = |request: &Request| {
        while manager.allocate(request).is_ok() {}
        asked.lock().expect("not poisoned").take()
    };
    // Without zones of their own, devices limit requests by address.
    let (dma, reach) = if cfg!(feature = "dma-zones") {
        (ZoneKind::Dma, u64::MAX)
    } else {
        (ZoneKind::Normal, 16 << 20)
    };
    let request = Request { zone: ZoneKind::Dma, ..one() };
    assert_eq!(told(&request), Some((dma, reach)));
    let low = Request { max_address: 8 << 20, ..request };
    assert_eq!(told(&low), Some((dma, 8 << 20)));
    // Memory that cannot be reached cannot be cleared.
    let zeros = Request { zeroed: true, ..one() };
    let highest = if cfg!(feature = "dma-zones") { ZoneKind::Dma32 } else { ZoneKind::Normal };
    assert_eq!(told(&zeros), Some((highest, limit)));
    check(manager);
}

#[test]
fn a_hook_that_fails_is_asked_once_and_reserves_come_last() {
    let manager = up(FakeMachine::builder().ram(mib(0, 64)).build());
    let hook = Hook::set(manager, |_| 0);
    let held = take_all(manager, &one());
    assert_eq!(hook.calls(), 1);
    assert_eq!(manager.allocate(&one()), Err(NO_MEMORY));
    assert_eq!(hook.calls(), 1, "the hook may have something now, so each request asks");
    assert!(manager.allocate_order(Order::PAGE, MigrateType::Movable).is_err());
    assert_eq!(hook.calls(), 1);
    assert_eq!(manager.allocate_bulk(&one(), &mut [Pfn(0); 5]), Err(NO_MEMORY));
    assert_eq!(hook.calls(), 1);
    // The reserves would serve the request, but the hook is asked first; without a hook they serve
    // at once.
    let emergency = Request { reserves: Reserves::All, ..one() };
    let reserve = manager.allocate(&emergency).expect("a reserve").start;
    assert_eq!(hook.calls(), 1);
    let quick =
        manager.allocate(&Request { fail_fast: true, ..emergency }).expect("a reserve").start;
    assert_eq!(hook.calls(), 0);
    manager.pressure().set_reclaim(None);
    assert_eq!(manager.allocate(&one()), Err(NO_MEMORY));
    assert_eq!(hook.calls(), 0);
    give(manager, &[reserve, quick]);
    give(manager, &held);
    check(manager);
}

#[test]
fn a_hook_that_says_it_freed_does_not_hold_a_request_for_ever() {
    let machine =
        FakeMachine::builder().ram(gib(0, 6)).node(gib(0, 5), 0).node(gib(5, 6), 1).cpus(1).build();
    let manager = up(machine);
    let node = |index| NodeId::new(index).expect("a node");
    let on_node_1 = Request { node: NodeChoice::Exact(node(1)), ..Request::new(order(9)) };
    let mut held = Vec::new();
    while let Ok(range) = manager.allocate(&on_node_1) {
        held.push(range);
    }
    // The hook frees memory on the other node.
    let elsewhere = Request { node: NodeChoice::Exact(node(0)), ..Request::new(order(4)) };
    let mut others = Vec::new();
    for _ in 0..100 {
        others.push(manager.allocate(&elsewhere).expect("memory"));
    }
    let others: &'static Mutex<Vec<PfnRange>> = Box::leak(Box::new(Mutex::new(others)));
    let hook = Hook::set(manager, move |wanted| {
        assert_eq!((wanted.node, wanted.order), (NodeChoice::Exact(node(1)), order(9)));
        others.lock().expect("no panic").pop().map_or(0, |range| {
            manager.give_back_to_zone(range).expect("allocated");
            range.pages()
        })
    });
    assert_eq!(manager.allocate(&on_node_1), Err(AllocateError::OutOfMemory { order: order(9) }));
    let calls = hook.calls();
    assert!((2..=32).contains(&calls), "{calls}");
    assert_eq!(others.lock().expect("no panic").len(), 100 - calls as usize);
    // A request that the other node may serve never calls the hook.
    held.push(
        manager
            .allocate(&Request { node: NodeChoice::Preferred(node(1)), ..on_node_1 })
            .expect("node 0 has"),
    );
    assert_eq!(hook.calls(), 0);
    held.append(&mut others.lock().expect("no panic"));
    for range in held {
        manager.give_back_to_zone(range).expect("allocated");
    }
    check(manager);
    assert_eq!(manager.totals().allocated_pages, 0);
}

#[test]
fn a_request_inside_the_hook_does_not_ask_again() {
    for machine in [
        FakeMachine::builder().ram(mib(0, 64)).cpus(2).build(),
        FakeMachine::builder().ram(mib(0, 64)).cpus(2).anonymous_tasks().build(),
    ] {
        let manager = up(machine);
        let held: &'static Mutex<Vec<Pfn>> =
            Box::leak(Box::new(Mutex::new(take_all(manager, &one()))));
        let depth: &'static AtomicU32 = Box::leak(Box::new(AtomicU32::new(0)));
        let hook = Hook::set(manager, move |_| {
            assert_eq!(depth.fetch_add(1, Ordering::Relaxed), 0, "entered twice by one task");
            // Writing data out takes memory: an ordinary request fails, and then the reserves
            // serve.
            assert_eq!(manager.allocate(&one()), Err(NO_MEMORY));
            assert!(manager.allocate_order(Order::PAGE, MigrateType::Movable).is_err());
            let buffer =
                manager.allocate(&Request { reserves: Reserves::All, ..one() }).expect("a reserve");
            let page = held.lock().expect("no panic").pop();
            give(manager, page.as_slice());
            manager.give_back_to_zone(buffer).expect("allocated");
            depth.store(0, Ordering::Relaxed);
            page.map_or(0, |_| 1)
        });
        let got = manager.allocate(&one()).expect("the hook frees").start;
        assert_eq!(hook.calls(), 1);
        give(manager, &[got]);
        let rest = std::mem::take(&mut *held.lock().expect("no panic"));
        give(manager, &rest);
        check(manager);
        assert_eq!(manager.totals().allocated_pages, 0);
    }
}

/// Lets two CPUs run out of memory while one of them is in the hook. Returns the number of hook
/// calls.
fn two_in_need(machine: &'static FakeMachine) -> u32 {
    let manager = up(machine);
    let held = take_all(manager, &one());
    let inside: &'static Barrier = Box::leak(Box::new(Barrier::new(2)));
    let both = machine_knows_tasks(machine);
    let hook = Hook::set(manager, move |_| {
        inside.wait();
        // If tasks have no names, the other CPU passes by without entering the hook.
        inside.wait();
        0
    });
    thread::scope(|scope| {
        scope.spawn(|| assert_eq!(manager.allocate(&one()), Err(NO_MEMORY)));
        scope.spawn(|| {
            if !both {
                inside.wait();
            }
            assert_eq!(manager.allocate(&one()), Err(NO_MEMORY));
            if !both {
                inside.wait();
            }
        });
    });
    give(manager, &held);
    check(manager);
    hook.calls()
}

fn machine_knows_tasks(machine: &FakeMachine) -> bool {
    use framewright::Platform;
    machine.current_task().is_some()
}

#[test]
fn several_cpus_are_in_the_hook_where_tasks_have_names() {
    assert_eq!(two_in_need(FakeMachine::builder().ram(mib(0, 64)).cpus(4).build()), 2);
    assert_eq!(
        two_in_need(FakeMachine::builder().ram(mib(0, 64)).cpus(4).anonymous_tasks().build()),
        1
    );
}

#[test]
fn interrupt_handlers_neither_ask_nor_wait() {
    let machine = FakeMachine::builder().ram(mib(0, 64)).cpus(2).build();
    let manager = up(machine);
    let held = take_all(manager, &one());
    let hook = Hook::set(manager, |_| panic!("not here"));
    let barriers = machine.calls().cpu_barrier;
    machine.interrupt(|| {
        assert_eq!(manager.allocate(&one()), Err(NO_MEMORY));
        assert!(manager.allocate_order(Order::PAGE, MigrateType::Movable).is_err());
        let reserve = manager
            .allocate(&Request { reserves: Reserves::All, ..one() })
            .expect("a reserve")
            .start;
        give(manager, &[reserve]);
    });
    assert_eq!(machine.calls().cpu_barrier, barriers);
    assert_eq!(hook.calls(), 0);
    give(manager, &held);
    check(manager);
}

#[test]
fn requests_that_must_fail_do_so_without_draining_or_searching_again() {
    let machine = FakeMachine::builder().ram(mib(0, 64)).cpus(8).build();
    let manager = up(machine);
    let mut held = take_all(manager, &Request { reserves: Reserves::All, ..one() });
    let large = Request::new(order(5));
    // There is enough memory, but in pieces; this is found out once.
    let pieces: Vec<Pfn> = held.iter().copied().filter(|page| page.0 % 2 == 0).collect();
    held.retain(|page| page.0 % 2 != 0);
    give(manager, &pieces);
    let no_run = Err(AllocateError::OutOfMemory { order: order(5) });
    assert_eq!(manager.allocate(&large), no_run);
    let before = machine.calls();
    for _ in 0..100 {
        assert_eq!(manager.allocate(&large), no_run);
    }
    let after = machine.calls();
    assert_eq!(after.cpu_barrier, before.cpu_barrier, "drained again");
    // Remembered failures and the hook take a lock each; no zone is looked at.
    assert!(after.irq_save - before.irq_save <= 200, "{}", after.irq_save - before.irq_save);
    // The short path also asks its home zone, for a cache that is empty.
    let before = machine.calls();
    for of in [3, 5].repeat(50) {
        let got = manager.allocate_order(order(of), MigrateType::Movable);
        assert_eq!(got, Err(AllocateError::OutOfMemory { order: order(of) }));
    }
    let after = machine.calls();
    assert!(after.cpu_barrier - before.cpu_barrier <= 1, "drained again");
    assert!(after.irq_save - before.irq_save <= 420, "{}", after.irq_save - before.irq_save);
    // Other requests are not held back, and one free ends it, on any CPU and by any path.
    held.push(manager.allocate(&one()).expect("there are pieces").start);
    let ways: [fn(&Fake, Pfn); 3] = [
        |manager, page| {
            manager.give_back_to_zone(PfnRange::new(page.0, page.0 + 1)).expect("allocated")
        },
        |manager, page| manager.give_back_order(page, Order::PAGE).expect("allocated"),
        |manager, page| give(manager, &[page]),
    ];
    for way in ways {
        // A run of 32 pages without tables: every other page is held, and its neighbours are free.
        let in_run = |run: u64| held.iter().filter(|page| page.0 >> 5 << 5 == run).count();
        let run = (0x1000..).step_by(32).find(|&run| in_run(run) >= 16).expect("some are held");
        let (mut freed, rest): (Vec<Pfn>, Vec<Pfn>) =
            held.iter().partition(|page| page.0 >> 5 << 5 == run);
        held = rest;
        let last = freed.pop().expect("one at least");
        give(manager, &freed);
        assert_eq!(manager.allocate(&large), no_run);
        thread::scope(|scope| scope.spawn(|| machine.run_on(5, || way(manager, last))).join())
            .expect("no panic");
        let got = manager.allocate(&large).expect("the run is whole");
        assert_eq!(got.start.0, run);
        held.extend((got.start.0..got.end.0).map(Pfn));
    }
    give(manager, &held);
    manager.drain().expect("good frames");
    assert_eq!(manager.totals().allocated_pages, 0);
    check(manager);
}

#[test]
fn nothing_is_lost_when_many_fight_for_the_last_pages() {
    let machine = FakeMachine::builder().ram(mib(0, 32)).cpus(6).build();
    let manager = up(machine);
    let spare: &'static Mutex<Vec<Pfn>> = Box::leak(Box::new(Mutex::new(Vec::new())));
    let asked: &'static AtomicU64 = Box::leak(Box::new(AtomicU64::new(0)));
    Hook::set(manager, move |wanted| {
        asked.fetch_add(1, Ordering::Relaxed);
        let mut pages = spare.lock().expect("no panic");
        let keep = pages.len().saturating_sub(usize::try_from(wanted.pages).expect("small") + 20);
        let given = pages.split_off(keep);
        drop(pages);
        for page in &given {
            manager.give_back_order(*page, Order::PAGE).expect("spare");
        }
        given.len() as u64
    });
    let owned: Vec<AtomicBool> = (0..32 << 8).map(|_| AtomicBool::new(false)).collect();
    let own = |page: Pfn, was: bool| {
        let flag = &owned[usize::try_from(page.0).expect("small")];
        assert_eq!(flag.swap(!was, Ordering::Relaxed), was, "{page}");
    };
    thread::scope(|scope| {
        for seed in 1..=5_u64 {
            let own = &own;
            scope.spawn(move || {
                let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let mut random = |limit: u64| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    state % limit
                };
                let mut held: Vec<Pfn> = Vec::new();
                for _ in 0..6000 {
                    let before = held.len();
                    match random(12) {
                        0..5 => {
                            held.extend(manager.allocate_order(Order::PAGE, MigrateType::Movable))
                        }
                        5 => held.extend(
                            manager
                                .allocate(&Request {
                                    reserves: LEVELS[usize::try_from(random(4)).expect("small")],
                                    ..one()
                                })
                                .map(|run| run.start),
                        ),
                        6 => {
                            let mut pages = [Pfn(0); 40];
                            if let Ok(got) = manager.allocate_bulk(&one(), &mut pages) {
                                held.extend(&pages[..got]);
                            }
                        }
                        7 => {
                            // These pages go to the hook.
                            let keep = held.len() - held.len() / 4;
                            let given = held.split_off(keep);
                            given.iter().for_each(|&page| own(page, true));
                            spare.lock().expect("no panic").extend(given);
                            continue;
                        }
                        _ => {
                            for _ in 0..random(8) {
                                if !held.is_empty() {
                                    let index =
                                        usize::try_from(random(held.len() as u64)).expect("small");
                                    let page = held.swap_remove(index);
                                    own(page, true);
                                    manager.give_back_order(page, Order::PAGE).expect("held");
                                }
                            }
                            continue;
                        }
                    }
                    held[before..].iter().for_each(|&page| own(page, false));
                }
                spare.lock().expect("no panic").extend(held.iter());
                held.iter().for_each(|&page| own(page, true));
            });
        }
    });
    assert!(asked.load(Ordering::Relaxed) > 0, "memory was never short");
    manager.pressure().set_reclaim(None);
    let rest = std::mem::take(&mut *spare.lock().expect("no panic"));
    give(manager, &rest);
    manager.drain().expect("good frames");
    assert_eq!(manager.totals().allocated_pages, 0);
    check(manager);
    // Every page can be allocated again.
    let all = take_all(manager, &Request { reserves: Reserves::All, ..one() });
    assert_eq!(all.len() as u64, manager.totals().managed_pages);
}

/// Each kind of request leaves what is kept back from it: all of the min watermark, half of it,
/// three eighths, nothing.
#[test]
fn requests_may_have_so_much_of_the_reserves() {
    let manager = up(FakeMachine::builder().ram(mib(0, 64)).build());
    let view = || {
        manager.views().map(|zone| {
            let lowmem = zone.lowmem_reserve()[ZoneKind::Normal as usize];
            (zone.free_pages(), zone.watermarks().min_pages, lowmem)
        })
    };
    assert!(view().all(|(_, min, _)| min > 16));
    let mut held = Vec::new();
    let mut left = Vec::new();
    for reserves in LEVELS {
        let request = Request { reserves, fail_fast: true, ..Request::new(Order::PAGE) };
        while let Ok(page) = manager.allocate(&request) {
            held.push(page);
        }
        manager.drain().expect("in order");
        while let Ok(page) = manager.allocate(&request) {
            held.push(page);
            manager.drain().expect("in order");
        }
        left.push(view().collect::<Vec<_>>());
    }
    for (eighths, zones) in [8, 4, 3, 0].into_iter().zip(&left) {
        for &(free, min, lowmem) in zones {
            let half = min.div_ceil(2);
            let part = match eighths {
                8 => min,
                4 => half,
                3 => half - half / 4,
                _ => 0,
            };
            let kept = part + if eighths == 0 { 0 } else { lowmem };
            assert!(free >= kept && free <= kept + 1, "{eighths}: {free} of {min}, {left:?}");
        }
    }
    held.into_iter().for_each(|page| manager.give_back(page).expect("ours"));
    check(manager);
}
