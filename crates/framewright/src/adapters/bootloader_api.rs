//! Reads the memory map of the crate `bootloader_api`.
//!
//! ```
//! # use framewright::firmware::{MapBuilder, MapError, MapRange, MemoryMap};
//! # use framewright::units::PhysRange;
//! use bootloader_api::BootInfo;
//! use framewright::adapters::bootloader_api::{add, in_use};
//!
//! /// The map, and what the memblock allocator is to leave alone.
//! fn memory<'a>(
//!     info: &BootInfo,
//!     room: &'a mut [MapRange],
//!     used: &mut [PhysRange],
//! ) -> Result<(MemoryMap<'a>, usize), MapError> {
//!     let mut builder = MapBuilder::new(room);
//!     add(&mut builder, &info.memory_regions)?;
//!     let (mut count, capacity) = (0, used.len());
//!     for range in in_use(&info.memory_regions) {
//!         // What has no place here would be handed out.
//!         let place = used.get_mut(count).ok_or(MapError::TooManyRanges { range, capacity })?;
//!         *place = range;
//!         count += 1;
//!     }
//!     Ok((builder.finish()?, count))
//! }
//! ```

use crate::firmware::{MapBuilder, MapError, MemoryKind};
use crate::units::PhysRange;
use ::bootloader_api::info::{MemoryRegion, MemoryRegionKind};

/// Adds all regions. What the boot loader placed in memory (the kernel's image, page tables and
/// boot information) counts as memory; [`in_use`] returns it.
///
/// # Errors
/// See [`MapBuilder::add`]; regions before the refused one have been added.
pub fn add(builder: &mut MapBuilder<'_>, regions: &[MemoryRegion]) -> Result<(), MapError> {
    regions.iter().try_for_each(|region| {
        builder.add(region.start, region.end.saturating_sub(region.start), kind(region.kind))
    })
}

/// Returns the ranges that are in use when the kernel begins.
/// [`Hotplug::release`](crate::manager::Hotplug::release) can hand them over later, once nobody
/// needs them any more.
pub fn in_use(regions: &[MemoryRegion]) -> impl Iterator<Item = PhysRange> + '_ {
    let is_used = |region: &&MemoryRegion| region.kind == MemoryRegionKind::Bootloader;
    let used = regions.iter().filter(is_used).filter(|region| region.start < region.end);
    used.map(|region| PhysRange::new(region.start, region.end))
}

fn kind(kind: MemoryRegionKind) -> MemoryKind {
    match kind {
        MemoryRegionKind::Usable | MemoryRegionKind::Bootloader => MemoryKind::Conventional,
        MemoryRegionKind::UnknownUefi(kind) => MemoryKind::from_efi(kind, 0),
        MemoryRegionKind::UnknownBios(kind) => MemoryKind::from_e820(kind),
        _ => MemoryKind::Reserved,
    }
}
