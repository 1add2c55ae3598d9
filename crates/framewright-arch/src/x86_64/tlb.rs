//! The instructions that flush this CPU's TLB.

use super::registers;
use core::arch::asm;

/// In CR4: global pages are honoured.
const GLOBAL_PAGES: u64 = 1 << 7;
/// In CR4: translations are kept for several contexts (PCID).
const CONTEXTS: u64 = 1 << 17;

fn control() -> u64 {
    let value;
    // SAFETY: reads a register of a kernel, in which this is called.
    unsafe { asm!("mov {}, cr4", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// Whether the CPU keeps translations of other contexts than the current one.
pub(crate) fn has_contexts() -> bool {
    control() & CONTEXTS != 0
}

/// Flushes the translation of the page at `address`, whatever its size, in the current context and
/// in the global one, and every cached step of a walk of the current context.
pub(crate) fn flush_page(address: u64) {
    // SAFETY: a flush is always allowed: the next access walks the tables again. Memory accesses
    // must not move across, so no `nomem`.
    unsafe { asm!("invlpg [{}]", in(reg) address, options(nostack, preserves_flags)) };
}

/// Flushes everything of the current context that is not global.
pub(crate) fn flush_not_global() {
    // SAFETY: the root stays what it is, so everything is mapped as before.
    unsafe { registers::set_page_table_root(registers::page_table_root()) };
}

/// Flushes everything: all contexts, global translations too.
pub(crate) fn flush_everything() {
    let flags = registers::disable_interrupts();
    let control = control();
    if control & GLOBAL_PAGES == 0 && control & CONTEXTS == 0 {
        flush_not_global();
    } else {
        // SAFETY: a change of this bit flushes everything and means nothing else. It is set back
        // before anybody else runs on this CPU.
        unsafe {
            asm!("mov cr4, {}", in(reg) control ^ GLOBAL_PAGES, options(nostack, preserves_flags))
        };
        // SAFETY: the value from before.
        unsafe { asm!("mov cr4, {}", in(reg) control, options(nostack, preserves_flags)) };
    }
    // SAFETY: the flags from above; what needed interrupts off is done.
    unsafe { registers::restore_interrupts(flags) };
}
