//! The device's side of a split virtqueue.

use super::hal::FakeHal;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, Ordering};
use virtio_drivers::PhysAddr;

const NEXT: u16 = 1;
const WRITE: u16 = 2;

/// One descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    pub address: u64,
    pub bytes: u32,
    pub writable: bool,
}

/// A request that the driver has made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chain {
    pub head: u16,
    pub pieces: Vec<Piece>,
}

/// The addresses of a queue, and the device's position in it.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRing {
    pub size: u16,
    pub descriptors: PhysAddr,
    pub available: PhysAddr,
    pub used: PhysAddr,
    taken: u16,
    returned: u16,
}

impl DeviceRing {
    pub fn new(size: u16, descriptors: PhysAddr, available: PhysAddr, used: PhysAddr) -> Self {
        assert!(size.is_power_of_two(), "a queue of {size}");
        assert!(
            descriptors.is_multiple_of(16) && available.is_multiple_of(2) && used.is_multiple_of(4),
            "alignment"
        );
        Self { size, descriptors, available, used, taken: 0, returned: 0 }
    }

    /// Takes the next request that the driver has made available.
    pub fn take(&mut self) -> Option<Chain> {
        let index = load_u16(self.available + 2);
        let new = index.wrapping_sub(self.taken);
        assert!(new <= self.size, "the driver made {new} requests on a queue of {}", self.size);
        if new == 0 {
            return None;
        }
        let head = load_u16(self.available + 4 + 2 * u64::from(self.taken & (self.size - 1)));
        self.taken = self.taken.wrapping_add(1);
        let (mut pieces, mut at) = (Vec::new(), head);
        loop {
            assert!(at < self.size, "descriptor {at} of {}", self.size);
            assert!(pieces.len() < usize::from(self.size), "a chain that ends nowhere");
            let descriptor = self.descriptors + 16 * u64::from(at);
            let address =
                u64::from(load_u32(descriptor)) | u64::from(load_u32(descriptor + 4)) << 32;
            let bytes = load_u32(descriptor + 8);
            let flags = load_u16(descriptor + 12);
            assert!(
                flags & !(NEXT | WRITE) == 0 && bytes > 0,
                "descriptor {at}: flags {flags:#x}, {bytes} bytes"
            );
            pieces.push(Piece { address, bytes, writable: flags & WRITE != 0 });
            if flags & NEXT == 0 {
                return Some(Chain { head, pieces });
            }
            at = load_u16(descriptor + 14);
        }
    }

    /// Returns a request with any id and any length.
    pub fn put(&mut self, id: u32, written: u32) {
        let entry = self.used + 4 + 8 * u64::from(self.returned & (self.size - 1));
        store_u32(entry, id);
        store_u32(entry + 4, written);
        self.advance(1);
    }

    /// Changes the count of returned requests.
    pub fn advance(&mut self, by: i16) {
        self.returned = self.returned.wrapping_add_signed(by);
        let index = FakeHal::pointer(self.used + 2, 2).cast().as_ptr();
        // SAFETY: this is memory of the driver, which also accesses it with atomic operations.
        unsafe { AtomicU16::from_ptr(index) }.store(self.returned.to_le(), Ordering::Release);
    }

    /// Writes into the memory that the driver provided for an answer.
    pub fn write(piece: Piece, bytes: &[u8]) {
        assert!(piece.writable, "the device may not write to {piece:?}");
        for (address, byte) in (piece.address..).zip(bytes) {
            let place = FakeHal::pointer(address, 1).as_ptr();
            // SAFETY: this is memory of the driver, which also accesses it with atomic operations.
            unsafe { AtomicU8::from_ptr(place) }.store(*byte, Ordering::Relaxed);
        }
    }

    /// Asks the driver not to send notifications, or to send them again.
    pub fn set_no_notify(&self, on: bool) {
        let flags = FakeHal::pointer(self.used, 2).cast().as_ptr();
        // SAFETY: this is memory of the driver, which also accesses it with atomic operations.
        unsafe { AtomicU16::from_ptr(flags) }.store(u16::from(on).to_le(), Ordering::Release);
    }
}

/// Reads a byte of the driver's memory.
pub fn load_u8(address: PhysAddr) -> u8 {
    let place = FakeHal::pointer(address, 1).as_ptr();
    // SAFETY: this is memory of the driver, which also accesses it with atomic operations.
    unsafe { AtomicU8::from_ptr(place) }.load(Ordering::Relaxed)
}

fn load_u16(address: PhysAddr) -> u16 {
    let place = FakeHal::pointer(address, 2).cast().as_ptr();
    // SAFETY: this is memory of the driver, which also accesses it with atomic operations; rings
    // are aligned.
    u16::from_le(unsafe { AtomicU16::from_ptr(place) }.load(Ordering::Acquire))
}

fn load_u32(address: PhysAddr) -> u32 {
    let place = FakeHal::pointer(address, 4).cast().as_ptr();
    // SAFETY: this is memory of the driver, which also accesses it with atomic operations.
    u32::from_le(unsafe { AtomicU32::from_ptr(place) }.load(Ordering::Acquire))
}

fn store_u32(address: PhysAddr, value: u32) {
    let place = FakeHal::pointer(address, 4).cast().as_ptr();
    // SAFETY: this is memory of the driver, which also accesses it with atomic operations.
    unsafe { AtomicU32::from_ptr(place) }.store(value.to_le(), Ordering::Release);
}
