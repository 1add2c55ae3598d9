//! Requests across zones and nodes.

use super::Manager;
use super::pressure::ORDINARY;
use super::vmemmap::is_withheld;
use crate::block::MigrateType;
use crate::debug::Damage;
use crate::frames;
use crate::memblock::NodeChoice;
use crate::platform::Platform;
use crate::units::{NodeId, Order, Pfn, PfnRange};
use crate::vmemmap_space::{BlockNumber, MAP_PAGES_PER_BLOCK};
use crate::zone::{FreeError, Segment, Zone, ZoneKind, segment};
use core::panic::Location;
use core::{fmt, iter};

/// What is wanted. Start from [`Request::new`] or [`Request::pages`] and change what differs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// How many frames in one run, at most 1 GiB.
    pub pages: u64,
    /// Alignment of the first frame; at least that of the smallest order that holds `pages` is
    /// given anyway.
    pub align: Order,
    /// The run crosses no multiple of this many frames; a power of two, or 0 for none.
    pub boundary_pages: u64,
    /// What the memory will be used for: one of the types that [can
    /// merge](MigrateType::is_mergeable).
    pub migrate_type: MigrateType,
    /// Where; [`NodeChoice::Any`] means near the calling CPU.
    pub node: NodeChoice,
    /// The highest zone that will do; lower ones are taken when it has nothing.
    pub zone: ZoneKind,
    /// One past the highest address that will do.
    pub max_address: u64,
    /// Whether the content is zero; otherwise it is undefined. Who asks for zeros gets memory that
    /// can be written to, below [`Platform::direct_limit`].
    pub zeroed: bool,
    /// Whether the request may use what is kept for emergencies, once draining caches and the
    /// reclaim hook did not help.
    pub reserves: bool,
    /// Whether to fail rather than to drain caches and to call the reclaim hook
    /// ([`Reclaim`](super::Reclaim)) when memory is short: for callers that have another way, or
    /// that hold what the hook needs. Where waiting is not allowed the hook is not called anyway.
    pub fail_fast: bool,
}

impl Request {
    /// Movable memory of `order` near the caller, at any address.
    #[must_use]
    pub const fn new(order: Order) -> Self {
        Self::pages(order.pages())
    }

    /// `pages` frames in one run, movable, near the caller, at any address.
    #[must_use]
    pub const fn pages(pages: u64) -> Self {
        Self {
            pages,
            align: Order::PAGE,
            boundary_pages: 0,
            migrate_type: MigrateType::Movable,
            node: NodeChoice::Any,
            zone: ZoneKind::Normal,
            max_address: u64::MAX,
            zeroed: false,
            reserves: false,
            fail_fast: false,
        }
    }

    /// The order that is taken for it, before what is too much goes back.
    pub(super) fn order(&self) -> Result<Order, AllocateError> {
        let order = Order::for_pages(self.pages).filter(|_| self.pages != 0);
        let order = order.ok_or(AllocateError::BadSize { pages: self.pages })?.max(self.align);
        // A run of naturally aligned power-of-two frames crosses no larger multiple, so only a
        // boundary smaller than the run is in the way.
        let fits = self.boundary_pages == 0
            || self.boundary_pages.is_power_of_two() && self.pages <= self.boundary_pages;
        if fits {
            Ok(order)
        } else {
            Err(AllocateError::BadBoundary { boundary_pages: self.boundary_pages })
        }
    }
}

/// Where a request looks for memory and for what, once its node is known.
#[derive(Clone, Copy)]
pub(super) struct Search {
    first: NodeId,
    /// The node was named, and may not be the caller's.
    is_named: bool,
    exact: bool,
    highest: ZoneKind,
    max_address: u64,
    migrate_type: MigrateType,
}

/// Who wants it does not matter.
impl PartialEq for Search {
    fn eq(&self, other: &Self) -> bool {
        let key = |search: &Self| {
            (search.first, search.exact, search.highest, search.max_address, search.migrate_type)
        };
        key(self) == key(other)
    }
}

impl Eq for Search {}

impl Search {
    /// Anything of a type, near a node.
    pub(super) const fn near(first: NodeId, migrate_type: MigrateType) -> Self {
        let (highest, max_address) = (ZoneKind::Normal, u64::MAX);
        Self { first, is_named: false, exact: false, highest, max_address, migrate_type }
    }

