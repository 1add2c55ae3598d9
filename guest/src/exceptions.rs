//! What happens when the CPU objects: everything that is known goes to the log, and the guest ends.

use crate::console::log;
use crate::exit::{Ending, exit};
use crate::image;
use crate::storage::Once;
use core::sync::atomic::{AtomicBool, Ordering};
use framewright_x86::cpu::exceptions::{self, Frame, PageFaultCode, Table};
use framewright_x86::cpu::registers;
use framewright_x86::cpu::segments::Segments;

const STACK_BYTES: usize = 16 * 1024;
const STACKS: usize = 3;
/// Words of the stack that are shown.
const SHOWN_WORDS: u64 = 8;
const PAGE_FAULT: u64 = 14;

#[repr(C, align(16))]
struct Stack([u8; STACK_BYTES]);

static INTERRUPT_STACKS: Once<[Stack; STACKS]> = Once::new([const { Stack([0; STACK_BYTES]) }; STACKS]);
static SEGMENTS: Once<Segments> = Once::new(Segments::new());
static VECTORS: Once<Table> = Once::new(Table::new());
/// Set while a failure is being reported: a second one ends the guest at once.
static FAILING: AtomicBool = AtomicBool::new(false);

/// From here on every exception is reported. Called once.
pub fn install() {
    let stacks = INTERRUPT_STACKS.take();
    let tops: [u64; STACKS] =
        core::array::from_fn(|index| (&raw const stacks[index]).addr() as u64 + STACK_BYTES as u64);
    // SAFETY: the stacks were taken for this alone, and the guest runs at the highest privilege on its only CPU, once.
    unsafe { SEGMENTS.take().load(&tops) };
    // SAFETY: the segments name three stacks.
    unsafe { VECTORS.take().load(report) };
}

/// Whether this is the first failure. The second, in the middle of reporting the first, gets no report.
pub fn first_failure() -> bool {
    !FAILING.swap(true, Ordering::AcqRel)
}

fn report(frame: &Frame) -> ! {
    if !first_failure() {
        log!("Exception {} at {:#x} while reporting a failure", frame.vector, frame.rip);
        exit(Ending::Crash);
    }
    log!("Exception {}: {}, error code {:#x}", frame.vector, exceptions::name(frame.vector), frame.error_code);
    if frame.vector == PAGE_FAULT {
        let address = registers::fault_address();
        let place = if image::guard().start <= address && address < image::guard().end {
            " (the page below the stack: the stack has overflowed)"
        } else {
            ""
        };
        log!("  {} at address {address:#018x}{place}", PageFaultCode(frame.error_code));
    }
    log!(
        "  RIP {:04x}:{:016x} RSP {:04x}:{:016x} FLAGS {:08x}",
        frame.cs,
        frame.rip,
        frame.ss,
        frame.rsp,
        frame.rflags
    );
    log!("  RAX {:016x} RBX {:016x} RCX {:016x} RDX {:016x}", frame.rax, frame.rbx, frame.rcx, frame.rdx);
    log!(
        "  RSI {:016x} RDI {:016x} RBP {:016x} CR3 {:016x}",
        frame.rsi,
        frame.rdi,
        frame.rbp,
        registers::page_table_root()
    );
    log!("  R8  {:016x} R9  {:016x} R10 {:016x} R11 {:016x}", frame.r8, frame.r9, frame.r10, frame.r11);
    log!("  R12 {:016x} R13 {:016x} R14 {:016x} R15 {:016x}", frame.r12, frame.r13, frame.r14, frame.r15);
    for line in 0..SHOWN_WORDS / 4 {
        let start = frame.rsp.wrapping_add(32 * line);
        let word = |index: u64| StackWord(start.wrapping_add(8 * index));
        log!("  stack {start:016x}: {} {} {} {}", word(0), word(1), word(2), word(3));
    }
    exit(Ending::Crash)
}

/// The word at an address, if it lies on the stack.
struct StackWord(u64);

impl core::fmt::Display for StackWord {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let stack = image::stack();
        if self.0 < stack.start || self.0 >= stack.end || !self.0.is_multiple_of(8) {
            return f.write_str("----------------");
        }
        let word = core::ptr::with_exposed_provenance::<u64>(usize::try_from(self.0).unwrap_or(0));
        // SAFETY: aligned and on the stack, which is mapped and which nobody writes meanwhile: the only CPU is here, on another stack.
        let value = unsafe { word.read_volatile() };
        write!(f, "{value:016x}")
    }
}
