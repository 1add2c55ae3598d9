//! Allocating and freeing many single frames in one call; the frames need not be neighbours.
//!
//! A few frames come from the CPU's cache and go back there, and the cache is entered once for
//! many. Larger numbers come from the zones, by the word.

use super::alloc::usable_type;
use crate::debug::Place;
use crate::frames;
use crate::manager::accept::Growing;
use crate::manager::reclaim::Lacking;
use crate::manager::request::{AllocateError, Mark, ORDINARY, Request, Search};
use crate::manager::state::Manager;
use crate::memblock::NodeChoice;
use crate::page::Put;
use crate::platform::Platform;
use crate::units::{Order, Pfn, PfnRange};
use crate::zone::FreeError;
use core::panic::Location;

/// Frames that come or go while the CPU is pinned once. Requests for more frames do not use the
/// cache, as the zones hand out more at a time.
const AT_ONCE: usize = 64;
/// Frames that are freed while the CPU is pinned once. With debug assertions each is checked first.
const FREED_AT_ONCE: usize = if cfg!(debug_assertions) { 1 } else { AT_ONCE };

impl<P: Platform> Manager<P> {
    /// Allocates up to `pages.len()` single frames, which need not be neighbours, and returns how
    /// many. These are fewer only when memory is short, after everything that
    /// [`allocate`](Self::allocate) does then. `request` says where to look and what the memory is
    /// for; its size, alignment and boundary are ignored.
    ///
    /// # Errors
    /// As for [`allocate`](Self::allocate), when not a single frame was found.
    #[track_caller]
    pub fn allocate_bulk(
        &self,
        request: &Request,
        pages: &mut [Pfn],
    ) -> Result<usize, AllocateError> {
        usable_type(request.migrate_type)?;
        let cached = self.bulk_from_cache(request, pages);
        let more = match self.allocate_bulk_bare(request, &mut pages[cached..]) {
            Err(error) if cached == 0 => return Err(error),
            found => found.unwrap_or(0),
        };
        let done = cached + more;
        self.hand_out_bulk(&pages[..done], request.zeroed, Location::caller())?;
        Ok(done)
    }

    /// Clears single frames that were just allocated, if `zeroed` says so, and runs the debug aids
    /// that are on.
    pub(super) fn hand_out_bulk(
        &self,
        pages: &[Pfn],
        zeroed: bool,
        place: Place,
    ) -> Result<(), AllocateError> {
        let runs = pages.iter().map(|&page| PfnRange::of_order(page, Order::PAGE));
        if self.pressure.epoch.wants_attention() {
            self.after_allocation(runs, zeroed, place)?;
        } else if zeroed {
            runs.for_each(|run| frames::zero(self.platform, run));
        }
        Ok(())
    }

    /// Frees frames one by one, as [`free_order`](Self::free_order) does. All frames that can be
    /// freed are. The error is that of the first that cannot, which stays its owner's if the error
    /// is about one of these frames.
    ///
    /// # Errors
    /// See [`FreeError`].
    ///
    /// # Safety
    /// As for [`free_order`](Self::free_order), for each of the frames.
    #[track_caller]
    pub unsafe fn free_bulk(&self, pages: &[Pfn]) -> Result<(), FreeError> {
        let (mut rest, mut result) = (pages, Ok(()));
        while !rest.is_empty() {
            let some = &rest[..rest.len().min(FREED_AT_ONCE)];
            let checked = if cfg!(debug_assertions) {
                let range = PfnRange::new(some[0].0, some[0].0.saturating_add(1));
                self.check_free(range).map_err(|error| self.explained(error))
            } else {
                Ok(())
            };
            let kept = if checked.is_ok() { self.keep_some(some) } else { 0 };
            rest = &rest[kept..];
            if kept < some.len() {
                let place = Location::caller();
                let freed = checked
                    .and_then(|()| self.free_slowly(rest[0], Order::PAGE, None, false, place));
                result = result.and(freed);
                rest = &rest[1..];
            }
        }
        result
    }

