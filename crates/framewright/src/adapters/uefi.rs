//! The memory map of UEFI, by descriptors of the crate `uefi-raw`, which `uefi` gives too.
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
//! Memory that firmware keeps mirrored is marked in the memblock allocator, if `kernelcore=mirror`
//! is to work:
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
//! Other versions of the crate have the same numbers: see [`MemoryKind::from_efi`].

use crate::firmware::{MapBuilder, MapError, MemoryKind};
use crate::units::{PAGE_SIZE, PhysRange};
use uefi_raw::table::boot::{MemoryAttribute, MemoryDescriptor};

/// Adds all descriptors. What loader and boot services had is memory once these have ended. The
/// kernel's own image is among it, and so are, until it has its own, the page tables, the stack and
/// the descriptor tables that the CPU uses, and the buffer of this map: all of these are for the
/// kernel to leave out.
///
/// # Errors
/// See [`MapBuilder::add`]; descriptors before the one that is refused have been added.
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

/// What firmware keeps mirrored (EFI_MEMORY_MORE_RELIABLE), for
/// [`Memblock::mark_mirrored`](crate::memblock::Memblock::mark_mirrored); be it memory or not.
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
