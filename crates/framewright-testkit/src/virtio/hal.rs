//! Memory that driver and device share: pages with invented physical addresses, so that code which
//! confuses physical with virtual addresses fails.
//!
//! [`Hal`] consists of functions without `self`, so the state is per thread.

use framewright_virtio::{PRIVATE_PAGE_BYTES, PrivateMemory};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};
use virtio_drivers::{BufferDirection, Hal, PAGE_SIZE, PhysAddr};

/// The first invented address.
const FIRST_ADDRESS: PhysAddr = 0x7_0000_0000;

struct Region {
    pointer: NonNull<u8>,
    pages: usize,
    /// Whether the device was told of the region and has not been reset since.
    is_device_s: bool,
}

#[derive(Default)]
struct Memory {
    regions: BTreeMap<PhysAddr, Region>,
    /// Pages that no device can access.
    private: BTreeSet<NonNull<u8>>,
    allocations: u64,
    fail_after: Option<u64>,
    violations: Vec<String>,
}

impl Memory {
    /// Whether this allocation has to fail.
    fn is_out(&mut self) -> bool {
        match &mut self.fail_after {
            Some(0) => return true,
            Some(left) => *left -= 1,
            None => {}
        }
        false
    }
}

thread_local! {
    static MEMORY: RefCell<Memory> = RefCell::default();
}

/// The driver's memory on this thread.
pub struct FakeHal;

impl FakeHal {
    /// Lets the next `count` allocations succeed and all later ones fail; with `None`, none fails.
    pub fn fail_after(count: Option<u64>) {
        MEMORY.with_borrow_mut(|memory| memory.fail_after = count);
    }

    /// The number of pages in use, private ones included.
    #[must_use]
    pub fn pages() -> usize {
        MEMORY.with_borrow(|memory| {
            memory.private.len() + memory.regions.values().map(|region| region.pages).sum::<usize>()
        })
    }

    /// The driver's errors: it freed memory while the device used it.
    #[must_use]
    pub fn violations() -> Vec<String> {
        MEMORY.with_borrow(|memory| memory.violations.clone())
    }

    /// Overwrites all memory that devices can access, whether a device was told of it or not, with
    /// the results of `random`: 16 bits at a time, as a host might while the driver runs.
    pub(crate) fn overwrite(random: &mut dyn FnMut() -> u16) {
        MEMORY.with_borrow(|memory| {
            for region in memory.regions.values() {
                for half_word in 0..region.pages * PAGE_SIZE / 2 {
                    let place = region.pointer.as_ptr().cast::<u16>().wrapping_add(half_word);
                    // SAFETY: the place is inside the region, which the driver also accesses with
                    // atomic operations.
                    let place = unsafe { AtomicU16::from_ptr(place) };
                    place.store(random(), Ordering::Relaxed);
                }
            }
        });
    }

    /// Records that the device uses the page at `address`, or no longer does.
    pub(crate) fn set_device_s(address: PhysAddr, is_device_s: bool) {
        MEMORY.with_borrow_mut(|memory| {
            let page = address & !(PAGE_SIZE as u64 - 1);
            if let Some(region) = memory.regions.get_mut(&page) {
                region.is_device_s = is_device_s;
            }
        });
    }

    /// The host address of `bytes` bytes at `address`. Panics if the driver has not allocated them.
    pub(crate) fn pointer(address: PhysAddr, bytes: usize) -> NonNull<u8> {
        MEMORY.with_borrow(|memory| {
            let (start, region) =
                memory.regions.range(..=address).next_back().unwrap_or_else(|| not_ours(address));
            let offset = usize::try_from(address - start).expect("64 bits");
            if offset + bytes > region.pages * PAGE_SIZE {
                not_ours(address)
            }
            // SAFETY: the offset is inside the region.
            unsafe { region.pointer.add(offset) }
        })
    }
}

fn not_ours(address: PhysAddr) -> ! {
    panic!("the device was sent to {address:#x}, which the driver has not allocated")
}

fn layout(pages: usize) -> Layout {
    Layout::from_size_align(pages * PAGE_SIZE, PAGE_SIZE).expect("a few pages")
}

// SAFETY: pages are zeroed, aligned, and belong to one caller until they are freed.
unsafe impl Hal for FakeHal {
    fn dma_alloc(pages: usize, _: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        MEMORY.with_borrow_mut(|memory| {
            if pages == 0 || memory.is_out() {
                return (0, NonNull::dangling());
            }
            // SAFETY: the layout is not empty.
            let pointer = NonNull::new(unsafe { alloc_zeroed(layout(pages)) }).expect("memory");
            // No address is used twice, and neighbouring regions have a gap between them.
            let address = FIRST_ADDRESS + memory.allocations * 16 * PAGE_SIZE as u64;
            memory.allocations += pages.div_ceil(8) as u64;
            memory.regions.insert(address, Region { pointer, pages, is_device_s: false });
            (address, pointer)
        })
    }

    unsafe fn dma_dealloc(address: PhysAddr, pointer: NonNull<u8>, pages: usize) -> i32 {
        MEMORY.with_borrow_mut(|memory| {
            let Some(region) = memory.regions.remove(&address) else {
                memory.violations.push(format!("{address:#x} given back twice"));
                return -1;
            };
            if region.is_device_s {
                memory.violations.push(format!("{address:#x} given back while the device has it"));
            }
            if (region.pointer, region.pages) != (pointer, pages) {
                memory.violations.push(format!("{address:#x} given back as something else"));
            }
            // SAFETY: the memory is from `alloc_zeroed` with this layout, and was just removed from
            // the list.
            unsafe { dealloc(region.pointer.as_ptr(), layout(region.pages)) };
            0
        })
    }

    unsafe fn mmio_phys_to_virt(_: PhysAddr, _: usize) -> NonNull<u8> {
        panic!("this device has no registers in memory")
    }

    unsafe fn share(_: NonNull<[u8]>, _: BufferDirection) -> PhysAddr {
        panic!("the driver shares whole pages only")
    }

    unsafe fn unshare(_: PhysAddr, _: NonNull<[u8]>, _: BufferDirection) {
        panic!("the driver shares whole pages only")
    }
}

// SAFETY: the pages are separate and aligned, and `overwrite` and the device do not know them.
unsafe impl PrivateMemory for FakeHal {
    fn allocate_page() -> Option<NonNull<u8>> {
        MEMORY.with_borrow_mut(|memory| {
            if memory.is_out() {
                return None;
            }
            // SAFETY: the layout is not empty.
            let page = NonNull::new(unsafe { alloc_zeroed(private_layout()) })?;
            memory.private.insert(page);
            Some(page)
        })
    }

    unsafe fn free_page(page: NonNull<u8>) {
        MEMORY.with_borrow_mut(|memory| {
            if !memory.private.remove(&page) {
                memory.violations.push(format!("private page {page:?} given back twice"));
                return;
            }
            // SAFETY: the page is from `allocate_page` with this layout, and was just removed from
            // the set.
            unsafe { dealloc(page.as_ptr(), private_layout()) };
        });
    }
}

fn private_layout() -> Layout {
    Layout::from_size_align(PRIVATE_PAGE_BYTES, PRIVATE_PAGE_BYTES).expect("a page")
}
