//! Many CPUs make every call that takes or gives frames, on machines with little memory whose nodes
//! are interleaved.
//!
//! One byte per frame names the frame's owner. Words in the frame itself, and in its descriptor if
//! it has one, name the owner again, so the test also finds what the tables cannot see: a frame
//! with two owners, a host or a manager that writes where it must not, memory that is not zero, a
//! frame without its descriptor. Each run is checked against its request: node, zone, limit,
//! alignment and boundary. At the end every page is free.
//!
//! `HAMMER_STEPS` and `HAMMER_SEED` in the environment set the number of steps and the seed.
#![cfg(not(any(loom, shuttle)))]

#[path = "../common/mod.rs"]
mod common;

mod model;
mod others;
mod user;

use common::{Fake, bring_up_with, check, gib, idle_pages, parameters, settled};
use framewright::hugetlb::PoolSize;
use framewright::reporting::Content;
use framewright_jobs::NoHelpers;
use framewright_testkit::reporting::{FakeHost, Traits};
use framewright_testkit::workload::Random;
use framewright_testkit::{FakeMachine, FakeVmemmap};
use model::{Memory, Model, Shape};
use std::sync::atomic::Ordering;
use std::thread;
use user::User;

/// CPUs that allocate and free: two of node 0, one of node 1, one of a node without memory. The
/// first CPU is the test's own.
const USERS: u32 = 4;

fn of_environment(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(usual)
}

/// Node 1 lies between two parts of node 0.
const ALIKE: &[Memory] = &[
    Memory::new(1, 48, 0),
    Memory::new(4096, 4160, 0),
    Memory::new(4160, 4224, 1),
    Memory::new(4224, 4287, 0),
];
/// Node 1 is so much larger that all CPUs of node 0 may cache its frames, and its zone may be
/// divided into parts. One of node 0's ranges lies inside node 1.
const LARGER: &[Memory] = &[
    Memory::new(1, 48, 0),
    Memory::new(4096, 4160, 0),
    Memory::new(4160, 4288, 1),
    Memory::new(5120, 5184, 1),
    Memory::new(6144, 6172, 0),
    Memory::new(7168, 7231, 1),
];

