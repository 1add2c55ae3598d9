//! Flushes the TLB of the calling CPU.

use super::flush::{FlushRequest, FlushTlb, VirtualRange};
use crate::x86_64::tlb;

/// Flushes the TLB of the calling CPU alone. This is all that a machine with one CPU needs, and it
/// is what each CPU does when another one asks it to flush.
#[derive(Clone, Copy, Debug)]
pub struct LocalTlb {
    global: bool,
}

impl LocalTlb {
    /// `global` says that the vmemmap's translations survive a change of tables
    /// ([`VmemmapLayout::global`](crate::vmemmap::VmemmapLayout::global)).
    ///
    /// # Safety
    /// While this is used as a [`FlushTlb`], no other CPU uses the tables. The code runs with the
    /// rights of a kernel.
    #[must_use]
    pub const unsafe fn new(global: bool) -> Self {
        Self { global }
    }

    /// Performs `request` on this CPU; `global` is as in [`new`](Self::new). For a kernel that
    /// carries requests to other CPUs.
    pub fn flush_local(request: FlushRequest<'_>, global: bool) {
        match Self::cheapest(request, global, tlb::has_contexts()) {
            LocalFlush::Pages(ranges) => {
                ranges.iter().flat_map(|range| range.addresses()).for_each(tlb::flush_page)
            }
            LocalFlush::NotGlobal => tlb::flush_not_global(),
            LocalFlush::Everything => tlb::flush_everything(),
        }
    }

    /// The cheapest flush of one CPU that covers all that `request` names. `global` is as in
    /// [`new`](Self::new); `contexts` says that the CPU keeps translations of several contexts
    /// (CR4.PCIDE).
    ///
    /// With contexts, flushing single pages is never enough. INVLPG removes the page's translation
    /// in the current context and the global one, but cached steps of walks only in the current
    /// context (Intel SDM volume 3, 4.10.4.1). Another context would continue to use a table that
    /// was freed, or would use the shared table of absent sections for a section that has become
    /// present.
    #[must_use]
    pub const fn cheapest(
        request: FlushRequest<'_>,
        global: bool,
        contexts: bool,
    ) -> LocalFlush<'_> {
        match request {
            _ if contexts => LocalFlush::Everything,
            FlushRequest::Ranges(ranges) => LocalFlush::Pages(ranges),
            FlushRequest::Everything if global => LocalFlush::Everything,
            FlushRequest::Everything => LocalFlush::NotGlobal,
        }
    }
}

/// How one CPU flushes its TLB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LocalFlush<'a> {
    /// Page by page (INVLPG). The first INVLPG also removes the cached walk steps of the current
    /// context.
    Pages(&'a [VirtualRange]),
    /// All non-global translations of the only context: the root is loaded again.
    NotGlobal,
    /// All translations of all contexts: CR4's bit for global pages is toggled twice.
    Everything,
}

// SAFETY: by the promise of `new` there is no other CPU; the instructions behind `flush_local` take
// effect before the next one, and a CPU's own walks see its stores in order.
unsafe impl FlushTlb for LocalTlb {
    fn flush(&self, request: FlushRequest<'_>) {
        Self::flush_local(request, self.global);
    }
}
