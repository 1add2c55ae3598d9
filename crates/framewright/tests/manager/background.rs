//! Background reclaim: when it is woken, what it asks of the hook, and when it ends.

use super::pressure::{Hook, give, up};
use crate::common::{Fake, blocks, check, gib, mib, unmovable};
use framewright::memblock::NodeChoice;
use framewright::units::{NodeId, NodeMask, Order, Pfn, PfnRange};
use framewright::zone::{Grade, MigrateType, ZoneKind};
use framewright::{Request, Shortage};
use framewright_testkit::{FakeMachine, Owner};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// Background reclaim begins below the low watermark and ends above the high one.
#[test]
fn background_reclaim_begins_below_the_low_mark_and_ends_above_the_high_one() {
    let manager = up(FakeMachine::builder().ram(mib(0, 64)).build());
    assert_eq!(manager.pressure().background(), None);
    let mut held = Vec::new();
    while manager.pressure().background().is_none() {
        held.push(manager.allocate(&Request::new(Order::PAGE)).expect("memory"));
        assert!(held.len() < 1 << 15);
    }
    let views = || manager.views().map(|zone| (zone.free_pages(), zone.watermarks()));
    let is_short =
        |(free, marks): &(u64, framewright::zone::Watermarks)| *free <= marks.low_pages + 1024;
    assert!(views().all(|zone| is_short(&zone)), "all zones are short");
    let missing =
        || views().map(|(free, marks)| marks.high_pages.saturating_sub(free)).sum::<u64>();
    while let Some(shortage) = manager.pressure().background() {
        assert_eq!(shortage.pages, missing());
        manager.give_back(held.pop().expect("more than that is held")).expect("ours");
        manager.drain().expect("only good frames are cached");
    }
    assert_eq!(missing(), 0);
    // Reclaim stays off until requests find too little again.
    assert_eq!(manager.pressure().background(), None);
    held.into_iter().for_each(|run| manager.give_back(run).expect("ours"));
    check(manager);
}

/// Bulk requests wake background reclaim as single requests do.
#[test]
fn bulk_requests_wake_background_reclaim() {
    let manager = up(FakeMachine::builder().ram(mib(0, 64)).build());
    let mut held = vec![Pfn(0); 1 << 14];
    let request = Request { fail_fast: true, ..Request::new(Order::PAGE) };
    let got = manager.allocate_bulk(&request, &mut held).expect("memory");
    assert!(got < held.len());
    assert!(manager.pressure().background().is_some());
    give(manager, &held[..got]);
    check(manager);
    // They do not if all pages came from above the low watermark of the only zone.
    let manager = up(FakeMachine::builder().ram(mib(4096, 4160)).build());
    let got = manager.allocate_bulk(&request, &mut held[..100]).expect("memory");
    assert_eq!((got, manager.pressure().background()), (100, None));
    give(manager, &held[..got]);
}

/// Two nodes of 64 MiB with a CPU each.
fn two_nodes() -> &'static Fake {
    let machine = FakeMachine::builder().nodes(2).cpus_on(0, 1).cpus_on(1, 1);
    let machine = machine.node(gib(0, 4), 0).node(gib(4, 8), 1);
    up(machine.ram(mib(1024, 1088)).ram(mib(4096, 4160)).build())
}

/// Allocates pages until a node is short.
fn take_until_short(manager: &Fake, request: &Request) -> Vec<PfnRange> {
    let mut held = Vec::new();
    while manager.pressure().background().is_none() {
        held.push(manager.allocate(request).expect("memory"));
        assert!(held.len() < 1 << 16);
    }
    held
}

type Shared<T> = Arc<Mutex<Vec<T>>>;

