//! The units of the field: frames, blocks, orders, nodes, and ranges of them.
//!
//! Everything that counts frames is a [`Pfn`] or a `u64` whose name ends in `_pages`; everything
//! that counts bytes is a [`PhysRange`] or a `u64` whose name says bytes. The two never mix
//! silently.

use core::fmt;

/// log2 of the bytes in a page.
pub const PAGE_SHIFT: u32 = 12;
/// Bytes in a page (4 KiB).
pub const PAGE_SIZE: u64 = 1 << PAGE_SHIFT;
/// Order of a block: 2 MiB, the pageblock of Linux.
pub const BLOCK_ORDER: u8 = 9;
/// Frames in a block.
pub const PAGES_PER_BLOCK: u64 = 1 << BLOCK_ORDER;
/// log2 of the bytes in a block.
pub const BLOCK_SHIFT: u32 = PAGE_SHIFT + BLOCK_ORDER as u32;
/// Bytes in a block (2 MiB).
pub const BLOCK_SIZE: u64 = 1 << BLOCK_SHIFT;
/// The largest order that the allocator hands out as one piece: 1 GiB.
pub const MAX_ORDER: u8 = 18;
/// Frames in a memory section (128 MiB), the grain of deferred initialisation (SPEC 2.1).
pub const PAGES_PER_SECTION: u64 = 1 << 15;
/// Highest width of a physical address that is accepted.
pub const PHYSICAL_ADDRESS_BITS: u32 = 52;
/// One past the last physical address that can exist.
pub const PHYSICAL_ADDRESS_END: u64 = 1 << PHYSICAL_ADDRESS_BITS;
/// How many nodes the manager knows at most.
pub const MAX_NODES: usize = 64;

/// A page frame number: a physical address divided by [`PAGE_SIZE`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Pfn(pub u64);

impl Pfn {
    /// The frame that holds physical address `address`.
    #[must_use]
    pub const fn containing(address: u64) -> Self {
        Self(address >> PAGE_SHIFT)
    }

    /// The first physical address of the frame.
    #[must_use]
    pub const fn address(self) -> u64 {
        self.0 << PAGE_SHIFT
    }

    /// The frame `pages` further up.
    #[must_use]
    pub const fn add(self, pages: u64) -> Self {
        Self(self.0 + pages)
    }

    /// Whether the number is a multiple of 2^`order`.
    #[must_use]
    pub const fn is_aligned(self, order: Order) -> bool {
        self.0 & (order.pages() - 1) == 0
    }
}

impl fmt::Debug for Pfn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pfn {:#x}", self.0)
    }
}

impl fmt::Display for Pfn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A half-open range of frames.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PfnRange {
    /// First frame.
    pub start: Pfn,
    /// One past the last frame; never below `start`.
    pub end: Pfn,
}

impl PfnRange {
    /// The frames `start..end`; empty when `end` is below `start`.
    #[must_use]
    pub const fn new(start: u64, end: u64) -> Self {
        Self { start: Pfn(start), end: Pfn(if end < start { start } else { end }) }
    }

    /// Number of frames; none when it ends before it begins.
    #[must_use]
    pub const fn pages(self) -> u64 {
        self.end.0.saturating_sub(self.start.0)
    }

    /// Whether there is no frame in it.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.end.0 <= self.start.0
    }

    /// The frames in both ranges; empty when they do not overlap.
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        Self::new(self.start.0.max(other.start.0), self.end.0.min(other.end.0))
    }

    /// Whether `pfn` lies in the range.
    #[must_use]
    pub const fn contains(self, pfn: Pfn) -> bool {
        self.start.0 <= pfn.0 && pfn.0 < self.end.0
    }

    /// The same range in bytes.
    #[must_use]
    pub const fn to_phys(self) -> PhysRange {
        PhysRange { start: self.start.address(), end: self.end.address() }
    }
}

impl fmt::Debug for PfnRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pfn {:#x}..{:#x}", self.start.0, self.end.0)
    }
}

/// A half-open range of physical addresses, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PhysRange {
    /// First byte.
    pub start: u64,
    /// One past the last byte; never below `start`.
    pub end: u64,
}

impl PhysRange {
    /// The bytes `start..end`; empty when `end` is below `start`.
    #[must_use]
    pub const fn new(start: u64, end: u64) -> Self {
        Self { start, end: if end < start { start } else { end } }
    }

