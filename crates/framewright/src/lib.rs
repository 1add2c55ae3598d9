//! A physical memory manager for kernels, unikernels and VM guests.
//!
//! It takes what firmware says about memory and nodes, brings all of it up (on demand: well under a
//! millisecond a TiB), and hands out pages and blocks from 4 KiB to 1 GiB. It needs no heap, owns
//! no thread, and asks of its adopter one small trait, [`Platform`].
//!
//! # Adopting it
//!
//! Five steps, all of them in this example, which runs: here a static array plays the machine's
//! memory.
//!
//! ```
//! use framewright::memblock::{Memblock, MemblockStorage};
//! use framewright::firmware::{MapBuilder, MapRange, MemoryAffinity, MemoryKind, Topology};
//! use framewright::units::{Order, PhysRange};
//! use framewright::{Request, BringUp, IrqState, Manager, Parameters, PinnedCpu, Platform};
//! use std::ptr::NonNull;
//!
//! // 1. Say where memory is seen, how interrupts are held off, and which CPU this is.
//! struct Kernel;
//! # const RAM_BYTES: usize = 32 << 20;
//! # #[repr(align(0x200000))]
//! # struct Ram(std::cell::UnsafeCell<[u8; RAM_BYTES]>);
//! # // SAFETY: only the manager touches it.
//! # unsafe impl Sync for Ram {}
//! # static RAM: Ram = Ram(std::cell::UnsafeCell::new([0; RAM_BYTES]));
//! # fn direct_map_base() -> *mut u8 { RAM.0.get().cast() }
//!
//! // SAFETY: frames 0..32 MiB are memory that nobody else uses, seen at one offset; there is one
//! // CPU and no interrupt.
//! unsafe impl Platform for Kernel {
//!     fn direct(&self, pa: u64) -> NonNull<u8> {
//!         NonNull::new(direct_map_base().wrapping_add(pa as usize)).unwrap()
//!     }
//!     fn pin(&self) -> PinnedCpu {
//!         PinnedCpu::new(0)
//!     }
//!     fn irq_save(&self) -> IrqState {
//!         IrqState(0)
//!     }
//!     unsafe fn irq_restore(&self, _: IrqState) {}
//! }
//! static KERNEL: Kernel = Kernel;
//!
//! // 2. Tell it what firmware said, in any order; and the nodes, if there are any.
//! let mut ranges = [MapRange::EMPTY; 64];
//! let mut builder = MapBuilder::new(&mut ranges);
//! builder.add(0, 32 << 20, MemoryKind::Conventional)?;
//! builder.add(0x9_fc00, 0x6_0400, MemoryKind::Reserved)?;
//! let mut print = |problem| eprintln!("{problem}");
//! let parameters = Parameters::parse("min_free_kbytes=512", &mut print);
//! parameters.apply(&mut builder)?;
//! let map = builder.finish()?;
//! let mut claims = [MemoryAffinity::EMPTY; 8];
//! let topology = Topology::new(&mut claims);
//!
//! // 3. Reserve what is in use already: the kernel's image, its stack, the initial RAM disk.
//! let image = PhysRange::with_size(0x20_0000, 0x8_1234);
//! let mut storage = MemblockStorage::new();
//! // SAFETY: what the map calls usable and this does not reserve is memory that nobody else uses.
//! let early =
//!     unsafe { Memblock::with_reserved(&KERNEL, &mut storage, map, &topology, &[image]) }?;
//!
//! // 4. Bring it up.
//! let input = BringUp { parameters: &parameters, started_ns: None };
//! let manager = Manager::bring_up(early, &input).map_err(|failed| failed.error)?;
//!
//! // 5. Use it, from any CPU and any context but an NMI.
//! let pages = manager.frames(&Request { zeroed: true, ..Request::pages(3) })?;
//! let huge_page = manager.frames(&Request::new(Order::BLOCK))?;
//! assert_eq!(huge_page.range().pages(), 512);
//! drop(pages); // They are free again.
//! drop(huge_page);
//! # manager.verify()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Frames`] owns what it names and frees it when it is dropped. Below it is
//! [`Manager::allocate`], which returns numbers, and `Manager::free`, which is unsafe because
//! anybody can write down a number: see [*Owning memory*](manager#owning-memory).
//!
//! Page tables, TLB flushes and more than one CPU come in through the trait's other methods, which
//! have defaults for a kernel that has none of them yet. [`bootlog`] writes a boot log in Linux's
//! style.
//!
//! # If you have these already
//!
//! A kernel that uses `x86_64` or `virtio-drivers` turns on the feature of that name and passes the
//! manager where a frame allocator or DMA memory is asked for: see [`adapters`]. Two complete
//! programs to start from: `cargo run -p framewright --example smallest_adopter`, and
//! `kernel_heap`, which builds a bump heap on the manager.
//!
//! # Where things are
//!
//! | module | is |
//! |---|---|
//! | [`platform`], [`vmemmap_space`] | what an adopter implements |
//! | [`stores`] | how the memory map is written |
//! | [`firmware`] | intake of memory maps and nodes |
//! | [`memblock`] | the allocator before the allocator |
//! | [`parameters`] | the command line |
//! | [`manager`] | bring-up, allocation, verification |
//! | [`lazy`] | a manager whose memory comes range by range |
//! | [`zone`] | zones, their blocks and free memory |
//! | [`hugetlb`] | huge-page pools |
//! | [`debug`] | page owners, poison, clearing |
//! | [`bootlog`] | boot log and JSON |
//! | [`procfs`] | control files in the formats of `/proc` and `/sys` |
//! | [`reporting`] | free memory back to the hypervisor |
//! | [`adapters`] | other crates' interfaces, behind features |
//!
//! # Features
//!
//! All are on by default, and what is off is not linked: what stays is one CPU with pages, blocks
//! and zones. A parameter of a part that is off is reported by [`Parameters::parse`] and has no
//! effect however it is set.
//!
//! | feature | is | without it |
//! |---|---|---|
//! | `smp` | a cache for each CPU, zones in parts | every request takes its zone's lock |
//! | `numa` | up to 64 nodes, 1024 with `many-nodes` | one node |
//! | `vmemmap` | page descriptors, reference counts | |
//! | `moving` | isolation, compaction, grades, reserve areas | |
//! | `pools` | huge-page pools; with `moving` and `vmemmap` | |
//! | `reporting` | free memory back to the hypervisor | |
//! | `hotplug` | memory that comes and goes; with `moving` | |
//! | `accept` | memory that a guest accepts | it stays reserved |
//! | `debug` | page owners, poison, clearing by parameter, the shuffle | |
//! | `files` | control files; with all of these | |
//! | `large-maps` | maps of more than 128 ranges or reservations | an error |
//! | `dma-zones` | zones for devices with 24 and 32 address bits | one zone a node |
#![no_std]
// What only the control files of a part look at stays where it is.
#![cfg_attr(not(feature = "files"), allow(dead_code, reason = "parts that are off"))]