/// A hook that frees some of the held runs at each call, and records what it was asked for.
fn freeing(
    manager: &'static Fake,
    held: Vec<PfnRange>,
    at_once: usize,
) -> (Shared<PfnRange>, Shared<Shortage>, &'static Hook) {
    let held = Arc::new(Mutex::new(held));
    let asked = Arc::new(Mutex::new(Vec::new()));
    let (ours, list) = (Arc::clone(&held), Arc::clone(&asked));
    let hook = Hook::set(manager, move |wanted| {
        list.lock().expect("not poisoned").push(*wanted);
        let mut held = ours.lock().expect("not poisoned");
        let count = at_once.min(held.len());
        for run in held.drain(..count) {
            manager.give_back(run).expect("ours");
        }
        count as u64
    });
    (held, asked, hook)
}

#[test]
fn the_hook_frees_in_the_background_what_is_missing() {
    let manager = up(FakeMachine::builder().ram(mib(4096, 4160)).build());
    let (held, asked, hook) = freeing(manager, Vec::new(), 200);
    // No node was short yet.
    assert_eq!(manager.pressure().reclaim_in_background(), 0);
    assert_eq!(hook.calls.load(Ordering::Relaxed), 0);
    let taken = take_until_short(manager, &Request::new(Order::PAGE));
    let before = manager.pressure().events();
    assert_eq!((before.background_wakes, before.background_pages), (1, 0));
    assert_eq!(manager.platform().calls().wake_reclaim, 1, "once, however many find too little");
    let missing = manager.pressure().background().expect("short").pages;
    *held.lock().expect("not poisoned") = taken;
    let freed = manager.pressure().reclaim_in_background();
    assert_eq!(freed, missing.div_ceil(200) * 200, "in steps, until it is enough and no longer");
    assert_eq!(manager.pressure().background(), None);
    let zone = manager.views().next().expect("one");
    assert!(zone.free_pages() >= zone.watermarks().high_pages);
    for (round, wanted) in asked.lock().expect("not poisoned").iter().enumerate() {
        assert_eq!(wanted.pages, missing - 200 * round as u64);
        assert_eq!(wanted.round as usize, round);
        assert_eq!((wanted.order, wanted.zone), (Order::PAGE, ZoneKind::Normal));
        assert_eq!(wanted.node, NodeChoice::Exact(NodeId::ZERO));
        assert_eq!(wanted.nodes, NodeMask::only(NodeId::ZERO));
        assert_eq!(wanted.migrate_type, MigrateType::Movable);
    }
    let events = manager.pressure().events();
    assert_eq!(events.background_pages, freed);
    assert_eq!((events.reclaim_calls, events.reclaim_pages), (0, 0), "no request waited");
    // A node that is short again is counted again.
    assert_eq!(manager.pressure().reclaim_in_background(), 0);
    let more = take_until_short(manager, &Request::new(Order::PAGE));
    assert_eq!(manager.pressure().events().background_wakes, 2);
    assert_eq!(manager.platform().calls().wake_reclaim, 2);
    manager.pressure().set_reclaim(None);
    assert_eq!(manager.pressure().reclaim_in_background(), 0, "there is no hook");
    assert!(manager.pressure().background().is_some());
    let held = core::mem::take(&mut *held.lock().expect("not poisoned"));
    held.into_iter().chain(more).for_each(|run| manager.give_back(run).expect("ours"));
    check(manager);
}

/// Pages of a higher zone would not help.
#[test]
fn the_hook_frees_what_the_short_zone_lacks() {
    let manager = up(FakeMachine::builder().ram(mib(1024, 1088)).ram(gib(4, 5)).build());
    let low = Request { zone: ZoneKind::Dma32, ..Request::new(Order::PAGE) };
    let held = take_until_short(manager, &low);
    let shortage = manager.pressure().background().expect("short");
    assert_eq!(shortage.zone, ZoneKind::Dma32);
    let (held, asked, hook) = freeing(manager, held, 1000);
    assert!(manager.pressure().reclaim_in_background() >= shortage.pages);
    assert_ne!(hook.calls.load(Ordering::Relaxed), 0);
    assert!(asked.lock().expect("whole").iter().all(|wanted| wanted.zone == ZoneKind::Dma32));
    assert_eq!(manager.pressure().background(), None);
    manager.pressure().set_reclaim(None);
    let rest = core::mem::take(&mut *held.lock().expect("whole"));
    rest.into_iter().for_each(|run| manager.give_back(run).expect("ours"));
    check(manager);
}

