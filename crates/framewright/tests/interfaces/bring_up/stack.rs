//! How much stack bring-up uses: a booting kernel has 16 to 64 KiB of it, and an overflow goes
//! unreported.
#![cfg(not(miri))]

use framewright::memblock::Memblock;
use framewright::units::{MAX_NODES, PhysRange};
use framewright::{BringUp, Manager, Parameters};
use framewright_testkit::FakeMachine;
use std::hint::black_box;
use std::thread;

type FakeManager = Box<Manager<FakeMachine>>;

/// The stack that every kernel must have: in builds where the compiler leaves everything on the
/// stack, and in optimised builds.
const LIMIT_BYTES: usize = if cfg!(debug_assertions) { 16 << 10 } else { 8 << 10 };
/// The stack of the test's thread, most of which is painted.
const STACK_BYTES: usize = 4 << 20;
const PAINTED_BYTES: usize = 2 << 20;
/// The bytes right below the measured top that are not painted because active frames lie there.
const LEFT_BYTES: usize = 4 << 10;
const PAINT: u64 = 0xA5A5_A5A5_A5A5_A5A5;

/// The painted words, from the lowest on.
fn below(top: usize) -> impl Iterator<Item = *mut u64> {
    (top - PAINTED_BYTES..top - LEFT_BYTES).step_by(8).map(std::ptr::with_exposed_provenance_mut)
}

#[inline(never)]
fn paint(top: usize) {
    for word in below(top) {
        // SAFETY: of this thread's stack, which has more room than that, and below all frames that
        // are in use.
        unsafe { word.write_volatile(PAINT) };
    }
}

/// Returns how far below `top` the stack was used since it was painted, in bytes.
#[inline(never)]
fn used(top: usize) -> usize {
    // SAFETY: of this thread's stack; whatever is there is a number.
    let first = below(top).find(|word| unsafe { word.read_volatile() } != PAINT);
    first.map_or(LEFT_BYTES, |word| top - word.addr())
}

/// Brings up as a kernel does: the caller's frame counts because the manager is moved to its final
/// place through it.
#[inline(never)]
fn bring_up(early: Memblock<'static, FakeMachine>, parameters: &Parameters) -> FakeManager {
    let input = BringUp { parameters, started_ns: None };
    Box::new(Manager::bring_up(early, &input).expect("there is memory"))
}

fn stack_of(machine: &'static FakeMachine) -> usize {
    let (early, parameters) = (machine.memblock(&[]), Box::new(Parameters::default()));
    let measured = thread::Builder::new().stack_size(STACK_BYTES).spawn(move || {
        let here = 0_u64;
        let top = black_box(&raw const here).expose_provenance();
        paint(top);
        black_box(bring_up(early, &parameters));
        used(top)
    });
    measured.expect("a thread").join().expect("no panic")
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
        assert!(used > LEFT_BYTES, "{name}: nothing was measured: {used}");
        let limit = if MAX_NODES > 64 { 8 * LIMIT_BYTES } else { LIMIT_BYTES };
        assert!(used <= limit, "{name}: {used} bytes of stack, {limit} are allowed");
    }
}
