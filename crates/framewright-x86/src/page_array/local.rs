//! Flushing the TLB of the CPU that asks.

use super::{FlushRequest, FlushTlb};
use crate::cpu::tlb;

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
        let everywhere = global || tlb::has_contexts();
        match request {
            FlushRequest::Ranges(ranges) if global || !everywhere => {
                ranges.iter().flat_map(|range| range.addresses()).for_each(tlb::forget_page);
            }
            _ if everywhere => tlb::forget_everything(),
            _ => tlb::forget_what_is_not_global(),
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
