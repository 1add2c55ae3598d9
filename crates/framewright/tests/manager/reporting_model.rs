//! Free page reporting under random traffic: against a model of who holds which pages, one step at
//! a time, and with several CPUs that write to all memory they hold.

use crate::common::check;
use crate::common::reporting_rig::{BASE, MS, Rig, machine, usual, weightless};
use framewright::reporting::{Acknowledged, Pace};
use framewright::units::{Order, Pfn, PfnRange};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::MigrateType;
use framewright::{Manager, Request};
use framewright_testkit::reporting::{Answer, FakeHost, Traits};
use framewright_testkit::{FakeMachine, Owner};
use proptest::collection::vec;
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

#[derive(Clone, Debug)]
enum Step {
    Take(u8, MigrateType),
    Free(usize),
    FreePart(usize, u64, u64),
    Poll(u64),
    Answers(Vec<Answer>),
    AnswerNow,
    Reset,
    Flush,
    Pause(bool),
    Pace(Pace),
    Isolate(u32, u32),
    Unisolate,
    Drain,
    Replace,
}

fn answers() -> impl Strategy<Value = Answer> {
    prop_oneof![
        4 => (0..3_u32).prop_map(Answer::After),
        2 => (any::<u32>(), 0..3_u32)
            .prop_map(|(told, polls)| Answer::Partly(Acknowledged(told), polls)),
        1 => (0..2_u32).prop_map(Answer::Fails),
        1 => Just(Answer::Refuses),
        1 => Just(Answer::IsBusy),
        1 => Just(Answer::Never),
    ]
}

fn steps(isolating: bool) -> impl Strategy<Value = Step> {
    let types = (0..3_usize).prop_map(|number| MigrateType::ALL[number]);
    prop_oneof![
        6 => (0..=14_u8, types).prop_map(|(order, kind)| Step::Take(order, kind)),
        5 => any::<usize>().prop_map(Step::Free),
        2 => (any::<usize>(), any::<u64>(), any::<u64>())
            .prop_map(|(which, start, pages)| Step::FreePart(which, start, pages)),
        10 => (0..300_u64).prop_map(Step::Poll),
        2 => vec(answers(), 1..4).prop_map(Step::Answers),
        1 => Just(Step::AnswerNow),
        1 => Just(Step::Reset),
        1 => Just(Step::Flush),
        1 => any::<bool>().prop_map(Step::Pause),
        1 => any::<bool>()
            .prop_map(|fixed| Step::Pace(if fixed { Pace::Fixed } else { Pace::Adaptive })),
        1 => (0..96_u32, 1..20_u32).prop_map(move |(first, blocks)| {
            if isolating { Step::Isolate(first, blocks) } else { Step::Drain }
        }),
        1 => Just(Step::Unisolate),
        1 => Just(Step::Drain),
        1 => Just(Step::Replace),
    ]
}

struct Model {
    rig: Rig,
    held: Vec<PfnRange>,
    isolated: Vec<BlockRange>,
}

