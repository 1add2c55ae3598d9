//! The interrupts of this guest, and the local controllers that send them.
//!
//! Orders of memory: Relaxed, because the timer's rate is settled before other CPUs run.

use super::call::serve_calls;
use super::controller::{apic, count, send_non_maskable, set_apic};
use super::{Cpu, all, index, this};
use crate::console::log;
use crate::direct_map::{DEVICES, KernelTables};
use crate::platform::{EarlyMemory, PLATFORM};
use crate::storage::Settled;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use framewright::platform::Platform;
use framewright::units::{PAGE_SIZE, PhysRange};
use framewright_arch::paging::{Access, FlushRequest, LocalTlb, MapFault};
use framewright_arch::x86_64::interrupts::{self, CALL, ERROR, SPURIOUS, TIMER, WAKE};
use framewright_arch::x86_64::local_apic::{
    LocalApic, Mode, Vectors, has_x2apic, registers_address,
};
use framewright_arch::x86_64::port::Port;

const VECTORS: Vectors = Vectors { timer: TIMER, error: ERROR, spurious: SPURIOUS };
/// The shortest time over which the timer's rate is measured.
const LEAST_WINDOW_NS: u64 = 1_000_000;
const NANOSECONDS: u64 = 1_000_000_000;

/// Timer counts in a second; 0 until it is measured.
static TIMER_HZ: AtomicU64 = AtomicU64::new(0);

/// The function that runs in a timer interrupt after it is counted.
static ON_TIMER: Settled<fn(&Cpu)> = Settled::new();

/// Sets the function that runs in every timer interrupt. It gets the interrupted CPU. To be called
/// once, before another CPU is started.
pub fn on_timer(handler: fn(&Cpu)) {
    ON_TIMER.settle(handler);
}

/// Finds this CPU's local controller and turns on the controller and interrupts. Masks the old
/// interrupt controllers (8259).
pub fn begin(
    tables: &KernelTables,
    early: &mut EarlyMemory<'_>,
) -> Result<&'static LocalApic, MapFault> {
    let mode = if has_x2apic() {
        Mode::X2Apic
    } else {
        tables.map(early, DEVICES, registers(), Access::DEVICE)?;
        let address = usize::try_from(DEVICES).unwrap_or(0);
        NonNull::new(core::ptr::with_exposed_provenance_mut(address))
            .map_or(Mode::X2Apic, Mode::Memory)
    };
    // SAFETY: the CPU supports the mode, and the registers are mapped.
    let apic = set_apic(unsafe { LocalApic::new(mode) });
    for port in [0x21, 0xa1] {
        // SAFETY: these are the mask registers of the two old controllers, which every PC has.
        // Nothing else uses them.
        unsafe { Port::new(port) }.write_u8(0xff);
    }
    interrupts::set_handler(handle);
    turn_on(apic);
    let_in();
    Ok(apic)
}

/// Physical addresses of the local controllers' registers, even if they are not used through
/// memory.
pub fn registers() -> PhysRange {
    // SAFETY: a kernel runs at the highest privilege.
    PhysRange::with_size(unsafe { registers_address() }, PAGE_SIZE)
}

/// Turns this CPU's controller on.
pub fn turn_on(apic: &LocalApic) {
    apic.enable(VECTORS);
}

/// Turns interrupts on on this CPU.
pub fn let_in() {
    // SAFETY: every CPU has loaded vectors and segments before it gets here, a handler is set, and
    // no lock is held.
    unsafe { interrupts::enable() };
}

impl Cpu {
    /// After a sleep, does the flush that was deferred meanwhile, if any.
    pub fn catch_up(&self) {
        if self.lazy_flush.wake() {
            count(&self.counters.flushed_whole);
            LocalTlb::flush_local(FlushRequest::Everything, false);
        }
    }
}

/// Handles every interrupt of every CPU.
fn handle(vector: u8) {
    let me = this();
    // This comes first, because nothing here may use a translation that changed while this CPU
    // slept.
    me.catch_up();
    let Some(apic) = apic() else { return };
    match vector {
        TIMER => {
            count(&me.counters.timer);
            if let Some(handler) = ON_TIMER.get() {
                handler(me);
            }
        }
        CALL => {
            count(&me.counters.calls);
            // Signalled before the calls are served, so that a request that comes after they are
            // done raises an interrupt of its own.
            apic.end_of_interrupt();
            serve_calls();
            return;
        }
        WAKE => count(&me.counters.wakes),
        ERROR => {
            count(&me.counters.errors);
            log!("APIC error on CPU {}: {:#04x}", me.index(), apic.take_errors());
        }
        _ => return,
    }
    apic.end_of_interrupt();
}

/// Stops all other CPUs for good, so that this one can report a failure. A CPU that is still being
/// started is left alone: it has no vectors yet, so the interrupt would reset the machine, and the
/// report would be lost.
pub fn stop_others_for_good() {
    let me = index();
    let others = all().filter(|cpu| cpu.index() != me && cpu.has_started());
    others.for_each(send_non_maskable);
}

/// Measures how fast the timer counts. It has been counting freely since `started_ns`.
pub fn measure_timer(apic: &LocalApic, started_ns: Option<u64>) {
    let Some(mut started_ns) = started_ns else { return };
    if apic.counted() == u32::MAX {
        // It has counted to its end, at an unknown time.
        apic.count_freely(TIMER);
        started_ns = PLATFORM.now_ns().unwrap_or(started_ns);
    }
    let elapsed = || PLATFORM.now_ns().unwrap_or(started_ns).saturating_sub(started_ns);
    while elapsed() < LEAST_WINDOW_NS {
        PLATFORM.relax();
    }
    let (counted, ns) = (apic.counted(), elapsed());
    apic.stop_timer(TIMER);
    let hz = (u64::from(counted) * NANOSECONDS).checked_div(ns).unwrap_or(0);
    TIMER_HZ.store(hz, Ordering::Relaxed);
}

/// Whether the timer can be used, which is so if its rate is known.
pub fn has_timer() -> bool {
    TIMER_HZ.load(Ordering::Relaxed) != 0
}

/// The rate of the timer in kHz.
pub fn timer_khz() -> u64 {
    TIMER_HZ.load(Ordering::Relaxed) / 1000
}

/// Interrupts this CPU `hz` times a second, from now on.
pub fn start_timer(hz: u64) {
    if let Some(apic) = apic()
        && has_timer()
    {
        let counts = TIMER_HZ.load(Ordering::Relaxed) / hz.max(1);
        apic.tick(TIMER, u32::try_from(counts).unwrap_or(u32::MAX));
    }
}

/// Stops this CPU's timer.
pub fn stop_timer() {
    if let Some(apic) = apic() {
        apic.stop_timer(TIMER);
    }
}
