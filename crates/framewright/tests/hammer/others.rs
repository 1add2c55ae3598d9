//! Threads that change what the users use: isolation, a pool, free page reporting.

use crate::model::Model;
use framewright::Request;
use framewright::hugetlb::{PoolError, PoolSize};
use framewright::memblock::NodeChoice;
use framewright::units::{NodeId, Order};
use framewright::vmemmap_space::BlockRange;
use framewright_jobs::NoHelpers;
use framewright_testkit::Owner;
use framewright_testkit::reporting::Answer;
use framewright_testkit::workload::Random;
use std::sync::atomic::Ordering;
use std::thread;

/// Isolates blocks, claims some, and puts them back.
pub fn isolate(model: &Model, mut random: Random) {
    let isolation = model.manager.isolation();
    while !model.ended.load(Ordering::Relaxed) {
        let memory = model.somewhere(&mut random);
        let (start, most) = (memory.start.0 / 512, memory.pages() / 512);
        let first = u32::try_from(start + random.below(most)).expect("small");
        let blocks = 1 + u32::try_from(random.below(12)).expect("small");
        let range = BlockRange::new(first, first + blocks);
        if isolation.isolate(range).is_ok() {
            model.isolate(range, true);
            (0..random.below(20)).for_each(|_| thread::yield_now());
            model.isolate(range, false);
            match isolation.claim(range) {
                Ok(pages) => {
                    model.got(200, pages, u64::MAX, false);
                    model.gives(200, pages, 0);
                    model.manager.give_back(pages).expect("ours");
                }
                Err(_) => isolation.unisolate(range).expect("isolated"),
            }
        }
        (0..random.below(200)).for_each(|_| thread::yield_now());
    }
}

/// Resizes a pool.
pub fn resize(model: &Model, mut random: Random) {
    let pool = model.manager.pool(PoolSize::TwoMib);
    while !model.ended.load(Ordering::Relaxed) {
        match pool.resize(random.below(12), &NoHelpers) {
            Ok(_) | Err(PoolError::Busy) => {}
            Err(error) => panic!("{error}"),
        }
        (0..random.below(200)).for_each(|_| thread::yield_now());
    }
}

/// Registers a device that reports free memory for a while, again and again.
pub fn report(model: &Model, mut random: Random) {
    let Some(host) = &model.host else { return };
    let mut now_ns = 1;
    while !model.ended.load(Ordering::Relaxed) {
        let registered = model.manager.register_reporting(host.device());
        let mut reporter = registered.map_err(|(error, _)| error).expect("the only one");
        for _ in 0..random.below(400) {
            if random.one_in(20) {
                let answer = random.choose(&[Answer::After(0), Answer::After(3), Answer::Fails(2)]);
                host.answer(answer.expect("some"));
            }
            now_ns = reporter.poll(now_ns).unwrap_or(now_ns + 1_000_000_000);
            thread::yield_now();
        }
        host.answer(Answer::After(0));
        loop {
            match reporter.unregister() {
                Ok(_) => break,
                Err(again) => reporter = again,
            }
            now_ns = reporter.poll(now_ns).unwrap_or(now_ns + 1_000_000_000);
        }
        (0..random.below(400)).for_each(|_| thread::yield_now());
    }
}

/// Takes all memory of a node, and gives it back after a while.
pub fn fill(model: &Model, mut random: Random) {
    while model.shape.fills && !model.ended.load(Ordering::Relaxed) {
        let node = NodeId::new(random.index(2)).expect("a node");
        let mut held = Vec::new();
        for order in [10, 9, 6, 3, 1, 0].map(|order| Order::new(order).expect("an order")) {
            let request = Request {
                node: NodeChoice::Exact(node),
                fail_fast: random.one_in(3),
                ..Request::new(order)
            };
            let mut asked = model.now.load(Ordering::SeqCst);
            while let Ok(range) = model.manager.allocate(&request) {
                model.got(100, range, asked, false);
                assert_eq!(model.node_of(range.start), node.index(), "{range:?}");
                held.push(range);
                asked = model.now.load(Ordering::SeqCst);
            }
        }
        (0..random.below(2000)).for_each(|_| thread::yield_now());
        while !held.is_empty() {
            let range = held.swap_remove(random.index(held.len()));
            model.gives(100, range, 0);
            model.manager.give_back(range).expect("ours");
        }
        if random.one_in(4) {
            model.manager.drain().expect("good frames");
        }
        model.manager.caches().age().expect("good frames");
        (0..random.below(2000)).for_each(|_| thread::yield_now());
    }
}