/// A hook that frees nothing, or lies about what it freed, ends reclaim; and reclaim does nothing
/// if it is called from a hook.
#[test]
fn reclaim_in_the_background_always_ends() {
    let manager = up(FakeMachine::builder().ram(mib(4096, 4160)).build());
    let taken = take_until_short(manager, &Request::new(Order::PAGE));
    let idle = Hook::set(manager, |_| 0);
    assert_eq!(manager.pressure().reclaim_in_background(), 0);
    assert_eq!(idle.calls.load(Ordering::Relaxed), 1);
    let liar = Hook::set(manager, |_| u64::MAX);
    assert_eq!(manager.pressure().reclaim_in_background(), u64::MAX);
    // Pages from caches counted as progress at first; after that there is none.
    assert!(liar.calls.load(Ordering::Relaxed) <= 2, "nothing is gained by going on");
    assert_eq!(manager.pressure().background(), None, "until somebody is short again");
    let more = take_until_short(manager, &Request::new(Order::PAGE));
    assert!(!more.is_empty());
    // A hook is not called from within itself.
    let again = Hook::set(manager, |_| manager.pressure().reclaim_in_background());
    assert_eq!(manager.pressure().reclaim_in_background(), 0);
    assert_eq!(again.calls.load(Ordering::Relaxed), 1);
    assert!(manager.pressure().background().is_some(), "it is as short as before");
    taken.into_iter().chain(more).for_each(|run| manager.give_back(run).expect("ours"));
    check(manager);
}

/// A node on which nothing can be freed does not keep the hook from the other nodes.
#[test]
fn every_node_that_is_short_has_its_turn() {
    let manager = two_nodes();
    let on = |index: usize| NodeId::new(index).expect("a node");
    let mut held = [Vec::new(), Vec::new()];
    for (index, held) in held.iter_mut().enumerate() {
        let near = Request { node: NodeChoice::Exact(on(index)), ..Request::new(Order::PAGE) };
        let free = |manager: &Fake| -> u64 {
            let own = manager.views().filter(|zone| zone.id().node == on(index));
            own.map(|zone| zone.free_pages().saturating_sub(zone.watermarks().low_pages)).sum()
        };
        while free(manager) != 0 || manager.caches().pages() != 0 {
            held.push(manager.allocate(&near).expect("memory"));
        }
        held.push(manager.allocate(&near).expect("memory"));
    }
    let [first, second] = held;
    let first = Arc::new(Mutex::new(first));
    let ours = Arc::clone(&first);
    Hook::set(manager, move |wanted| {
        if wanted.nodes != NodeMask::only(NodeId::ZERO) {
            return 0;
        }
        let mut held = ours.lock().expect("not poisoned");
        let count = held.len().min(64);
        held.drain(..count).for_each(|run| manager.give_back(run).expect("ours"));
        count as u64
    });
    assert_ne!(manager.pressure().reclaim_in_background(), 0);
    let short = manager.pressure().background().expect("the other node is");
    assert_eq!(short.node, on(1));
    let own = manager.views().filter(|zone| zone.id().node == NodeId::ZERO);
    let enough = own.map(|zone| zone.free_pages() >= zone.watermarks().high_pages);
    assert!(enough.into_iter().all(|enough| enough));
    manager.pressure().set_reclaim(None);
    let left = core::mem::take(&mut *first.lock().expect("not poisoned"));
    left.into_iter().chain(second).for_each(|run| manager.give_back(run).expect("ours"));
    check(manager);
}

