//! A split virtqueue of at most 128 descriptors in one page.
//!
//! `virtio-drivers` has queues, too, but they take buffers as Rust slices. Reported memory must not
//! be a slice: it may not be mapped, and its content can vanish under the reference. Those queues
//! also trust the used ring's index, and panic if a device returns something that it was not given.
//! Here, in contrast, a buffer is an address and a length, links and counts are read only from the
//! driver's own copies, and whatever a device writes is either an answer to a request or a
//! [`RingFault`].
//!
//! Orders of memory: a SeqCst fence stands between the store of the index and the load of the
//! flags. Its partner is the device's own fence, between its store of the flags and its load of the
//! index.

use crate::dma::DmaPage;
use core::fmt;
use core::sync::atomic::{Ordering, fence};
use virtio_drivers::transport::Transport;
use virtio_drivers::{BufferDirection, Hal};

/// The most descriptors in a ring. Together with both rings they fit in one page.
pub const MOST_DESCRIPTORS: u16 = 128;
const SLOTS: usize = MOST_DESCRIPTORS as usize;

// Offsets in the page.
const DESCRIPTORS: usize = 0;
const DESCRIPTOR_BYTES: usize = 16;
const AVAILABLE: usize = 2048;
const USED: usize = 2560;
/// Both rings begin with flags and an index, 16 bits each.
const INDEX: usize = 2;
const ENTRIES: usize = 4;
const USED_ENTRY_BYTES: usize = 8;

const FLAG_NEXT: u16 = 1;
const FLAG_DEVICE_WRITES: u16 = 2;
/// In the available ring: the driver asks for no interrupts.
const NO_INTERRUPT: u16 = 1;
/// In the used ring: the device asks for no notifications.
const NO_NOTIFY: u16 = 1;

/// What a device did wrong with a queue. The queue cannot be trusted any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RingFault {
    /// The device claims to have returned more than it was given, or its count ran backwards.
    IndexOutOfStep {
        /// The number of the queue.
        queue: u16,
        /// The requests returned since the last poll, as the device claims.
        returned: u16,
        /// The requests that it had.
        given: u16,
    },
    /// The device returned a descriptor that is not the first one of a request that it had.
    NotGiven {
        /// The number of the queue.
        queue: u16,
        /// The descriptor.
        descriptor: u32,
    },
}

impl fmt::Display for RingFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IndexOutOfStep { queue, returned, given } => {
                write!(f, "queue {queue}: {returned} requests returned, but it had {given}")
            }
            Self::NotGiven { queue, descriptor } => {
                write!(f, "queue {queue}: descriptor {descriptor} returned, which it did not have")
            }
        }
    }
}

impl core::error::Error for RingFault {}

/// A range of memory for the device to work on.
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    /// The physical address of the first byte.
    pub address: u64,
    /// The size in bytes.
    pub bytes: u32,
    /// Whether the device may write to it; otherwise the device may read it.
    pub device_writes: bool,
}

/// A request that the device has returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Used {
    /// The tag given to [`Ring::add`].
    pub tag: u64,
    /// How many bytes the device claims to have written.
    pub written: u32,
    /// How many bytes it was given.
    pub room: u64,
}

/// A chain of descriptors that the device has, stored under the number of its first descriptor.
#[derive(Clone, Copy)]
struct Chain {
    /// The number of descriptors; 0 if the device has no such chain.
    descriptors: u16,
    tag: u64,
    room: u64,
}

/// One queue of the device. Dropping it frees its page, so it must not be dropped while the device
/// uses it: a driver keeps its rings until the device has completed a reset.
pub struct Ring<H: Hal> {
    page: DmaPage<H>,
    queue: u16,
    size: u16,
    available: u16,
    used: u16,
    free: u16,
    free_count: u16,
    chains_out: u16,
    next: [u16; SLOTS],
    chains: [Chain; SLOTS],
}

impl<H: Hal> Ring<H> {
    /// Creates a ring for queue `queue`. It gets as many descriptors as device and driver allow:
    /// the largest power of two that does not exceed `most`, `wanted` or [`MOST_DESCRIPTORS`].
    /// `None` if there is no memory, or if the limit is 0.
    pub fn new(queue: u16, most: u32, wanted: u16) -> Option<Self> {
        let wanted = wanted.min(MOST_DESCRIPTORS);
        let most = u16::try_from(most).map_or(wanted, |most| most.min(wanted));
        let size = 1 << most.checked_ilog2()?;
        let mut ring = Self {
            page: DmaPage::new(BufferDirection::Both)?,
            queue,
            size,
            available: 0,
            used: 0,
            free: 0,
            free_count: size,
            chains_out: 0,
            next: [0; SLOTS],
            chains: [Chain { descriptors: 0, tag: 0, room: 0 }; SLOTS],
        };
        ring.clear();
        Some(ring)
    }

