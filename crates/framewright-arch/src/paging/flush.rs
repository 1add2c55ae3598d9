//! TLB flushes: what a flush request names, and the trait that carries it to all CPUs.

use core::fmt;
use framewright::units::PAGE_SIZE;

/// The most ranges that a request names.
pub const MAX_RANGES: usize = framewright::vmemmap_space::Unflushed::CHANGED_RANGES;

/// A range of virtual addresses in whole pages.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct VirtualRange {
    /// The first byte, a multiple of 4096.
    pub start: u64,
    /// One past the last byte: a multiple of 4096 or, at the very end of the address space, 0.
    pub end: u64,
}

impl VirtualRange {
    /// The number of 4 KiB pages.
    #[must_use]
    pub const fn pages(self) -> u64 {
        self.end.wrapping_sub(self.start) / PAGE_SIZE
    }

    /// The address of each 4 KiB page.
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
    /// The translations of these pages, whatever their page size was, and every cached step of a
    /// table walk. There are at most [`MAX_RANGES`] ranges, with so few pages that flushing
    /// everything would cost more.
    Ranges(&'a [VirtualRange]),
    /// Every translation, including global ones if the vmemmap's are global.
    Everything,
}

/// A way to flush translations on all CPUs. [`Vmemmap`](crate::vmemmap::Vmemmap) counts what
/// flushes cost.
///
/// # Safety
/// When [`flush`](Self::flush) or [`flush_pages`](Self::flush_pages) returns, no CPU uses what it
/// was asked to flush, neither translations nor cached steps of a walk, and no CPU is in the middle
/// of an access with it (invariant 12). Stores that the caller made before the flush are seen by
/// every walk that begins after it.
pub unsafe trait FlushTlb: Sync {
    /// Flushes on all CPUs. Called with interrupts on and no lock held, possibly by several CPUs at
    /// once.
    fn flush(&self, request: FlushRequest<'_>);

    /// Flushes on all CPUs after a change of pages in which no table was freed. A sleeping CPU need
    /// not be woken for that: it may flush when it wakes, before it uses any address that the
    /// request can name ([`LazyFlush`](super::LazyFlush)). By default this is
    /// [`flush`](Self::flush).
    fn flush_pages(&self, request: FlushRequest<'_>) {
        self.flush(request);
    }
}

// SAFETY: `T` keeps the promise, and a reference only forwards to it.
unsafe impl<T: FlushTlb + ?Sized> FlushTlb for &T {
    fn flush(&self, request: FlushRequest<'_>) {
        (**self).flush(request);
    }

    fn flush_pages(&self, request: FlushRequest<'_>) {
        (**self).flush_pages(request);
    }
}
