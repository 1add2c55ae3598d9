//! Handles exceptions: logs everything that is known, and ends the guest. Only page faults in the
//! movable mapping may be resolved (`mapping/fault.rs`).
//!
//! Orders of memory: the exchange is AcqRel and the load Acquire, so that the second CPU to fail
//! sees what the first one did.

use crate::console::log;
use crate::exit::{Ending, exit};
use crate::platform::DIRECT_MAP;
use crate::storage::{Once, Settled};
use crate::{accept, console, image, mapping, smp};
use core::fmt;
use core::sync::atomic::{AtomicU32, Ordering};
use framewright::units::{PAGE_SIZE, PhysRange};
use framewright_arch::x86_64::exceptions::{self, Frame, PageFaultCode, Table};
use framewright_arch::x86_64::registers::{self, halt};
use framewright_arch::x86_64::segments::Segments;

const STACK_BYTES: usize = 32 * 1024;
const STACKS: usize = 4;
/// Words of the stack that are shown.
const SHOWN_WORDS: u64 = 8;
const NON_MASKABLE: u64 = 2;
const PAGE_FAULT: u8 = 14;

#[repr(C, align(16))]
struct Stack([u8; STACK_BYTES]);

static INTERRUPT_STACKS: Once<[Stack; STACKS]> =
    Once::new([const { Stack([0; STACK_BYTES]) }; STACKS]);
static SEGMENTS: Once<Segments> = Once::new(Segments::new());
static VECTORS: Once<Table> = Once::new(Table::new());
/// The filled table, for the other CPUs.
static FILLED: Settled<&'static Table> = Settled::new();
/// The CPU that reports a failure, plus one.
static FAILING: AtomicU32 = AtomicU32::new(0);

/// From here on every exception on this CPU is reported. Called once.
pub fn install() {
    let stacks = INTERRUPT_STACKS.take();
    let tops: [u64; STACKS] =
        core::array::from_fn(|index| (&raw const stacks[index]).addr() as u64 + STACK_BYTES as u64);
    // SAFETY: the stacks were taken for this use only, and this runs once, on the guest's first
    // CPU, at the highest privilege.
    unsafe { SEGMENTS.take().load(&tops) };
    let vectors = VECTORS.take();
    vectors.fill(report);
    // SAFETY: this is the entry for page faults, and it restores what it changes.
    unsafe { vectors.set_entry(PAGE_FAULT, mapping::page_fault_entry) };
    let vectors = FILLED.settle(vectors);
    // SAFETY: the segments name four stacks.
    unsafe { vectors.load() };
}

/// Makes another CPU report exceptions, too. Its interrupt stacks end at `interrupt_tops`.
pub fn install_on_other_cpu(segments: &'static mut Segments, interrupt_tops: &[u64]) {
    // SAFETY: the stacks are this CPU's alone. It gets here once, at the highest privilege.
    unsafe { segments.load(interrupt_tops) };
    if let Some(vectors) = FILLED.get() {
        // SAFETY: there are four stacks.
        unsafe { vectors.load() };
    }
}

/// Whether a failure is the first, or comes from reporting the first.
pub enum Turn {
    /// The first failure: it is to be reported.
    First,
    /// It happened while this CPU was reporting the first one.
    Nested,
}

/// Begins the report of a failure: stops the other CPUs and seizes the serial port. Does not return
/// on a CPU that fails after another one.
pub fn fail() -> Turn {
    let me = smp::index() + 1;
    match FAILING.compare_exchange(0, me, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            smp::stop_others_for_good();
            console::seize();
            Turn::First
        }
        Err(first) if first == me => Turn::Nested,
        Err(_) => halt(),
    }
}

/// Reports an exception and ends the guest.
pub fn report(frame: &Frame) -> ! {
    if frame.vector == NON_MASKABLE && FAILING.load(Ordering::Acquire) != 0 {
        // Another CPU failed and stopped this one.
        halt();
    }
    if matches!(fail(), Turn::Nested) {
        log!("Exception {} at {:#x} while reporting a failure", frame.vector, frame.rip);
        exit(Ending::Crash);
    }
    let cpu = smp::index();
    let (vector, code) = (frame.vector, frame.error_code);
    log!("Exception {vector} on CPU {cpu}: {}, error code {code:#x}", exceptions::name(vector));
    if frame.vector == PAGE_FAULT.into() {
        let address = registers::fault_address();
        log!("  {} at address {address:#018x}{}", PageFaultCode(frame.error_code), Place(address));
    }
    log!(
        "  RIP {:04x}:{:016x} RSP {:04x}:{:016x} FLAGS {:08x}",
        frame.cs,
        frame.rip,
        frame.ss,
        frame.rsp,
        frame.rflags
    );
    log!(
        "  RAX {:016x} RBX {:016x} RCX {:016x} RDX {:016x}",
        frame.rax,
        frame.rbx,
        frame.rcx,
        frame.rdx
    );
    log!(
        "  RSI {:016x} RDI {:016x} RBP {:016x} CR3 {:016x}",
        frame.rsi,
        frame.rdi,
        frame.rbp,
        registers::page_table_root()
    );
    log!(
        "  R8  {:016x} R9  {:016x} R10 {:016x} R11 {:016x}",
        frame.r8,
        frame.r9,
        frame.r10,
        frame.r11
    );
    log!(
        "  R12 {:016x} R13 {:016x} R14 {:016x} R15 {:016x}",
        frame.r12,
        frame.r13,
        frame.r14,
        frame.r15
    );
    for line in 0..SHOWN_WORDS / 4 {
        let start = frame.rsp.wrapping_add(32 * line);
        let word = |index: u64| StackWord(start.wrapping_add(8 * index));
        log!("  stack {start:016x}: {} {} {} {}", word(0), word(1), word(2), word(3));
    }
    exit(Ending::Crash)
}

/// What is special about a faulting address.
struct Place(u64);

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(address) = *self;
        let within = |range: PhysRange| range.start <= address && address < range.end;
        if within(image::guard()) {
            return f.write_str(" (the page below the stack: stack overflow on CPU 0)");
        }
        if let Some((cpu, stack)) = smp::overflowed(address) {
            return write!(f, " (the page below its {stack}: stack overflow on CPU {cpu})");
        }
        if address < PAGE_SIZE {
            return f.write_str(" (a null pointer)");
        }
        if mapping::is_mapping(address) {
            return f.write_str(" (an address of movable memory that has no page)");
        }
        let physical = address.checked_sub(DIRECT_MAP);
        if physical.is_some_and(accept::is_unaccepted) {
            return f.write_str(" (memory that is not accepted yet)");
        }
        if image::boot_only().into_iter().any(within) {
            return f.write_str(" (boot-only memory, since released)");
        }
        if within(image::code()) || within(image::constants()) {
            return f.write_str(" (code and constants of this program, which are read-only)");
        }
        Ok(())
    }
}

/// The word at an address, shown if the address lies on a stack.
struct StackWord(u64);

impl fmt::Display for StackWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stack = image::stack();
        let on_stack = stack.start <= self.0 && self.0 < stack.end || smp::is_on_stack(self.0);
        if !on_stack || !self.0.is_multiple_of(8) {
            return f.write_str("----------------");
        }
        let word = core::ptr::with_exposed_provenance::<u64>(usize::try_from(self.0).unwrap_or(0));
        // SAFETY: the address is aligned and on a stack, which is mapped. The reporting CPU's stack
        // is not written to meanwhile, and the other CPUs have been stopped.
        let value = unsafe { word.read_volatile() };
        write!(f, "{value:016x}")
    }
}
