//! Reads the memory map of the Limine boot protocol from the crate `limine` (0.5, the last version
//! that the stable compiler builds).
//!
//! ```
//! # use framewright::firmware::{MapBuilder, MapError, MapRange, MemoryMap};
//! use framewright::adapters::limine::add;
//! use limine::memory_map::Entry;
//!
//! fn map<'a>(
//!     entries: &[&Entry],
//!     room: &'a mut [MapRange],
//! ) -> Result<MemoryMap<'a>, MapError> {
//!     let mut builder = MapBuilder::new(room);
//!     add(&mut builder, entries)?;
//!     builder.finish()
//! }
//! ```

use crate::firmware::{MapBuilder, MapError, MemoryKind};
use crate::units::PhysRange;
use ::limine::memory_map::{Entry, EntryType};

/// Adds all entries. The kernel, its modules, and what the boot loader left behind count as memory;
/// [`in_use`] returns them.
///
/// # Errors
/// See [`MapBuilder::add`]; entries before the refused one have been added.
pub fn add(builder: &mut MapBuilder<'_>, entries: &[&Entry]) -> Result<(), MapError> {
    entries
        .iter()
        .try_for_each(|entry| builder.add(entry.base, entry.length, kind(entry.entry_type)))
}

/// Returns the ranges that are in use when the kernel begins: its image and modules, and the boot
/// loader's memory with page tables, stack and responses.
/// [`Hotplug::release`](crate::manager::Hotplug::release) can hand both over later, once nobody
/// needs them any more.
pub fn in_use<'a>(entries: &'a [&'a Entry]) -> impl Iterator<Item = PhysRange> + 'a {
    let is_used = |entry: &&&Entry| {
        [EntryType::BOOTLOADER_RECLAIMABLE, EntryType::EXECUTABLE_AND_MODULES]
            .contains(&entry.entry_type)
    };
    let used = entries.iter().filter(is_used).filter(|entry| entry.length != 0);
    used.map(|entry| PhysRange::new(entry.base, entry.base.saturating_add(entry.length)))
}

fn kind(kind: EntryType) -> MemoryKind {
    match kind {
        EntryType::USABLE
        | EntryType::BOOTLOADER_RECLAIMABLE
        | EntryType::EXECUTABLE_AND_MODULES => MemoryKind::Conventional,
        EntryType::ACPI_RECLAIMABLE => MemoryKind::AcpiReclaimable,
        EntryType::ACPI_NVS => MemoryKind::AcpiNvs,
        EntryType::BAD_MEMORY => MemoryKind::Unusable,
        // Reserved memory, framebuffers, and unknown types.
        _ => MemoryKind::Reserved,
    }
}
