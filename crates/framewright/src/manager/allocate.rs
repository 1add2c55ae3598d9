//! Requests across zones and nodes.

use super::Manager;
use crate::block::MigrateType;
use crate::early::NodeChoice;
use crate::map_space::{BlockNumber, BlockRange};
use crate::platform::Platform;
use crate::units::{NodeId, Order, PAGES_PER_BLOCK, Pfn, PfnRange};
use crate::zone::{FreeError, Zone, ZoneKind, segment};
use core::fmt;

/// What is wanted. Start from [`Request::new`] and change what differs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// How large, and aligned to its size.
    pub order: Order,
    /// What the memory will be used for.
    pub migrate_type: MigrateType,
    /// Where; [`NodeChoice::Any`] means near the calling CPU.
    pub node: NodeChoice,
    /// The highest zone that will do; lower ones are taken when it has nothing.
    pub zone: ZoneKind,
    /// One past the highest address that will do.
    pub max_address: u64,
    /// Whether the request may use what is kept for emergencies.
    pub reserves: bool,
}

impl Request {
    /// Movable memory of `order` near the caller, at any address.
    #[must_use]
    pub const fn new(order: Order) -> Self {
        Self {
            order,
            migrate_type: MigrateType::Movable,
            node: NodeChoice::Any,
            zone: ZoneKind::Normal,
            max_address: u64::MAX,
            reserves: false,
        }
    }
}

/// Why a request was not served. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllocateError {
    /// No zone that will do has a block large enough above its watermark.
    OutOfMemory {
        /// What was wanted.
        order: Order,
    },
    /// The order is below 9: pages are not blocks.
    OrderTooSmall(Order),
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
            Self::OutOfMemory { order } => write!(f, "out of memory: no free block of {order:?}"),
            Self::OrderTooSmall(order) => write!(f, "{order:?} is not a block order (9..=18)"),
            Self::NotAligned { start, order } => write!(f, "pfn {start} is not aligned to {order:?}"),
            Self::NotFree(range) => write!(f, "{range:?} is not free"),
            Self::NoNode(node) => write!(f, "there is no node {node}"),
        }
    }
}

impl core::error::Error for AllocateError {}

/// Which mark a pass keeps: first where memory is plenty, then where it will do, then what is left.
#[derive(Clone, Copy)]
enum Mark {
    Low,
    Min,
    Nothing,
}

impl<P: Platform> Manager<P> {
    /// Allocates a block. Zones are asked from the wanted one down on the wanted node, then on the others by distance; all of them first
    /// above their low watermark, then above their min watermark (SPEC 3.5).
    ///
    /// # Errors
    /// See [`AllocateError`].
    pub fn allocate(&self, request: &Request) -> Result<PfnRange, AllocateError> {
        if request.order < Order::BLOCK {
            return Err(AllocateError::OrderTooSmall(request.order));
        }
        let (first, exact) = match request.node {
            NodeChoice::Any => (self.local_node(), false),
            NodeChoice::Preferred(node) => (node, false),
            NodeChoice::Exact(node) => (node, true),
        };
        let node = self.nodes.get(first.index()).ok_or(AllocateError::NoNode(first))?;
        let passes: &[Mark] =
            if request.reserves { &[Mark::Low, Mark::Min, Mark::Nothing] } else { &[Mark::Low, Mark::Min] };
        for &mark in passes {
            for &candidate in node.fallback {
                if exact && candidate != first {
                    continue;
                }
                for kind in ZoneKind::ALL.into_iter().rev().filter(|&kind| kind <= request.zone) {
                    let Some(zone) = self.zone_of_kind(candidate, kind) else { continue };
                    if let Some(taken) = self.try_zone(zone, request, mark) {
                        return Ok(taken);
                    }
                }
            }
        }
        Err(AllocateError::OutOfMemory { order: request.order })
    }

    fn try_zone(&self, zone: &Zone, request: &Request, mark: Mark) -> Option<PfnRange> {
        let marks = zone.watermarks();
        let allowed = match mark {
            Mark::Low => zone.allows(request.order.pages(), marks.low_pages, request.zone),
            Mark::Min => zone.allows(request.order.pages(), marks.min_pages, request.zone),
            Mark::Nothing => true,
        };
        let max = Pfn::containing(request.max_address);
        if allowed { zone.allocate(self.platform, request.order, request.migrate_type, max) } else { None }
    }

    fn local_node(&self) -> NodeId {
        let cpu = self.platform.pin();
        let node = self.platform.cpu_node(cpu.index());
        self.platform.unpin(cpu);
        if node.index() < self.nodes.len() { node } else { NodeId::ZERO }
    }

    /// Allocates the blocks of `order` that begin at `start`. Watermarks are not looked at: who names a place has a reason.
    ///
    /// # Errors
    /// See [`AllocateError`].
    pub fn allocate_at(&self, start: Pfn, order: Order, migrate_type: MigrateType) -> Result<PfnRange, AllocateError> {
        if order < Order::BLOCK {
            return Err(AllocateError::OrderTooSmall(order));
        }
        if !start.is_aligned(order) {
            return Err(AllocateError::NotAligned { start, order });
        }
        let wanted = PfnRange::new(start.0, start.0.saturating_add(order.pages()));
        let not_free = AllocateError::NotFree(wanted);
        let block = block_number(start).ok_or(not_free)?;
        let segment = segment::find(self.directory, block).ok_or(not_free)?;
        let zone = self.zones.get(usize::from(segment.zone)).ok_or(not_free)?;
        zone.allocate_at(self.platform, block, order, migrate_type).ok_or(not_free)
    }

    /// Gives blocks back: what one call allocated, a part of it, or several neighbouring allocations of one zone.
    ///
    /// # Errors
    /// See [`FreeError`]; nothing has then changed (invariant 13).
    pub fn free(&self, range: PfnRange) -> Result<(), FreeError> {
        let unaligned = |pfn: Pfn| !pfn.is_aligned(Order::BLOCK);
        if range.is_empty() || unaligned(range.start) || unaligned(range.end) {
            return Err(FreeError::NotBlocks(range));
        }
        let start = block_number(range.start).ok_or(FreeError::NotManaged(range.start))?;
        let segment = segment::find(self.directory, start).ok_or(FreeError::NotManaged(range.start))?;
        let zone = self.zones.get(usize::from(segment.zone)).ok_or(FreeError::NotManaged(range.start))?;
        let blocks = range.pages() / PAGES_PER_BLOCK;
        if blocks > u64::from(segment.end().0 - start.0) {
            let end = segment.end();
            return Err(match segment::find(self.directory, end) {
                Some(next) if next.zone != segment.zone => FreeError::SpansZones(range),
                _ => FreeError::NotManaged(end.start()),
            });
        }
        let end = BlockNumber(start.0 + u32::try_from(blocks).unwrap_or(0));
        zone.free(self.platform, segment, BlockRange { start, end })
    }
}

/// The block of a frame, unless it lies beyond the address space.
fn block_number(pfn: Pfn) -> Option<BlockNumber> {
    (pfn.address() >> crate::units::PAGE_SHIFT == pfn.0 && pfn.address() < crate::units::PHYSICAL_ADDRESS_END)
        .then(|| BlockNumber::containing(pfn))
}
