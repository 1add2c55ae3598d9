//! How parsers read physical memory, and where they keep their copies.

/// Physical memory that firmware or a boot loader wrote. It may change at any time: a virtual
/// machine's host can write to it. So parsers read each byte once, into memory of their own, and
/// look only there.
///
/// Any closure `Fn(u64, &mut [u8]) -> bool` is one.
pub trait PhysicalMemory {
    /// Copies the bytes from physical address `address` on to `to`. False when they cannot be
    /// reached as a whole; `to` has then any content.
    ///
    /// What lies there may change meanwhile, so this reads with volatile or atomic accesses, and
    /// makes no reference to it.
    fn copy(&self, address: u64, to: &mut [u8]) -> bool;
}

impl<F: Fn(u64, &mut [u8]) -> bool> PhysicalMemory for F {
    fn copy(&self, address: u64, to: &mut [u8]) -> bool {
        self(address, to)
    }
}

/// A caller's memory for copies, handed out bit by bit.
pub(crate) struct Storage<'a> {
    left: &'a mut [u8],
}

impl<'a> Storage<'a> {
    pub(crate) fn new(bytes: &'a mut [u8]) -> Self {
        Self { left: bytes }
    }

    /// Bytes that are left.
    pub(crate) fn left(&self) -> usize {
        self.left.len()
    }

    /// This many bytes, with any content; `None` when fewer are left.
    pub(crate) fn take(&mut self, bytes: usize) -> Option<&'a mut [u8]> {
        if bytes > self.left.len() {
            return None;
        }
        let (taken, left) = core::mem::take(&mut self.left).split_at_mut(bytes);
        self.left = left;
        Some(taken)
    }
}
