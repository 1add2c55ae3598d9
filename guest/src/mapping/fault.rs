//! The page fault of a CPU that touches a page while it moves: the CPU waits until the page is
//! mapped again.
//!
//! The handler waits for a moment with interrupts off and then returns to the instruction, which
//! lets interrupts in and faults again. So a CPU that waits for a move still answers the shootdown
//! that the mover waits for, and no interrupt arrives in the handler, whose stack is the only one
//! of its kind (invariant 31). Code that touches such pages must have interrupts on. Otherwise the
//! fault is reported like any other, and ends the guest.
//!
//! Orders of memory: the address of the tables is published through the count of their pages, with
//! Release and Acquire. The count of waits is Relaxed.

use super::entries::{BASE, Entries, look};
use crate::exceptions::report;
use crate::platform::PLATFORM;
use core::arch::naked_asm;
use core::sync::atomic::{AtomicU64, Ordering};
use framewright::platform::Platform;
use framewright::units::{PAGE_SIZE, Pfn};
use framewright_arch::x86_64::exceptions::Frame;
use framewright_arch::x86_64::registers::fault_address;

/// Turns that the handler waits before it returns.
const TURNS: u32 = 1000;
/// In the error code: the page is present but does not allow the access.
const FORBIDDEN: u64 = 1;
/// In the flags: interrupts are on.
const INTERRUPT_FLAG: u64 = 1 << 9;

/// The first table of level 1.
static LEAVES: AtomicU64 = AtomicU64::new(0);
/// How many pages the mapping has; 0 without a mapping.
static PAGES: AtomicU64 = AtomicU64::new(0);
static WAITS: AtomicU64 = AtomicU64::new(0);

/// From now on faults in the pages of `entries` wait; with `None`, none do.
pub fn serve(entries: Option<&Entries>) {
    PAGES.store(0, Ordering::Release);
    if let Some(entries) = entries {
        LEAVES.store(entries.leaves().0, Ordering::Relaxed);
        PAGES.store(entries.count.into(), Ordering::Release);
    }
}

/// How often a CPU waited for a page in motion. A longer wait counts again after each [`TURNS`]
/// turns.
pub fn waits() -> u64 {
    WAITS.load(Ordering::Relaxed)
}

/// Whether an address belongs to the mapping.
pub fn is_mapping(address: u64) -> bool {
    address.checked_sub(BASE).is_some_and(|at| at / PAGE_SIZE < PAGES.load(Ordering::Acquire))
}

/// Waits a while for the page. Returns false if the page belongs to nobody.
fn wait(address: u64) -> bool {
    if !is_mapping(address) {
        return false;
    }
    let leaves = Pfn(LEAVES.load(Ordering::Relaxed));
    WAITS.fetch_add(1, Ordering::Relaxed);
    for _ in 0..TURNS {
        let found = look(leaves, address);
        if found.is_nothing() {
            return false;
        }
        if found.is_present() {
            return true;
        }
        PLATFORM.relax();
    }
    true
}

/// Handles page faults. Only [`page_fault_entry`] calls it.
extern "C" fn handle(frame: &Frame) {
    let may_wait = frame.error_code & FORBIDDEN == 0 && frame.rflags & INTERRUPT_FLAG != 0;
    if !may_wait || !wait(fault_address()) {
        report(frame);
    }
}

/// The entry point of page faults. It builds a [`Frame`] from what the CPU pushed and the
/// registers, saves the vector registers, which a function may change, too, and returns to the
/// faulting instruction.
///
/// # Safety
/// Only the CPU may get here, through the vector of page faults.
#[unsafe(naked)]
pub unsafe extern "C" fn page_fault_entry() {
    naked_asm!(
        "push 14",
        "push rax", "push rbx", "push rcx", "push rdx", "push rsi", "push rdi", "push rbp",
        "push r8", "push r9", "push r10", "push r11",
        "push r12", "push r13", "push r14", "push r15",
        "cld",
        "mov rdi, rsp",
        // A called function preserves rbp.
        "mov rbp, rsp",
        "sub rsp, 512",
        "and rsp, -16",
        "fxsave64 [rsp]",
        "call {handle}",
        "fxrstor64 [rsp]",
        "mov rsp, rbp",
        "pop r15", "pop r14", "pop r13", "pop r12",
        "pop r11", "pop r10", "pop r9", "pop r8",
        "pop rbp", "pop rdi", "pop rsi", "pop rdx", "pop rcx", "pop rbx", "pop rax",
        // Drop the vector and the error code.
        "add rsp, 16",
        "iretq",
        handle = sym handle,
    )
}
