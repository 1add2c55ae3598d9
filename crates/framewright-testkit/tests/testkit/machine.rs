//! The fake machine behaves as described and detects misuse.

use framewright::firmware::MemoryKind;
use framewright::units::{NodeId, PAGE_SIZE, PHYSICAL_ADDRESS_END, Pfn, PhysRange};
use framewright::{IrqState, Platform};
use framewright_testkit::FakeMachine;
use framewright_testkit::machine::PATTERNS;
use std::panic::{AssertUnwindSafe, catch_unwind};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Returns the message with which `body` panics.
fn message(body: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(body)).expect_err("the misuse went unnoticed");
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(other) => (*other.downcast::<&str>().expect("a message")).to_owned(),
    }
}

fn small() -> &'static FakeMachine {
    FakeMachine::builder().ram(PhysRange::new(0, 64 * MIB)).cpus(2).build()
}

/// Reads a word of memory that was never written.
fn word(machine: &FakeMachine) -> u64 {
    u64::from_ne_bytes([machine.pattern(); 8])
}

#[test]
fn each_machine_of_a_test_has_another_pattern() {
    let ours = |_| small().pattern();
    let seen: std::collections::BTreeSet<u8> = (1..PATTERNS.len()).map(ours).collect();
    assert!(
        std::env::var("FRAMEWRIGHT_PATTERN").is_ok()
            || seen == PATTERNS[1..].iter().copied().collect()
    );
    for pattern in PATTERNS {
        let machine =
            FakeMachine::builder().ram(PhysRange::new(0, 80 * MIB)).pattern(pattern).build();
        assert_eq!(machine.load(80 * MIB - 8), u64::from_ne_bytes([pattern; 8]));
        assert_eq!(machine.load(17 * MIB), word(machine));
    }
}

#[test]
fn memory_is_poisoned_writable_and_linear() {
    for scattered in [false, true] {
        let mut builder = FakeMachine::builder()
            .ram(PhysRange::new(0, 3 * GIB))
            .memory(PhysRange::new(16 * MIB, 17 * MIB), MemoryKind::Reserved)
            .memory(PhysRange::new(4 * GIB, 12 * GIB), MemoryKind::HotPluggable);
        if scattered {
            builder = builder.scattered();
        }
        let machine = builder.build();
        for address in [PAGE_SIZE, MIB, 16 * MIB - 8, 17 * MIB, 3 * GIB - 8, 4 * GIB, 12 * GIB - 8]
        {
            assert_eq!(machine.load(address), word(machine), "at {address:#x}");
            // SAFETY: this machine's memory has no other user.
            unsafe { machine.store(address, address) };
        }
        assert_eq!(machine.load(3 * GIB - 8), 3 * GIB - 8);
        assert!(machine.is_poisoned(Pfn::containing(100 * MIB)));
        assert!(!machine.is_poisoned(Pfn::containing(MIB)));
        let (low, high) = (machine.direct(4 * GIB), machine.direct(12 * GIB - 1));
        assert_eq!(high.addr().get() - low.addr().get(), (8 << 30) - 1);
        let distance =
            machine.direct(17 * MIB).addr().get().abs_diff(machine.direct(15 * MIB).addr().get());
        assert_eq!(distance == 2 << 20, !scattered);
        assert_ne!(low.addr().get() % (2 << 20), 0, "nothing promises alignment above a page");
        // SAFETY: the only use that follows must fail.
        unsafe { machine.retire() };
        assert!(message(|| _ = machine.direct(MIB)).contains("retired"));
    }
}

#[test]
fn machines_up_to_the_last_address_can_be_built() {
    let machine = FakeMachine::builder()
        .ram(PhysRange::new(0, GIB))
        .ram(PhysRange::new(PHYSICAL_ADDRESS_END - 24 * 1024 * GIB, PHYSICAL_ADDRESS_END))
        .build();
    assert_eq!(machine.load(PHYSICAL_ADDRESS_END - 8), word(machine));
    assert_eq!(machine.map().present_end(), PHYSICAL_ADDRESS_END);
}

#[test]
fn a_zeroed_machine_is_zero() {
    let machine = FakeMachine::builder().ram(PhysRange::new(0, 4 * MIB)).zeroed().build();
    assert_eq!(machine.load(2 * MIB), 0);
}

#[test]
fn direct_refuses_what_is_not_usable() {
    let machine = FakeMachine::builder()
        .ram(PhysRange::new(0, 64 * MIB))
        .memory(PhysRange::new(32 * MIB, 33 * MIB), MemoryKind::AcpiReclaimable)
        .memory(PhysRange::new(64 * MIB, 96 * MIB), MemoryKind::Unaccepted)
        .direct_limit(48 * MIB)
        .build();
    for address in [0, 0xa_0000, 32 * MIB] {
        assert!(
            message(|| _ = machine.direct(address)).contains("not usable memory"),
            "{address:#x}"
        );
    }
    assert!(message(|| _ = machine.direct(48 * MIB)).contains("direct map's end 0x3000000"));
    machine.raise_direct_limit(u64::MAX);
    let _ = machine.direct(48 * MIB);
    assert!(message(|| _ = machine.direct(64 * MIB)).contains("not usable memory"));
    assert!(message(|| machine.raise_direct_limit(0)).contains("may not be lowered"));
}

