//! Requests across zones and nodes.

use crate::block::MigrateType;
use crate::debug::Place;
use crate::frames;
use crate::manager::accept::Growing;
use crate::manager::reclaim::Lacking;
use crate::manager::request::Allowed;
use crate::manager::request::{AllocateError, Mark, ORDINARY, Request, Search};
use crate::manager::state::Manager;
use crate::memblock::NodeChoice;
use crate::page::Put;
use crate::platform::Platform;
use crate::units::{NodeId, Order, Pfn, PfnRange};
use crate::vmemmap_space::BlockNumber;
use crate::zone::{FreeError, Segment, Zone};
use core::iter;
use core::panic::Location;

impl<P: Platform> Manager<P> {
    /// Allocates a run of frames: from the CPU's cache if it has a fitting run, as
    /// [`allocate_order`](Self::allocate_order) does, otherwise from the zones. The search begins
    /// on the wanted node and goes on to the other nodes by distance; on each node it begins with
    /// the wanted zone and goes down. A first pass over all of them keeps to their low watermarks,
    /// a second to their min watermarks (Linux: `mm/page_alloc.c`, `__setup_per_zone_wmarks`). When
    /// both fail, the manager drains the caches of CPUs, compacts memory for requests of more than
    /// a page, and asks the reclaim hook ([`set_reclaim`](super::Pressure::set_reclaim)). Last come
    /// the reserves, if the request may have them.
    ///
    /// # Errors
    /// See [`AllocateError`].
    #[inline(always)]
    #[track_caller]
    pub fn allocate(&self, request: &Request) -> Result<PfnRange, AllocateError> {
        // Most callers build the request at the call and free what they are given as it is: inlined
        // here, both know its size, and a free that follows does not compute the order again.
        let start = match self.take_plain(request) {
            Some(start) => start,
            None => self.allocate_any(request, Location::caller())?.start,
        };
        Ok(PfnRange { start, end: Pfn(start.0.wrapping_add(request.pages)) })
    }

    /// [`allocate`](Self::allocate) where the fast path has not served, or would hardly ever serve.
    #[inline(never)]
    pub(super) fn allocate_any(
        &self,
        request: &Request,
        place: Place,
    ) -> Result<PfnRange, AllocateError> {
        match self.allocate_cached(request) {
            Some(taken) => self.hand_out(taken, request.zeroed, place),
            None => self.allocate_from_zones(request, place),
        }
    }

    /// [`allocate`](Self::allocate) where no cache can serve.
    #[inline(never)]
    pub(super) fn allocate_from_zones(
        &self,
        request: &Request,
        place: Place,
    ) -> Result<PfnRange, AllocateError> {
        let (taken, is_zero) = self.allocate_known(request)?;
        self.hand_out(taken, request.zeroed && !is_zero, place)
    }

    /// Clears a range that was just allocated, if `clear` says so, and runs the debug aids that are
    /// on.
    pub(super) fn hand_out(
        &self,
        taken: PfnRange,
        clear: bool,
        place: Place,
    ) -> Result<PfnRange, AllocateError> {
        if self.pressure.epoch.wants_attention() {
            self.after_allocation(iter::once(taken), clear, place)?;
        } else if clear {
            frames::zero(self.platform, taken);
        }
        Ok(taken)
    }

    /// [`allocate`](Self::allocate) without the cache and the debug aids. Clears nothing, whatever
    /// the request says.
    pub(super) fn allocate_bare(&self, request: &Request) -> Result<PfnRange, AllocateError> {
        self.allocate_known(request).map(|(taken, _)| taken)
    }

    /// [`allocate_bare`](Self::allocate_bare) that also says whether the memory is known to be
    /// zero.
    fn allocate_known(&self, request: &Request) -> Result<(PfnRange, bool), AllocateError> {
        request.order()?;
        let search = self.search(request)?;
        self.allocate_where(request, &search)
    }

