//! TLB shootdown: flushes on every CPU.
//!
//! Orders of memory: a SeqCst fence stands between the change of the page tables and the read of
//! the set of running CPUs. Its partner is the fence of a CPU that begins to run, between its entry
//! into the set and its own flush (`park`, `start`). Either that CPU is found in the set, or its
//! flush removes what it cached of the old tables and it finds the change.

use super::controller::{add, count};
use super::{CpuSet, call_on, cpu, others, this};
use core::sync::atomic::{Ordering, fence};
use framewright_arch::paging::{FlushRequest, FlushTlb, LocalTlb};
use framewright_arch::x86_64::registers::time_stamp;

/// Flushes translations on all CPUs, and counts the flushes per CPU.
#[derive(Clone, Copy, Debug)]
pub struct TlbShootdown {
    /// Whether the translations to flush may be global.
    pub global: bool,
}

impl TlbShootdown {
    /// The other CPUs that may have cached the tables as they were before this CPU changed them.
    fn targets() -> CpuSet {
        // Without the fence, the change might still be on its way to memory when the set is read.
        fence(Ordering::SeqCst);
        others()
    }

    /// Flushes on this CPU and on `targets`.
    fn flush_on(self, targets: CpuSet, request: FlushRequest<'_>) {
        let started = time_stamp();
        self.here(request);
        call_on(targets, &|| {
            count(&this().counters.flushes_received);
            self.here(request);
        });
        count(&this().counters.flushes);
        add(&this().counters.flush_cycles, time_stamp().wrapping_sub(started));
    }

    fn here(self, request: FlushRequest<'_>) {
        match request {
            FlushRequest::Ranges(ranges) => {
                add(
                    &this().counters.flushed_single,
                    ranges.iter().map(|range| range.pages()).sum(),
                );
            }
            FlushRequest::Everything => count(&this().counters.flushed_whole),
        }
        LocalTlb::flush_local(request, self.global);
    }
}

// SAFETY: when `call_on` returns, every CPU that runs has flushed what was asked. It did so in an
// interrupt, so in the middle of no access; a CPU that starts later begins with an empty TLB
// (`start`), and one that was given up halts for ever. Stores made before are visible to these CPUs
// (invariant 29). A parked CPU flushes everything right after it has left the set, before any
// handler can run, and again when it comes back (`park`); in between it accesses nothing that is
// ever unmapped. Walks that it begins on its own between leaving and the flush are left to chance:
// they take place in a few instructions and nothing uses what they find. A CPU that is left asleep
// flushes everything that is not global in `catch_up`, before the first instruction of a handler or
// of its own work that could use the vmemmap. Until then it makes no access at all, and walks that
// it begins on its own find only tables that are in use.
unsafe impl FlushTlb for TlbShootdown {
    fn flush(&self, request: FlushRequest<'_>) {
        self.flush_on(Self::targets(), request);
    }

    fn flush_pages(&self, request: FlushRequest<'_>) {
        let is_awake = |target: &u32| {
            cpu(*target).is_some_and(|cpu| {
                let is_deferred = !self.global && cpu.lazy_flush.defer();
                add(&cpu.counters.deferred_flushes, u64::from(is_deferred));
                !is_deferred
            })
        };
        let awake = Self::targets().iter().filter(is_awake).fold(CpuSet::EMPTY, CpuSet::with);
        self.flush_on(awake, request);
    }
}
