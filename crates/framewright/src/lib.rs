//! A physical memory manager for kernels, unikernels and VM guests.
//!
//! It takes firmware's description of memory and nodes, initialises all of that memory (on demand:
//! well under a millisecond per TiB), and allocates pages and blocks from 4 KiB to 1 GiB. It needs
//! no heap, owns no thread, and asks the adopter to implement one small trait, [`Platform`].
//!
//! # Adopting it
//!
//! Adoption takes five steps. This example runs and shows all of them; a static array stands in for
//! the machine's memory.
//!
//! ```
//! use framewright::memblock::{Memblock, MemblockStorage};
//! use framewright::firmware::{MapBuilder, MapRange, MemoryAffinity, MemoryKind, Topology};
//! use framewright::units::{Order, PhysRange};
//! use framewright::{Request, BringUp, IrqState, Manager, Parameters, PinnedCpu, Platform};
//! use std::ptr::NonNull;
//!
//! // 1. Say where memory is mapped, how interrupts are turned off, and which CPU this is.
//! struct Kernel;
//! # const RAM_BYTES: usize = 32 << 20;
//! # #[repr(align(0x200000))]
//! # struct Ram(std::cell::UnsafeCell<[u8; RAM_BYTES]>);
//! # // SAFETY: only the manager touches it.
//! # unsafe impl Sync for Ram {}
//! # static RAM: Ram = Ram(std::cell::UnsafeCell::new([0; RAM_BYTES]));
//! # fn direct_map_base() -> *mut u8 { RAM.0.get().cast() }
//!
//! // SAFETY: 0..32 MiB is memory that nobody else uses, mapped at one offset; there is one CPU,
//! // and no interrupt handler.
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
//! // 2. Describe the memory that firmware reported, in any order, and the nodes, if there are any.
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
//! // SAFETY: nobody else uses memory that the map calls usable and that is not reserved here.
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
//! [`Frames`] owns the frames that it names and frees them when it is dropped. The interface below
//! it is [`Manager::allocate`], which returns frame numbers, and `Manager::free`, which is unsafe
//! because any code can make up a frame number: see [*Owning memory*](manager#owning-memory).
//!
//! Support for page tables, TLB flushes and several CPUs comes from the trait's other methods.
//! Their defaults suit a kernel that has none of these yet. [`bootlog`] writes a boot log in
//! Linux's style.
//!
//! # If you have these already
//!
//! A kernel that uses the `x86_64` or `virtio-drivers` crate enables the feature of that name and
//! passes the manager wherever that crate asks for a frame allocator or DMA memory: see
//! [`adapters`]. Two complete programs are good starting points: `kernel_heap`, which builds a bump
//! heap on the manager, and `smallest_adopter`, which `cargo run -p framewright --example
//! smallest_adopter` runs.
//!
//! # Where things are
//!
//! | module | contents |
//! |---|---|
//! | [`platform`], [`vmemmap_space`] | the traits that an adopter implements |
//! | [`stores`] | the store instructions that write the memory map |
//! | [`firmware`] | intake of memory maps and nodes |
//! | [`memblock`] | the boot-time allocator, before the manager exists |
//! | [`parameters`] | the command line |
//! | [`manager`] | bring-up, allocation, verification |
//! | [`lazy`] | a manager whose memory arrives range by range |
//! | [`zone`] | zones, their blocks and free memory |
//! | [`hugetlb`] | huge-page pools |
//! | [`debug`] | page owners, poison, clearing |
//! | [`bootlog`] | boot log and JSON |
//! | [`procfs`] | control files in the formats of `/proc` and `/sys` |
//! | [`reporting`] | free page reporting to the hypervisor |
//! | [`adapters`] | other crates' interfaces, behind features |
//!
//! # Features
//!
//! All features in this table are on by default except `many-nodes`. The code of a disabled feature
//! is not linked; with all of them off, one CPU with pages, blocks and zones remains.
//! [`Parameters::parse`] reports a parameter that belongs to a disabled feature, and the parameter
//! has no effect, however it is set.
//!
//! | feature | provides | without it |
//! |---|---|---|
//! | `smp` | a cache for each CPU, zones in parts | every request takes its zone's lock |
//! | `numa` | up to 64 nodes, 1024 with `many-nodes` | one node |
//! | `vmemmap` | page descriptors, reference counts | |
//! | `moving` | isolation, compaction, grades, reserve areas | |
//! | `pools` | huge-page pools; includes `moving` and `vmemmap` | |
//! | `reporting` | free page reporting to the hypervisor | |
//! | `hotplug` | memory hot-add and hot-remove; includes `moving` | |
//! | `accept` | unaccepted memory of confidential guests | such memory stays reserved |
//! | `debug` | page owners, poison, clearing by parameter, the shuffle | |
//! | `files` | control files; includes all of the above | |
//! | `large-maps` | maps of more than 128 ranges or reservations | an error |
//! | `dma-zones` | zones for devices with 24 and 32 address bits | one zone per node |
#![no_std]
// Without `files`, code that only the control files use stays in the source as dead code.
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

/// For this crate's models and tests only: nothing in here is a stable interface.
#[doc(hidden)]
pub mod internals {
    pub use crate::sync::{Claim, CountWord, DrainEpoch, Made, NoReference, Ownership};
    pub use crate::sync::{Readers, Reading, ReferenceCount};
    pub use crate::vmemmap::{SectionState, deferred_sections};

    /// Locks `lock` for the model checker, which needs to see the guard.
    #[cfg(loom)]
    pub fn lock<'a, T, P: crate::Platform>(
        lock: &'a crate::SpinLock<T>,
        platform: &'a P,
    ) -> impl core::ops::DerefMut<Target = T> + 'a {
        lock.lock(platform)
    }

    /// [`lock`] without waiting: `None` when the lock is taken.
    #[cfg(loom)]
    pub fn try_lock<'a, T, P: crate::Platform>(
        lock: &'a crate::SpinLock<T>,
        platform: &'a P,
    ) -> Option<impl core::ops::DerefMut<Target = T> + 'a> {
        lock.try_lock(platform)
    }
}