    /// The number of the queue.
    pub fn queue(&self) -> u16 {
        self.queue
    }

    /// The number of descriptors.
    pub fn size(&self) -> u16 {
        self.size
    }

    /// The number of requests that the device has and has not returned.
    pub fn chains_out(&self) -> u16 {
        self.chains_out
    }

    /// Empties the ring. Allowed only while the device does not use it (invariant 32).
    pub fn clear(&mut self) {
        self.page.clear();
        // No interrupts, because the driver polls.
        self.page.publish_u16(AVAILABLE, NO_INTERRUPT);
        (self.available, self.used) = (0, 0);
        (self.free, self.free_count, self.chains_out) = (0, self.size, 0);
        for (slot, next) in (1..).zip(&mut self.next) {
            *next = slot;
        }
        for chain in &mut self.chains {
            chain.descriptors = 0;
        }
    }

    /// Tells the device where the ring is.
    ///
    /// # Safety
    /// From now on the ring is neither dropped nor cleared until the device has completed a reset
    /// (invariant 32).
    pub unsafe fn set_up<T: Transport>(&self, transport: &mut T) {
        let at = |offset: usize| self.page.physical() + offset as u64;
        transport.queue_set(self.queue, self.size.into(), at(DESCRIPTORS), at(AVAILABLE), at(USED));
    }

    /// Gives the device a chain of `buffers`, of which there must be at least one. Returns false if
    /// there is no room for them, or if the iterator yields fewer than it announced; nothing has
    /// then changed.
    ///
    /// # Safety
    /// Until [`poll`](Self::poll) has returned the chain, or the device has completed a reset, the
    /// buffers belong to the device. Nobody relies on the content of buffers that the device writes
    /// to, and these are memory of the caller alone.
    pub unsafe fn add<B: ExactSizeIterator<Item = Buffer>>(
        &mut self,
        buffers: B,
        tag: u64,
    ) -> bool {
        let wanted = buffers.len();
        if wanted == 0 || wanted > self.free_count.into() {
            return false;
        }
        let head = self.free;
        let (mut slot, mut count, mut room) = (head, 0, 0);
        for buffer in buffers.take(wanted) {
            let next = self.next[usize::from(slot)];
            count += 1;
            room += u64::from(buffer.bytes);
            let more = if usize::from(count) < wanted { FLAG_NEXT } else { 0 };
            let direction = if buffer.device_writes { FLAG_DEVICE_WRITES } else { 0 };
            let at = DESCRIPTORS + usize::from(slot) * DESCRIPTOR_BYTES;
            self.page.store_u64(at, buffer.address);
            self.page.store_u32(at + 8, buffer.bytes);
            self.page.store_u32(at + 12, u32::from(more | direction) | u32::from(next) << 16);
            slot = next;
        }
        if usize::from(count) < wanted {
            // The last descriptor continues to one that was not filled. The device has none of them
            // yet.
            return false;
        }
        self.free = slot;
        self.free_count -= count;
        self.chains_out += 1;
        self.chains[usize::from(head)] = Chain { descriptors: count, tag, room };
        let entry = AVAILABLE + ENTRIES + 2 * usize::from(self.available & (self.size - 1));
        self.page.publish_u16(entry, head);
        self.available = self.available.wrapping_add(1);
        self.page.publish_u16(AVAILABLE + INDEX, self.available);
        true
    }

    /// Notifies the device of new buffers, unless it has asked for no notifications.
    pub fn notify<T: Transport>(&self, transport: &mut T) {
        // The index is stored before the flags are loaded; the device stores the flags before it
        // loads the index.
        fence(Ordering::SeqCst);
        if self.page.observe_u16(USED) & NO_NOTIFY == 0 {
            transport.notify(self.queue);
        }
    }