#[cfg(test)]
extern crate std;

pub mod adapters;
mod block;
pub mod bootlog;
mod carve;
pub mod debug;
pub mod firmware;
mod frames;
pub mod hugetlb;
pub mod lazy;
pub mod manager;
pub mod memblock;
mod page;
pub mod parameters;
pub mod platform;
#[cfg(feature = "files")]
pub mod procfs;
pub mod reporting;
pub mod stores;
mod sync;
pub mod units;
mod vmemmap;
pub mod vmemmap_space;
pub mod zone;

pub use block::MigrateType;
pub use lazy::LazyManager;
pub use manager::{
    AllocateError, BringUp, BringUpError, BringUpFailed, Frames, Manager, MoveFailed, MoveToken,
    Mover, NotNow, Occupant, Reclaim, ReferenceError, Request, Reserves, Shortage,
};
pub use page::{Page, PartOf};
pub use parameters::Parameters;
pub use platform::{AcceptError, AcceptMemory, IrqState, PinnedCpu, Platform};
pub use sync::SpinLock;

/// For the models and tests of this crate alone: nothing here keeps a promise to others.
#[doc(hidden)]
pub mod internals {
    pub use crate::sync::{Claim, CountWord, DrainEpoch, Made, NoReference, Ownership};
    pub use crate::sync::{Readers, Reading, ReferenceCount};
    pub use crate::vmemmap::{SectionState, deferred_sections};

    /// For the model checker, which looks at guards.
    #[cfg(loom)]
    pub fn lock<'a, T, P: crate::Platform>(
        lock: &'a crate::SpinLock<T>,
        platform: &'a P,
    ) -> impl core::ops::DerefMut<Target = T> + 'a {
        lock.lock(platform)
    }

    /// As [`lock`].
    #[cfg(loom)]
    pub fn try_lock<'a, T, P: crate::Platform>(
        lock: &'a crate::SpinLock<T>,
        platform: &'a P,
    ) -> Option<impl core::ops::DerefMut<Target = T> + 'a> {
        lock.try_lock(platform)
    }
}
