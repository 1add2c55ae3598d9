//! Requests and frees of any form on the fast path, wherever the CPU's cache can serve them.
//!
//! A run from a cache is near the CPU, but not always where a request wants it. If it lies
//! elsewhere it goes back into the cache, or to its zone if it is of another node than the request
//! prefers, and the zones are asked. Runs whose size is no power of two are kept whole for requests
//! of exactly that many pages.

use crate::block::{Lot, MigrateType};
use crate::debug::Place;
use crate::manager::request::Request;
use crate::manager::state::Manager;
use crate::memblock::NodeChoice;
use crate::page::{CpuCache, Put};
use crate::platform::Platform;
use crate::units::{Order, Pfn, PfnRange};
use crate::zone::{FreeError, ZoneKind};

impl Request {
    /// Returns whether the request is of the most common kind but for its size and alignment:
    /// anywhere near the caller, with any content.
    #[inline(always)]
    fn is_plain(&self) -> bool {
        // Combined without a branch for each condition.
        (self.boundary_pages == 0)
            & (self.max_address == u64::MAX)
            & (self.zone == ZoneKind::Normal)
            & !self.zeroed
            & (self.node == NodeChoice::Any)
    }

    /// Returns the order whose cached runs can serve the request: none for more than a block, nor
    /// for an alignment above the request's size. Runs are aligned to their order, so they cross no
    /// boundary that a request for so many pages may name.
    #[inline]
    fn cached_order(&self) -> Option<Order> {
        let order = Order::for_pages(self.pages).filter(|_| self.pages != 0)?;
        let is_served = order <= Order::BLOCK && self.align <= order && self.boundary_pages == 0;
        is_served.then_some(order)
    }

    /// One past the last frame that will do. Caches hold no frames of the DMA zone.
    #[inline]
    fn end(&self) -> Pfn {
        let end = Pfn::containing(self.max_address);
        if self.zone == ZoneKind::Normal { end } else { end.min(self.zone.reach()) }
    }

    /// Whether memory anywhere near the caller will do.
    #[inline]
    pub(super) fn is_anywhere(&self) -> bool {
        self.zone == ZoneKind::Normal && self.max_address == u64::MAX
    }
}

impl PfnRange {
    /// Returns the order if the range is a run that caches keep. Takes few instructions, as every
    /// free executes them.
    #[inline(always)]
    fn plain_order(self) -> Option<Order> {
        let pages = self.end.0.wrapping_sub(self.start.0);
        let is_kept = pages <= Order::BLOCK.pages() && self.start.0 & pages.wrapping_sub(1) == 0;
        order_of(pages).filter(|_| is_kept)
    }
}

/// Returns the order of a run of just so many pages, if there is one. Takes few instructions.
#[inline(always)]
fn order_of(pages: u64) -> Option<Order> {
    #[expect(clippy::cast_possible_truncation, reason = "at most 64")]
    let order = pages.trailing_zeros() as u8;
    Order::new(order).filter(|_| pages.is_power_of_two())
}

impl<P: Platform> Manager<P> {
    /// Takes the run for a request of the most common kind out of the CPU's cache, if there is one.
    #[inline(always)]
    pub(super) fn take_plain(&self, request: &Request) -> Option<Pfn> {
        if !request.is_plain() {
            return None;
        }
        match order_of(request.pages) {
            Some(order) if request.align <= order => self.take_run(order, request.migrate_type),
            None if request.align == Order::PAGE => {
                self.take_odd(request.pages, request.migrate_type)
            }
            _ => None,
        }
    }

    /// [`free`](Self::free), into the CPU's cache if that takes the range at once.
    #[inline(always)]
    pub(super) fn free_plain(&self, range: PfnRange, place: Place) -> Result<(), FreeError> {
        match range.plain_order() {
            Some(Order::BLOCK) => self.free_block(range.start, place),
            Some(order) => self.free_near::<true>(range.start, order, place),
            None => match self.put_odd(range.start, range.end.0.wrapping_sub(range.start.0)) {
                Some(Put::Cached) => Ok(()),
                put => self.free_any(range, put, place),
            },
        }
    }

    /// [`free_plain`](Self::free_plain) of a block, which is never part of the word that comes
    /// next.
    #[inline(never)]
    fn free_block(&self, start: Pfn, place: Place) -> Result<(), FreeError> {
        let put = if self.reporting.is_registered() {
            None
        } else {
            self.inside(|cache| self.keep(cache, start, Order::BLOCK))
        };
        if put == Some(Put::Cached) {
            return Ok(());
        }
        let end = Pfn(start.0.wrapping_add(Order::BLOCK.pages()));
        self.free_any(PfnRange { start, end }, put, place)
    }

