//! Requests across zones and nodes.

use super::{Manager, Node};
use crate::block::MigrateType;
use crate::early::NodeChoice;
use crate::frames;
use crate::map_space::BlockNumber;
use crate::platform::Platform;
use crate::units::{NodeId, Order, Pfn, PfnRange};
use crate::zone::{FreeError, Segment, Zone, ZoneKind, segment};
use core::fmt;

/// What is wanted. Start from [`Request::new`] or [`Request::pages`] and change what differs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// How many frames in one run, at most 1 GiB.
    pub pages: u64,
    /// Alignment of the first frame; at least that of the smallest order that holds `pages` is given anyway.
    pub align: Order,
    /// The run crosses no multiple of this many frames; a power of two, or 0 for none.
    pub boundary_pages: u64,
    /// What the memory will be used for.
    pub migrate_type: MigrateType,
    /// Where; [`NodeChoice::Any`] means near the calling CPU.
    pub node: NodeChoice,
    /// The highest zone that will do; lower ones are taken when it has nothing.
    pub zone: ZoneKind,
    /// One past the highest address that will do.
    pub max_address: u64,
    /// Whether the content is zero; otherwise it is undefined.
    pub zeroed: bool,
    /// Whether the request may use what is kept for emergencies.
    pub reserves: bool,
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
        }
    }

    /// The order that is taken for it, before what is too much goes back.
    fn order(&self) -> Result<Order, AllocateError> {
        let order = Order::for_pages(self.pages).filter(|_| self.pages != 0);
        let order = order.ok_or(AllocateError::BadSize { pages: self.pages })?.max(self.align);
        // A run of naturally aligned power-of-two frames crosses no larger multiple, so only a boundary smaller than the run is in the way.
        let fits =
            self.boundary_pages == 0 || self.boundary_pages.is_power_of_two() && self.pages <= self.boundary_pages;
        if fits { Ok(order) } else { Err(AllocateError::BadBoundary { boundary_pages: self.boundary_pages }) }
    }
}

/// Why a request was not served. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllocateError {
    /// No zone that will do has a run large enough above its watermark.
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
}

impl fmt::Display for AllocateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory { order } => write!(f, "out of memory: no free run of {order:?} where it was wanted"),
            Self::BadSize { pages } => {
                write!(f, "cannot allocate {pages} pages in one run: 1 to {} are possible", Order::MAX.pages())
            }
            Self::BadBoundary { boundary_pages } => {
                write!(f, "cannot keep within {boundary_pages} pages: a power of two that holds the run is possible")
            }
            Self::NotAligned { start, order } => write!(f, "pfn {start} is not aligned to {order:?}"),
            Self::NotFree(range) => write!(f, "{range:?} is not free"),
            Self::NoNode(node) => write!(f, "there is no node {node}"),
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
    /// Pages that a request for zones up to `highest` leaves in `zone`.
    fn keeps(self, zone: &Zone, highest: ZoneKind) -> u64 {
        let marks = zone.watermarks();
        match self {
            Self::Low => zone.keeps(marks.low_pages, highest),
            Self::Min => zone.keeps(marks.min_pages, highest),
            Self::Nothing => 0,
        }
    }
}

fn passes(request: &Request) -> &'static [Mark] {
    if request.reserves { &[Mark::Low, Mark::Min, Mark::Nothing] } else { &[Mark::Low, Mark::Min] }
}

impl<P: Platform> Manager<P> {
    /// Allocates a run of frames. Zones are asked from the wanted one down on the wanted node, then on the others by distance; all of them first
    /// above their low watermark, then above their min watermark (SPEC 3.5).
    ///
    /// # Errors
    /// See [`AllocateError`].
    pub fn allocate(&self, request: &Request) -> Result<PfnRange, AllocateError> {
        let order = request.order()?;
        let drains = self.drains();
        let mut taken = self.find(request, order).or_else(|error| {
            let short = matches!(error, AllocateError::OutOfMemory { .. });
            if short && self.drain_for_more(drains) { self.find(request, order) } else { Err(error) }
        })?;
        let end = taken.start.add(request.pages);
        if end < taken.end {
            // Just allocated and nobody else's, so that this cannot fail.
            let _ = self.free(PfnRange { start: end, end: taken.end });
            taken.end = end;
        }
        if request.zeroed {
            frames::zero(self.platform, taken);
        }
        Ok(taken)
    }

    fn find(&self, request: &Request, order: Order) -> Result<PfnRange, AllocateError> {
        let (first, exact) = self.place(request);
        let node = self.nodes.get(first.index()).ok_or(AllocateError::NoNode(first))?;
        for &mark in passes(request) {
            for zone in self.zonelist(node, first, exact, request.zone) {
                if let Some(taken) = self.try_zone(zone, request, order, mark) {
                    return Ok(taken);
                }
            }
        }
        Err(AllocateError::OutOfMemory { order })
    }

    /// Allocates up to `pages.len()` single frames, which need not be neighbours; returns how many. Fewer only when memory is short.
    /// `request` says where and what for; its size, alignment and boundary are not looked at.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate), when not one frame was found.
    pub fn allocate_bulk(&self, request: &Request, pages: &mut [Pfn]) -> Result<usize, AllocateError> {
        let drains = self.drains();
        let mut done = self.fill(request, pages)?;
        if done < pages.len() && self.drain_for_more(drains) {
            done += self.fill(request, &mut pages[done..])?;
        }
        if done == 0 && !pages.is_empty() {
            return Err(AllocateError::OutOfMemory { order: Order::PAGE });
        }
        if request.zeroed {
            for &page in &pages[..done] {
                frames::zero(self.platform, PfnRange { start: page, end: page.add(1) });
            }
        }
        Ok(done)
    }

