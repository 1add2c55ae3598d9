//! Regressions: pages that stayed in pools for ever after everybody had dropped them, and requests
//! that were refused while pages were free. Both came from reservations that met other reservations
//! or resizes.

use crate::common::pool_machine::{TWO, check, machine, node, numbers};
use crate::common::{Fake, bring_up, gib, retire};
use framewright::hugetlb::NodeMask;
use framewright::manager::{PoolBatch, PoolVmemmap};
use framewright::memblock::NodeChoice;
use framewright_jobs::NoHelpers;
use framewright_testkit::{FakeMachine, PoolOwner};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;

type Call = Box<dyn FnOnce() + Send>;

/// Does something once when a page comes, and once when a page goes.
#[derive(Default)]
struct Interferer {
    publish: Mutex<Option<Call>>,
    free: Mutex<Option<Call>>,
}

fn call(once: &Mutex<Option<Call>>) {
    let call = once.lock().expect("alive").take();
    if let Some(call) = call {
        call();
    }
}

impl PoolVmemmap for Interferer {
    unsafe fn before_publish(&self, _: &PoolBatch<'_>) -> u64 {
        call(&self.publish);
        0
    }

    unsafe fn before_free(&self, _: &PoolBatch<'_>) {
        call(&self.free);
    }
}

fn interfered() -> (&'static Fake, &'static Interferer) {
    let manager: &'static Fake = Box::leak(Box::new(bring_up(machine())));
    let hook: &'static Interferer = Box::leak(Box::default());
    manager.hugetlb().set_vmemmap_hook(Some(hook));
    (manager, hook)
}

fn four_cpus_each() -> &'static FakeMachine {
    let builder = FakeMachine::builder().ram(gib(0, 4)).node(gib(0, 4), 0);
    builder.ram(gib(4, 8)).node(gib(4, 8), 1).cpus_on(0, 4).cpus_on(1, 4).build()
}

#[test]
fn a_fresh_page_for_a_reservation_frees_the_one_that_was_kept_for_it() {
    let manager = bring_up(machine());
    let pool = manager.pool(TWO);
    pool.set_overcommit(5).expect("2 MiB pages can");
    pool.resize_node(node(0), 1, &NoHelpers).expect("exists");
    pool.reserve(1, NodeMask::ALL).expect("is free");
    pool.resize(0, &NoHelpers).expect("nobody else resizes");
    assert_eq!(numbers(&pool), [1, 1, 1, 1, 0]);
    let page = pool.allocate(NodeChoice::Exact(node(1)), true).expect("overcommit allows it");
    assert_eq!(numbers(&pool), [1, 0, 0, 1, 0]);
    pool.commit(page.start).expect("allocated");
    pool.give_back_page(page.start).expect("allocated");
    check(&manager);
    assert_eq!(numbers(&pool), [0; 5]);
}

#[test]
fn two_who_cancel_at_once_leave_nothing() {
    for (n0, n1) in [(2, 1), (1, 2), (3, 1), (1, 3), (2, 2), (3, 2)] {
        for first in 1..n0 + n1 {
            let (manager, hook) = interfered();
            let pool = manager.pool(TWO);
            pool.resize_node(node(0), n0, &NoHelpers).expect("exists");
            pool.resize_node(node(1), n1, &NoHelpers).expect("exists");
            pool.reserve(n0 + n1, NodeMask::ALL).expect("are free");
            pool.resize(0, &NoHelpers).expect("nobody else resizes");
            *hook.free.lock().expect("alive") = Some(Box::new(move || {
                manager.pool(TWO).unreserve(n0 + n1 - first).expect("are left");
            }));
            pool.unreserve(first).expect("are reserved");
            check(manager);
            assert_eq!(numbers(&pool), [0; 5], "{n0} and {n1}, {first} first");
            manager.hugetlb().set_vmemmap_hook(None);
            retire(manager);
        }
    }
}

#[test]
fn threads_that_cancel_leave_nothing() {
    let manager = bring_up(four_cpus_each());
    let pool = manager.pool(TWO);
    for round in 0..500 {
        pool.resize_node(node(0), 2 + round % 3, &NoHelpers).expect("exists");
        pool.resize_node(node(1), 1 + round % 2, &NoHelpers).expect("exists");
        let all = pool.counts().all.nr;
        pool.reserve(all, NodeMask::ALL).expect("are free");
        pool.resize(0, &NoHelpers).expect("nobody else resizes");
        let barrier = Barrier::new(2);
        thread::scope(|scope| {
            for (cpu, part) in [(1, all - 1), (2, 1)] {
                let (pool, barrier, manager) = (&pool, &barrier, &manager);
                scope.spawn(move || {
                    barrier.wait();
                    manager.platform().run_on(cpu, || pool.unreserve(part).expect("are reserved"));
                });
            }
        });
        assert_eq!(pool.counts().all.nr, 0, "round {round}");
    }
}

