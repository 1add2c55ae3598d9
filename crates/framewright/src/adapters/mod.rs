//! Interfaces that kernels already have, implemented for `&Manager` or for `LazyManager`.
//!
//! Each is behind a feature that is named after the crate whose interface it is; none is on by
//! default, none needs `std` or a heap.
//!
//! | feature | module | gives |
//! |---|---|---|
//! | `x86_64` | `adapters::x86_64` | `FrameAllocator` and `FrameDeallocator` for all page sizes |
//! | `virtio-drivers` | `adapters::virtio` | the DMA half of `Hal` |
//! | `buddy_system_allocator` | `adapters::buddy_system` | types with its names and methods |
//! | `frame-alloc` | `adapters::frame_alloc` | `PhysicalAllocator` and `RegionInit` |
//! | `bootloader_api`, `limine`, `multiboot2`, `uefi-raw` | of these names, `uefi` | memory maps |
//!
//! Their tests run with `cargo test -p framewright --all-features`. What `x86_64` and
//! `virtio-drivers` ask for, page tables and rings of devices, is unmovable: its owners cannot be
//! asked to let go of it. The others do not say what it is for, so it is movable; whoever sets a
//! mover answers for it.

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
