//! Measures how fast the time-stamp counter runs, against a clock of known rate.

use crate::acpi::PowerTimer;
use crate::x86_64::port::Port;
use core::ptr::NonNull;

/// The number of readings after which the reference is considered stopped. At 30 ns each this is
/// longer than any window.
const MAX_READINGS: u32 = 4_000_000;
/// How many pairs of readings of both counters are taken; the closest pair is used.
const TRIES: u32 = 8;
/// Where every PC has its HPET, if no table says otherwise.
pub const USUAL_HPET_ADDRESS: u64 = 0xfed0_0000;
/// Ticks of the power-management timer per second.
const POWER_TIMER_HZ: u64 = 3_579_545;
/// Ticks of the interval timer per second.
const INTERVAL_TIMER_HZ: u64 = 1_193_182;

/// A clock of known rate.
pub trait Reference {
    /// Ticks per second.
    fn hz(&self) -> u64;
    /// The value of the counter; it wraps after [`mask`](Self::mask).
    fn ticks(&mut self) -> u64;
    /// One less than the power of two at which the counter wraps.
    fn mask(&self) -> u64;
}

/// Measures the rate of `counter` in counts per second, over a window of `window_us` microseconds,
/// which must be shorter than half the time in which the reference wraps. `None` if the reference
/// stands still.
///
/// A window of a tenth of that length comes first and is discarded: it absorbs the cost of first
/// accesses. Each end of the window is the closest of several pairs of readings, so that it does
/// little harm if an emulator pauses us between two readings.
pub fn calibrate(
    reference: &mut dyn Reference,
    counter: &mut dyn FnMut() -> u64,
    window_us: u64,
) -> Option<u64> {
    window(reference, counter, window_us / 10)?;
    window(reference, counter, window_us)
}

fn window(
    reference: &mut dyn Reference,
    counter: &mut dyn FnMut() -> u64,
    window_us: u64,
) -> Option<u64> {
    let (hz, mask) = (reference.hz(), reference.mask());
    let wanted = (hz.saturating_mul(window_us) / 1_000_000).max(1);
    let (start_ticks, start_count) = closest(reference, counter);
    let mut looks = 0;
    while reference.ticks().wrapping_sub(start_ticks) & mask < wanted {
        looks += 1;
        if looks == MAX_READINGS {
            return None;
        }
    }
    let (end_ticks, end_count) = closest(reference, counter);
    let ticks = u128::from(end_ticks.wrapping_sub(start_ticks) & mask);
    let counted = u128::from(end_count.wrapping_sub(start_count));
    let rate = (counted * u128::from(hz)).checked_div(ticks)?;
    u64::try_from(rate).ok().filter(|&rate| rate != 0)
}

/// Reads both counters at about the same moment, as closely as possible.
fn closest(reference: &mut dyn Reference, counter: &mut dyn FnMut() -> u64) -> (u64, u64) {
    let (mut best, mut width) = ((0, 0), u64::MAX);
    for _ in 0..TRIES {
        let before = counter();
        let ticks = reference.ticks();
        let between = counter().wrapping_sub(before);
        if between < width {
            (best, width) = ((ticks, before.wrapping_add(between / 2)), between);
        }
    }
    best
}

/// The high precision event timer.
#[derive(Debug)]
pub struct Hpet {
    registers: NonNull<u32>,
    hz: u64,
}

impl Hpet {
    /// Opens and starts the timer whose registers are at `registers`; `None` if no HPET answers
    /// there.
    ///
    /// # Safety
    /// `registers` are 1 KiB of device memory, or of nothing, that begin at a multiple of 4 bytes.
    /// They stay mapped uncached or with the machine's memory type, and nobody else uses them.
    #[must_use]
    pub unsafe fn open(registers: NonNull<u32>) -> Option<Self> {
        const FEMTOSECONDS: u64 = 1_000_000_000_000_000;
        let mut hpet = Self { registers, hz: 1 };
        let period = u64::from(hpet.read(4));
        // The specification allows at most 100 ns; absent devices read as all ones or zero.
        if period == 0 || period > 100_000_000 {
            return None;
        }
        hpet.hz = FEMTOSECONDS / period;
        let configuration = hpet.read(0x10);
        // SAFETY: the caller promises the registers; bit 0 starts the counter, and no interrupt is
        // enabled.
        unsafe { hpet.register(0x10).write_volatile(configuration | 1) };
        Some(hpet)
    }

