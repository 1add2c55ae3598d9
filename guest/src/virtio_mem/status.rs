//! What the device is doing, for a control file.
//!
//! Orders of memory: Relaxed, because these numbers are for people, and the CPU that drives the
//! device is the one that shows them.

use super::GuestDevice;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU64, Ordering};
use framewright::units::{PfnRange, PhysRange};
use framewright_virtio_mem::Progress;

/// The names of the numbers, in order.
const NAMES: [&str; 9] = [
    "region_bytes",
    "requested_bytes",
    "usable_bytes",
    "plugged_bytes",
    "plug_requests",
    "unplug_requests",
    "unplug_all_requests",
    "busy_answers",
    "nack_answers",
];

static NUMBERS: [AtomicU64; NAMES.len()] = [const { AtomicU64::new(0) }; NAMES.len()];

/// The region's first frame and its end.
static REGION: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Records where memory may be added.
pub fn note_region(region: PhysRange) {
    let frames = region.whole_frames();
    REGION[0].store(frames.start.0, Ordering::Relaxed);
    REGION[1].store(frames.end.0, Ordering::Relaxed);
}

/// The frames that may become memory; none without a device.
pub fn region() -> PfnRange {
    let [start, end] = [0, 1].map(|place: usize| REGION[place].load(Ordering::Relaxed));
    PfnRange::new(start, end)
}

/// Records the numbers to show.
pub fn note(device: &GuestDevice, progress: Option<Progress>) {
    let counters = device.counters();
    let sizes = progress.map(|progress| (progress.requested_bytes, progress.usable_bytes));
    let numbers = [
        Some(device.region().size_bytes),
        sizes.map(|(requested_bytes, _)| requested_bytes),
        sizes.map(|(_, usable_bytes)| usable_bytes),
        Some(device.plugged_bytes()),
        Some(counters.plug),
        Some(counters.unplug),
        Some(counters.unplug_all),
        Some(counters.busy),
        Some(counters.nack),
    ];
    for (place, number) in NUMBERS.iter().zip(numbers) {
        if let Some(number) = number {
            place.store(number, Ordering::Relaxed);
        }
    }
}

/// Writes the numbers; all are 0 if there is no device.
///
/// # Errors
/// Those of `out`.
pub fn show(out: &mut dyn Write) -> fmt::Result {
    let numbers = NUMBERS.iter().map(|number| number.load(Ordering::Relaxed));
    NAMES.iter().zip(numbers).try_for_each(|(name, number)| writeln!(out, "{name} {number}"))
}
