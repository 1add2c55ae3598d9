//! `frame-alloc` as a subject: its bitmap buddy under its per-CPU depot.
//!
//! It keeps bitmaps at the start of the memory that it manages and touches nothing else, so only as
//! much real memory is behind the frames as the bitmaps need.

use super::interface::Subject;
use crate::bench::common::failed;
use frame_alloc::{
    CpuId, DepotAllocator, PageSize, PhysRange, PhysicalAllocator, Provenance, RegionInit,
    SummaryBuddyAllocator,
};
use framewright::units::{MAX_ORDER, Order, PAGE_SHIFT, PAGE_SIZE};
use framewright_cli::error::Error;
use std::cell::Cell;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

const BASE: PageSize = PageSize::from_log2(12);
const _: () = assert!(BASE.bytes() as u64 == PAGE_SIZE);
/// More CPUs than any host on which this is worth running; a constant of the allocator's type.
const SLOTS: usize = 64;

type Core = SummaryBuddyAllocator<{ MAX_ORDER as usize + 1 }, Backing>;
type Cached = DepotAllocator<Core, Seated, SLOTS>;

/// The allocator.
pub struct Depot {
    allocator: Box<Cached>,
    /// The memory of the allocator's bitmaps, to which it writes as long as it lives.
    bitmaps: NonNull<[u64]>,
}

thread_local! {
    /// Which CPU this thread is.
    static CPU: Cell<usize> = const { Cell::new(0) };
    /// The memory behind frame 0, while an allocator is made on this thread.
    static FRAME_0: Cell<Option<NonNull<u8>>> = const { Cell::new(None) };
}

/// Finds the CPU of a thread.
struct Seated;

impl CpuId for Seated {
    #[inline]
    fn current_cpu() -> usize {
        CPU.get()
    }
}

/// Finds the memory behind frames.
struct Backing;

// SAFETY: `create` is called once, while an allocator is made, for the frames of its bitmaps. They
// begin at frame 0, and the memory behind frame 0 is as large as the first range that the allocator
// was given. Nobody else looks at it while the allocator lives. `destroy` reads an address.
unsafe impl Provenance for Backing {
    unsafe fn create(phys: usize) -> NonNull<u8> {
        let start = FRAME_0.get().expect("an allocator is being made");
        // SAFETY: the address is in the first range, whose memory is that large.
        unsafe { start.add(phys) }
    }

    unsafe fn destroy<T>(pointer: NonNull<T>) -> usize {
        pointer.addr().get()
    }
}

// SAFETY: the allocator is made to be shared; the memory of its bitmaps is accessed only through
// it, as atomics.
unsafe impl Sync for Depot {}

impl Drop for Depot {
    fn drop(&mut self) {
        // SAFETY: the pointer came from a leaked box, and the allocator, which is its only user, is
        // not used again.
        drop(unsafe { Box::from_raw(self.bitmaps.as_ptr()) });
    }
}

impl Depot {
    /// Makes an allocator of this many bytes from frame 0.
    ///
    /// # Errors
    /// Fails if the allocator does not accept them.
    pub fn new(memory_bytes: u64) -> Result<Self, Error> {
        // Two bits a frame and a little more for summaries, rounded up generously, as untouched
        // memory is not backed.
        let table_bytes = (memory_bytes / PAGE_SIZE / 2).next_multiple_of(2 << 20);
        let words = vec![0_u64; bytes(table_bytes) / size_of::<u64>()];
        let bitmaps = NonNull::from(Box::leak(words.into_boxed_slice()));
        let allocator = Box::new(Cached::new(BASE, Core::new(BASE)));
        let usable = [
            PhysRange { base: 0, len: bytes(table_bytes) },
            PhysRange { base: bytes(table_bytes), len: bytes(memory_bytes - table_bytes) },
        ];
        let depot = Self { allocator, bitmaps };
        FRAME_0.set(Some(bitmaps.cast()));
        // SAFETY: the first range is backed by memory that lives as long as the allocator, which
        // never touches the second; nobody shares the allocator yet.
        let made = unsafe { depot.allocator.try_init(0, bytes(memory_bytes), &usable) };
        FRAME_0.set(None);
        made.map_err(|error| {
            failed(format!("frame-alloc cannot manage {memory_bytes} bytes: {error}"))
        })?;
        Ok(depot)
    }
}

impl Subject for Depot {
    const NAME: &'static str = "frame-alloc";

    type Seat<'a> = ();

    fn sit(&self, cpu: u32) -> Result<(), Error> {
        CPU.set(cpu as usize);
        Ok(())
    }

    #[inline]
    fn get(&self, order: Order) -> Option<u64> {
        let address = self.allocator.allocate_physical(BASE, pages(order)).ok()?;
        Some(address as u64 >> PAGE_SHIFT)
    }

    #[inline]
    fn put(&self, pfn: u64, order: Order) {
        // SAFETY: subjects are given back only what they gave, with the order it was given with.
        unsafe { self.allocator.deallocate_physical(BASE, pages(order), bytes(pfn << PAGE_SHIFT)) };
    }

    fn drain(&self) {
        self.allocator.flush();
    }
}

#[inline]
fn pages(order: Order) -> NonZeroUsize {
    NonZeroUsize::new(1 << order.get()).unwrap_or(NonZeroUsize::MIN)
}

#[inline]
fn bytes(count: u64) -> usize {
    usize::try_from(count).expect("a machine of this process")
}
