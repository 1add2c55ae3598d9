//! Flushing the TLB of the CPU that asks.

use super::flush::{FlushRequest, FlushTlb, VirtualRange};
use crate::x86_64::registers;
use core::arch::asm;

/// Forgets on the calling CPU alone: all that a machine with one CPU needs, and what each CPU does
/// when another asks it to.
#[derive(Clone, Copy, Debug)]
pub struct LocalTlb {
    global: bool,
}

impl LocalTlb {
    /// `global`: the array's entries survive a change of tables
    /// ([`VmemmapPlace::global`](crate::vmemmap::VmemmapPlace::global)).
    ///
    /// # Safety
    /// While this is used as a [`FlushTlb`], no other CPU uses the tables. Runs with the rights of
    /// a kernel.
    #[must_use]
    pub const unsafe fn new(global: bool) -> Self {
        Self { global }
    }

    /// Does to this CPU what `request` asks; `global` as in [`new`](Self::new). For those who carry
    /// requests to other CPUs.
    pub fn forget(request: FlushRequest<'_>, global: bool) {
        match Self::means(request, global, has_contexts()) {
            Means::Pages(ranges) => {
                ranges.iter().flat_map(|range| range.addresses()).for_each(forget_page)
            }
            Means::NotGlobal => forget_what_is_not_global(),
            Means::Everything => forget_everything(),
        }
    }

    /// The cheapest way in which a CPU forgets all that `request` names. `global` as in
    /// [`new`](Self::new); `contexts`: the CPU keeps translations of several contexts (CR4.PCIDE).
    ///
    /// With contexts no single page is enough. INVLPG takes away the page's translation in the
    /// current context and the global one, but cached steps of walks only of the current context
    /// (Intel SDM volume 3, 4.10.4.1): another context would go on through a table that was given
    /// up, or through the shared table of absent sections where a section has become present.
    #[must_use]
    pub const fn means(request: FlushRequest<'_>, global: bool, contexts: bool) -> Means<'_> {
        match request {
            _ if contexts => Means::Everything,
            FlushRequest::Ranges(ranges) => Means::Pages(ranges),
            FlushRequest::Everything if global => Means::Everything,
            FlushRequest::Everything => Means::NotGlobal,
        }
    }
}

/// How one CPU forgets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Means<'a> {
    /// Page by page (INVLPG), and with the first of them the steps of walks of the current context.
    Pages(&'a [VirtualRange]),
    /// All that is not global in the only context: the root is loaded again.
    NotGlobal,
    /// All, in all contexts: CR4's bit for global pages is changed and changed back.
    Everything,
}

// SAFETY: there is no other CPU by the promise of `new`; the instructions behind `forget` take
// effect before the next one, and stores of one CPU are seen by its own walks in order.
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

/// Forgets the translation of the page at `address`, whatever its size, in the current context and
/// in the global one, and every cached step of a table walk of the current context.
fn forget_page(address: u64) {
    // SAFETY: forgetting is always allowed: the next access walks the tables again. Memory accesses
    // must not move across, so no `nomem`.
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
        // SAFETY: a change of this bit forgets everything and means nothing else. It is set back
        // before anybody else runs on this CPU.
        unsafe {
            asm!("mov cr4, {}", in(reg) control ^ GLOBAL_PAGES, options(nostack, preserves_flags))
        };
        // SAFETY: the value from before.
        unsafe { asm!("mov cr4, {}", in(reg) control, options(nostack, preserves_flags)) };
    }
    registers::restore_interrupts(flags);
}
