//! Translations that every CPU must drop.

use super::interrupts::{add, count};
use super::{call_on, others, this};
use framewright_x86::cpu::registers::time_stamp;
use framewright_x86::cpu::tlb::{Shootdown, Stale, flush_here};

/// The one way in which this guest drops translations on all CPUs. Without state: the counters are those of the CPUs.
#[derive(Clone, Copy, Debug, Default)]
pub struct TlbShootdown;

impl Shootdown for TlbShootdown {
    fn flush_everywhere(&self, stale: &[Stale]) {
        if stale.is_empty() {
            return;
        }
        let started = time_stamp();
        let here = |stale: &[Stale]| {
            // SAFETY: a kernel runs at the highest privilege.
            let flushed = unsafe { flush_here(stale) };
            add(&this().counters.flushed_single, flushed.single);
            add(&this().counters.flushed_whole, flushed.whole);
        };
        here(stale);
        call_on(others(), &|| {
            count(&this().counters.flushes_received);
            here(stale);
        });
        count(&this().counters.flushes);
        add(&this().counters.flush_cycles, time_stamp().wrapping_sub(started));
    }
}
