//! Registers that say or change what the CPU is doing.

use core::arch::asm;

/// The flag that lets interrupts in.
const INTERRUPT_FLAG: usize = 1 << 9;

/// The time-stamp counter. Earlier instructions may still be under way.
#[must_use]
pub fn time_stamp() -> u64 {
    // SAFETY: reads a counter; every x86-64 CPU has it, and a kernel may always read it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The address whose access faulted last (CR2). Needs the rights of a kernel.
#[must_use]
pub fn fault_address() -> u64 {
    let value;
    // SAFETY: reads a register of a kernel, in which this is called.
    unsafe { asm!("mov {}, cr2", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// Where the page tables are (CR3), flags included. Needs the rights of a kernel.
#[must_use]
pub fn page_table_root() -> u64 {
    let value;
    // SAFETY: reads a register of a kernel, in which this is called.
    unsafe { asm!("mov {}, cr3", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// Changes to the page tables at `root` and flushes every translation that is not global.
///
/// # Safety
/// The tables map, as before, everything that the program uses from here on: its code, stack, data
/// and descriptor tables.
pub unsafe fn set_page_table_root(root: u64) {
    // SAFETY: the caller promises that the program goes on under the new tables. Memory may change
    // its place, so no `nomem`.
    unsafe { asm!("mov cr3, {}", in(reg) root, options(nostack, preserves_flags)) };
}

/// Turns interrupts off on this CPU and returns the flags from before.
#[must_use]
pub fn disable_interrupts() -> usize {
    let flags;
    // SAFETY: changes nothing but the interrupt flag. Other memory accesses must not move across,
    // so no `nomem`.
    unsafe { asm!("pushfq", "pop {}", "cli", out(reg) flags) };
    flags
}

/// Turns interrupts on again when `flags` say that they were.
///
/// # Safety
/// `flags` are from the last [`disable_interrupts`] on this CPU that was not undone yet, and
/// nothing that runs here needs interrupts to stay off.
pub unsafe fn restore_interrupts(flags: usize) {
    if flags & INTERRUPT_FLAG != 0 {
        // SAFETY: interrupts were on before, so their handlers are in place, and the caller says
        // that nothing needs them off.
        unsafe { asm!("sti", options(nostack)) };
    }
}

/// Stops this CPU for good.
pub fn halt() -> ! {
    loop {
        // SAFETY: with interrupts off the CPU waits; whatever wakes it (an NMI) is followed by the
        // next turn.
        unsafe { asm!("cli", "hlt", options(nomem, nostack)) };
    }
}
