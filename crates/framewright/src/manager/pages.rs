//! Calls without a [`Request`](super::Request): by size, by layout.

use crate::block::MigrateType;
use crate::manager::request::{AllocateError, Request};
use crate::manager::state::Manager;
use crate::page::{CpuCache, Put};
use crate::platform::Platform;
use crate::units::{Order, PAGE_SHIFT, PAGE_SIZE, Pfn, PfnRange};
use crate::zone::FreeError;
use core::alloc::Layout;
use core::panic::Location;

/// Returns the number of whole pages that hold `bytes` bytes, at least one.
#[inline]
pub(crate) const fn pages_of(bytes: u64) -> u64 {
    let pages = bytes.saturating_add(PAGE_SIZE - 1) / PAGE_SIZE;
    if pages == 0 { 1 } else { pages }
}

impl<P: Platform> Manager<P> {
    /// Allocates `pages` frames in one run, movable, near the caller, at any address, with the
    /// first aligned to `align`: [`allocate`](Self::allocate) without a [`Request`] (Linux:
    /// `alloc_pages_exact` in `mm/page_alloc.c`). The size is not rounded up: three pages are three
    /// pages. A run of more than 512 pages that no single block holds comes from neighbouring
    /// blocks, up to the size of the zone.
    ///
    /// # Errors
    /// See [`AllocateError`]; [`AllocateError::BadSize`] means here that no zone is that large.
    #[inline]
    #[track_caller]
    pub fn allocate_pages(&self, pages: u64, align: Order) -> Result<PfnRange, AllocateError> {
        if !pages.is_power_of_two() {
            // Other alignments take longer, although runs in the cache have those up to their size.
            if align == Order::PAGE
                && let Some(start) = self.take_odd(pages, MigrateType::Movable)
            {
                return Ok(PfnRange { start, end: start.add(pages) });
            }
            return self.allocate_aligned(pages, align);
        }
        match Order::of_power(pages) {
            Some(order) if order >= align && order <= Order::BLOCK => {
                let start = self.allocate_order(order, MigrateType::Movable)?;
                Ok(PfnRange { start, end: start.add(pages) })
            }
            _ => self.allocate_aligned(pages, align),
        }
    }

    #[inline(never)]
    #[track_caller]
    pub(crate) fn allocate_aligned(
        &self,
        pages: u64,
        align: Order,
    ) -> Result<PfnRange, AllocateError> {
        let request = Request { align, ..Request::pages(pages) };
        if pages > Order::BLOCK.pages() {
            return self.allocate_long(&request, Location::caller());
        }
        self.allocate_any(&request, Location::caller())
    }

    /// Allocates whole pages for a layout: as many as its size takes, at least one, aligned as the
    /// layout says, or to a page.
    ///
    /// # Errors
    /// [`AllocateError::BadSize`] when the alignment is above 1 GiB; otherwise as for
    /// [`allocate_pages`](Self::allocate_pages).
    #[inline]
    #[track_caller]
    pub fn allocate_layout(&self, layout: Layout) -> Result<PfnRange, AllocateError> {
        // Most layouts take one page: few instructions for these.
        let (size, align) = (layout.size() as u64, layout.align() as u64);
        if (size.wrapping_sub(1) | align.wrapping_sub(1)) < PAGE_SIZE
            && let Some(start) = self.take_page()
        {
            return Ok(PfnRange::of_order(start, Order::PAGE));
        }
        self.allocate_other_layout(layout)
    }

    /// [`allocate_layout`](Self::allocate_layout) of all but a single cached page.
    #[inline(never)]
    #[track_caller]
    pub(crate) fn allocate_other_layout(&self, layout: Layout) -> Result<PfnRange, AllocateError> {
        // The alignment is a power of two; up to a page it makes no difference.
        #[expect(clippy::cast_possible_truncation, reason = "at most 63")]
        let order = layout.align().trailing_zeros().saturating_sub(PAGE_SHIFT) as u8;
        let align = Order::new(order)
            .ok_or(AllocateError::BadSize { pages: layout.align() as u64 / PAGE_SIZE })?;
        self.allocate_pages(pages_of(layout.size() as u64), align)
    }

    /// Frees the whole pages that `size_bytes` bytes take, at least one: the pages that
    /// [`allocate_layout`](Self::allocate_layout) allocated for this size.
    ///
    /// # Errors
    /// See [`FreeError`]; nothing has changed hands then, if the error [is
    /// about](FreeError::concerns) these frames.
    ///
    /// # Safety
    /// As for [`free`](Self::free).
    #[inline]
    #[track_caller]
    pub unsafe fn free_bytes(&self, start: Pfn, size_bytes: u64) -> Result<(), FreeError> {
        if size_bytes.wrapping_sub(1) < PAGE_SIZE {
            return self.check_and_free(start, Order::PAGE, Location::caller());
        }
        // SAFETY: passed on to the caller (invariant 42).
        unsafe { self.free_run(start, pages_of(size_bytes)) }
    }

    /// Frees `pages` frames from `start` on: [`free`](Self::free) with a start and a size.
    ///
    /// # Errors
    /// See [`FreeError`]; nothing has changed hands then, if the error [is
    /// about](FreeError::concerns) these frames.
    ///
    /// # Safety
    /// As for [`free`](Self::free).
    #[inline]
    #[track_caller]
    pub unsafe fn free_pages(&self, start: Pfn, pages: u64) -> Result<(), FreeError> {
        if pages == 1 {
            return self.check_and_free(start, Order::PAGE, Location::caller());
        }
        // SAFETY: passed on to the caller (invariant 42).
        unsafe { self.free_run(start, pages) }
    }

    /// [`free_pages`](Self::free_pages) of any number but one.
    ///
    /// # Safety
    /// As for [`free_pages`](Self::free_pages).
    #[inline(always)]
    #[track_caller]
    pub(crate) unsafe fn free_run(&self, start: Pfn, pages: u64) -> Result<(), FreeError> {
        if !pages.is_power_of_two() {
            let range = PfnRange { start, end: Pfn(start.0.saturating_add(pages)) };
            // The slow path returns the error.
            let is_wrong = cfg!(debug_assertions)
                && CpuCache::is_odd(start, pages)
                && self.check_free(range).is_err();
            if !is_wrong && self.put_odd(start, pages) == Some(Put::Cached) {
                return Ok(());
            }
        }
        // SAFETY: passed on to the caller (invariant 42).
        unsafe { self.free_long(start, pages) }
    }

    /// The slow path of [`free_pages`](Self::free_pages).
    ///
    /// # Safety
    /// As for [`free_pages`](Self::free_pages).
    #[inline(never)]
    #[track_caller]
    unsafe fn free_long(&self, start: Pfn, pages: u64) -> Result<(), FreeError> {
        let range = PfnRange { start, end: Pfn(start.0.saturating_add(pages)) };
        match range.as_order() {
            Some(order) if order <= Order::BLOCK => self.free_far(start, order, Location::caller()),
            Some(order) => self.free_large(start, order, true, Location::caller()),
            // SAFETY: passed on to the caller (invariant 42).
            None => unsafe { self.free(range) },
        }
    }
}
