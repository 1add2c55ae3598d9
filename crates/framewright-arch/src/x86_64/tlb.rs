//! The instructions that flush this CPU's TLB.

use super::registers;
use core::arch::asm;

/// In CR4: global pages are enabled.
const GLOBAL_PAGES: u64 = 1 << 7;
/// In CR4: translations are kept for several contexts (PCID).
const CONTEXTS: u64 = 1 << 17;

fn control() -> u64 {
    let value;
    // SAFETY: this reads a register, and it is called only in a kernel, which may do so.
    unsafe { asm!("mov {}, cr4", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// Whether the CPU keeps translations of contexts other than the current one.
pub(crate) fn has_contexts() -> bool {
    control() & CONTEXTS != 0
}

/// Flushes the translation of the page at `address`, whatever its size, in the current context and
/// in the global one, and every cached walk step of the current context.
pub(crate) fn flush_page(address: u64) {
    // SAFETY: a flush is always allowed: the next access walks the tables again. Memory accesses
    // must not move across, so there is no `nomem`.
    unsafe { asm!("invlpg [{}]", in(reg) address, options(nostack, preserves_flags)) };
}

/// Flushes everything in the current context that is not global.
pub(crate) fn flush_not_global() {
    // SAFETY: the root stays the same, so everything is mapped as before.
    unsafe { registers::set_page_table_root(registers::page_table_root()) };
}

/// Flushes everything: all contexts, and global translations too.
pub(crate) fn flush_everything() {
    let flags = registers::disable_interrupts();
    let control = control();
    if control & GLOBAL_PAGES == 0 && control & CONTEXTS == 0 {
        flush_not_global();
    } else {
        // SAFETY: changing this bit flushes everything and has no other effect. It is set back
        // before any other code runs on this CPU.
        unsafe {
            asm!("mov cr4, {}", in(reg) control ^ GLOBAL_PAGES, options(nostack, preserves_flags))
        };
        // SAFETY: this restores the previous value.
        unsafe { asm!("mov cr4, {}", in(reg) control, options(nostack, preserves_flags)) };
    }
    // SAFETY: the flags come from `disable_interrupts` above, and the part that needed interrupts
    // off is done.
    unsafe { registers::restore_interrupts(flags) };
}
