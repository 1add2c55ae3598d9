//! Registers that show or change what the CPU is doing.

use core::arch::asm;

/// The flag that enables interrupts.
const INTERRUPT_FLAG: usize = 1 << 9;

/// Reads the time-stamp counter. Earlier instructions may still be in progress.
#[must_use]
pub fn time_stamp() -> u64 {
    // SAFETY: this reads a counter that every x86-64 CPU has, and a kernel may always read it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The address of the most recent page fault (CR2). Needs the rights of a kernel.
#[must_use]
pub fn fault_address() -> u64 {
    let value;
    // SAFETY: this reads a register, and it is called only in a kernel, which may do so.
    unsafe { asm!("mov {}, cr2", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// The address of the root page table (CR3), including its flags. Needs the rights of a kernel.
#[must_use]
pub fn page_table_root() -> u64 {
    let value;
    // SAFETY: this reads a register, and it is called only in a kernel, which may do so.
    unsafe { asm!("mov {}, cr3", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// Switches to the page tables at `root` and flushes every translation that is not global.
///
/// # Safety
/// The new tables map everything that the program uses from here on as before: its code, stack,
/// data and descriptor tables.
pub unsafe fn set_page_table_root(root: u64) {
    // SAFETY: the caller promises that the program can go on under the new tables. Memory may move,
    // so there is no `nomem`.
    unsafe { asm!("mov cr3, {}", in(reg) root, options(nostack, preserves_flags)) };
}

/// Turns interrupts off on this CPU and returns the previous flags.
#[must_use]
pub fn disable_interrupts() -> usize {
    let flags;
    // SAFETY: this changes nothing but the interrupt flag. Other memory accesses must not move
    // across, so there is no `nomem`.
    unsafe { asm!("pushfq", "pop {}", "cli", out(reg) flags) };
    flags
}

/// Turns interrupts on again if `flags` say that they were on.
///
/// # Safety
/// `flags` are from the last [`disable_interrupts`] on this CPU that was not undone yet, and
/// nothing that runs here needs interrupts to stay off.
pub unsafe fn restore_interrupts(flags: usize) {
    if flags & INTERRUPT_FLAG != 0 {
        // SAFETY: interrupts were on before, so their handlers are in place, and the caller
        // promises that nothing needs them off.
        unsafe { asm!("sti", options(nostack)) };
    }
}

/// Stops this CPU for good.
pub fn halt() -> ! {
    loop {
        // SAFETY: with interrupts off the CPU waits; if something wakes it (an NMI), the loop halts
        // it again.
        unsafe { asm!("cli", "hlt", options(nomem, nostack)) };
    }
}