    /// Takes the run that a request wants out of the CPU's cache, without clearing it. Refills the
    /// cache when it is empty. Returns `None` when the zones must be asked.
    pub(super) fn allocate_cached(&self, request: &Request) -> Option<PfnRange> {
        let order = request.cached_order()?;
        if self.pressure.epoch.wants_attention() && self.pressure.epoch.number().is_some() {
            // Caches are empty, and memory is too short to refill them.
            return None;
        }
        let mut end = request.end();
        if request.zeroed {
            // The host may have cleared reported memory, but only the zone knows.
            if self.reporting.is_registered() {
                return None;
            }
            end = end.min(Pfn::containing(self.platform.direct_limit()));
        }
        let start = self.inside(|cache| {
            if !self.is_of_node(cache, request.node) {
                return None;
            }
            if order.pages() != request.pages {
                return self.get_odd(cache, order, request, end);
            }
            let start = match cache.get(order, request.migrate_type) {
                Some(start) => start,
                None => self.fill_for(cache, order, request)?,
            };
            let run = PfnRange::of_order(start, order);
            if self.fits(cache, run, request, end) {
                return Some(start);
            }
            self.put_back(cache, run, request);
            None
        });
        let start = start.flatten()?;
        Some(PfnRange { start, end: start.add(request.pages) })
    }

    /// Whether a run that came out of the cache lies where the request wants it.
    fn fits(&self, cache: &CpuCache, run: PfnRange, request: &Request, end: Pfn) -> bool {
        run.end <= end
            && (request.node == NodeChoice::Any
                || cache.is_near(run.start)
                || self.is_far_one_wanted(cache, run.start, request.node))
    }

    /// Whether a request that names the cache's own node gets a frame whose block the cache does
    /// not know: another node's memory may lie in a hole of the cache's zone, and a refill may
    /// bring frames from anywhere. A request that prefers the node gets another node's frame only
    /// while the cache's first zone is not above its low mark.
    #[cold]
    fn is_far_one_wanted(&self, cache: &CpuCache, pfn: Pfn, choice: NodeChoice) -> bool {
        let Some(home) = self.zones().get(cache.zone()) else { return false };
        matches!(choice, NodeChoice::Preferred(_))
            && !self.is_above(home, home.low_pages(MigrateType::Movable))
            || self.block_of(pfn).is_some_and(|(zone, _)| zone.id().node == home.id().node)
    }

    /// [`allocate_cached`](Self::allocate_cached) for a number of pages that is no power of two.
    /// Takes a run of that size that was freed whole, or a larger run, the rest of which stays in
    /// the cache.
    #[inline(never)]
    fn get_odd(&self, cache: &CpuCache, order: Order, request: &Request, end: Pfn) -> Option<Pfn> {
        let Request { pages, migrate_type, .. } = *request;
        if let Some(start) = cache.get_odd(pages, migrate_type) {
            let run = PfnRange { start, end: start.add(pages) };
            if self.fits(cache, run, request, end) {
                return Some(start);
            }
            self.put_back(cache, run, request);
            return None;
        }
        if order == Order::BLOCK {
            // Only a zone splits blocks and gives their pages descriptors.
            return None;
        }
        let start =
            cache.get(order, migrate_type).or_else(|| self.fill_for(cache, order, request))?;
        let run = PfnRange::of_order(start, order);
        if !self.fits(cache, run, request, end) {
            self.put_back(cache, run, request);
            return None;
        }
        let rest = PfnRange { start: start.add(pages), ..run };
        // The rest was just allocated and is nobody else's, so this cannot fail. An error from
        // other runs that go back to make room does not concern this request.
        let _ = self.put_runs(cache, rest);
        Some(start)
    }

    /// Puts a run that lies elsewhere than the request wants back into the cache that it came from.
    /// A run of another node goes back to its zone if the request prefers the own node, so that
    /// such requests do not find it again and again.
    #[cold]
    #[inline(never)]
    fn put_back(&self, cache: &CpuCache, range: PfnRange, request: &Request) {
        let put = match range.as_order() {
            _ if matches!(request.node, NodeChoice::Preferred(_))
                && !cache.is_near(range.start) =>
            {
                Put::Full
            }
            order => match (order, Lot::of_type(request.migrate_type)) {
                (Some(order), Some(lot)) => cache.put_slowly(range.start, order, lot),
                (None, Some(lot)) => cache.put_odd_slowly(range.start, range.pages(), lot),
                (_, None) => Put::Full,
            },
        };
        // There was room for the run just taken, unless this CPU's cache is being made smaller.
        if put == Put::Full {
            // The run was just allocated and is nobody else's, so this cannot fail.
            let _ = self.return_odd(range);
        }
    }