#[test]
fn threads_are_cpus_of_their_own() {
    let machine =
        FakeMachine::builder().ram(PhysRange::new(0, 4 * MIB)).cpus(1).cpus_on(1, 1).build();
    assert_eq!(machine.current_cpu(), 0);
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(machine.current_cpu(), 1)).join().expect("CPU 1 was free");
        scope
            .spawn(|| {
                machine.run_on(1, || assert_eq!(machine.pin(), framewright::PinnedCpu::new(1)))
            })
            .join()
            .expect_err("the pin was left");
    });
    assert!(message(|| machine.assert_quiet()).contains("CPU 1"));
    assert_eq!(machine.node_of_cpu(1).index(), 1);
    assert_eq!(machine.init_threads(NodeId::ZERO), 1);
    machine.cpu_barrier();
}

#[test]
fn too_many_threads_are_refused() {
    let machine = FakeMachine::builder().ram(PhysRange::new(0, 4 * MIB)).build();
    assert_eq!(machine.current_cpu(), 0);
    let other = std::thread::spawn(|| message(|| _ = machine.current_cpu()));
    assert!(other.join().expect("caught inside").contains("more threads than"));
}

/// [`Platform::irq_restore`], also of a wrong state.
fn restore(machine: &FakeMachine, state: IrqState) {
    // SAFETY: the machine has only the interrupts that tests ask for, and checks the state itself.
    unsafe { machine.irq_restore(state) };
}

/// [`Platform::unpin`], also of a CPU that is not pinned.
fn unpin(machine: &FakeMachine, cpu: framewright::PinnedCpu) {
    // SAFETY: nothing relies on the CPU here, and the machine checks what it is given.
    unsafe { machine.unpin(cpu) };
}

#[test]
fn interrupts_nest_and_misuse_is_caught() {
    let machine = small();
    assert!(machine.can_wait());
    let outer = machine.irq_save();
    let inner = machine.irq_save();
    assert!(!machine.can_wait());
    assert!(message(|| machine.cpu_barrier()).contains("waiting is not allowed"));
    assert!(message(|| restore(machine, outer)).contains("matching irq_save"));
    restore(machine, inner);
    assert!(message(|| machine.run_on(1, || ())).contains("interrupts off 1 times"));
    restore(machine, outer);
    assert!(message(|| restore(machine, IrqState(0))).contains("without irq_save"));
    machine.assert_quiet();
}

#[test]
fn pins_nest_and_misuse_is_caught() {
    let machine = small();
    let one = machine.pin();
    let two = machine.pin();
    assert!(message(|| machine.run_on(1, || ())).contains("2 pins"));
    unpin(machine, two);
    unpin(machine, one);
    assert!(message(|| unpin(machine, framewright::PinnedCpu::new(0))).contains("without pin"));
    assert!(
        message(|| unpin(machine, framewright::PinnedCpu::new(1)))
            .contains("unpin of CPU 1 on CPU 0")
    );
    machine.run_on(1, || assert_eq!(machine.current_cpu(), 1));
    assert_eq!(machine.current_cpu(), 0);
}

#[test]
fn a_handler_runs_with_interrupts_off() {
    let machine = small();
    machine.interrupt(|| {
        assert!(!machine.can_wait());
        let state = machine.irq_save();
        restore(machine, state);
        assert!(!machine.can_wait());
    });
    assert!(machine.can_wait());
    let state = machine.irq_save();
    assert!(message(|| machine.interrupt(|| ())).contains("while interrupts are off"));
    restore(machine, state);
    assert!(message(|| machine.interrupt(|| _ = machine.pin())).contains("left pins unbalanced"));
}

#[test]
fn calls_are_counted_and_time_passes_as_told() {
    let machine = FakeMachine::builder().ram(PhysRange::new(0, 4 * MIB)).clock_step_ns(5).build();
    assert_eq!(machine.now_ns(), Some(0));
    machine.advance_ns(1000);
    assert_eq!(machine.now_ns(), Some(1005));
    let _ = machine.direct(2 * MIB);
    let calls = machine.calls();
    assert_eq!((calls.direct, calls.now_ns, calls.pin), (1, 2, 0));
    let timeless = FakeMachine::builder().ram(PhysRange::new(0, 4 * MIB)).no_clock().build();
    assert_eq!(timeless.now_ns(), None);
}
