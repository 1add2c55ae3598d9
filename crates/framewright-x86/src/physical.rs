//! The seam through which parsers see physical memory.

/// Physical memory that firmware wrote and that does not change while it is read.
///
/// Any closure `Fn(u64, usize) -> Option<&'a [u8]>` is one.
pub trait PhysicalMemory<'a> {
    /// The `length` bytes from physical address `address`, or nothing when they cannot be reached as a whole.
    fn bytes(&self, address: u64, length: usize) -> Option<&'a [u8]>;
}

impl<'a, F: Fn(u64, usize) -> Option<&'a [u8]>> PhysicalMemory<'a> for F {
    fn bytes(&self, address: u64, length: usize) -> Option<&'a [u8]> {
        self(address, length)
    }
}