    /// Single frames from all zones that will do, until `pages` is full; how many.
    fn fill(&self, request: &Request, pages: &mut [Pfn]) -> Result<usize, AllocateError> {
        let (first, exact) = self.place(request);
        let node = self.nodes.get(first.index()).ok_or(AllocateError::NoNode(first))?;
        let mut done = 0;
        for &mark in passes(request) {
            for zone in self.zonelist(node, first, exact, request.zone) {
                if zone.span().end.address() <= request.max_address {
                    let keep = mark.keeps(zone, request.zone);
                    done += zone.allocate_bulk(self.platform, request.migrate_type, keep, &mut pages[done..]);
                } else {
                    // A limit inside the zone: one at a time.
                    while let Some(page) = pages.get_mut(done)
                        && let Some(taken) = self.try_zone(zone, request, Order::PAGE, mark)
                    {
                        *page = taken.start;
                        done += 1;
                    }
                }
            }
        }
        Ok(done)
    }

    /// Empties the caches when they may hold what is missing: what CPUs keep for themselves others lack. Whether there is more since there were `drains`,
    /// through us or through somebody else; a bad frame found in a cache does not keep the good ones back.
    fn drain_for_more(&self, drains: u32) -> bool {
        let may_help = self.cached_pages() != 0 || !self.drains().is_multiple_of(2);
        may_help && self.drain() != Ok(0) || self.drains() != drains
    }

    /// The node to begin with, and whether it is the only one.
    fn place(&self, request: &Request) -> (NodeId, bool) {
        match request.node {
            NodeChoice::Any => (self.local_node(), false),
            NodeChoice::Preferred(node) => (node, false),
            NodeChoice::Exact(node) => (node, true),
        }
    }

    /// Zones in the order in which they are asked.
    fn zonelist(
        &self,
        node: &'static Node,
        first: NodeId,
        exact: bool,
        highest: ZoneKind,
    ) -> impl Iterator<Item = &'static Zone> + '_ {
        let kinds = ZoneKind::ALL.into_iter().rev().filter(move |&kind| kind <= highest);
        let nodes = node.fallback.iter().filter(move |&&candidate| !exact || candidate == first);
        nodes.flat_map(move |&candidate| kinds.clone().filter_map(move |kind| self.zone_of_kind(candidate, kind)))
    }

    pub(super) fn try_zone(&self, zone: &Zone, request: &Request, order: Order, mark: Mark) -> Option<PfnRange> {
        let left = zone.free_pages().checked_sub(order.pages())?;
        if left < mark.keeps(zone, request.zone) {
            return None;
        }
        zone.allocate(self.platform, order, request.migrate_type, Pfn::containing(request.max_address))
    }

    fn local_node(&self) -> NodeId {
        let cpu = self.platform.pin();
        let node = self.platform.cpu_node(cpu.index());
        self.platform.unpin(cpu);
        if node.index() < self.nodes.len() { node } else { NodeId::ZERO }
    }

    /// Allocates the frames of `order` that begin at `start`. Watermarks are not looked at: who names a place has a reason.
    ///
    /// # Errors
    /// See [`AllocateError`].
    pub fn allocate_at(&self, start: Pfn, order: Order, migrate_type: MigrateType) -> Result<PfnRange, AllocateError> {
        if !start.is_aligned(order) {
            return Err(AllocateError::NotAligned { start, order });
        }
        let wanted = PfnRange::new(start.0, start.0.saturating_add(order.pages()));
        let not_free = AllocateError::NotFree(wanted);
        let block = block_number(start).ok_or(not_free)?;
        let segment = segment::find(self.directory, block).ok_or(not_free)?;
        let zone = self.zones.get(usize::from(segment.zone)).ok_or(not_free)?;
        zone.allocate_at(self.platform, start, order, migrate_type).ok_or(not_free)
    }

    /// Gives frames back: what one call allocated, a part of it, or several neighbouring allocations of one zone.
    ///
    /// # Errors
    /// See [`FreeError`]; nothing has then changed (invariant 13).
    pub fn free(&self, range: PfnRange) -> Result<(), FreeError> {
        if range.is_empty() {
            return Err(FreeError::Empty(range));
        }
        let (zone, segment) = self.zone_of_range(range)?;
        zone.free(self.platform, segment, range)
    }

    /// The zone and the segment that hold all of a range, which is not empty.
    pub(super) fn zone_of_range(&self, range: PfnRange) -> Result<(&'static Zone, &'static Segment), FreeError> {
        let (start, last) = (block_number(range.start), block_number(Pfn(range.end.0 - 1)));
        let start = start.ok_or(FreeError::NotManaged(range.start))?;
        let last = last.ok_or(FreeError::NotManaged(Pfn(range.end.0 - 1)))?;
        let segment = segment::find(self.directory, start).ok_or(FreeError::NotManaged(range.start))?;
        let zone = self.zones.get(usize::from(segment.zone)).ok_or(FreeError::NotManaged(range.start))?;
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

/// The block of a frame, unless it lies beyond the address space.
fn block_number(pfn: Pfn) -> Option<BlockNumber> {
    (pfn.address() >> crate::units::PAGE_SHIFT == pfn.0 && pfn.address() < crate::units::PHYSICAL_ADDRESS_END)
        .then(|| BlockNumber::containing(pfn))
}