    /// Puts frames into the cache, up to the first that it does not take at once. Returns how many.
    fn keep_some(&self, pages: &[Pfn]) -> usize {
        let kept = self.inside(|cache| {
            let kept = |&&page: &&Pfn| self.keep(cache, page, Order::PAGE) == Put::Cached;
            pages.iter().take_while(kept).count()
        });
        kept.unwrap_or(0)
    }

    /// Takes frames out of the CPU's cache, refilling it when it is empty. Returns how many.
    fn bulk_from_cache(&self, request: &Request, pages: &mut [Pfn]) -> usize {
        let is_near = request.is_anywhere() && request.node == NodeChoice::Any;
        if !is_near
            || request.zeroed
            || pages.len() > AT_ONCE
            || self.pressure.epoch.wants_attention()
        {
            return 0;
        }
        let Request { migrate_type, .. } = *request;
        let taken = self.inside(|cache| {
            let found = pages.iter_mut().map_while(|page| {
                let cached = cache.get(Order::PAGE, migrate_type);
                *page = cached.or_else(|| self.refill(cache, Order::PAGE, migrate_type, true))?;
                Some(())
            });
            found.count()
        });
        taken.unwrap_or(0)
    }

    fn allocate_bulk_bare(
        &self,
        request: &Request,
        pages: &mut [Pfn],
    ) -> Result<usize, AllocateError> {
        let search = self.search(request)?;
        self.allocate_bulk_where(request, &search, pages)
    }

    /// Allocates single frames within `search`, which covers what the request allows or less.
    /// Returns how many.
    pub(super) fn allocate_bulk_where(
        &self,
        request: &Request,
        search: &Search,
        pages: &mut [Pfn],
    ) -> Result<usize, AllocateError> {
        let known_to_fail =
            self.pressure.epoch.wants_attention() && self.is_known_to_fail(search, Order::PAGE);
        let mut done = 0;
        let mut attempt = |marks: &[Mark]| {
            done += self.fill(search, marks, &mut pages[done..]);
            if done == pages.len() { Ok(()) } else { Err((pages.len() - done) as u64) }
        };
        if known_to_fail || attempt(ORDINARY).is_err() {
            // `done` says whether all were found.
            let lacking = Lacking { request, search, order: Order::PAGE, known_to_fail };
            self.direct_reclaim(&lacking, &mut attempt);
        }
        if done == 0 && !pages.is_empty() {
            return Err(AllocateError::OutOfMemory { order: Order::PAGE });
        }
        Ok(done)
    }

    /// Takes single frames from all zones of the search until `pages` is full. Returns how many.
    pub(super) fn fill(&self, search: &Search, marks: &[Mark], pages: &mut [Pfn]) -> usize {
        let mut done = 0;
        if pages.is_empty() {
            return 0;
        }
        for &mark in marks {
            self.wake_if_below_low(mark, search);
            for zone in self.zonelist(search) {
                if zone.span().end.address() <= search.max_address {
                    loop {
                        // Computed anew each time: memory that was withheld, and counted as left,
                        // has come up.
                        let keep = self.keeps(mark, zone, search);
                        let got = zone.allocate_bulk(
                            self.platform,
                            search.migrate_type,
                            keep,
                            &mut pages[done..],
                        );
                        self.note_node(zone, search, got as u64);
                        done += got;
                        let missing = (pages.len() - done) as u64;
                        if missing == 0 {
                            return done;
                        }
                        if !self.allows(mark, zone, search, Order::PAGE) {
                            // Withheld memory is not for this request either.
                            break;
                        }
                        let more = Growing {
                            pages: missing,
                            least: Order::PAGE,
                            max: Pfn(u64::MAX),
                            migrate_type: search.migrate_type,
                        };
                        if !self.grow(zone, &more) {
                            break;
                        }
                    }
                } else {
                    // The address limit lies inside the zone: take one frame at a time.
                    while let Some(page) = pages.get_mut(done)
                        && let Some(taken) = self.try_zone(zone, search, Order::PAGE, mark)
                    {
                        *page = taken.start;
                        done += 1;
                    }
                    if done == pages.len() {
                        return done;
                    }
                }
            }
        }
        done
    }
}
