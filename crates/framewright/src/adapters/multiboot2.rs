//! Reads the memory map of Multiboot 2 from the crate `multiboot2`.
//!
//! ```
//! # use framewright::firmware::{MapBuilder, MapError};
//! use framewright::adapters::multiboot2::add;
//! use multiboot2::BootInformation;
//!
//! fn intake(builder: &mut MapBuilder<'_>, info: &BootInformation<'_>) -> Result<(), MapError> {
//!     match info.memory_map_tag() {
//!         Some(tag) => add(builder, tag.memory_areas()),
//!         None => Ok(()),
//!     }
//! }
//! ```

use crate::firmware::{MapBuilder, MapError, MemoryKind};
use ::multiboot2::MemoryArea;

/// Adds all areas. The boot loader does not report what is in use: the kernel itself has to reserve
/// its image, the modules and the boot information.
///
/// # Errors
/// See [`MapBuilder::add`]; areas before the refused one have been added.
pub fn add(builder: &mut MapBuilder<'_>, areas: &[MemoryArea]) -> Result<(), MapError> {
    areas.iter().try_for_each(|area| {
        builder.add(area.start_address(), area.size(), MemoryKind::from_e820(area.typ().val()))
    })
}
