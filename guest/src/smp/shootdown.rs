//! Translations that every CPU must drop.

use super::interrupts::{add, count};
use super::{Cpu, CpuSet, call_on, cpu, others, this};
use framewright_arch::paging::{FlushRequest, FlushTlb, LocalTlb};
use framewright_arch::x86_64::registers::time_stamp;

/// The one way in which this guest drops translations on all CPUs. The counters are those of the
/// CPUs.
#[derive(Clone, Copy, Debug)]
pub struct TlbShootdown {
    /// Whether translations that are to go may be global.
    pub global: bool,
}

impl TlbShootdown {
    /// This CPU and `targets` drop what is asked.
    fn tell(self, targets: CpuSet, request: FlushRequest<'_>) {
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

impl Cpu {
    /// Sleeping no more, this CPU drops what changed meanwhile.
    pub fn catch_up(&self) {
        if self.translations.wake() {
            count(&self.counters.flushed_whole);
            LocalTlb::flush_local(FlushRequest::Everything, false);
        }
    }
}

// SAFETY: every CPU that runs has done what was asked when `call_on` returns, in an interrupt, so
// in the middle of no access; a CPU that comes later begins with nothing remembered (`start`).
// Stores made before are visible to them (invariant 29). One that is left asleep drops everything
// that is not global in `catch_up`, before the first instruction of a handler or of what it does
// next that could use the vmemmap; until then it makes no access at all, and walks that it
// begins on its own find only tables that are in use.
unsafe impl FlushTlb for TlbShootdown {
    fn flush(&self, request: FlushRequest<'_>) {
        self.tell(others(), request);
    }

    fn flush_pages(&self, request: FlushRequest<'_>) {
        let is_told = |target: &u32| {
            cpu(*target).is_some_and(|cpu| {
                let is_deferred = !self.global && cpu.translations.defer();
                add(&cpu.counters.deferred_flushes, u64::from(is_deferred));
                !is_deferred
            })
        };
        self.tell(others().iter().filter(is_told).fold(CpuSet::EMPTY, CpuSet::with), request);
    }
}