    /// `size` bytes from `start`, clipped at the end of the address space.
    #[must_use]
    pub const fn with_size(start: u64, size: u64) -> Self {
        let start = if start > PHYSICAL_ADDRESS_END { PHYSICAL_ADDRESS_END } else { start };
        let room = PHYSICAL_ADDRESS_END - start;
        Self { start, end: start + if size > room { room } else { size } }
    }

    /// Number of bytes.
    #[must_use]
    pub const fn size(self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Whether there is no byte in it.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.end <= self.start
    }

    /// The bytes in both ranges; empty when they do not overlap.
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        Self::new(self.start.max(other.start), self.end.min(other.end))
    }

    /// The frames that lie wholly inside (usable memory shrinks inward).
    #[must_use]
    pub const fn whole_frames(self) -> PfnRange {
        PfnRange::new(self.start.div_ceil(PAGE_SIZE), self.end / PAGE_SIZE)
    }

    /// The frames that the range touches (reservations grow outward).
    #[must_use]
    pub const fn touched_frames(self) -> PfnRange {
        if self.is_empty() {
            return PfnRange::new(self.start / PAGE_SIZE, self.start / PAGE_SIZE);
        }
        PfnRange::new(self.start / PAGE_SIZE, self.end.div_ceil(PAGE_SIZE))
    }
}

impl fmt::Debug for PhysRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}..{:#x}", self.start, self.end)
    }
}

/// Prints as Linux does: `[mem 0x0000000000001000-0x0000000000ffffff]`, the last byte included.
impl fmt::Display for PhysRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[mem {:#018x}-{:#018x}]", self.start, self.end.wrapping_sub(1))
    }
}

/// log2 of a number of frames, 0..=[`MAX_ORDER`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Order(u8);

impl Order {
    /// One page.
    pub const PAGE: Self = Self(0);
    /// One block, 2 MiB.
    pub const BLOCK: Self = Self(BLOCK_ORDER);
    /// The largest, 1 GiB.
    pub const MAX: Self = Self(MAX_ORDER);

    /// `order`, or nothing when it is above [`MAX_ORDER`].
    #[must_use]
    pub const fn new(order: u8) -> Option<Self> {
        if order <= MAX_ORDER { Some(Self(order)) } else { None }
    }

    /// The smallest order that holds `pages` frames, or nothing when none does.
    #[must_use]
    pub const fn for_pages(pages: u64) -> Option<Self> {
        if pages > 1 << MAX_ORDER {
            return None;
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most 18")]
        let order = pages.next_power_of_two().trailing_zeros() as u8;
        Some(Self(order))
    }

    /// The number itself.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Frames in a piece of this order.
    #[must_use]
    pub const fn pages(self) -> u64 {
        1 << self.0
    }
}

impl fmt::Debug for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "order {}", self.0)
    }
}

/// A node: memory and CPUs that are near to one another. Dense, 0..[`MAX_NODES`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NodeId(u8);

impl NodeId {
    /// The first node.
    pub const ZERO: Self = Self(0);

    /// Node `index`, or nothing when it is not below [`MAX_NODES`].
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "checked against MAX_NODES, which fits")]
    pub const fn new(index: usize) -> Option<Self> {
        if index < MAX_NODES { Some(Self(index as u8)) } else { None }
    }

    /// The number as an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usable_shrinks_inward_and_reserved_grows_outward() {
        let range = PhysRange::new(0x1801, 0x4001);
        assert_eq!(range.whole_frames(), PfnRange::new(2, 4));
        assert_eq!(range.touched_frames(), PfnRange::new(1, 5));
        assert!(PhysRange::new(0x1001, 0x1fff).whole_frames().is_empty());
        assert!(PhysRange::new(0x1001, 0x1001).touched_frames().is_empty());
    }

    #[test]
    fn a_size_is_clipped_at_the_end_of_the_address_space() {
        let range = PhysRange::with_size(PHYSICAL_ADDRESS_END - 0x1000, u64::MAX);
        assert_eq!(range.size(), 0x1000);
        assert!(PhysRange::with_size(u64::MAX, u64::MAX).is_empty());
    }

    #[test]
    fn orders_hold_their_pages() {
        assert_eq!(Order::for_pages(0), Some(Order::PAGE));
        assert_eq!(Order::for_pages(1), Some(Order::PAGE));
        assert_eq!(Order::for_pages(513).map(Order::get), Some(10));
        assert_eq!(Order::for_pages(1 << 18), Some(Order::MAX));
        assert_eq!(Order::for_pages((1 << 18) + 1), None);
    }
}
