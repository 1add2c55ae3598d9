//! Translations that every CPU must drop.

use super::interrupts::{add, count};
use super::{Cpu, CpuSet, call_on, cpu, others, this};
use core::sync::atomic::Ordering;
use framewright_x86::cpu::registers::time_stamp;
use framewright_x86::page_array::{FlushRequest, FlushTlb, LocalTlb};

/// The one way in which this guest drops translations on all CPUs. The counters are those of the CPUs.
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
                add(&this().counters.flushed_single, ranges.iter().map(|range| range.pages()).sum());
            }
            FlushRequest::Everything => count(&this().counters.flushed_whole),
        }
        LocalTlb::forget(request, self.global);
    }
}

/// It is awake: others interrupt it.
const AWAKE: u32 = 0;
/// It sleeps: others leave word.
const ASLEEP: u32 = 1;
/// It sleeps, and others left word.
const BEHIND: u32 = 2;

impl Cpu {
    /// This CPU sleeps from now on and uses no address of the page array before it has called [`catch_up`](Self::catch_up). Interrupts are off.
    pub fn put_flushes_off(&self) {
        self.translations.store(ASLEEP, Ordering::SeqCst);
    }

    /// This CPU sleeps no more, and drops what changed meanwhile.
    pub fn catch_up(&self) {
        if self.translations.load(Ordering::Relaxed) != AWAKE
            && self.translations.swap(AWAKE, Ordering::SeqCst) == BEHIND
        {
            count(&self.counters.flushed_whole);
            LocalTlb::forget(FlushRequest::Everything, false);
        }
    }

    /// Leaves word that translations have changed; false when the CPU is awake.
    fn leaves_for_later(&self) -> bool {
        // One word decides: either the CPU finds this when it wakes, or it is found awake here.
        let found = self.translations.compare_exchange(ASLEEP, BEHIND, Ordering::SeqCst, Ordering::SeqCst);
        matches!(found, Ok(_) | Err(BEHIND))
    }
}

// SAFETY: every CPU that runs has done what was asked when `call_on` returns, in an interrupt, so in the middle of no access; a CPU that comes later begins
// with nothing remembered (`start`). Stores made before are visible to them (invariant 29).
// One that is left asleep drops everything that is not global in `catch_up`, before the first instruction of a handler or of what it does next that could use the page array; until then it makes
// no access at all, and walks that it begins on its own find only tables that are in use.
unsafe impl FlushTlb for TlbShootdown {
    fn flush(&self, request: FlushRequest<'_>) {
        self.tell(others(), request);
    }

    fn flush_pages(&self, request: FlushRequest<'_>) {
        let is_told = |target: &u32| {
            cpu(*target).is_some_and(|cpu| {
                let put_off = !self.global && cpu.leaves_for_later();
                add(&cpu.counters.flushes_put_off, u64::from(put_off));
                !put_off
            })
        };
        self.tell(others().iter().filter(is_told).fold(CpuSet::EMPTY, CpuSet::with), request);
    }
}