/// Node 2 has a CPU but no memory.
fn machine(memory: &'static [Memory]) -> &'static FakeMachine {
    let mut builder = FakeMachine::builder().node(gib(0, 4), 0);
    for memory in memory {
        builder = builder.ram(memory.range());
        if memory.start_mib >= 4096 {
            builder = builder.node(memory.range(), memory.node);
        }
    }
    builder.nodes(3).cpus_on(0, 3).cpus_on(1, 1).cpus_on(2, 1).cpus_on(0, 4).build()
}

const PLAIN: Shape = Shape {
    line: "pages=none",
    memory: ALIKE,
    fills: false,
    array: false,
    described: false,
    clear: false,
    report: None,
};

fn hammer(shape: Shape) {
    let machine = machine(shape.memory);
    let array = shape.array.then(|| FakeVmemmap::install_with(machine, true, false));
    let parameters = parameters(shape.line);
    let manager = bring_up_with(machine, &[], &parameters).expect("bring-up");
    manager.vmemmap().initialise_deferred(&NoHelpers);
    // Without this call, pools keep their part of the array whatever the command line says.
    manager.hugetlb().fill(&parameters, &NoHelpers);
    let manager: &'static Fake = Box::leak(Box::new(manager));
    let (before, of_array) = (idle_pages(manager), settled(manager).allocated_pages);
    let array_before = array.map(FakeVmemmap::counts);
    let host = shape
        .report
        .filter(|_| !common::is_careful())
        .map(|content| FakeHost::new(machine, Traits { content, ..Traits::default() }).0);
    // The thread below that resizes the pool may find only pieces, and then no part of the array is
    // given back.
    manager.pool(PoolSize::TwoMib).resize(6, &NoHelpers).expect("nobody else resizes");
    let model = Model::new(manager, shape, host);
    let (steps, seed) = (of_environment("HAMMER_STEPS", 2500), of_environment("HAMMER_SEED", 1));
    thread::scope(|scope| {
        let model = &model;
        let mut users = Vec::new();
        for cpu in 1..=USERS {
            let random = Random::new(seed * 100 + u64::from(cpu));
            users.push(scope.spawn(move || {
                let owner = u8::try_from(cpu).expect("few");
                let mut user = User { model, owner, random, held: Vec::new() };
                machine.run_on(cpu, || {
                    (0..steps).for_each(|_| user.step(0));
                    while !user.held.is_empty() {
                        user.give_back();
                    }
                });
            }));
        }
        let at = |number: u64| Random::new(seed * 100 + 10 + number);
        scope.spawn(move || machine.run_on(5, || others::isolate(model, at(0))));
        scope.spawn(move || machine.run_on(6, || others::resize(model, at(1))));
        scope.spawn(move || machine.run_on(7, || others::report(model, at(2))));
        scope.spawn(move || machine.run_on(8, || others::fill(model, at(3))));
        let results: Vec<_> = users.into_iter().map(|user| user.join()).collect();
        model.ended.store(true, Ordering::Relaxed);
        results.into_iter().for_each(|result| result.expect("a user panicked"));
    });
    manager.pool(PoolSize::TwoMib).resize(0, &NoHelpers).expect("nobody else resizes");
    for cpu in 0..9 {
        let info = manager.caches().cpu(cpu).expect("it has memory near");
        assert!(info.pages <= info.most_pages, "CPU {cpu}: {info:?}");
    }
    let totals = settled(manager);
    check(manager);
    assert_eq!((totals.isolated_pages, totals.reporting_pages), (0, 0));
    match array.map(FakeVmemmap::counts).zip(array_before) {
        // Every frame of the array that was given back and not restored is free.
        Some((after, before)) => {
            let all = totals.allocated_pages + before.frames;
            assert_eq!(all, of_array + after.frames, "{totals:?}, {before:?}, {after:?}");
            assert!(after.flushes > before.flushes, "nothing was given back: {after:?}");
        }
        None => assert_eq!((totals.allocated_pages, idle_pages(manager)), (0, before)),
    }
    // SAFETY: the manager is no longer used.
    unsafe { machine.retire() };
}

#[test]
fn without_descriptors() {
    hammer(PLAIN);
}

#[test]
fn with_descriptors_inside() {
    hammer(Shape { line: "pages=inside", described: true, clear: true, ..PLAIN });
}

#[test]
fn with_an_array_that_is_given_back() {
    let line = "memmap_init=eager hugetlb_free_vmemmap=on";
    hammer(Shape { line, array: true, described: true, ..PLAIN });
}

#[test]
fn while_free_memory_is_reported() {
    hammer(Shape { report: Some(Content::Undefined), ..PLAIN });
}

#[test]
fn while_free_memory_is_cleared_by_the_host() {
    let report = Some(Content::Zero);
    hammer(Shape { line: "pages=inside", described: true, clear: true, report, ..PLAIN });
}

#[test]
fn shuffled() {
    hammer(Shape { line: "pages=none page_alloc.shuffle=on page_alloc.shuffle_seed=7", ..PLAIN });
}

#[test]
fn watched() {
    let line = "pages=inside page_owner=on page_poison=on init_on_alloc=on";
    hammer(Shape { line, described: true, clear: true, ..PLAIN });
}

#[test]
fn while_nodes_are_filled() {
    hammer(Shape { fills: true, ..PLAIN });
}

#[test]
fn while_nodes_with_parts_are_filled() {
    hammer(Shape { line: "pages=none zone_parts=4", memory: LARGER, fills: true, ..PLAIN });
}

#[test]
fn while_described_nodes_are_filled_and_reported() {
    let report = Some(Content::Zero);
    hammer(Shape {
        line: "pages=inside",
        memory: LARGER,
        fills: true,
        described: true,
        clear: true,
        report,
        ..PLAIN
    });
}
