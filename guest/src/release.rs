//! Hands memory that only boot needed to the manager: the boot protocol's information and ACPI's
//! tables, which were copied, modules, the boot tables, and some data of this program.
//!
//! Parts of the image are unmapped from its own addresses first, so that using them afterwards
//! faults. The log reports what is freed as Linux does.
//!
//! Orders of memory: Relaxed: only the CPU that releases uses the flags.

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

/// Whether each part of the image that only boot needs is still there.
static KEPT: [AtomicBool; 2] = [const { AtomicBool::new(true) }; 2];

/// The parts of the image that only boot needs and that are still mapped.
pub fn kept_parts() -> impl Iterator<Item = PhysRange> {
    let parts = image::boot_only().into_iter().zip(&KEPT);
    parts.filter(|(_, kept)| kept.load(Ordering::Relaxed)).map(|(part, _)| part)
}

/// Releases what was reserved for boot and is not part of the image.
///
/// # Safety
/// Nobody uses this memory any more: what firmware and the boot loader left was copied, and nobody
/// uses modules (invariant 42).
pub unsafe fn boot_memory(manager: &Manager<GuestPlatform>, reserved: &Reserved) {
    let sorts = [
        (Left::BootParameters, "boot parameters"),
        (Left::AcpiTables, "ACPI tables"),
        (Left::Module, "initrd"),
    ];
    for (sort, what) in sorts {
        // SAFETY: the caller upholds it, and each run is named once.
        unsafe { release(manager, what, reserved.frames_of(sort)) };
    }
    // SAFETY: the accept device has given these tables away.
    unsafe { release(manager, "unused page table", core::iter::once(accept::take_spare())) };
}

/// Releases the parts of the image that only boot needs.
///
/// # Safety
/// Nobody uses what is in `image::init` any more (invariant 42).
pub unsafe fn image(manager: &Manager<GuestPlatform>, tables: &KernelTables) {
    let names = ["boot page tables", "unused kernel image (initmem)"];
    // A CPU that was given up and comes late goes through the boot tables until it stops.
    let may_go = [smp::all().all(|cpu| cpu.is_online()), true];
    for (((part, what), may_go), kept) in
        image::boot_only().into_iter().zip(names).zip(may_go).zip(&KEPT)
    {
        if may_go && tables.unmap_image(part, &TlbShootdown { global: true }) {
            kept.store(false, Ordering::Relaxed);
            // SAFETY: all CPUs use the final tables, so no boot table is in use. The caller upholds
            // the rest.
            unsafe { release(manager, what, core::iter::once(part.whole_frames())) };
        }
    }
}

/// Releases runs of one sort and logs how much that was, and refusals, too.
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
        // SAFETY: the caller upholds it.
        match unsafe { manager.hotplug().release(run) } {
            Ok(released) => pages += released.pages,
            // Firmware put it into memory that is not the manager's.
            Err(ReleaseError::NotMemory(_)) => {}
            Err(error) => log!("Framewright: {what} memory stays reserved: {error}"),
        }
    }
    if pages != 0 {
        log!("{}", Released { pages }.line(what));
    }
}

/// Tries to release memory that must not be released. Returns whether every try was refused and
/// nothing changed.
pub fn check(manager: &Manager<GuestPlatform>, map: MemoryMap<'_>) -> bool {
    let unaccepted = accept::highest_unaccepted().into_iter();
    let beyond = PhysRange::with_size(map.present_end().next_multiple_of(1 << 30), 1 << 21);
    let tries = [("released before", image::init()), ("no memory", beyond)].into_iter();
    let tries = tries.chain(unaccepted.map(|range| ("the manager's to accept", range)));
    let before = manager.totals();
    let mut is_right = true;
    for (what, range) in tries {
        // SAFETY: none: this is the error that must be found, a release by code that does not own
        // the memory. Nobody gets the memory.
        match unsafe { manager.hotplug().release(range.touched_frames()) } {
            Ok(_) => {
                log!("release check: {what}: NOT REFUSED");
                is_right = false;
            }
            Err(error) => log!("release check: {what}: {error}"),
        }
    }
    let after = manager.totals();
    // The check itself may have caused memory to be accepted.
    let counts = [before, after].map(|totals| {
        let more = totals.unaccepted_pages;
        (totals.free_pages + more, totals.managed_pages + more, totals.reserved_pages)
    });
    is_right && counts[0] == counts[1]
}