    pub(super) const fn first(&self) -> NodeId {
        self.first
    }

    pub(super) const fn migrate_type(&self) -> MigrateType {
        self.migrate_type
    }

    /// One past the highest address that it may have, which what is to be cleared can make less
    /// than was asked.
    pub(super) const fn max_address(&self) -> u64 {
        self.max_address
    }
}

/// Why a request was not served. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllocateError {
    /// No zone that will do has a run large enough above its watermark. [`Manager::shortfall`] says
    /// which of these it is, and [`report::allocation_failure`](crate::bootlog::allocation_failure)
    /// writes a message with all zones.
    OutOfMemory {
        /// What was wanted.
        order: Order,
    },
    /// The number of pages is zero or more than 1 GiB.
    BadSize {
        /// As given.
        pages: u64,
    },
    /// The boundary is no power of two, or smaller than the run.
    BadBoundary {
        /// As given.
        boundary_pages: u64,
    },
    /// The place is not aligned to the order.
    NotAligned {
        /// The place.
        start: Pfn,
        /// The order.
        order: Order,
    },
    /// The place, or a part of what was wanted there, is not free or not managed.
    NotFree(PfnRange),
    /// There is no such node.
    NoNode(NodeId),
    /// No memory is kept for this type, and freed it would be of use to nobody.
    BadType(MigrateType),
    /// The memory that was found had been written to while it was free (`page_poison=1`). It was
    /// filled again and is free; the next attempt may have it.
    Damaged(Damage),
}

impl fmt::Display for AllocateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory { order } => {
                write!(f, "out of memory: no run of {order:?} to be had where it was wanted")
            }
            Self::BadSize { pages } => {
                write!(
                    f,
                    "cannot allocate {pages} pages in one run: 1 to {} are possible",
                    Order::MAX.pages()
                )
            }
            Self::BadBoundary { boundary_pages } => {
                write!(
                    f,
                    "cannot keep within {boundary_pages} pages: a power of two that holds the run is possible"
                )
            }
            Self::NotAligned { start, order } => {
                write!(f, "pfn {start} is not aligned to {order:?}")
            }
            Self::NotFree(range) => write!(f, "{range:?} is not free"),
            Self::NoNode(node) => write!(f, "there is no node {node}"),
            Self::BadType(migrate_type) => {
                write!(f, "no memory is kept for the migrate type {}", migrate_type.name())
            }
            Self::Damaged(damage) => damage.fmt(f),
        }
    }
}

impl core::error::Error for AllocateError {}

/// Which mark a pass keeps: first where memory is plenty, then where it will do, then what is left.
#[derive(Clone, Copy)]
pub(super) enum Mark {
    Low,
    Min,
    Nothing,
}

impl Mark {
    /// Pages that a request for zones up to `highest` leaves free in `zone`. What is withheld there
    /// counts as left: it comes up when it is wanted.
    pub(super) fn keeps(self, zone: &Zone, highest: ZoneKind) -> u64 {
        self.keeps_of_all(zone, highest).saturating_sub(zone.deferred_pages())
    }

    /// Whether a run of `order` may leave a zone.
    pub(super) fn allows(self, zone: &Zone, highest: ZoneKind, order: Order) -> bool {
        // The block that is kept split gives back its descriptors' frames when a whole block is
        // missing.
        let of_spare =
            if order < Order::BLOCK { 0 } else { zone.map_pages().min(MAP_PAGES_PER_BLOCK) };
        // What is withheld comes up when it is wanted.
        let left =
            (zone.free_pages() + zone.deferred_pages() + of_spare).checked_sub(order.pages());
        left.is_some_and(|left| left >= self.keeps_of_all(zone, highest))
    }

    /// The same of what is free or withheld.
    fn keeps_of_all(self, zone: &Zone, highest: ZoneKind) -> u64 {
        match self {
            Self::Low => zone.watermark_for(zone.low_pages(), highest),
            Self::Min => zone.watermark_for(zone.min_pages(), highest),
            Self::Nothing => 0,
        }
    }
}

