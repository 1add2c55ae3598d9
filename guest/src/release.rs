//! Memory that only boot needed, handed to the manager: what the boot protocol and ACPI said, which
//! was copied, modules, the boot tables, and data of this program.
//!
//! Parts of the image disappear from its own addresses first, so that who uses them nevertheless
//! faults. The log says what is freed as Linux does.
//!
//! Orders of memory: Relaxed: a note of the CPU that releases, for itself.

use crate::console::log;
use crate::direct_map::KernelTables;
use crate::firmware::{Left, Reserved};
use crate::platform::GuestPlatform;
use crate::smp::TlbShootdown;
use crate::{accept, image, smp};
use core::sync::atomic::{AtomicBool, Ordering};
use framewright::Manager;
use framewright::firmware::MemoryMap;
use framewright::manager::{ReleaseError, Released};
use framewright::units::{PfnRange, PhysRange};

/// Whether the parts of the image are still there that boot alone needs.
static KEPT: [AtomicBool; 2] = [const { AtomicBool::new(true) }; 2];

/// The parts of the image that boot alone needs and that are still mapped.
pub fn kept_parts() -> impl Iterator<Item = PhysRange> {
    let parts = image::boot_only().into_iter().zip(&KEPT);
    parts.filter(|(_, kept)| kept.load(Ordering::Relaxed)).map(|(part, _)| part)
}

/// Releases what was reserved for boot and is not part of the image.
///
/// # Safety
/// Nobody uses it any more: what firmware and boot loader left was copied, and modules are nobody's
/// (invariant 42).
pub unsafe fn boot_memory(manager: &Manager<GuestPlatform>, reserved: &Reserved) {
    let sorts = [
        (Left::BootParameters, "boot parameters"),
        (Left::AcpiTables, "ACPI tables"),
        (Left::Module, "initrd"),
    ];
    for (sort, what) in sorts {
        // SAFETY: passed on to the caller; each run is named once.
        unsafe { release(manager, what, reserved.frames_of(sort)) };
    }
    // SAFETY: the device gave them away.
    unsafe { release(manager, "unused page table", core::iter::once(accept::take_spare())) };
}

/// Releases the parts of the image that boot alone needs.
///
/// # Safety
/// Nobody uses what is in `image::init` any more (invariant 42).
pub unsafe fn image(manager: &Manager<GuestPlatform>, tables: &KernelTables) {
    let names = ["boot page tables", "unused kernel image (initmem)"];
    // A CPU that comes late, when it was given up, goes through the boot tables until it stops.
    let may_go = [smp::all().all(|cpu| cpu.is_online()), true];
    for (((part, what), may_go), kept) in
        image::boot_only().into_iter().zip(names).zip(may_go).zip(&KEPT)
    {
        if may_go && tables.unmap_image(part, &TlbShootdown { global: true }) {
            kept.store(false, Ordering::Relaxed);
            // SAFETY: no table that is in use is among the boot tables, as all CPUs have the final
            // ones; the rest is passed on to the caller.
            unsafe { release(manager, what, core::iter::once(part.whole_frames())) };
        }
    }
}

/// Releases runs of one sort, and says how much that was; refusals too.
///
/// # Safety
/// The frames are reserved, and nobody uses them any more (invariant 42).
unsafe fn release(
    manager: &Manager<GuestPlatform>,
    what: &str,
    runs: impl Iterator<Item = PfnRange>,
) {
    let mut pages = 0;
    for run in runs.filter(|run| !run.is_empty()) {
        // SAFETY: passed on to the caller.
        match unsafe { manager.hotplug().release(run) } {
            Ok(released) => pages += released.pages,
            // Firmware left it in memory that is not the manager's.
            Err(ReleaseError::NotMemory(_)) => {}
            Err(error) => log!("Framewright: {what} memory stays reserved: {error}"),
        }
    }
    if pages != 0 {
        log!("{}", Released { pages }.line(what));
    }
}

/// Tries what may not be released; whether all of it was refused and nothing changed.
pub fn check(manager: &Manager<GuestPlatform>, map: MemoryMap<'_>) -> bool {
    let unaccepted = accept::highest_unaccepted().into_iter();
    let beyond = PhysRange::with_size(map.present_end().next_multiple_of(1 << 30), 1 << 21);
    let tries = [("released before", image::init()), ("no memory", beyond)].into_iter();
    let tries = tries.chain(unaccepted.map(|range| ("the manager's to accept", range)));
    let before = manager.totals();
    let mut is_right = true;
    for (what, range) in tries {
        // SAFETY: nobody is to get it: this is the error that must be found, of somebody who does
        // not own the memory.
        match unsafe { manager.hotplug().release(range.touched_frames()) } {
            Ok(_) => {
                log!("release check: {what}: NOT REFUSED");
                is_right = false;
            }
            Err(error) => log!("release check: {what}: {error}"),
        }
    }
    let after = manager.totals();
    // Looking at it may have had it accepted.
    let counts = [before, after].map(|totals| {
        let more = totals.unaccepted_pages;
        (totals.free_pages + more, totals.managed_pages + more, totals.reserved_pages)
    });
    is_right && counts[0] == counts[1]
}
