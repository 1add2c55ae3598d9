//! Random traffic on machines of all shapes, with fewer and with more threads than the host has
//! CPUs. `cargo xtask soak` does this for any length of time.

use framewright::units::PhysRange;
use framewright::{BringUp, Manager, Parameters};
use framewright_testkit::{FakeMachine, Traffic, shapes};
use std::time::{Duration, Instant};

/// The time for each shape.
const TIME: Duration = Duration::from_millis(300);

#[test]
fn nothing_is_lost_and_nothing_is_given_twice() {
    for (number, shape) in (0..).zip(shapes()) {
        for threads in [2, 7] {
            let (name, start) = (shape.name, Instant::now());
            let manager = shape.clone().bring_up(threads);
            let free = manager.totals().free_pages;
            let traffic = Traffic { threads, seed: number, held: 600, operations: 2000 };
            let done = traffic.run(&manager, &|_| start.elapsed() < TIME / 2);
            let (tally, counts) =
                done.unwrap_or_else(|failure| panic!("{name}, {threads} threads: {failure}"));
            assert_eq!(counts.free_pages, free, "{name}");
            assert!(
                tally.allocations > 100 && tally.frees > 100 && tally.refusals > 0,
                "{name}: {tally}"
            );
            println!("{name}, {threads} threads: {tally}");
            // SAFETY: the manager is not used any more, and nothing is held.
            unsafe { manager.platform().retire() };
        }
    }
}

#[test]
fn one_thread_with_one_seed_does_the_same_again() {
    let run = |seed| {
        let manager = shapes().remove(3).bring_up(1);
        let traffic = Traffic { threads: 1, seed, held: 100, operations: 3000 };
        traffic.run(&manager, &|rounds| rounds < 3).unwrap_or_else(|failure| panic!("{failure}")).0
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

#[test]
fn pages_that_hold_descriptors_are_accounted_for() {
    let machine = FakeMachine::builder().ram(PhysRange::new(0, 256 << 20)).cpus_on(0, 3).build();
    let parameters = Parameters::parse("pages=inside", &mut |problem| panic!("{problem}"));
    let early = machine.memblock(&[]);
    let input = BringUp { parameters: &parameters, started_ns: None };
    let manager = Manager::bring_up(early, &input).expect("there is memory");
    let traffic = Traffic { threads: 2, seed: 5, held: 600, operations: 2000 };
    let (tally, counts) =
        traffic.run(&manager, &|rounds| rounds < 4).unwrap_or_else(|failure| panic!("{failure}"));
    assert!(tally.allocations > 100 && counts.descriptor_pages > 0, "{tally}: {counts:?}");
}