impl<P: Platform> Manager<P> {
    /// Allocates a run of frames. Zones are asked from the wanted one down on the wanted node, then
    /// on the others by distance; all of them first above their low watermark, then above their min
    /// watermark (SPEC 3.5). When that fails the caches of CPUs are drained, then the reclaim hook
    /// is asked ([`set_reclaim`](super::Pressure::set_reclaim)), then come the reserves, if the
    /// request may have them.
    ///
    /// # Errors
    /// See [`AllocateError`].
    #[track_caller]
    pub fn allocate(&self, request: &Request) -> Result<PfnRange, AllocateError> {
        let (taken, is_zero) = self.allocate_known(request)?;
        let clear = request.zeroed && !is_zero;
        if self.pressure.quiet.wants_attention() {
            self.after_allocation(iter::once(taken), clear, Location::caller())?;
        } else if clear {
            frames::zero(self.platform, taken);
        }
        Ok(taken)
    }

    /// The same with any content, whatever the request says, and out of sight of debug aids.
    pub(super) fn allocate_bare(&self, request: &Request) -> Result<PfnRange, AllocateError> {
        self.allocate_known(request).map(|(taken, _)| taken)
    }

    /// The same, and whether the memory is known to be zero.
    fn allocate_known(&self, request: &Request) -> Result<(PfnRange, bool), AllocateError> {
        let order = request.order()?;
        let search = self.search(request)?;
        let hopeless = self.pressure.quiet.wants_attention() && self.is_hopeless(&search, order);
        let mut found = if hopeless { None } else { self.find(&search, order, ORDINARY) };
        if found.is_none() {
            let mut attempt =
                |marks: &[Mark]| self.find(&search, order, marks).ok_or(order.pages());
            found = self.press(request, &search, order, hopeless, &mut attempt);
        }
        let (mut taken, is_zero) = found.ok_or(AllocateError::OutOfMemory { order })?;
        let end = taken.start.add(request.pages);
        if end < taken.end {
            // Just allocated and nobody else's, so that this cannot fail.
            let _ = self.free_bare(PfnRange { start: end, end: taken.end });
            taken.end = end;
        }
        Ok((taken, is_zero))
    }

    fn find(&self, search: &Search, order: Order, marks: &[Mark]) -> Option<(PfnRange, bool)> {
        for &mark in marks {
            for zone in self.zonelist(search) {
                if let Some(taken) = self.try_zone_known(zone, search, order, mark) {
                    return Some(taken);
                }
            }
        }
        None
    }

    /// Allocates up to `pages.len()` single frames, which need not be neighbours; returns how many.
    /// Fewer only when memory is short, after everything that [`allocate`](Self::allocate) does
    /// then. `request` says where and what for; its size, alignment and boundary are not looked at.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate), when not one frame was found.
    #[track_caller]
    pub fn allocate_bulk(
        &self,
        request: &Request,
        pages: &mut [Pfn],
    ) -> Result<usize, AllocateError> {
        let done = self.allocate_bulk_bare(request, pages)?;
        let runs = pages[..done].iter().map(|&page| PfnRange { start: page, end: page.add(1) });
        if self.pressure.quiet.wants_attention() {
            self.after_allocation(runs, request.zeroed, Location::caller())?;
        } else if request.zeroed {
            runs.for_each(|run| frames::zero(self.platform, run));
        }
        Ok(done)
    }

    fn allocate_bulk_bare(
        &self,
        request: &Request,
        pages: &mut [Pfn],
    ) -> Result<usize, AllocateError> {
        let search = self.search(request)?;
        let hopeless =
            self.pressure.quiet.wants_attention() && self.is_hopeless(&search, Order::PAGE);
        let mut done = 0;
        let mut attempt = |marks: &[Mark]| {
            done += self.fill(&search, marks, &mut pages[done..]);
            if done == pages.len() { Ok(()) } else { Err((pages.len() - done) as u64) }
        };
        if hopeless || attempt(ORDINARY).is_err() {
            // Whether all were found shows in `done`.
            let _ = self.press(request, &search, Order::PAGE, hopeless, &mut attempt);
        }
        if done == 0 && !pages.is_empty() {
            return Err(AllocateError::OutOfMemory { order: Order::PAGE });
        }
        Ok(done)
    }