/// The only page, on node 1, is freed while a fresh page is fetched for a reservation. The fresh
/// page is then not needed, unless the freed page is on a node where the reservation must not be
/// served.
#[test]
fn a_reservation_keeps_what_it_needs_of_what_it_fetched() {
    let nodes =
        [(NodeMask::ALL, [1, 1, 1, 0, 1], 0), (NodeMask::only(node(0)), [2, 2, 1, 1, 1], 1)];
    for (nodes, kept, on_node_0) in nodes {
        let (manager, hook) = interfered();
        let pool = manager.pool(TWO);
        pool.set_overcommit(5).expect("2 MiB pages can");
        pool.resize_node(node(1), 1, &NoHelpers).expect("exists");
        let used = pool.allocate(NodeChoice::Exact(node(1)), false).expect("is free");
        *hook.publish.lock().expect("alive") = Some(Box::new(move || {
            manager.pool(TWO).give_back_page(used.start).expect("is in use");
        }));
        pool.reserve(1, nodes).expect("overcommit allows it");
        check(manager);
        assert_eq!(numbers(&pool), kept);
        assert_eq!(pool.node_counts(node(0)).map(|counts| counts.free), Ok(on_node_0));
        pool.unreserve(1).expect("reserved");
        assert_eq!(numbers(&pool), [1, 1, 0, 0, 1]);
    }
}

/// The hook makes the other request and removes the limit, so that the reservation fails.
#[test]
fn a_reservation_that_fails_later_has_taken_nothing_either() {
    let (manager, hook) = interfered();
    let pool = manager.pool(TWO);
    pool.resize(8, &NoHelpers).expect("nobody else resizes");
    pool.set_overcommit(2).expect("2 MiB pages can");
    let got: &'static AtomicBool = Box::leak(Box::default());
    *hook.publish.lock().expect("alive") = Some(Box::new(move || {
        let pool = manager.pool(TWO);
        pool.set_overcommit(0).expect("2 MiB pages can");
        let page = pool.allocate(NodeChoice::Any, false);
        got.store(page.is_ok(), Ordering::Relaxed);
        page.into_iter().for_each(|page| pool.give_back_page(page.start).expect("allocated"));
    }));
    pool.reserve(10, NodeMask::ALL).expect_err("the limit is 0");
    assert!(got.load(Ordering::Relaxed), "8 pages were free");
    assert_eq!(numbers(&pool), [8, 8, 0, 0, 8]);
    check(manager);
}

#[test]
fn a_hook_that_panics_leaves_nothing_reserved() {
    let (manager, hook) = interfered();
    let pool = manager.pool(TWO);
    pool.resize(2, &NoHelpers).expect("nobody else resizes");
    pool.set_overcommit(2).expect("2 MiB pages can");
    *hook.publish.lock().expect("alive") = Some(Box::new(|| panic!("the hook's")));
    let reserve = || pool.reserve(3, NodeMask::ALL).is_ok();
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(reserve)).is_err());
    assert_eq!(pool.counts().reserved, 0);
}

#[test]
fn a_reservation_that_is_refused_takes_nothing_from_others() {
    let manager = bring_up(four_cpus_each());
    let pool = manager.pool(TWO);
    pool.resize(8, &NoHelpers).expect("nobody else resizes");
    let (ended, mut refused) = (AtomicBool::new(false), 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                assert!(pool.reserve(9, NodeMask::ALL).is_err());
            }
        });
        for _ in 0..100_000 {
            match pool.allocate(NodeChoice::Any, false) {
                Ok(page) => pool.give_back_page(page.start).expect("allocated"),
                Err(_) => refused += 1,
            }
        }
        ended.store(true, Ordering::Relaxed);
    });
    assert_eq!(refused, 0, "with 8 pages free");
}

#[test]
fn a_pool_that_shrinks_while_a_reservation_fails_is_empty() {
    let (manager, hook) = interfered();
    let pool = manager.pool(TWO);
    pool.resize(8, &NoHelpers).expect("nobody else resizes");
    pool.set_overcommit(1).expect("2 MiB pages can");
    *hook.publish.lock().expect("alive") = Some(Box::new(move || {
        manager.pool(TWO).resize(0, &NoHelpers).expect("nobody else resizes");
    }));
    // The reservation gets the fresh page; those that were free are surplus now.
    let reserved = pool.reserve(9, NodeMask::ALL);
    if reserved.is_ok() {
        pool.unreserve(9).expect("reserved");
    }
    check(manager);
    assert_eq!(numbers(&pool), [0; 5], "{reserved:?}");
}
