//! Flushing the TLB of the CPU that asks.

use super::{FlushRequest, FlushTlb};
use crate::cpu::registers;
use core::arch::asm;

/// Forgets on the calling CPU alone: all that a machine with one CPU needs, and what each CPU does when another asks it to.
#[derive(Clone, Copy, Debug)]
pub struct LocalTlb {
    global: bool,
}

impl LocalTlb {
    /// `global`: the array's entries survive a change of tables ([`ArrayPlace::global`](super::ArrayPlace::global)).
    ///
    /// # Safety
    /// While this is used as a [`FlushTlb`], no other CPU uses the tables. Runs with the rights of a kernel.
    #[must_use]
    pub const unsafe fn new(global: bool) -> Self {
        Self { global }
    }

    /// Does to this CPU what `request` asks; `global` as in [`new`](Self::new). For those who carry requests to other CPUs.
    pub fn forget(request: FlushRequest<'_>, global: bool) {
        // Single pages are forgotten in the current context only, unless they are global.
        let everywhere = global || has_contexts();
        match request {
            FlushRequest::Ranges(ranges) if global || !everywhere => {
                ranges.iter().flat_map(|range| range.addresses()).for_each(forget_page);
            }
            _ if everywhere => forget_everything(),
            _ => forget_what_is_not_global(),
        }
    }
}

// SAFETY: there is no other CPU by the promise of `new`; the instructions behind `forget` take effect before the next one, and stores
// of one CPU are seen by its own walks in order.
unsafe impl FlushTlb for LocalTlb {
    fn flush(&self, request: FlushRequest<'_>) {
        Self::forget(request, self.global);
    }
}

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
fn has_contexts() -> bool {
    control() & CONTEXTS != 0
}

/// Forgets the translation of the page at `address`, whatever its size, in the current context and in the global one, and every cached step of
/// a table walk.
fn forget_page(address: u64) {
    // SAFETY: forgetting is always allowed: the next access walks the tables again. Memory accesses must not move across, so no `nomem`.
    unsafe { asm!("invlpg [{}]", in(reg) address, options(nostack, preserves_flags)) };
}

/// Forgets everything of the current context that is not global.
fn forget_what_is_not_global() {
    // SAFETY: the tables stay the same, so everything is mapped as before.
    unsafe { registers::set_page_table_root(registers::page_table_root()) };
}

/// Forgets everything: all contexts, global translations too.
fn forget_everything() {
    let flags = registers::disable_interrupts();
    let control = control();
    if control & GLOBAL_PAGES == 0 && control & CONTEXTS == 0 {
        forget_what_is_not_global();
    } else {
        // SAFETY: a change of this bit forgets everything and means nothing else. It is set back before anybody else runs on this CPU.
        unsafe { asm!("mov cr4, {}", in(reg) control ^ GLOBAL_PAGES, options(nostack, preserves_flags)) };
        // SAFETY: the value from before.
        unsafe { asm!("mov cr4, {}", in(reg) control, options(nostack, preserves_flags)) };
    }
    registers::restore_interrupts(flags);
}