/// The hook is told which kind of request found too little: memory of other kinds would not help
/// it.
#[test]
fn the_hook_is_told_for_whom_it_frees() {
    let manager = up(FakeMachine::builder().ram(mib(4096, 4096 + 128)).build());
    manager.moving().set_grade(blocks(2048, 32), Grade::MovableOnly).expect("free");
    let taken = take_until_short(manager, &unmovable(Order::PAGE));
    let (held, asked, _) = freeing(manager, taken, 64);
    assert_ne!(manager.pressure().reclaim_in_background(), 0);
    assert_eq!(manager.pressure().background(), None);
    let asked = asked.lock().expect("not poisoned");
    assert!(asked.iter().all(|wanted| wanted.migrate_type == MigrateType::Unmovable));
    let held = core::mem::take(&mut *held.lock().expect("not poisoned"));
    held.into_iter().for_each(|run| manager.give_back(run).expect("ours"));
    check(manager);
}

/// A node on which nothing can be freed does not keep other nodes from being woken for requests
/// that begin there. Memory in small pieces is no shortage.
#[test]
fn each_node_is_woken_for_itself() {
    let manager = two_nodes();
    let mut held = take_until_short(manager, &Request::new(Order::PAGE));
    assert_eq!(manager.platform().calls().wake_reclaim, 2, "all that it may have are short");
    // The second node is above its watermarks again; the first is still short.
    let of_second = |run: &PfnRange| run.start >= Pfn(1 << 20);
    let (mut second, first): (Vec<_>, Vec<_>) = held.into_iter().partition(of_second);
    let back = second.split_off(second.len() / 2);
    back.into_iter().for_each(|run| manager.give_back_to_zone(run).expect("ours"));
    let short = manager.pressure().background().expect("the first is");
    assert_eq!(short.node, NodeId::ZERO);
    held = first;
    held.extend(second);
    while manager.pressure().background().is_some_and(|short| short.node == NodeId::ZERO) {
        held.push(manager.allocate(&Request::new(Order::PAGE)).expect("memory"));
        assert!(held.len() < 1 << 16, "the second is not woken");
    }
    assert_eq!(manager.platform().calls().wake_reclaim, 3);
    held.into_iter().for_each(|run| manager.give_back(run).expect("ours"));
    check(manager);
    // Frees every second page of memory.
    let manager = up(FakeMachine::builder().ram(mib(4096, 4160)).build());
    let mut held = Vec::new();
    let near = Request { fail_fast: true, ..Request::new(Order::PAGE) };
    while let Ok(run) = manager.allocate(&near) {
        held.push(run);
    }
    held.retain(|run| {
        let stays = run.start.0 % 2 == 0;
        if !stays {
            manager.give_back_to_zone(*run).expect("ours");
        }
        stays
    });
    manager.drain().expect("in order");
    assert_eq!(manager.pressure().background(), None);
    let wakes = manager.platform().calls().wake_reclaim;
    assert!(manager.allocate(&Request { fail_fast: true, ..Request::new(Order::BLOCK) }).is_err());
    assert_eq!(
        (manager.pressure().background(), manager.platform().calls().wake_reclaim),
        (None, wakes)
    );
    held.into_iter().for_each(|run| manager.give_back(run).expect("ours"));
    check(manager);
}

/// A hook that frees a little at each call is called until enough is free.
#[test]
fn the_hook_is_asked_as_often_as_it_takes() {
    let manager = up(FakeMachine::builder().ram(mib(4096, 4160)).build());
    let taken = take_until_short(manager, &Request::new(Order::PAGE));
    let (held, asked, hook) = freeing(manager, taken, 2);
    let freed = manager.pressure().reclaim_in_background();
    assert_eq!(manager.pressure().background(), None, "{freed} pages came");
    let calls = hook.calls.load(Ordering::Relaxed);
    assert!(u64::from(calls) * 2 == freed && calls > 16, "{calls} for {freed} pages");
    let asked = asked.lock().expect("not poisoned");
    assert!(asked.iter().map(|wanted| wanted.round).eq(0..calls));
    let held = core::mem::take(&mut *held.lock().expect("not poisoned"));
    held.into_iter().for_each(|run| manager.give_back(run).expect("ours"));
    check(manager);
}

