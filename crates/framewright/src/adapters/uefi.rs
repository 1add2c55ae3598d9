//! Reads the memory map of UEFI from descriptors of the crate `uefi-raw`, which the crate `uefi`
//! returns too.
//!
//! ```
//! # use framewright::firmware::{MapBuilder, MapError};
//! use framewright::adapters::uefi::add;
//! use uefi_raw::table::boot::MemoryDescriptor;
//!
//! /// After `ExitBootServices`; `uefi`'s `MemoryMap::entries` is such an iterator.
//! fn intake<'a>(
//!     builder: &mut MapBuilder<'_>,
//!     entries: impl IntoIterator<Item = &'a MemoryDescriptor>,
//! ) -> Result<(), MapError> {
//!     add(builder, entries)
//! }
//! ```
//!
//! For `kernelcore=mirror` to work, memory that firmware keeps mirrored has to be marked in the
//! memblock allocator:
//!
//! ```
//! # use framewright::Platform;
//! # use framewright::adapters::uefi::mirrored;
//! # use framewright::memblock::{Memblock, MemblockError};
//! # use uefi_raw::table::boot::MemoryDescriptor;
//! fn mark<'a, P: Platform>(
//!     early: &mut Memblock<'_, P>,
//!     entries: impl IntoIterator<Item = &'a MemoryDescriptor>,
//! ) -> Result<(), MemblockError> {
//!     mirrored(entries).try_for_each(|range| early.mark_mirrored(range))
//! }
//! ```
//!
//! Other versions of the crate use the same numbers: see [`MemoryKind::from_efi`].

use crate::firmware::{MapBuilder, MapError, MemoryKind};
use crate::units::{PAGE_SIZE, PhysRange};
use uefi_raw::table::boot::{MemoryAttribute, MemoryDescriptor};

/// Adds all descriptors. What the loader and boot services used counts as memory, which it is once
/// these have ended. That includes the kernel's own image, the buffer of this map and, until the
/// kernel has its own, the page tables, the stack and the descriptor tables that the CPU uses. The
/// kernel has to reserve all of these. A kernel that calls runtime services reserves what boot
/// services had, too, and releases it ([`Hotplug::release`](crate::manager::Hotplug::release)) when
/// it has called `SetVirtualAddressMap`: some firmware uses it until then (Linux:
/// `arch/x86/platform/efi/quirks.c`, `efi_reserve_boot_services`).
///
/// # Errors
/// See [`MapBuilder::add`]; descriptors before the refused one have been added.
pub fn add<'a>(
    builder: &mut MapBuilder<'_>,
    entries: impl IntoIterator<Item = &'a MemoryDescriptor>,
) -> Result<(), MapError> {
    entries.into_iter().try_for_each(|entry| {
        let size_bytes = entry.page_count.saturating_mul(PAGE_SIZE);
        builder.add(
            entry.phys_start,
            size_bytes,
            MemoryKind::from_efi(entry.ty.0, entry.att.bits()),
        )
    })
}

/// Returns the ranges that firmware keeps mirrored (EFI_MEMORY_MORE_RELIABLE), whether they are
/// memory or not, for [`Memblock::mark_mirrored`](crate::memblock::Memblock::mark_mirrored).
pub fn mirrored<'a>(
    entries: impl IntoIterator<Item = &'a MemoryDescriptor>,
) -> impl Iterator<Item = PhysRange> {
    entries.into_iter().filter(|entry| entry.att.contains(MemoryAttribute::MORE_RELIABLE)).map(
        |entry| {
            let size_bytes = entry.page_count.saturating_mul(PAGE_SIZE);
            PhysRange::new(entry.phys_start, entry.phys_start.saturating_add(size_bytes))
        },
    )
}