    /// [`allocate_known`](Self::allocate_known) within `search`, which covers what the request
    /// allows or less.
    pub(super) fn allocate_where(
        &self,
        request: &Request,
        search: &Search,
    ) -> Result<(PfnRange, bool), AllocateError> {
        let order = request.order()?;
        let known_to_fail =
            self.pressure.epoch.wants_attention() && self.is_known_to_fail(search, order);
        let mut found = if known_to_fail { None } else { self.find(search, order, ORDINARY) };
        if found.is_none() {
            let lacking = Lacking { request, search, order, known_to_fail };
            self.direct_reclaim(&lacking, &mut |marks| {
                found = self.find(search, order, marks);
                if found.is_some() { Ok(()) } else { Err(order.pages()) }
            });
        }
        let (taken, is_zero) = found.ok_or(AllocateError::OutOfMemory { order })?;
        Ok((self.cut(taken, request.pages), is_zero))
    }

    /// Cuts a range that was just allocated to `pages` pages, and frees the rest.
    pub(super) fn cut(&self, mut taken: PfnRange, pages: u64) -> PfnRange {
        let end = taken.start.add(pages);
        if end < taken.end {
            // The range was just allocated and is nobody else's, so this cannot fail.
            let _ = self.free_bare(PfnRange { start: end, end: taken.end });
            taken.end = end;
        }
        taken
    }

    /// [`allocate_where`](Self::allocate_where) above the ordinary marks only: drains no cache and
    /// calls no hook.
    pub(super) fn allocate_at_once(
        &self,
        request: &Request,
        search: &Search,
    ) -> Result<Option<(PfnRange, bool)>, AllocateError> {
        let found = self.find(search, request.order()?, ORDINARY);
        Ok(found.map(|(taken, is_zero)| (self.cut(taken, request.pages), is_zero)))
    }

    pub(super) fn find(
        &self,
        search: &Search,
        order: Order,
        marks: &[Mark],
    ) -> Option<(PfnRange, bool)> {
        for &mark in marks {
            self.wake_if_below_low(mark, search);
            for zone in self.zonelist(search) {
                if let Some(taken) = self.try_zone_known(zone, search, order, mark) {
                    return Some(taken);
                }
            }
        }
        None
    }

    /// [`allocate`](Self::allocate) past the caches, for model checkers: checking a zone through a
    /// cache would take them too long.
    ///
    /// # Errors
    /// See [`AllocateError`].
    #[cfg(any(loom, shuttle))]
    #[doc(hidden)]
    pub fn allocate_past_caches(&self, request: &Request) -> Result<PfnRange, AllocateError> {
        self.allocate_from_zones(request, Location::caller())
    }

    /// [`free`](Self::free) past the caches, for model checkers.
    ///
    /// # Errors
    /// See [`FreeError`].
    ///
    /// # Safety
    /// As for [`free`](Self::free).
    #[cfg(any(loom, shuttle))]
    #[doc(hidden)]
    pub unsafe fn free_past_caches(&self, range: PfnRange) -> Result<(), FreeError> {
        self.free_uncached(range, Location::caller())
    }

