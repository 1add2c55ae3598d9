//! TLB flushes: what a request names, and the trait through which it reaches all CPUs.

use core::fmt;
use framewright::units::PAGE_SIZE;

/// Most ranges that a request names.
pub const MAX_RANGES: usize = framewright::vmemmap_space::Unflushed::CHANGED_RANGES;

/// Virtual addresses of whole pages.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct VirtualRange {
    /// The first byte, a multiple of 4096.
    pub start: u64,
    /// One past the last byte, a multiple of 4096 or, at the very end of the address space, 0.
    pub end: u64,
}

impl VirtualRange {
    /// Pages of 4 KiB.
    #[must_use]
    pub const fn pages(self) -> u64 {
        self.end.wrapping_sub(self.start) / PAGE_SIZE
    }

    /// The address of each page of 4 KiB.
    pub fn addresses(self) -> impl Iterator<Item = u64> {
        (0..self.pages()).map(move |page| self.start.wrapping_add(page * PAGE_SIZE))
    }
}

impl fmt::Debug for VirtualRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}..{:#x}", self.start, self.end)
    }
}

/// What is to be flushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlushRequest<'a> {
    /// Translations of these pages, of whatever size they were, and every cached step of a table
    /// walk. At most [`MAX_RANGES`] ranges, with few enough pages that flushing everything would
    /// cost more.
    Ranges(&'a [VirtualRange]),
    /// Every translation, global ones too if the vmemmap's are global.
    Everything,
}

/// A way to flush translations on all CPUs. What it costs is counted by
/// [`Vmemmap`](crate::vmemmap::Vmemmap).
///
/// # Safety
/// When [`flush`](Self::flush) or [`flush_pages`](Self::flush_pages) returns, no CPU uses what it
/// was asked to flush, neither translations nor cached steps of a walk, and no CPU is in the
/// middle of an access with it (invariant 12). Stores that the caller made before are seen by every
/// walk that begins afterwards.
pub unsafe trait FlushTlb: Sync {
    /// Flushes on all CPUs. Called with interrupts on and no lock held, perhaps by several CPUs at
    /// once.
    fn flush(&self, request: FlushRequest<'_>);

    /// Flushes on all CPUs after a change of pages in which no table was freed. A CPU that sleeps
    /// need not be woken for that: it may flush when it wakes, before it uses any address that the
    /// request can name ([`LazyFlush`](super::LazyFlush)). By default this is
    /// [`flush`](Self::flush).
    fn flush_pages(&self, request: FlushRequest<'_>) {
        self.flush(request);
    }
}

// SAFETY: the same promise, kept by what is referred to.
unsafe impl<T: FlushTlb + ?Sized> FlushTlb for &T {
    fn flush(&self, request: FlushRequest<'_>) {
        (**self).flush(request);
    }

    fn flush_pages(&self, request: FlushRequest<'_>) {
        (**self).flush_pages(request);
    }
}
