//! How other CPUs learn that translations changed.

use core::fmt;
use framewright::units::PAGE_SIZE;

/// Ranges that a request names at most.
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

/// What a CPU must forget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlushRequest<'a> {
    /// Translations of these pages, of whatever size they were, and every cached step of a table
    /// walk. At most [`MAX_RANGES`] ranges, together no more pages than a flush of everything is
    /// worth.
    Ranges(&'a [VirtualRange]),
    /// Every translation, global ones too if the array's are global.
    Everything,
}

/// A way to make CPUs forget translations. What it costs is counted by
/// [`Vmemmap`](crate::vmemmap::Vmemmap).
///
/// # Safety
/// When [`flush`](Self::flush) or [`flush_pages`](Self::flush_pages) returns, no CPU uses what it
/// was asked to forget, neither translations nor cached steps of a walk, and no CPU is in the
/// middle of an access with it (invariant 12). Stores that the caller made before are seen by every
/// walk that begins afterwards.
pub unsafe trait FlushTlb: Sync {
    /// Flushes on all CPUs. Called with interrupts on and no lock held, perhaps by several CPUs at
    /// once.
    fn flush(&self, request: FlushRequest<'_>);

    /// The same where translations of pages changed and no table was given up. A CPU that sleeps
    /// need not be woken for that: it may forget when it wakes, before it uses any address that the
    /// request can mean. Without a way to do so, all CPUs are told.
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
