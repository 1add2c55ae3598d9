//! How parsers read physical memory, and where they keep their copies.

/// Physical memory that firmware or a boot loader wrote. It may change at any time, because a
/// virtual machine's host can write to it. Parsers therefore copy each byte once into memory of
/// their own, and look only at that copy.
///
/// Any closure `Fn(u64, &mut [u8]) -> bool` implements this.
pub trait PhysicalMemory {
    /// Copies the bytes that begin at physical address `address` to `to`. Returns false if they
    /// cannot all be reached; the content of `to` is then unspecified.
    ///
    /// The memory may change during the copy, so this must read it with volatile or atomic accesses
    /// and must not create a reference to it.
    fn copy(&self, address: u64, to: &mut [u8]) -> bool;
}

impl<F: Fn(u64, &mut [u8]) -> bool> PhysicalMemory for F {
    fn copy(&self, address: u64, to: &mut [u8]) -> bool {
        self(address, to)
    }
}

/// The caller's memory for copies, handed out piece by piece.
pub(crate) struct Storage<'a> {
    left: &'a mut [u8],
}

impl<'a> Storage<'a> {
    pub(crate) fn new(bytes: &'a mut [u8]) -> Self {
        Self { left: bytes }
    }

    /// The number of bytes that are left.
    pub(crate) fn left(&self) -> usize {
        self.left.len()
    }

    /// Takes this many bytes, with unspecified content; `None` if fewer are left.
    pub(crate) fn take(&mut self, bytes: usize) -> Option<&'a mut [u8]> {
        if bytes > self.left.len() {
            return None;
        }
        let (taken, left) = core::mem::take(&mut self.left).split_at_mut(bytes);
        self.left = left;
        Some(taken)
    }
}
