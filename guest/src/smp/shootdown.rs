//! Translations that every CPU must drop.

use super::interrupts::{add, count};
use super::{call_on, others, this};
use framewright_x86::cpu::registers::time_stamp;
use framewright_x86::page_array::{FlushRequest, FlushTlb, LocalTlb};

/// The one way in which this guest drops translations on all CPUs. The counters are those of the CPUs.
#[derive(Clone, Copy, Debug)]
pub struct TlbShootdown {
    /// Whether translations that are to go may be global.
    pub global: bool,
}

impl TlbShootdown {
    fn here(self, request: FlushRequest<'_>) {
        match request {
            FlushRequest::Ranges(ranges) => {
                add(&this().counters.flushed_single, ranges.iter().map(|range| range.pages()).sum());
            }
            FlushRequest::Everything => count(&this().counters.flushed_whole),
        }
        LocalTlb::forget(request, self.global);
    }
}

// SAFETY: every CPU that runs has done what was asked when `call_on` returns, in an interrupt, so in the middle of no access; a CPU that comes later begins
// with nothing remembered (`start`). Stores made before are visible to them (invariant 29).
unsafe impl FlushTlb for TlbShootdown {
    fn flush(&self, request: FlushRequest<'_>) {
        let started = time_stamp();
        self.here(request);
        call_on(others(), &|| {
            count(&this().counters.flushes_received);
            self.here(request);
        });
        count(&this().counters.flushes);
        add(&this().counters.flush_cycles, time_stamp().wrapping_sub(started));
    }
}
