//! Longer histories on more CPUs than loom can explore exhaustively: random traffic under random
//! schedules, and under schedules that change priorities at a few random points (PCT), which find
//! bugs that need few but particular preemptions.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test --profile model -p framewright --test shuttle --features
//! shuttle --target-dir target/shuttle`
#![cfg(shuttle)]

mod model;

use framewright::Request;
use framewright::units::PfnRange;
use framewright_workload::{Held, Shared, Worker};
use model::{Memory, Model, Owner, Shape, assert_disjoint, execute, on, order, take_movable};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, Runner};
use std::sync::Arc;

/// The number of points at which a PCT schedule changes priorities.
const DEPTH: usize = 4;

fn run(
    scheduler: impl Scheduler + 'static,
    shape: Shape,
    body: impl Fn(&'static Model) -> Vec<PfnRange> + Send + Sync + 'static,
) {
    let memory = Memory::new(shape);
    let mut config = Config::new();
    // Bring-up builds tables on the stack.
    config.stack_size = 1 << 20;
    config.max_steps = shuttle::MaxSteps::FailAfter(5_000_000);
    Runner::new(scheduler, config).run(move || execute(memory, shape, &body));
}

/// Runs half of the schedules at random and half by priorities.
fn explore(
    schedules: usize,
    shape: Shape,
    body: impl Fn(&'static Model) -> Vec<PfnRange> + Send + Sync + Copy + 'static,
) {
    run(RandomScheduler::new(schedules / 2), shape, body);
    run(PctScheduler::new(DEPTH, schedules / 2), shape, body);
}

/// Every CPU works at random. When all have stopped, every page is accounted for; this happens
/// twice.
fn traffic(model: &'static Model, cpus: u32, operations: u64) -> Vec<PfnRange> {
    let shared = Arc::new(Shared::new(model));
    for round in 0..2 {
        let workers: Vec<_> = (0..cpus)
            .map(|cpu| {
                let shared = Arc::clone(&shared);
                let work = move || {
                    let mut held = [Held::NOTHING; 24];
                    let seed = shuttle::rand::Rng::r#gen::<u64>(&mut shuttle::rand::thread_rng());
                    let mut worker =
                        Worker::new(model, &shared, &mut held, seed.wrapping_add(round));
                    worker.run(operations).unwrap_or_else(|failure| panic!("CPU {cpu}: {failure}"));
                    worker.finish().unwrap_or_else(|failure| panic!("CPU {cpu}: {failure}"))
                };
                on(model, cpu, work)
            })
            .collect();
        for worker in workers {
            worker.join().expect("no failure");
        }
        shared.account(model, 0).unwrap_or_else(|failure| panic!("{failure}"));
    }
    shared.settle(model).unwrap_or_else(|failure| panic!("{failure}"));
    Vec::new()
}

#[test]
fn traffic_of_three_cpus_on_little_memory() {
    explore(6000, Shape::new(2, 3), |model| traffic(model, 3, 60));
}

#[test]
fn traffic_of_six_cpus() {
    explore(1500, Shape::new(10, 6), |model| traffic(model, 6, 80));
}

#[test]
fn traffic_of_four_cpus_on_two_zones() {
    let shape = Shape { below: 2, ..Shape::new(1, 4) };
    explore(2000, shape, |model| traffic(model, 4, 60));
}

#[test]
fn traffic_of_four_cpus_on_two_parts_of_a_zone() {
    let shape = Shape { below: 2, divided: true, ..Shape::new(2, 4) };
    explore(2000, shape, |model| traffic(model, 4, 60));
}

#[test]
fn caches_are_used_while_two_others_drain() {
    explore(40_000, Shape::new(2, 4), |model| {
        let users = [1, 2].map(|cpu| {
            on(model, cpu, move || {
                let mut held = Vec::new();
                for of in [0, 3, 0, 7, 0, 3] {
                    if let Some(range) = take_movable(model, of) {
                        if range.start.0 % 3 == 0 {
                            held.push(range)
                        } else {
                            model::give(model, range)
                        }
                    }
                }
                held
            })
        });
        let drainer = on(model, 3, move || {
            (0..3).map(|_| model.drain().expect("only good frames are cached")).sum::<u64>()
        });
        model.drain().expect("only good frames are cached");
        let held: Vec<PfnRange> =
            users.into_iter().flat_map(|user| user.join().expect("no failure")).collect();
        drainer.join().expect("no failure");
        held
    });
}

#[test]
fn cpus_come_and_go_under_traffic_and_drains() {
    explore(6000, Shape::new(2, 5), |model| {
        let shared = Arc::new(Shared::new(model));
        let workers = [1, 2, 3].map(|cpu| {
            let shared = Arc::clone(&shared);
            on(model, cpu, move || {
                let mut held = [Held::NOTHING; 24];
                let seed = shuttle::rand::Rng::r#gen::<u64>(&mut shuttle::rand::thread_rng());
                let mut worker = Worker::new(model, &shared, &mut held, seed);
                worker.run(50).unwrap_or_else(|failure| panic!("CPU {cpu}: {failure}"));
                worker.finish().unwrap_or_else(|failure| panic!("CPU {cpu}: {failure}"));
            })
        });
        let turn = move |cpus: [u32; 3]| {
            for cpu in cpus {
                let kept = || model.caches().cpu(cpu).expect("there").pages;
                model.cpus().offline(cpu).expect("it is there");
                assert_eq!(kept(), 0);
                model.drain().expect("only good frames are cached");
                assert_eq!(kept(), 0);
                model.cpus().online(cpu).expect("it is away");
            }
        };
        let other = on(model, 4, move || turn([3, 0, 3]));
        turn([1, 2, 1]);
        other.join().expect("no failure");
        for worker in workers {
            worker.join().expect("no failure");
        }
        shared.settle(model).unwrap_or_else(|failure| panic!("{failure}"));
        Vec::new()
    });
}

#[test]
fn parts_of_one_run_at_every_order() {
    for of in 1..=18_u8 {
        let blocks = if of > 9 { 1 << (of - 9) } else { 1 };
        explore(300, Shape::new(blocks, 4), move |model| {
            let whole =
                model.allocate_past_caches(&Request::new(order(of))).expect("there is memory");
            let quarter = whole.pages().div_ceil(4);
            let part = move |number: u64| {
                let start = (whole.start.0 + number * quarter).min(whole.end.0);
                PfnRange::new(start, (start + quarter).min(whole.end.0))
            };
            let free = move |numbers: [u64; 2]| {
                for range in numbers.map(part).into_iter().filter(|range| !range.is_empty()) {
                    model.give_back(range).expect("it is held");
                }
            };
            let (one, other) =
                (on(model, 1, move || free([2, 0])), on(model, 2, move || free([1, 3])));
            let third =
                on(model, 3, move || [of, of - 1, 0].map(|wanted| take_movable(model, wanted)));
            let held: Vec<PfnRange> =
                third.join().expect("no failure").into_iter().flatten().collect();
            one.join().expect("no failure");
            other.join().expect("no failure");
            assert_disjoint(&held);
            held
        });
    }
}
