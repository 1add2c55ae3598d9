//! Frames, and ranges of frames and of bytes.

use super::order::Order;
use super::sizes::{PAGE_SHIFT, PAGE_SIZE, PHYSICAL_ADDRESS_END};
use core::fmt;

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

    /// The first physical address of the frame. A number of 2^52 or more, which no frame has, loses
    /// its highest bits.
    #[must_use]
    pub const fn address(self) -> u64 {
        self.0 << PAGE_SHIFT
    }

    /// The frame `pages` frames further up. The sum must be less than 2^64.
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

    /// The run of `order` that begins at `start`, cut off at the highest number.
    #[must_use]
    #[inline]
    pub const fn of_order(start: Pfn, order: Order) -> Self {
        Self { start, end: Pfn(start.0.saturating_add(order.pages())) }
    }

    /// The number of frames; 0 when the range ends before it begins.
    #[must_use]
    pub const fn pages(self) -> u64 {
        self.end.0.saturating_sub(self.start.0)
    }

    /// Whether the range has no frame.
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

    /// The order of this range if it is a naturally aligned run of one; otherwise `None`.
    #[must_use]
    #[inline]
    pub const fn as_order(self) -> Option<Order> {
        let pages = self.pages();
        if !pages.is_power_of_two() || self.start.0 & (pages - 1) != 0 {
            return None;
        }
        Order::of_power(pages)
    }

    /// Splits the range into naturally aligned runs, as few as possible, none larger than `most`.
    pub(crate) fn runs(self, most: Order) -> impl Iterator<Item = (Pfn, Order)> {
        let mut rest = self;
        core::iter::from_fn(move || {
            let pages = core::num::NonZeroU64::new(rest.pages())?;
            let order = rest.start.0.trailing_zeros().min(pages.ilog2()).min(most.get().into());
            let start = rest.start;
            rest.start = start.add(1 << order);
            Some((start, u8::try_from(order).ok().and_then(Order::new)?))
        })
    }

    /// The range in bytes.
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

    /// The number of bytes.
    #[must_use]
    pub const fn size(self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Whether the range has no byte.
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
}