impl Model {
    fn step(&mut self, step: &Step) {
        let rig = &mut self.rig;
        match step {
            &Step::Take(order, migrate_type) => {
                let order = Order::new(order).expect("an order");
                if let Ok(taken) =
                    rig.manager.allocate(&Request { migrate_type, ..Request::new(order) })
                {
                    rig.host.handed_out(taken);
                    assert!(
                        self.held.iter().all(|held| held.intersection(taken).is_empty()),
                        "{taken:?} is held"
                    );
                    self.held.push(taken);
                }
            }
            &Step::Free(which) if !self.held.is_empty() => {
                let range = self.held.swap_remove(which % self.held.len());
                rig.free(range);
            }
            &Step::FreePart(which, start, pages) if !self.held.is_empty() => {
                let which = which % self.held.len();
                let range = self.held.swap_remove(which);
                let start = range.start.0 + start % range.pages();
                let end = start + 1 + pages % (range.end.0 - start);
                rig.free(PfnRange::new(start, end));
                let rest = [PfnRange::new(range.start.0, start), PfnRange::new(end, range.end.0)];
                self.held.extend(rest.into_iter().filter(|rest| !rest.is_empty()));
            }
            &Step::Poll(ms) => rig.run(ms * MS),
            Step::Answers(answers) => rig.host.plan(answers.iter().copied()),
            Step::AnswerNow => rig.host.answer_now(),
            Step::Reset => rig.reporter().reset(),
            Step::Flush => rig.manager.reporting().flush(),
            Step::Pause(true) => rig.manager.reporting().pause(),
            Step::Pause(false) => rig.manager.reporting().resume(),
            &Step::Pace(pace) => rig.manager.reporting().set_pace(pace),
            &Step::Isolate(first, blocks) => {
                let start = BlockNumber(u32::try_from(BASE / 2).expect("small") + first);
                let range = BlockRange { start, end: BlockNumber(start.0 + blocks) };
                if rig.manager.isolation().isolate(range).is_ok() {
                    self.isolated.push(range);
                }
            }
            Step::Unisolate => {
                if let Some(range) = self.isolated.pop() {
                    rig.manager.isolation().unisolate(range).expect("it is isolated");
                }
            }
            Step::Drain => {
                rig.manager.drain().expect("only good frames are cached");
            }
            Step::Replace => {
                let reporter = rig.reporter.take().expect("registered");
                rig.reporter = Some(match reporter.unregister() {
                    Err(reporter) => reporter,
                    Ok(device) => rig
                        .manager
                        .register_reporting(device)
                        .map_err(|(error, _)| error)
                        .expect("alone"),
                });
            }
            Step::Free(_) | Step::FreePart(..) => {}
        }
    }

    fn check(&mut self) {
        check(self.rig.manager);
        let totals = self.rig.manager.totals();
        let held: u64 = self.held.iter().map(|range| range.pages()).sum();
        assert_eq!(totals.allocated_pages, held + self.rig.manager.caches().pages());
        let out_pages = self.rig.host.out_pages();
        assert_eq!(
            (totals.reporting_pages, self.rig.reporter().out_pages()),
            (out_pages, out_pages)
        );
        for range in &self.held {
            // Panics if the host may still discard the range.
            self.rig.host.handed_out(*range);
        }
    }
}

