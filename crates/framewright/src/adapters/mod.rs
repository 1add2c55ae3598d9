//! Implements interfaces that kernels already use, for `&Manager` or for `LazyManager`.
//!
//! Each adapter is behind a feature named after the crate whose interface it implements. None is on
//! by default, and none needs `std` or a heap.
//!
//! | feature | module | provides |
//! |---|---|---|
//! | `x86_64` | `adapters::x86_64` | `FrameAllocator`, `FrameDeallocator` for all page sizes |
//! | `virtio-drivers` | `adapters::virtio` | the DMA half of `Hal` |
//! | `buddy_system_allocator` | `adapters::buddy_system` | types with its names and methods |
//! | `frame-alloc` | `adapters::frame_alloc` | `PhysicalAllocator` and `RegionInit` |
//! | `bootloader_api`, `limine`, `multiboot2`, `uefi-raw` | of these names, `uefi` | memory maps |
//!
//! Their tests run with `cargo test -p framewright --all-features`. Memory for `x86_64` and
//! `virtio-drivers` (page tables and device rings) is unmovable, because its users cannot be asked
//! to release it. The other interfaces do not say what memory is for, so they allocate movable
//! memory; an adopter that sets a mover answers for it.

#[cfg(feature = "bootloader_api")]
pub mod bootloader_api;
#[cfg(feature = "buddy_system_allocator")]
pub mod buddy_system;
#[cfg(feature = "frame-alloc")]
pub mod frame_alloc;
#[cfg(feature = "limine")]
pub mod limine;
#[cfg(feature = "multiboot2")]
pub mod multiboot2;
#[cfg(feature = "uefi-raw")]
pub mod uefi;
#[cfg(feature = "virtio-drivers")]
pub mod virtio;
#[cfg(feature = "x86_64")]
pub mod x86_64;
