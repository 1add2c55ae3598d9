//! How much stack bring-up uses: a booting kernel has 16 to 64 KiB of it, and an overflow goes
//! unreported.
#![cfg(not(miri))]

use framewright::memblock::Memblock;
use framewright::units::{MAX_NODES, PhysRange};
use framewright::{BringUp, Manager, Parameters};
use framewright_testkit::{FakeMachine, on_painted_stack};

type FakeManager = Box<Manager<FakeMachine>>;

/// The stack that every kernel must have: in builds where the compiler leaves everything on the
/// stack, and in optimised builds.
const LIMIT_BYTES: usize = if cfg!(debug_assertions) { 16 << 10 } else { 8 << 10 };

/// Brings up as a kernel does: the caller's frame counts because the manager is moved to its final
/// place through it.
#[inline(never)]
fn bring_up(early: Memblock<'static, FakeMachine>, parameters: &Parameters) -> FakeManager {
    let input = BringUp { parameters, started_ns: None };
    Box::new(Manager::bring_up(early, &input).expect("there is memory"))
}

fn stack_of(machine: &'static FakeMachine) -> usize {
    on_painted_stack(move |stack| {
        let (early, parameters) = (machine.memblock(&[]), Box::new(Parameters::default()));
        stack.measure(|| bring_up(early, &parameters)).1
    })
}

#[test]
fn bring_up_takes_little_of_the_stack() {
    let ram = |start: u64, size: u64| PhysRange::with_size(start << 30, size << 30);
    let small = FakeMachine::builder().ram(ram(0, 8)).cpus(1).build();
    let several = FakeMachine::builder().ram(ram(0, 16)).node(ram(0, 8), 0).node(ram(8, 8), 1);
    let several = several.cpus_on(0, 4).cpus_on(1, 4).build();
    let mut all = FakeMachine::builder().ram(ram(0, 64));
    for (node, start) in (0..64).enumerate() {
        all = all.node(ram(start, 1), node).cpus_on(node, 1);
    }
    for (name, machine) in [("small", small), ("two nodes", several), ("64 nodes", all.build())] {
        let used = stack_of(machine);
        std::println!("{name}: {used} bytes of stack");
        let limit = if MAX_NODES > 64 { 8 * LIMIT_BYTES } else { LIMIT_BYTES };
        assert!(used <= limit, "{name}: {used} bytes of stack, {limit} are allowed");
    }
}
