//! The fast path: orders 0 to 9 through the calling CPU's cache.
//!
//! The steps are: pin, enter, take a bit or an entry, leave, unpin. An empty cache refills by the
//! word under one hold of the zone lock, and a full one gives a batch back under one hold. An
//! interrupt handler that finds its CPU inside the cache, and a CPU whose cache is being drained,
//! take the slow path.

use crate::block::{Lot, MigrateType};
use crate::debug::Place;
use crate::manager::alloc::{block_number, usable_type};
use crate::manager::facets::Caches;
use crate::manager::request::{AllocateError, Mark, ORDINARY, Request, Search};
use crate::manager::state::Manager;
use crate::manager::state::isolations::kept;
use crate::manager::vmemmap::deferred::Growth;
use crate::page::{CpuCache, Flow, MOST_WORDS, Put};
use crate::platform::Platform;
use crate::units::{Order, Pfn, PfnRange};
use crate::zone::{FreeError, Refill, Zone, ZoneId, ZoneKind, near, range_of};
use core::panic::Location;

/// What a CPU's cache holds and may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CpuCacheInfo {
    /// The zone that is asked first. The cache may keep frames of another zone, too.
    pub zone: ZoneId,
    /// Pages in the cache now.
    pub pages: u64,
    /// The most single pages that a refill brings.
    pub batch_pages: u64,
    /// The most pages that the cache ever has.
    pub most_pages: u64,
}

impl<P: Platform> Caches<'_, P> {
    /// Pages in the caches of all CPUs: free to their CPU, and allocated as far as everybody else
    /// can tell. Exact when nobody allocates.
    #[must_use]
    pub fn pages(self) -> u64 {
        self.manager.caches.iter().map(CpuCache::pages).sum()
    }

    /// What the cache of CPU `cpu` holds: of which zone, how many pages, and how many it may have.
    /// `None` when there is no such CPU, or no zone whose frames it could keep. Exact when that CPU
    /// does not allocate.
    #[must_use]
    pub fn cpu(self, cpu: u32) -> Option<CpuCacheInfo> {
        let cache = self.manager.caches.get(cpu as usize)?;
        let zone = self.manager.zones().get(cache.zone())?.id();
        let (batch_pages, most_pages) = cache.limits();
        Some(CpuCacheInfo { zone, pages: cache.pages(), batch_pages, most_pages })
    }
}

impl<P: Platform> Manager<P> {
    /// Allocates 2^`order` pages near the caller, at any address: the fast path for the usual
    /// request. The content is undefined.
    ///
    /// # Errors
    /// See [`AllocateError`].
    #[inline(always)]
    #[track_caller]
    pub fn allocate_order(
        &self,
        order: Order,
        migrate_type: MigrateType,
    ) -> Result<Pfn, AllocateError> {
        // A debug aid that is on stays on from bring-up to the end.
        if self.pressure.epoch.wants_attention() {
            // A request that is known to fail does nothing else.
            if self.pressure.is_lost(order, migrate_type) && !self.ends_refusal() {
                return Err(AllocateError::OutOfMemory { order });
            }
            return self.allocate_with_attention(order, migrate_type, Location::caller());
        }
        self.allocate_unseen(order, migrate_type)
    }

    /// [`allocate_order`](Self::allocate_order) without debug aids.
    #[inline(always)]
    fn allocate_unseen(
        &self,
        order: Order,
        migrate_type: MigrateType,
    ) -> Result<Pfn, AllocateError> {
        if order > Order::BLOCK {
            return self.allocate_large(order, migrate_type);
        }
        match self.take_run_anyway(order, migrate_type) {
            Some(start) => Ok(start),
            None => self.allocate_slowly(order, migrate_type),
        }
    }

    /// Allocates orders that no cache keeps.
    #[inline(never)]
    fn allocate_large(
        &self,
        order: Order,
        migrate_type: MigrateType,
    ) -> Result<Pfn, AllocateError> {
        if order == Order::MAX
            && let Some(zone) = self.sole
            && let Some(start) = zone.take_largest(self.platform, migrate_type)
        {
            return Ok(start);
        }
        self.allocate_slowly(order, migrate_type)
    }