    /// Returns the next chain that the device has returned, if any.
    ///
    /// # Errors
    /// The device has returned more than it had, or something that it was not given. The queue
    /// cannot be trusted any more.
    pub fn poll(&mut self) -> Result<Option<Used>, RingFault> {
        let index = self.page.observe_u16(USED + INDEX);
        let returned = index.wrapping_sub(self.used);
        if returned == 0 {
            return Ok(None);
        }
        if returned > self.chains_out {
            return Err(RingFault::IndexOutOfStep {
                queue: self.queue,
                returned,
                given: self.chains_out,
            });
        }
        let entry = USED + ENTRIES + USED_ENTRY_BYTES * usize::from(self.used & (self.size - 1));
        let head = self.page.load_u32(entry);
        let written = self.page.load_u32(entry + 4);
        let known = u16::try_from(head).ok().filter(|&head| head < self.size);
        let Some(first) = known.filter(|&head| self.chains[usize::from(head)].descriptors > 0)
        else {
            return Err(RingFault::NotGiven { queue: self.queue, descriptor: head });
        };
        let Chain { descriptors, tag, room } = self.chains[usize::from(first)];
        self.chains[usize::from(first)].descriptors = 0;
        let mut last = first;
        for _ in 1..descriptors {
            last = self.next[usize::from(last)];
        }
        self.next[usize::from(last)] = self.free;
        self.free = first;
        self.free_count += descriptors;
        self.chains_out -= 1;
        self.used = self.used.wrapping_add(1);
        Ok(Some(Used { tag, written, room }))
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use core::ptr::NonNull;
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use virtio_drivers::{PAGE_SIZE, PhysAddr};

    struct Pages;

    fn layout(pages: usize) -> Layout {
        Layout::from_size_align(pages * PAGE_SIZE, PAGE_SIZE).expect("a few pages")
    }

    // SAFETY: pages are zeroed, aligned, and belong to one caller until they are freed.
    unsafe impl Hal for Pages {
        fn dma_alloc(pages: usize, _: BufferDirection) -> (PhysAddr, NonNull<u8>) {
            // SAFETY: the layout is not empty.
            let page = NonNull::new(unsafe { alloc_zeroed(layout(pages)) }).expect("memory");
            (page.addr().get() as u64, page)
        }

        unsafe fn dma_dealloc(_: PhysAddr, page: NonNull<u8>, pages: usize) -> i32 {
            // SAFETY: the page came from `dma_alloc`, with this layout.
            unsafe { dealloc(page.as_ptr(), layout(pages)) };
            0
        }

        unsafe fn mmio_phys_to_virt(_: PhysAddr, _: usize) -> NonNull<u8> {
            unreachable!("a ring has no registers")
        }

        unsafe fn share(_: NonNull<[u8]>, _: BufferDirection) -> PhysAddr {
            unreachable!("a ring shares nothing")
        }

        unsafe fn unshare(_: PhysAddr, _: NonNull<[u8]>, _: BufferDirection) {
            unreachable!("a ring shares nothing")
        }
    }

    /// An iterator that announces more items than it yields.
    struct Liar {
        says: usize,
        has: usize,
    }

    impl Iterator for Liar {
        type Item = Buffer;

        fn next(&mut self) -> Option<Buffer> {
            self.has = self.has.checked_sub(1)?;
            Some(Buffer { address: 0x1000, bytes: 16, device_writes: true })
        }

        fn size_hint(&self) -> (usize, Option<usize>) {
            (self.says, Some(self.says))
        }
    }

    impl ExactSizeIterator for Liar {}

    #[test]
    fn fewer_buffers_than_are_announced_are_not_given_to_the_device() {
        let mut ring = Ring::<Pages>::new(0, 8, 8).expect("memory");
        for (says, has, is_added) in
            [(0, 1, false), (9, 9, false), (3, 2, false), (1, 0, false), (2, 3, true), (6, 6, true)]
        {
            let before = (ring.page.observe_u16(AVAILABLE + INDEX), ring.free_count);
            // SAFETY: no device knows the ring.
            let added = unsafe { ring.add(Liar { says, has }, 7) };
            assert_eq!(added, is_added, "{has} of {says}");
            let (made, taken) =
                if is_added { (1, u16::try_from(says).expect("a few")) } else { (0, 0) };
            let after = (ring.page.observe_u16(AVAILABLE + INDEX), ring.free_count);
            assert_eq!(after, (before.0 + made, before.1 - taken), "{has} of {says}");
            // The last descriptor of a chain does not continue.
            let flags: std::vec::Vec<_> = (0..usize::from(8 - ring.free_count))
                .map(|slot| ring.page.load_u32(slot * DESCRIPTOR_BYTES + 12) & u32::from(FLAG_NEXT))
                .collect();
            assert_eq!(flags, [1, 0, 1, 1, 1, 1, 1, 0][..flags.len()], "{has} of {says}");
        }
    }
}
