//! Memory that driver and device share: pages with invented physical addresses, so that code which
//! confuses the two kinds of address fails.
//!
//! [`Hal`] consists of functions without `self`, so this is per thread.

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
    /// Whether the device was told of it and not reset since.
    is_device_s: bool,
}

#[derive(Default)]
struct Memory {
    regions: BTreeMap<PhysAddr, Region>,
    /// Pages that no device can reach.
    private: BTreeSet<NonNull<u8>>,
    allocations: u64,
    fail_after: Option<u64>,
    violations: Vec<String>,
}

impl Memory {
    /// Whether this allocation is one that fails.
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
    /// Lets the next `count` allocations succeed and all after them fail; `None`: none fails.
    pub fn fail_after(count: Option<u64>) {
        MEMORY.with_borrow_mut(|memory| memory.fail_after = count);
    }

    /// Pages in use, private ones among them.
    #[must_use]
    pub fn pages() -> usize {
        MEMORY.with_borrow(|memory| {
            memory.private.len() + memory.regions.values().map(|region| region.pages).sum::<usize>()
        })
    }

    /// What the driver did wrong: it gave memory back while the device used it.
    #[must_use]
    pub fn violations() -> Vec<String> {
        MEMORY.with_borrow(|memory| memory.violations.clone())
    }

    /// Overwrites all memory that devices can reach, whether a device was told of it or not, with
    /// what `random` returns: 16 bits at a time, as a host might while the driver runs.
    pub(crate) fn overwrite(random: &mut dyn FnMut() -> u16) {
        MEMORY.with_borrow(|memory| {
            for region in memory.regions.values() {
                for half_word in 0..region.pages * PAGE_SIZE / 2 {
                    let place = region.pointer.as_ptr().cast::<u16>().wrapping_add(half_word);
                    // SAFETY: inside the region, which the driver reaches by atomic operations as
                    // well.
                    let place = unsafe { AtomicU16::from_ptr(place) };
                    place.store(random(), Ordering::Relaxed);
                }
            }
        });
    }

    /// Says that the device uses the page at `address`, or does not any more.
    pub(crate) fn set_device_s(address: PhysAddr, is_device_s: bool) {
        MEMORY.with_borrow_mut(|memory| {
            let page = address & !(PAGE_SIZE as u64 - 1);
            if let Some(region) = memory.regions.get_mut(&page) {
                region.is_device_s = is_device_s;
            }
        });
    }

    /// Where `bytes` bytes at `address` are. Panics when the driver has not allocated them.
    pub(crate) fn pointer(address: PhysAddr, bytes: usize) -> NonNull<u8> {
        MEMORY.with_borrow(|memory| {
            let (start, region) =
                memory.regions.range(..=address).next_back().unwrap_or_else(|| not_ours(address));
            let offset = usize::try_from(address - start).expect("64 bits");
            if offset + bytes > region.pages * PAGE_SIZE {
                not_ours(address)
            }
            // SAFETY: inside the region.
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

// SAFETY: pages are zeroed, aligned, and belong to one caller until they are given back.
unsafe impl Hal for FakeHal {
    fn dma_alloc(pages: usize, _: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        MEMORY.with_borrow_mut(|memory| {
            if pages == 0 || memory.is_out() {
                return (0, NonNull::dangling());
            }
            // SAFETY: not empty.
            let pointer = NonNull::new(unsafe { alloc_zeroed(layout(pages)) }).expect("memory");
            // No address is used twice, and neighbours have a gap between them.
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
            // SAFETY: from `alloc_zeroed` with this layout, and out of the list since now.
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

// SAFETY: pages of their own, aligned, which `overwrite` and the device do not know.
unsafe impl PrivateMemory for FakeHal {
    fn allocate_page() -> Option<NonNull<u8>> {
        MEMORY.with_borrow_mut(|memory| {
            if memory.is_out() {
                return None;
            }
            // SAFETY: not empty.
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
            // SAFETY: from `allocate_page` with this layout, and out of the set since now.
            unsafe { dealloc(page.as_ptr(), private_layout()) };
        });
    }
}

fn private_layout() -> Layout {
    Layout::from_size_align(PRIVATE_PAGE_BYTES, PRIVATE_PAGE_BYTES).expect("a page")
}
