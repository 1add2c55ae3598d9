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
//! Other versions of the crate have the same numbers: see [`MemoryKind::from_efi`].

use crate::firmware::{MapBuilder, MapError, MemoryKind};
use crate::units::PAGE_SIZE;
use uefi_raw::table::boot::MemoryDescriptor;

/// Adds all descriptors. What loader and boot services had is memory once these have ended; the
/// kernel's own image is among it, for the kernel to leave out.
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