    /// The zone that the calling CPU's cache asks first.
    #[inline]
    pub(super) fn near_zone(&self) -> Option<&'static Zone> {
        if !cfg!(feature = "smp") {
            return None;
        }
        self.pinned(|cpu| {
            self.caches.get(cpu as usize).and_then(|cache| self.zones().get(cache.zone()))
        })
    }

    /// [`allocate_order`](Self::allocate_order) while something wants attention: either nothing was
    /// freed since the caches were emptied, though this request may still succeed, or a debug aid
    /// is on.
    #[inline(never)]
    fn allocate_with_attention(
        &self,
        order: Order,
        migrate_type: MigrateType,
        place: Place,
    ) -> Result<Pfn, AllocateError> {
        let start = self.allocate_unseen(order, migrate_type)?;
        let taken = PfnRange::of_order(start, order);
        self.after_allocation(core::iter::once(taken), false, place)?;
        Ok(start)
    }

    /// Allocates from the near zone while that stays above its low mark, then from the other zones,
    /// then by all other means.
    #[cold]
    #[inline(never)]
    fn allocate_slowly(
        &self,
        order: Order,
        migrate_type: MigrateType,
    ) -> Result<Pfn, AllocateError> {
        // Checked here because a search for a type for which no memory is kept would bring up all
        // withheld memory.
        usable_type(migrate_type)?;
        let near = if order > Order::BLOCK {
            let take = |zone: &'static Zone| {
                self.try_zone(zone, &Search::near(zone.id().node, migrate_type), order, Mark::Low)
            };
            self.near_zone().and_then(take).map(|range| range.start)
        } else {
            self.inside(|cache| self.refill(cache, order, migrate_type, true)).flatten()
        };
        match near {
            Some(start) => Ok(start),
            None => self
                .allocate_bare(&Request { migrate_type, ..Request::new(order) })
                .map(|range| range.start),
        }
    }

    /// Fills the cache and takes a run. `other_nodes` says whether to ask zones of other nodes than
    /// the home zone's; a run that is in the cache already may be of any. Returns `None` when the
    /// order is not cached, or no zone has such a run above its marks.
    pub(super) fn refill(
        &self,
        cache: &CpuCache,
        order: Order,
        migrate_type: MigrateType,
        other_nodes: bool,
    ) -> Option<Pfn> {
        if !cache.caches(order, migrate_type) {
            return None;
        }
        // An interrupt since the last attempt may have filled the cache, and entries that were laid
        // aside as unused are wanted after all. A refill finds room only in an empty stack.
        if let Some(start) =
            cache.get(order, migrate_type).or_else(|| cache.get_aside(order, migrate_type))
        {
            return Some(start);
        }
        cache.forget_strays_if_empty();
        let home = self.zones().get(cache.zone())?;
        if order == Order::BLOCK && migrate_type == MigrateType::Movable {
            cache.adapt(Flow::In, self.may_keep_more(home));
        }
        let search = Search::near(home.id().node, migrate_type);
        let from = |zone: &Zone, mark: Mark, runs| {
            // Checked first because the watermark test of a zone in parts has to sum over all its
            // parts.
            if zone.free_pages() + zone.descriptor_pages() < order.pages() {
                return None;
            }
            let keep = self.keeps_of_refill(mark, zone, &search);
            let wanted = Refill { order, migrate_type, most: runs, keep_pages: keep };
            zone.refill(self.platform, cache, &wanted)
        };
        let mut start = from(home, Mark::Low, u32::MAX);
        // Frames that this CPU has freed are free to it, whatever the marks say, and unlike
        // reported memory they are backed by the host.
        if start.is_none() && cache.reuse(order, migrate_type) {
            return cache.get(order, migrate_type);
        }
        if start.is_none() {
            match self.grow_inside(home, order, migrate_type) {
                Growth::Grown => start = from(home, Mark::Low, u32::MAX),
                // Outside the cache this CPU can wait for the memory, which is nearer than another
                // zone.
                Growth::Busy => return None,
                Growth::NothingLeft => {}
            }
        }
        let mut served = home;
        if start.is_none() {
            // Takes only a little of a zone whose frames the cache does not keep (yet): these go
            // back to their zone one by one.
            let little = u32::try_from(64 / order.pages().min(64)).unwrap_or(1);
            let most = |zone: &Zone| {
                if cache.covers(zone.pfn_range()) { u32::MAX } else { little }
            };
            // A request for one node alone gets what is short there from its zones, run by run.
            let marks = if other_nodes { ORDINARY } else { &[Mark::Low] };
            let mut marks = marks.iter().copied();
            let cached = cache.pages();
            start = marks.find_map(|mark| {
                self.wake_if_below_low(mark, &search);
                self.zonelist(&search).find_map(|zone| {
                    if !other_nodes && zone.id().node != home.id().node {
                        return None;
                    }
                    let start = from(zone, mark, most(zone))?;
                    served = zone;
                    self.note_node(
                        zone,
                        &search,
                        cache.pages().saturating_sub(cached) + order.pages(),
                    );
                    Some(start)
                })
            });
        }
        if start.is_some() {
            if served.id().node == home.id().node {
                cache.come_home();
            } else {
                self.keep_of_other_node(cache, served);
            }
            cache.note_source(served.pfn_range());
            self.pressure.epoch.note_free();
        }
        start
    }

    /// Called when the home node has no memory left. From now on the cache keeps frames of the zone
    /// that served instead, unless all CPUs that keep frames of the home node, including CPUs of
    /// nodes without memory, could together keep more than an eighth of that zone. Frames next to
    /// isolated blocks stay out, as they do in the home zones.
    #[cold]
    #[inline(never)]
    fn keep_of_other_node(&self, cache: &CpuCache, zone: &Zone) {
        // DMA memory is left to requests that need it, as on the home node.
        if zone.id().kind == ZoneKind::Dma || cache.covers(zone.pfn_range()) {
            return;
        }
        let parts = self.parts(zone.id());
        let managed_pages: u64 = parts.iter().map(Zone::managed_pages).sum();
        let most = cache.limits().1.saturating_mul(u64::from(cache.sharers()));
        if most <= managed_pages / 8 {
            let hull = self.isolations.lock(self.platform).hull;
            let range = range_of(parts.iter());
            cache.keep_away(&near(range, Some(zone), 0), kept(range, hull));
        }
    }

    /// Called when frames come back that may belong to another node: a CPU that frees as many
    /// frames as it takes never refills, and would get the other node's frames for ever. The home
    /// zone must be above its high mark, so that the cache of a node that is nearly full does not
    /// switch back and forth.
    #[inline]
    pub(super) fn come_home_if_possible(&self, cache: &CpuCache) {
        if cache.is_away() {
            self.come_home_if_there_is_room(cache);
        }
    }

    /// [`come_home_if_possible`](Self::come_home_if_possible) where frees are frequent.
    #[inline(always)]
    pub(super) fn come_home_now_and_then(&self, cache: &CpuCache) {
        if cache.is_away_now_and_then() {
            self.come_home_if_there_is_room(cache);
        }
    }

    #[cold]
    #[inline(never)]
    fn come_home_if_there_is_room(&self, cache: &CpuCache) {
        if let Some(home) = self.zones().get(cache.zone())
            && let high_pages = home.high_pages(MigrateType::Movable)
            // The home part's own share first: while the node is full, this reads no other part's
            // counters.
            && home.free_pages().saturating_mul(u64::from(home.parts())) > high_pages
            && self.is_above(home, high_pages)
        {
            cache.come_home();
        }
    }

    /// Whether a CPU may keep more blocks of a zone than usual: not where memory is short, nor
    /// while free memory is to be reported to a hypervisor.
    fn may_keep_more(&self, zone: &Zone) -> bool {
        self.is_above(zone, zone.high_pages(MigrateType::Movable))
            && !self.reporting.is_registered()
    }

    /// Frees what [`allocate_order`](Self::allocate_order) allocated, or an aligned part of it.
    ///
    /// Every build detects at this call a frame that is not aligned to `order`, and every mistake
    /// that the state of the block shows: that the block is free (unless it waits to be merged with
    /// its neighbours), a pool's or the manager's own, or no memory. A mistake about a part of a
    /// block that is divided into pages, or about a block that is in a cache because it was freed
    /// before, is found
    ///
    /// * with debug assertions: also at this call, if the frame is in the cache of this CPU, or in
    ///   that of another CPU where the caller can wait for other CPUs ([`Platform::can_wait`]).
    ///   Concurrent operations of others on the frame may hide the mistake.
    /// * with `page_owner=on`: at this call, in every build, for every frame that is not allocated
    ///   according to the page owner records.
    /// * otherwise: when the frame leaves the cache for its zone, as the error of the call that
    ///   made it leave. A frame that was freed twice is free once then. Until it leaves, the cache
    ///   may hand it out, even twice.
    ///
    /// # Errors
    /// See [`FreeError`].
    ///
    /// # Safety
    /// See [*Owning memory*](super#owning-memory): the caller owns these frames, and nobody uses
    /// them any more.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn free_order(&self, start: Pfn, order: Order) -> Result<(), FreeError> {
        if order > Order::BLOCK {
            return self.free_large(start, order, false, Location::caller());
        }
        self.check_and_free(start, order, Location::caller())
    }

    /// Caches a run if its lot shows that this cache may keep it and there is room.
    #[inline(always)]
    pub(super) fn keep(&self, cache: &CpuCache, start: Pfn, order: Order) -> Put {
        if self.pressure.epoch.wants_attention() {
            return Put::Full;
        }
        match cache.lot(start, order) {
            Some(lot) => cache.put(start, order, lot),
            None => self.keep_elsewhere(cache, start, order),
        }
    }

    /// [`keep`](Self::keep) of a run for which the cache found no lot: it is another node's, the
    /// directory knows its block, or only the zone takes it.
    #[inline(never)]
    fn keep_elsewhere(&self, cache: &CpuCache, start: Pfn, order: Order) -> Put {
        self.come_home_now_and_then(cache);
        self.lot_slowly(cache, start, order)
            .map_or(Put::Full, |lot| cache.put_slowly(start, order, lot))
    }

    /// Returns the lot of a run, wherever it lies. Does not look among the cache's own frames:
    /// callers have done so before, or are not in a hurry.
    pub(super) fn lot_slowly(&self, cache: &CpuCache, start: Pfn, order: Order) -> Option<Lot> {
        if order > Order::BLOCK || !start.is_aligned(order) {
            return None;
        }
        self.lot_elsewhere(cache, start, order.pages(), order)
    }

    /// Returns the lot for `order` of a run of `pages` pages in one block, if the cache keeps it:
    /// among another node's frames, or from the directory. The first frame decides.
    #[inline(never)]
    pub(super) fn lot_elsewhere(
        &self,
        cache: &CpuCache,
        start: Pfn,
        pages: u64,
        order: Order,
    ) -> Option<Lot> {
        if let Some(lot) = cache.lot_away(start, pages, order) {
            return Some(lot);
        }
        // No frame has a number near the largest.
        if !cache.covers(PfnRange { start, end: Pfn(start.0.saturating_add(pages)) }) {
            return None;
        }
        let (zone, index) = self.block_of(start)?;
        zone.lot_unlocked(index, order)
    }

    /// Makes room in the cache, or frees into the zone. Runs the debug aids before.
    #[cold]
    #[inline(never)]
    pub(super) fn free_slowly(
        &self,
        start: Pfn,
        order: Order,
        put: Option<Put>,
        neighbours: bool,
        place: Place,
    ) -> Result<(), FreeError> {
        if put == Some(Put::DoubleFree) {
            return Err(FreeError::free_already(start));
        }
        let (mut told, mut made_room) = (false, Ok(()));
        let kept = self.inside(|cache| {
            // Also while a debug aid watches each free, which then takes no shorter way.
            self.come_home_if_possible(cache);
            let lot = self.lot_slowly(cache, start, order)?;
            if self.pressure.epoch.wants_attention() {
                self.pressure.epoch.note_free();
                told = true;
                let range = PfnRange::of_order(start, order);
                if let Err(error) = self.before_free(range, neighbours, place) {
                    return Some(Err(error));
                }
            }
            match self.put_making_room(cache, start, order, lot) {
                (Put::Cached, result) => Some(result),
                (Put::DoubleFree, _) => Some(Err(FreeError::free_already(start))),
                (Put::Full, result) => {
                    made_room = result;
                    None
                }
            }
        });
        if let Some(result) = kept.flatten() {
            return result;
        }
        let place = (!told).then_some(place);
        self.free_into_zone(start, order, neighbours, place).and(made_room)
    }

    /// Puts a run into a cache. A full cache first gives back some of its entries; the result is
    /// that of giving these back.
    pub(super) fn put_making_room(
        &self,
        cache: &CpuCache,
        start: Pfn,
        order: Order,
        lot: Lot,
    ) -> (Put, Result<(), FreeError>) {
        let mut put = cache.put_slowly(start, order, lot);
        if put == Put::Full
            && order == Order::BLOCK
            && lot == Lot::MOVABLE
            && let Some(home) = self.zones().get(cache.zone())
            && cache.adapt(Flow::Out, self.may_keep_more(home))
        {
            put = cache.put_slowly(start, order, lot);
        }
        if put != Put::Full {
            return (put, Ok(()));
        }
        // Of the lot that only waits to go back, as many entries go as go back together. Of the
        // others the newer half may be wanted soon; of blocks, which cost most under the lock, only
        // the newest quarter stays.
        let waiting = cache.waiting(order, lot);
        let oldest = if lot == Lot::BACK {
            waiting.min(MOST_WORDS)
        } else if order == Order::BLOCK {
            waiting - waiting / 4
        } else {
            waiting.div_ceil(2)
        };
        let result = self.return_oldest(cache, order, lot, oldest);
        (cache.put_slowly(start, order, lot), result.map(|_| ()))
    }

    /// Frees a run that no cache keeps. `neighbours` says that it may consist of several
    /// allocations.
    #[inline(never)]
    pub(super) fn free_large(
        &self,
        start: Pfn,
        order: Order,
        neighbours: bool,
        place: Place,
    ) -> Result<(), FreeError> {
        if cfg!(debug_assertions) {
            self.check_free_order(start, order).map_err(|error| self.explained(error))?;
        }
        if order == Order::MAX
            && !self.pressure.epoch.wants_attention()
            && let Some(zone) = self.sole
            && zone.free_largest(self.platform, start)
        {
            self.pressure.epoch.note_free();
            return Ok(());
        }
        self.free_into_zone(start, order, neighbours, Some(place))
    }

    /// Frees a run into its zone. `place` is `None` if the debug aids have already run for this
    /// free.
    fn free_into_zone(
        &self,
        start: Pfn,
        order: Order,
        neighbours: bool,
        place: Option<Place>,
    ) -> Result<(), FreeError> {
        if !start.is_aligned(order) {
            return Err(FreeError::NotAligned { start, order });
        }
        let range = PfnRange::of_order(start, order);
        if let Some(place) = place
            && self.pressure.epoch.wants_attention()
        {
            self.before_free(range, neighbours, place)?;
        }
        self.free_bare(range)
    }

    pub(super) fn check_free_order(&self, start: Pfn, order: Order) -> Result<(), FreeError> {
        if !start.is_aligned(order) {
            return Err(FreeError::NotAligned { start, order });
        }
        self.check_free(PfnRange::of_order(start, order))
    }

    /// Detects all mistakes of a free that can be detected without page owners.
    #[cold]
    #[inline(never)]
    pub(super) fn check_free(&self, range: PfnRange) -> Result<(), FreeError> {
        self.check_all(range, |piece| {
            piece.zone.check_allocated(self.platform, piece.segment, piece.range)
        })?;
        self.check_not_cached(range)
    }

    /// Finds frames that were freed before and are now in a CPU's cache. To the tables of the zones
    /// these look allocated.
    fn check_not_cached(&self, range: PfnRange) -> Result<(), FreeError> {
        if !cfg!(feature = "smp") {
            return Ok(());
        }
        // Model checkers would try every interleaving of all these reads.
        if cfg!(any(loom, shuttle)) {
            return Ok(());
        }
        if self.caches.iter().all(|cache| cache.find(range).is_none()) {
            return Ok(());
        }
        // The frame found may be on its way to this CPU through the hands of another CPU, so look
        // again while no CPU is inside its cache.
        let mut found = None;
        if self.platform.cpus() > 1 && !self.platform.can_wait() {
            found = self.inside(|cache| cache.find(range)).flatten();
        } else {
            self.isolation().with_caches(&mut |cache| found = found.or_else(|| cache.find(range)));
        }
        found.map_or(Ok(()), |pfn| Err(FreeError::free_already(pfn)))
    }

    /// The zone of this frame, and the index of its block in that zone.
    pub(super) fn block_of(&self, pfn: Pfn) -> Option<(&'static Zone, u32)> {
        let block = block_number(pfn)?;
        let segment = self.segment_of(block)?;
        Some((self.zones().get(usize::from(segment.zone))?, segment.index_of(block)))
    }
}