    /// Caches each run of a range by itself. Runs of another node go back to their zone.
    fn put_runs(&self, cache: &CpuCache, range: PfnRange) -> Result<(), FreeError> {
        let mut result = Ok(());
        for (start, order) in range.runs(Order::BLOCK) {
            let (put, returned) = match self.lot_slowly(cache, start, order) {
                Some(lot) => self.put_making_room(cache, start, order, lot),
                None => (Put::Full, Ok(())),
            };
            result = result.and(returned).and(match put {
                Put::Cached => Ok(()),
                Put::DoubleFree => Err(FreeError::free_already(start)),
                Put::Full => {
                    let range = PfnRange::of_order(start, order);
                    self.return_odd(range).map(|_| ())
                }
            });
        }
        result
    }

    /// Whether a cache keeps memory of the node that a request names.
    fn is_of_node(&self, cache: &CpuCache, choice: NodeChoice) -> bool {
        let home = self.zones().get(cache.zone()).map(|zone| zone.id().node);
        match choice {
            NodeChoice::Any => true,
            NodeChoice::Preferred(node) | NodeChoice::Exact(node) => home == Some(node),
        }
    }

    /// Refills the cache for a request that takes memory anywhere. A request with an address limit
    /// gets only what happens to be cached: frames from another refill would fit no better.
    #[cold]
    #[inline(never)]
    fn fill_for(&self, cache: &CpuCache, order: Order, request: &Request) -> Option<Pfn> {
        if !request.is_anywhere() {
            return None;
        }
        // Frames that will not do would only fill the cache.
        let other_nodes = !matches!(request.node, NodeChoice::Exact(_));
        self.refill(cache, order, request.migrate_type, other_nodes)
    }

    /// Keeps a range in the CPU's cache, where the next request for its size finds it. Called once
    /// [`free_plain`](Self::free_plain) has failed; `put` may be the reason. Returns `None` when
    /// the range must go back to its zone: ranges larger than a block, ranges that no request would
    /// be given, frames of another node, whole blocks that have to be reported to a host, parts of
    /// blocks that are allocated whole (a zone must split these first), and ranges that are visibly
    /// wrong.
    ///
    /// # Errors
    /// As [`free_order`](Self::free_order).
    #[inline]
    pub(super) fn free_cached(
        &self,
        range: PfnRange,
        put: Option<Put>,
        place: Place,
    ) -> Option<Result<(), FreeError>> {
        let Some(order) = range.as_order() else {
            return put.and_then(|_| self.free_odd_making_room(range));
        };
        if order > Order::BLOCK || order == Order::BLOCK && self.reporting.is_registered() {
            return None;
        }
        Some(self.free_slowly(range.start, order, put, true, place))
    }

    /// Puts a run that is no power of two into the CPU's cache if that takes it at once; otherwise
    /// returns why not, if known. Arguments and result are in registers.
    #[inline(never)]
    pub(super) fn put_odd(&self, start: Pfn, pages: u64) -> Option<Put> {
        if !CpuCache::is_odd(start, pages) {
            return None;
        }
        let inside = self.enter()?;
        let put = match inside.cache.lot_of_odd(start, pages) {
            Some(lot) if !self.pressure.epoch.wants_attention() => {
                Some(inside.cache.put_odd(start, pages, lot))
            }
            _ => self.put_odd_elsewhere(inside.cache, start, pages),
        };
        inside.leave();
        put
    }

    /// [`put_odd`](Self::put_odd) of a run whose lot has to be looked up elsewhere, by a caller who
    /// is not in a hurry, or while something wants attention; inside the cache.
    #[inline(never)]
    fn put_odd_elsewhere(&self, cache: &CpuCache, start: Pfn, pages: u64) -> Option<Put> {
        self.come_home_now_and_then(cache);
        if self.pressure.epoch.wants_attention() {
            return None;
        }
        let lot = self.lot_elsewhere(cache, start, pages, CpuCache::ODD_ORDER)?;
        Some(cache.put_odd_slowly(start, pages, lot))
    }

    /// [`put_odd`](Self::put_odd) where the cache has too many such runs: cuts the oldest into
    /// power-of-two runs, which any request can use.
    #[cold]
    #[inline(never)]
    fn free_odd_making_room(&self, range: PfnRange) -> Option<Result<(), FreeError>> {
        self.inside(|cache| {
            let mut result = Ok(());
            // A run that can never fit would only push out all others.
            if !cache.may_keep_odd(range.pages()) {
                return None;
            }
            loop {
                let put = self.put_odd_elsewhere(cache, range.start, range.pages());
                let oldest = match put {
                    Some(Put::Cached) => return Some(result),
                    Some(Put::DoubleFree) => {
                        return Some(Err(FreeError::free_already(range.start)));
                    }
                    Some(Put::Full) => cache.give_up_odd(),
                    None => None,
                };
                let Some(oldest) = oldest else {
                    // What is wrong with those that made room is known only here.
                    return match result {
                        Ok(()) => None,
                        Err(_) => Some(self.return_odd(range).and(result)),
                    };
                };
                result = result.and(self.put_runs(cache, oldest));
            }
        })
        .flatten()
    }
}