fn run(line: &str, traits: Traits, steps: &[Step]) -> Rig {
    let rig = Rig::new(machine(192, 1), line, traits);
    let mut model = Model { rig, held: Vec::new(), isolated: Vec::new() };
    for step in steps {
        model.step(step);
        model.check();
    }
    // In the end all memory is free and reported, and none is anywhere else.
    let Model { mut rig, held, isolated } = model;
    held.into_iter().for_each(|range| rig.free(range));
    isolated
        .into_iter()
        .for_each(|range| rig.manager.isolation().unisolate(range).expect("it is isolated"));
    rig.manager.drain().expect("only good frames are cached");
    rig.manager.reporting().resume();
    rig.host.plan([]);
    for _ in 0..8 {
        // Answers that were planned and never given.
        rig.settle();
        rig.host.answer_now();
    }
    rig.settle();
    let missed = if rig.reporter().order() > Order::BLOCK { 0 } else { rig.unreported_pages() };
    assert_eq!((missed, rig.host.out_pages(), rig.manager.totals().allocated_pages), (0, 0, 0));
    rig
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if crate::common::is_careful() { 8 } else { 48 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn blocks_are_never_reported_twice(
        steps in vec(steps(false), 1..120),
        capacity in 0..40_usize,
    ) {
        let rig = run("", Traits { capacity, ..weightless() }, &steps);
        prop_assert_eq!(rig.host.reported_twice(), 0);
    }

    #[test]
    fn isolation_and_small_orders(steps in vec(steps(true), 1..120), order in 0..=14_u8) {
        let line = format!("page_reporting.page_reporting_order={order}");
        run(&line, weightless(), &steps);
    }

    #[test]
    fn blocks_are_shuffled(steps in vec(steps(false), 1..80), seed in any::<u64>()) {
        let rig = run(
            &format!(
                "page_alloc.shuffle=1 \
            page_alloc.shuffle_seed={seed}"
            ),
            weightless(),
            &steps,
        );
        prop_assert_eq!(rig.host.reported_twice(), 0);
    }

    #[test]
    fn pages_have_descriptors(steps in vec(steps(false), 1..80), order in 3..=9_u8) {
        let line = format!("pages=inside page_reporting.page_reporting_order={order}");
        run(&line, weightless(), &steps);
    }
}

/// A small generator, so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Allocates, stamps, checks and frees at random, for at least `least` rounds and until something
/// was reported.
fn traffic(manager: &Manager<FakeMachine>, host: &FakeHost, seed: u64, least: u32) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut held: Vec<(PfnRange, bool)> = Vec::new();
    let stamp = |pfn: u64| seed << 48 | pfn;
    let free = |(range, cached): (PfnRange, bool)| {
        for pfn in range.start.0..range.end.0 {
            assert_eq!(
                manager.platform().load(Pfn(pfn).address()),
                stamp(pfn),
                "pfn {pfn:#x} was written to"
            );
        }
        if cached {
            let order = Order::for_pages(range.pages()).expect("an order");
            manager.give_back_order(range.start, order).expect("it is held");
        } else {
            manager.give_back(range).expect("it is held");
        }
    };
    for operation in 0..100 * least {
        if operation >= least && manager.reporting_counters().calls >= 30 {
            break;
        }
        if random.below(2) == 0 && held.len() < 30 {
            let order = Order::new(
                [0, 0, 1, 3, 5, 9, 9, 10, 12][usize::try_from(random.below(9)).expect("small")],
            );
            let order = order.expect("an order");
            let cached = random.below(2) == 0;
            let taken = if cached {
                manager
                    .allocate_order(order, MigrateType::Movable)
                    .ok()
                    .map(|start| PfnRange { start, end: start.add(order.pages()) })
            } else {
                manager.allocate(&Request::new(order)).ok()
            };
            let Some(taken) = taken else { continue };
            host.handed_out(taken);
            for pfn in taken.start.0..taken.end.0 {
                // SAFETY: the test owns the frame.
                unsafe { manager.platform().store(Pfn(pfn).address(), stamp(pfn)) };
            }
            held.push((taken, cached));
        } else if !held.is_empty() {
            let which = usize::try_from(random.below(held.len() as u64)).expect("small");
            free(held.swap_remove(which));
        }
    }
    held.into_iter().for_each(free);
}

#[test]
fn several_cpus_and_a_device_that_writes_over_what_it_has() {
    for (seed, line) in [
        (1, ""),
        (2, "page_reporting.page_reporting_order=4"),
        (3, "page_reporting.page_reporting_delay_ms=0"),
    ] {
        let mut rig = Rig::new(machine(224, 5), line, usual());
        let done = AtomicBool::new(false);
        let (manager, host) = (rig.manager, rig.host.clone());
        thread::scope(|scope| {
            let workers: Vec<_> = (1..=3)
                .map(|number| {
                    let host = &host;
                    scope.spawn(move || {
                        traffic(
                            manager,
                            host,
                            seed * 10 + number,
                            if crate::common::is_careful() { 300 } else { 2000 },
                        )
                    })
                })
                .collect();
            let done = &done;
            let rig = &mut rig;
            let poller = scope.spawn(move || {
                let mut random = Random(seed);
                while !done.load(Ordering::Relaxed) {
                    rig.host.answer(match random.below(8) {
                        0 => Answer::Fails(1),
                        1 => Answer::Partly(Acknowledged(0x0f0f_3355), 1),
                        2 => Answer::IsBusy,
                        more => Answer::After(u32::try_from(more).expect("small")),
                    });
                    if random.below(50) == 0 {
                        manager.reporting().flush();
                    }
                    rig.run(500 * MS);
                    thread::yield_now();
                }
            });
            let finished: Vec<_> =
                workers.into_iter().map(thread::ScopedJoinHandle::join).collect();
            done.store(true, Ordering::Relaxed);
            poller.join().expect("the poller");
            finished.into_iter().for_each(|worker| worker.expect("a worker"));
        });
        check(rig.manager);
        rig.manager.drain().expect("only good frames are cached");
        rig.host.answer(Answer::After(0));
        rig.settle();
        let counters = rig.manager.reporting_counters();
        assert!(counters.calls > 10, "{counters:?}");
        assert_eq!((rig.unreported_pages(), rig.manager.totals().allocated_pages), (0, 0));
    }
}