/// A woken task may have nothing to free, or no means to: it is woken again.
#[test]
fn who_could_do_nothing_is_woken_again() {
    let manager = up(FakeMachine::builder().ram(mib(4096, 4160)).build());
    let request = Request { fail_fast: true, ..Request::new(Order::PAGE) };
    for round in 1..=4 {
        let mut held = Vec::new();
        while let Ok(run) = manager.allocate(&request) {
            held.push(run);
        }
        let woken = 2 * round - 1;
        assert_eq!(manager.platform().calls().wake_reclaim, woken, "once, however many are short");
        assert_eq!(manager.pressure().events().background_wakes, woken);
        // Without a hook, with a hook that has nothing, and in a context that must not call it.
        let freed = match round {
            1 => manager.pressure().reclaim_in_background(),
            2 => {
                Hook::set(manager, |_| 0);
                manager.pressure().reclaim_in_background()
            }
            _ => manager.platform().interrupt(|| manager.pressure().reclaim_in_background()),
        };
        assert_eq!(freed, 0);
        assert!(manager.pressure().background().is_some(), "it is as short as before");
        assert!(manager.allocate(&request).is_err());
        assert_eq!(manager.platform().calls().wake_reclaim, woken + 1);
        manager.pressure().reclaim_in_background();
        // The node is above its watermarks for a while, and no request wakes reclaim.
        held.into_iter().for_each(|run| manager.give_back_to_zone(run).expect("ours"));
        manager.drain().expect("in order");
        let zone = manager.views().next().expect("one");
        assert!(zone.free_pages() > zone.watermarks().high_pages);
    }
    check(manager);
}

/// A hook that allocates and frees memory itself finds the node as short as other callers do.
#[test]
fn the_hook_wakes_nobody() {
    let manager = up(FakeMachine::builder().ram(mib(4096, 4160)).build());
    let mut held = take_until_short(manager, &Request::new(Order::PAGE));
    let few = Request { fail_fast: true, ..unmovable(Order::new(4).expect("an order")) };
    held.extend(manager.allocate(&few));
    let wakes = manager.platform().calls().wake_reclaim;
    assert!(wakes >= 2, "for both kinds");
    let hook = Hook::set(manager, move |_| {
        for migrate_type in [MigrateType::Unmovable, MigrateType::Movable] {
            if let Ok(run) = manager.allocate(&Request { migrate_type, ..few }) {
                manager.give_back(run).expect("ours");
            }
        }
        0
    });
    for _ in 0..3 {
        manager.pressure().reclaim_in_background();
    }
    assert!(hook.calls.load(Ordering::Relaxed) >= 6);
    assert_eq!(manager.platform().calls().wake_reclaim, wakes);
    held.into_iter().for_each(|run| manager.give_back(run).expect("ours"));
    check(manager);
}

/// A page cache can free only movable memory: that it has none for other requests does not keep it
/// from being asked.
#[test]
fn each_kind_of_request_has_its_turn() {
    let manager = up(FakeMachine::builder().ram(mib(4096, 4096 + 128)).build());
    manager.moving().set_grade(blocks(2048, 32), Grade::MovableOnly).expect("free");
    let unmoved = take_until_short(manager, &unmovable(Order::PAGE));
    let mut held = Vec::new();
    while manager.pressure().events().background_wakes < 2 {
        held.push(manager.allocate(&Request::new(Order::PAGE)).expect("memory"));
    }
    let held = Arc::new(Mutex::new(held));
    let ours = Arc::clone(&held);
    Hook::set(manager, move |wanted| {
        if wanted.migrate_type != MigrateType::Movable {
            return 0;
        }
        let mut held = ours.lock().expect("not poisoned");
        let count = held.len().min(512);
        held.drain(..count).for_each(|run| manager.give_back(run).expect("ours"));
        count as u64
    });
    assert_ne!(manager.pressure().reclaim_in_background(), 0);
    let zone = manager.views().next().expect("one");
    assert!(zone.free_pages() >= zone.watermarks().high_pages);
    assert!(manager.pressure().background().is_some(), "others are short as before");
    let held = core::mem::take(&mut *held.lock().expect("not poisoned"));
    held.into_iter().chain(unmoved).for_each(|run| manager.give_back(run).expect("ours"));
    check(manager);
}
