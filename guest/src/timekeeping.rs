//! Measures how fast the time-stamp counter runs.

use crate::console::log;
use crate::firmware::{AcpiTables, is_memory};
use crate::platform::{BOOT_MAP_LIMIT, DIRECT_MAP, PLATFORM};
use core::ptr::NonNull;
use framewright::platform::Platform as _;
use framewright::units::PhysRange;
use framewright_arch::acpi::{AcpiError, hpet_address, power_timer};
use framewright_arch::x86_64::clock::{
    Hpet, IntervalTimer, PowerTimerClock, Reference, USUAL_HPET_ADDRESS, calibrate,
};
use framewright_arch::x86_64::pvh::StartInfo;
use framewright_arch::x86_64::registers::time_stamp;

/// How long to measure. This gives the rate to about 1 in 10 000.
const WINDOW_US: u64 = 4_000;
const HPET_BYTES: u64 = 1024;

/// Measures the counter against the first clock that runs. If none does, the guest goes on without
/// times. Needs the boot tables.
pub fn start(start_info: &StartInfo<'_>, tables: Option<&AcpiTables>) {
    let measured = try_clock("HPET", hpet(start_info, tables))
        .or_else(|| try_clock("the ACPI timer", acpi_timer(tables)))
        // SAFETY: the guest makes no sound and uses the interval timer nowhere else.
        .or_else(|| try_clock("the interval timer", Some(unsafe { IntervalTimer::start() })));
    match measured {
        Some((name, hz)) => {
            PLATFORM.set_clock_rate(hz);
            log!("tsc: {}.{:03} MHz, measured against {name}", hz / 1_000_000, hz / 1000 % 1000);
        }
        None => log!("tsc: no clock to measure it against, so no times are known"),
    }
}

fn try_clock<R: Reference>(
    name: &'static str,
    reference: Option<R>,
) -> Option<(&'static str, u64)> {
    let hz = calibrate(&mut reference?, &mut time_stamp, WINDOW_US)?;
    Some((name, hz))
}

fn hpet(start_info: &StartInfo<'_>, tables: Option<&AcpiTables>) -> Option<Hpet> {
    let address = said(tables.map_or(Ok(None), hpet_address)).unwrap_or(USUAL_HPET_ADDRESS);
    if address > BOOT_MAP_LIMIT - HPET_BYTES {
        return None;
    }
    if is_memory(start_info, PhysRange::with_size(address, HPET_BYTES)) {
        // Opening the timer would write to that memory.
        log!("ACPI: HPET at {address:#x} lies over memory; it is left alone");
        return None;
    }
    let registers =
        core::ptr::with_exposed_provenance_mut(usize::try_from(DIRECT_MAP | address).ok()?);
    // SAFETY: the boot tables map it, it is not memory, and by what ACPI says or by custom it holds
    // the timer's registers or nothing.
    unsafe { Hpet::open(NonNull::new(registers)?) }
}

fn acpi_timer(tables: Option<&AcpiTables>) -> Option<PowerTimerClock> {
    let timer = said(tables.map_or(Ok(None), power_timer))?;
    // SAFETY: ACPI says that the timer is there.
    Some(unsafe { PowerTimerClock::new(timer) })
}

/// Returns what a table says. If it cannot be read, logs why.
fn said<T>(read: Result<Option<T>, AcpiError>) -> Option<T> {
    read.unwrap_or_else(|error| {
        log!("{error}");
        None
    })
}

/// Calls `done` until it returns true or the time is over; without a clock, for a great many times.
pub fn within(seconds: u64, mut done: impl FnMut() -> bool) -> bool {
    const TRIES_PER_SECOND: u64 = 100_000;
    let end_ns =
        PLATFORM.now_ns().map(|now| now.saturating_add(seconds.saturating_mul(1_000_000_000)));
    let mut tries = 0;
    loop {
        if done() {
            return true;
        }
        tries += 1;
        let is_over = match end_ns.zip(PLATFORM.now_ns()) {
            Some((end, now)) => now >= end,
            None => tries >= seconds.saturating_mul(TRIES_PER_SECOND),
        };
        if is_over {
            return false;
        }
        core::hint::spin_loop();
    }
}