    /// Single frames from all zones that will do, until `pages` is full; how many.
    fn fill(&self, search: &Search, marks: &[Mark], pages: &mut [Pfn]) -> usize {
        let mut done = 0;
        for &mark in marks {
            for zone in self.zonelist(search) {
                if zone.span().end.address() <= search.max_address {
                    let keep = mark.keeps(zone, search.highest);
                    loop {
                        let got = zone.allocate_bulk(
                            self.platform,
                            search.migrate_type,
                            keep,
                            &mut pages[done..],
                        );
                        self.note_node(zone, search, got as u64);
                        done += got;
                        let missing = (pages.len() - done) as u64;
                        if missing == 0 || !self.vmemmap().grow(zone, missing, Pfn(u64::MAX)) {
                            break;
                        }
                    }
                } else {
                    // A limit inside the zone: one at a time.
                    while let Some(page) = pages.get_mut(done)
                        && let Some(taken) = self.try_zone(zone, search, Order::PAGE, mark)
                    {
                        *page = taken.start;
                        done += 1;
                    }
                }
            }
        }
        done
    }

    /// Where to look.
    pub(super) fn search(&self, request: &Request) -> Result<Search, AllocateError> {
        usable_type(request.migrate_type)?;
        let (first, exact) = match request.node {
            NodeChoice::Any => (self.local_node(), false),
            NodeChoice::Preferred(node) => (node, false),
            NodeChoice::Exact(node) => (node, true),
        };
        if first.index() >= self.nodes.len() {
            return Err(AllocateError::NoNode(first));
        }
        let Request { zone: highest, max_address, migrate_type, .. } = *request;
        // What cannot be reached cannot be cleared.
        let max_address = if request.zeroed {
            max_address.min(self.platform.direct_limit())
        } else {
            max_address
        };
        Ok(Search {
            first,
            is_named: request.node != NodeChoice::Any,
            exact,
            highest,
            max_address,
            migrate_type,
        })
    }