    fn register(&self, offset: usize) -> NonNull<u32> {
        // SAFETY: `open` was promised 1 KiB of registers, and every offset used here is below that.
        unsafe { self.registers.byte_add(offset) }
    }

    fn read(&self, offset: usize) -> u32 {
        // SAFETY: this is a register of the HPET, which `open` was promised; reading it has no
        // effect.
        unsafe { self.register(offset).read_volatile() }
    }
}

impl Reference for Hpet {
    fn hz(&self) -> u64 {
        self.hz
    }

    fn ticks(&mut self) -> u64 {
        u64::from(self.read(0xf0))
    }

    /// The lower half is enough, and every HPET can be read in halves.
    fn mask(&self) -> u64 {
        u64::from(u32::MAX)
    }
}

/// The ACPI power-management timer. Only the 24 bits that all of them have are used.
#[derive(Debug)]
pub struct PowerTimerClock(Port);

impl PowerTimerClock {
    /// Uses the timer that firmware described.
    ///
    /// # Safety
    /// The timer is where `timer` says, and the code may use ports.
    #[must_use]
    pub unsafe fn new(timer: PowerTimer) -> Self {
        // SAFETY: the caller promises that the timer is there; reading it has no effect.
        Self(unsafe { Port::new(timer.port) })
    }
}

impl Reference for PowerTimerClock {
    fn hz(&self) -> u64 {
        POWER_TIMER_HZ
    }

    fn ticks(&mut self) -> u64 {
        u64::from(self.0.read_u32())
    }

    fn mask(&self) -> u64 {
        0xff_ffff
    }
}

/// Channel 2 of the interval timer, running freely and silently.
#[derive(Debug)]
pub struct IntervalTimer {
    command: Port,
    data: Port,
}

impl IntervalTimer {
    /// Lets the channel count down from 65536 again and again.
    ///
    /// # Safety
    /// Nobody else uses channel 2 or the speaker, and the code may use ports.
    #[must_use]
    pub unsafe fn start() -> Self {
        // SAFETY: these ports belong to the interval timer and its gate in every PC; none of them
        // touches memory.
        let [gate, command, data] = [0x61, 0x43, 0x42].map(|port| unsafe { Port::new(port) });
        gate.write_u8(gate.read_u8() & !2 | 1);
        command.write_u8(0xb4); // channel 2, both bytes, rate generator
        data.write_u8(0);
        data.write_u8(0);
        Self { command, data }
    }
}

impl Reference for IntervalTimer {
    fn hz(&self) -> u64 {
        INTERVAL_TIMER_HZ
    }

    fn ticks(&mut self) -> u64 {
        self.command.write_u8(0x80); // hold channel 2 still for reading
        let low = self.data.read_u8();
        let high = self.data.read_u8();
        u64::from(0u16.wrapping_sub(u16::from_le_bytes([low, high])))
    }

    fn mask(&self) -> u64 {
        0xffff
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;

    /// A reference and a counter on one clock that advances with every reading.
    struct Fake<'a> {
        now_ns: &'a Cell<u64>,
        hz: u64,
        mask: u64,
        runs: bool,
    }

    impl Reference for Fake<'_> {
        fn hz(&self) -> u64 {
            self.hz
        }

        fn ticks(&mut self) -> u64 {
            self.now_ns.set(self.now_ns.get() + 700);
            if self.runs { (self.now_ns.get() * self.hz / 1_000_000_000) & self.mask } else { 7 }
        }

        fn mask(&self) -> u64 {
            self.mask
        }
    }

    fn measure(hz: u64, mask: u64, runs: bool) -> Option<u64> {
        // The test begins just before the narrow counters wrap.
        let now_ns = Cell::new(54_900_000);
        let mut counter = || {
            now_ns.set(now_ns.get() + 10);
            now_ns.get() * 3
        };
        calibrate(&mut Fake { now_ns: &now_ns, hz, mask, runs }, &mut counter, 10_000)
    }

    #[test]
    fn the_rate_comes_out_right_across_a_wrap() {
        for (hz, mask) in [
            (100_000_000, u64::from(u32::MAX)),
            (POWER_TIMER_HZ, 0xff_ffff),
            (INTERVAL_TIMER_HZ, 0xffff),
        ] {
            let rate = measure(hz, mask, true).expect("the reference runs");
            assert!(rate.abs_diff(3_000_000_000) < 3_000_000, "{rate} against {hz}");
        }
    }

    #[test]
    fn a_stopped_reference_is_no_reference() {
        assert_eq!(measure(1_000_000, u64::MAX, false), None);
    }
}