    /// Works out where a request looks.
    pub(super) fn search(&self, request: &Request) -> Result<Search<'static>, AllocateError> {
        usable_type(request.migrate_type)?;
        let (first, exact) = match request.node {
            NodeChoice::Any => (self.local_node(), false),
            NodeChoice::Preferred(node) => (node, false),
            NodeChoice::Exact(node) => (node, true),
        };
        if first.index() >= self.nodes.len() {
            return Err(AllocateError::NoNode(first));
        }
        let migrate_type = request.migrate_type;
        // Memory beyond the direct map cannot be cleared.
        let limit = if request.zeroed { self.platform.direct_limit() } else { u64::MAX };
        let (highest, max_address) = request.zone.within(request.max_address.min(limit));
        Ok(Search {
            first,
            wanted: first,
            is_named: request.node != NodeChoice::Any,
            allowed: if exact { Allowed::Only(first) } else { Allowed::All },
            highest,
            max_address,
            migrate_type,
        })
    }

    pub(super) fn try_zone(
        &self,
        zone: &Zone,
        search: &Search,
        order: Order,
        mark: Mark,
    ) -> Option<PfnRange> {
        self.try_zone_known(zone, search, order, mark).map(|(taken, _)| taken)
    }

    fn try_zone_known(
        &self,
        zone: &Zone,
        search: &Search,
        order: Order,
        mark: Mark,
    ) -> Option<(PfnRange, bool)> {
        if !self.allows(mark, zone, search, order) {
            return None;
        }
        let max = Pfn::containing(search.max_address);
        loop {
            let taken = zone.allocate(self.platform, order, search.migrate_type, max);
            if taken.is_some() {
                self.note_node(zone, search, order.pages());
                return taken;
            }
            let migrate_type = search.migrate_type;
            let more = Growing { pages: order.pages(), least: order, max, migrate_type };
            if !self.grow(zone, &more) {
                return None;
            }
        }
    }

    /// Counts pages that a search found in a zone for the NUMA statistics, unless they come from
    /// the wanted node and that is the caller's own.
    #[inline]
    pub(super) fn note_node(&self, zone: &Zone, search: &Search, pages: u64) {
        if !cfg!(feature = "numa") {
            return;
        }
        let node = zone.id().node;
        if (search.is_named || node != search.wanted) && pages != 0 {
            let local = if search.is_named { self.local_node() } else { search.wanted };
            self.pressure.numa.note(node, search.wanted, local, pages);
        }
    }

    pub(super) fn local_node(&self) -> NodeId {
        if !cfg!(feature = "numa") {
            return NodeId::ZERO;
        }
        let node = self.pinned(|cpu| self.platform.cpu_node(cpu));
        if node.index() < self.nodes.len() { node } else { NodeId::ZERO }
    }

    /// Allocates the frames of `order` that begin at `start`. Ignores watermarks: a caller that
    /// names a place needs that very place.
    ///
    /// # Errors
    /// See [`AllocateError`].
    #[track_caller]
    pub fn allocate_at(
        &self,
        start: Pfn,
        order: Order,
        migrate_type: MigrateType,
    ) -> Result<PfnRange, AllocateError> {
        if !start.is_aligned(order) {
            return Err(AllocateError::NotAligned { start, order });
        }
        usable_type(migrate_type)?;
        let wanted = PfnRange::of_order(start, order);
        let not_free = AllocateError::NotFree(wanted);
        let segment =
            block_number(start).and_then(|block| self.segment_of(block)).ok_or(not_free)?;
        let zone = self.zones().get(usize::from(segment.zone)).ok_or(not_free)?;
        let attempt = || zone.allocate_at(self.platform, start, order, migrate_type);
        // Read before the attempt: another CPU may bring the range up between the attempt and this
        // test.
        let withheld = self.is_withheld(zone, wanted);
        let mut taken = attempt();
        if taken.is_none() && withheld {
            self.grow_at(zone, wanted);
            taken = attempt();
        }
        if taken.is_none() && self.caches.iter().any(|cache| cache.find(wanted).is_some()) {
            self.drain_for_more();
            taken = attempt();
        }
        let taken = taken.ok_or(not_free)?;
        // The rest of a block that was split for this may have another migrate type now, and others
        // may wait for memory of that type.
        self.pressure.epoch.note_free();
        if self.pressure.epoch.wants_attention() {
            self.after_allocation(iter::once(taken), false, Location::caller())?;
        }
        Ok(taken)
    }

    /// Frees frames: what one call allocated, a part of it, or several neighbouring allocations of
    /// one zone. With `page_owner=on`, neighbours that were allocated at different source lines are
    /// reported as a free of the wrong size.
    ///
    /// The manager's own tables, the vmemmap as bring-up made it, and memory kept for pools are not
    /// allocated, so they cannot be freed. Frames that the vmemmap array took later, when parts of
    /// it were given back or restored, are ordinary allocations of the manager.
    ///
    /// A range that requests could have been given and that is at most a block goes into the CPU's
    /// cache. Every build detects at this call a mistake that the state of the block shows: that
    /// the block is free, a pool's or the manager's own. All other mistakes are found where
    /// [`free_order`](Self::free_order) finds them: at this call in builds with debug assertions
    /// and with `page_owner=on`, otherwise when the range leaves the cache. Every build checks all
    /// other ranges at this call, except for frames that are in a cache because they were freed
    /// before.
    ///
    /// # Errors
    /// See [`FreeError`]; nothing of `range` has then changed hands (invariant 13), if the error
    /// [is about](FreeError::concerns) that range.
    ///
    /// # Safety
    /// See [*Owning memory*](super#owning-memory): the caller owns all frames of `range`, and
    /// nobody uses them any more.
    #[inline]
    #[track_caller]
    pub unsafe fn free(&self, range: PfnRange) -> Result<(), FreeError> {
        if cfg!(debug_assertions) && !range.is_empty() {
            self.check_free(range).map_err(|error| self.explained(error))?;
        }
        self.free_plain(range, Location::caller())
    }

    /// [`free`](Self::free) of a range that the cache did not take; `put` may say why.
    #[inline(never)]
    pub(super) fn free_any(
        &self,
        range: PfnRange,
        put: Option<Put>,
        place: Place,
    ) -> Result<(), FreeError> {
        if range.is_empty() {
            return Err(FreeError::Empty(range));
        }
        if put == Some(Put::DoubleFree) {
            return Err(FreeError::free_already(range.start));
        }
        match self.free_cached(range, put, place) {
            Some(freed) => freed,
            None => self.free_uncached(range, place),
        }
    }

    /// [`free`](Self::free) directly into the zone.
    pub(crate) fn free_uncached(&self, range: PfnRange, place: Place) -> Result<(), FreeError> {
        if self.pressure.epoch.wants_attention() {
            self.before_free(range, true, place)?;
        }
        self.free_bare(range)
    }

    /// [`free`](Self::free) into the zone without debug aids, for a range that is not empty.
    pub(super) fn free_bare(&self, range: PfnRange) -> Result<(), FreeError> {
        match self.zone_of_range(range) {
            Ok((zone, segment)) => {
                let freed = zone.free(self.platform, segment, range);
                // Also after an error: two CPUs that free one range at the same time may each free
                // parts of it.
                self.pressure.epoch.note_free();
                freed
            }
            Err(FreeError::SpansZones(_)) if cfg!(any(feature = "smp", feature = "hotplug")) => {
                self.free_in_pieces(range)
            }
            Err(error) => Err(error),
        }
    }

    /// [`free_bare`](Self::free_bare) of frames that bring-up may have kept for the vmemmap.
    pub(super) fn free_kept(&self, range: PfnRange) -> Result<(), FreeError> {
        for piece in self.pieces(range)? {
            piece.zone.end_keeping(self.platform, piece.segment, piece.range);
        }
        self.free_bare(range)
    }

    /// Returns the zone and the segment that hold all of a range, which is not empty. A range that
    /// lies in several parts of one zone is an error here (it spans zones);
    /// [`pieces`](Self::pieces) handles such ranges.
    pub(super) fn zone_of_range(
        &self,
        range: PfnRange,
    ) -> Result<(&'static Zone, &'static Segment), FreeError> {
        let (start, last) = (block_number(range.start), block_number(Pfn(range.end.0 - 1)));
        let start = start.ok_or(FreeError::NotManaged(range.start))?;
        let last = last.ok_or(FreeError::NotManaged(Pfn(range.end.0 - 1)))?;
        let segment = self.segment_of(start).ok_or(FreeError::NotManaged(range.start))?;
        let zone = self
            .zones()
            .get(usize::from(segment.zone))
            .ok_or(FreeError::NotManaged(range.start))?;
        if last >= segment.end() {
            let end = segment.end();
            return Err(match self.segment_of(end) {
                Some(next) if next.zone != segment.zone => FreeError::SpansZones(range),
                _ => FreeError::NotManaged(end.start()),
            });
        }
        Ok((zone, segment))
    }
}

/// Refuses types that are not for requests: those of isolated blocks and of grades.
pub(super) fn usable_type(migrate_type: MigrateType) -> Result<(), AllocateError> {
    if migrate_type.is_mergeable() { Ok(()) } else { Err(AllocateError::BadType(migrate_type)) }
}

/// The block of a frame that a caller names, unless the frame lies beyond the physical address
/// space. Numbers that do not come from callers are of existing memory and need no such check.
#[inline]
pub(super) fn block_number(pfn: Pfn) -> Option<BlockNumber> {
    const END: u64 = crate::units::PHYSICAL_ADDRESS_END >> crate::units::PAGE_SHIFT;
    (pfn.0 < END).then(|| BlockNumber::containing(pfn))
}