    /// Zones in the order in which they are asked.
    pub(super) fn zonelist(&self, search: &Search) -> impl Iterator<Item = &'static Zone> + '_ {
        let &Search { first, exact, highest, .. } = search;
        let kinds = ZoneKind::ALL.into_iter().rev().filter(move |&kind| kind <= highest);
        let fallback = self.nodes.get(first.index()).map_or(&[][..], |node| node.fallback);
        let nodes = fallback.iter().filter(move |&&candidate| !exact || candidate == first);
        nodes.flat_map(move |&candidate| {
            kinds.clone().filter_map(move |kind| self.zone_of_kind(candidate, kind))
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
        if !mark.allows(zone, search.highest, order) {
            return None;
        }
        let max = Pfn::containing(search.max_address);
        loop {
            let taken = zone.allocate(self.platform, order, search.migrate_type, max);
            if taken.is_some() {
                self.note_node(zone, search, order.pages());
                return taken;
            }
            if !self.vmemmap().grow(zone, order.pages(), max) {
                return None;
            }
        }
    }

    /// Counts pages of a zone that a search found, unless they are of the wanted node and that is
    /// the caller's.
    #[inline]
    pub(super) fn note_node(&self, zone: &Zone, search: &Search, pages: u64) {
        let node = zone.id().node;
        if (search.is_named || node != search.first) && pages != 0 {
            let local = if search.is_named { self.local_node() } else { search.first };
            self.pressure.numa.note(node, search.first, local, pages);
        }
    }

    pub(super) fn local_node(&self) -> NodeId {
        let node = self.pinned(|cpu| self.platform.cpu_node(cpu));
        if node.index() < self.nodes.len() { node } else { NodeId::ZERO }
    }

    /// Allocates the frames of `order` that begin at `start`. Watermarks are not looked at: who
    /// names a place has a reason.
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
        let wanted = PfnRange::new(start.0, start.0.saturating_add(order.pages()));
        let not_free = AllocateError::NotFree(wanted);
        let block = block_number(start).ok_or(not_free)?;
        let segment = segment::find(self.directory, block).ok_or(not_free)?;
        let zone = self.zones.get(usize::from(segment.zone)).ok_or(not_free)?;
        let attempt = || zone.allocate_at(self.platform, start, order, migrate_type);
        // Asked first: others may bring it up between the attempt and the look.
        let withheld = is_withheld(zone, wanted);
        let mut taken = attempt();
        if taken.is_none() && withheld {
            self.vmemmap().grow_at(zone, wanted);
            taken = attempt();
        }
        let taken = taken.ok_or(not_free)?;
        // What is left of a block that was taken apart may have another type now, which somebody
        // waits for.
        self.pressure.quiet.stir();
        if self.pressure.quiet.wants_attention() {
            self.after_allocation(iter::once(taken), false, Location::caller())?;
        }
        Ok(taken)
    }

    /// Gives frames back: what one call allocated, a part of it, or several neighbouring
    /// allocations of one zone. With `page_owner=on` neighbours that were allocated at different
    /// lines are taken for a wrong size.
    ///
    /// The manager's own tables, the vmemmap as bring-up made it, and what is kept for pools are
    /// not allocated. Frames that the array took later, when its parts were given back or restored,
    /// are its own allocations like anybody's. What is in the cache of a CPU, because it was freed
    /// before, is taken for allocated but by builds with debug assertions, as in
    /// [`free_order`](Self::free_order), and with `page_owner=on`.
    ///
    /// # Errors
    /// See [`FreeError`]; nothing has then changed (invariant 13).
    ///
    /// # Safety
    /// See [*Owning memory*](super#owning-memory): the caller owns all frames of `range`, and
    /// nobody uses them any more.
    #[track_caller]
    pub unsafe fn free(&self, range: PfnRange) -> Result<(), FreeError> {
        if range.is_empty() {
            return Err(FreeError::Empty(range));
        }
        if cfg!(debug_assertions) {
            self.check_free(range).map_err(|error| self.explained(error))?;
        }
        if self.pressure.quiet.wants_attention() {
            self.before_free(range, true, Location::caller())?;
        }
        self.free_bare(range)
    }

    /// The same out of sight of debug aids, for a range that is not empty.
    pub(super) fn free_bare(&self, range: PfnRange) -> Result<(), FreeError> {
        let (zone, segment) = self.zone_of_range(range)?;
        zone.free(self.platform, segment, range)?;
        self.pressure.quiet.stir();
        Ok(())
    }

    /// The same for frames that bring-up may have kept for the vmemmap.
    pub(super) fn free_kept(&self, range: PfnRange) -> Result<(), FreeError> {
        let (zone, segment) = self.zone_of_range(range)?;
        zone.end_keeping(self.platform, segment, range);
        self.free_bare(range)
    }

    /// The zone and the segment that hold all of a range, which is not empty.
    pub(super) fn zone_of_range(
        &self,
        range: PfnRange,
    ) -> Result<(&'static Zone, &'static Segment), FreeError> {
        let (start, last) = (block_number(range.start), block_number(Pfn(range.end.0 - 1)));
        let start = start.ok_or(FreeError::NotManaged(range.start))?;
        let last = last.ok_or(FreeError::NotManaged(Pfn(range.end.0 - 1)))?;
        let segment =
            segment::find(self.directory, start).ok_or(FreeError::NotManaged(range.start))?;
        let zone =
            self.zones.get(usize::from(segment.zone)).ok_or(FreeError::NotManaged(range.start))?;
        if last >= segment.end() {
            let end = segment.end();
            return Err(match segment::find(self.directory, end) {
                Some(next) if next.zone != segment.zone => FreeError::SpansZones(range),
                _ => FreeError::NotManaged(end.start()),
            });
        }
        Ok((zone, segment))
    }
}

/// Refuses types for which no memory is kept: they take from no other, and no other takes from
/// them.
pub(super) fn usable_type(migrate_type: MigrateType) -> Result<(), AllocateError> {
    if migrate_type.is_mergeable() { Ok(()) } else { Err(AllocateError::BadType(migrate_type)) }
}

/// The block of a frame, unless it lies beyond the address space.
fn block_number(pfn: Pfn) -> Option<BlockNumber> {
    (pfn.address() >> crate::units::PAGE_SHIFT == pfn.0
        && pfn.address() < crate::units::PHYSICAL_ADDRESS_END)
        .then(|| BlockNumber::containing(pfn))
}
