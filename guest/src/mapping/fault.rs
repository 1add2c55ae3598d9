//! The page fault of a CPU that touches a page while it moves: it waits until the page is there.
//!
//! It waits a moment in the handler, with interrupts off, and then goes back to the instruction,
//! which lets interrupts in and faults again. So a CPU that waits for a move answers the shootdown
//! that the mover waits for; and no interrupt comes in the handler, whose stack is the only one for
//! its kind (invariant 31). Whoever touches such pages has interrupts on: else the fault is one
//! like any other, and ends the guest.
//!
//! Orders of memory: the tables' place is published by the count of their pages, with Release and
//! Acquire. Faults are counted Relaxed.

use super::entries::{BASE, Entries, look};
use crate::exceptions::report;
use crate::platform::PLATFORM;
use core::arch::naked_asm;
use core::sync::atomic::{AtomicU64, Ordering};
use framewright::platform::Platform;
use framewright::units::{PAGE_SIZE, Pfn};
use framewright_arch::x86_64::exceptions::Frame;
use framewright_arch::x86_64::registers::fault_address;

/// Turns of the wait in the handler.
const TURNS: u32 = 1000;
/// The page is there, and does not allow what was tried.
const FORBIDDEN: u64 = 1;
/// The flag that lets interrupts in.
const INTERRUPT_FLAG: u64 = 1 << 9;

/// The first table of level 1.
static LEAVES: AtomicU64 = AtomicU64::new(0);
/// Pages of the mapping; 0 where there is none.
static PAGES: AtomicU64 = AtomicU64::new(0);
static WAITS: AtomicU64 = AtomicU64::new(0);

/// From now on faults in these pages wait; `None`: no more.
pub fn serve(entries: Option<&Entries>) {
    PAGES.store(0, Ordering::Release);
    if let Some(entries) = entries {
        LEAVES.store(entries.leaves().0, Ordering::Relaxed);
        PAGES.store(entries.count.into(), Ordering::Release);
    }
}

/// How often a CPU touched a page in motion; again after each [`TURNS`].
pub fn waits() -> u64 {
    WAITS.load(Ordering::Relaxed)
}

/// Whether an address is of the mapping.
pub fn is_mapping(address: u64) -> bool {
    address.checked_sub(BASE).is_some_and(|at| at / PAGE_SIZE < PAGES.load(Ordering::Acquire))
}

/// Waits a while for the page; false when it is nobody's.
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

/// Where page faults arrive. Called by [`page_fault_entry`] alone.
extern "C" fn handle(frame: &Frame) {
    let may_wait = frame.error_code & FORBIDDEN == 0 && frame.rflags & INTERRUPT_FLAG != 0;
    if !may_wait || !wait(fault_address()) {
        report(frame);
    }
}

/// The entry of page faults: makes a [`Frame`] of what the CPU pushed and the registers, saves the
/// vector registers, which a function may change, too, and goes back to what faulted.
///
/// # Safety
/// Only the CPU gets here, by the vector of page faults.
#[unsafe(naked)]
pub unsafe extern "C" fn page_fault_entry() {
    naked_asm!(
        "push 14",
        "push rax", "push rbx", "push rcx", "push rdx", "push rsi", "push rdi", "push rbp",
        "push r8", "push r9", "push r10", "push r11",
        "push r12", "push r13", "push r14", "push r15",
        "cld",
        "mov rdi, rsp",
        // A function keeps rbp.
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
        // Vector and error code.
        "add rsp, 16",
        "iretq",
        handle = sym handle,
    )
}
