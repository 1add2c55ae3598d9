//! What a request asks for, where it looks, and why it fails.

use crate::block::MigrateType;
use crate::debug::Damage;
use crate::memblock::NodeChoice;
use crate::units::{NodeId, NodeMask, Order, Pfn, PfnRange};
use crate::zone::{Zone, ZoneKind};
use core::fmt;

/// A request for memory. Start from [`Request::new`] or [`Request::pages`] and change what differs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// How many frames in one run, at most 1 GiB.
    pub pages: u64,
    /// Alignment of the first frame. Every run is at least aligned to the smallest order that holds
    /// `pages`.
    pub align: Order,
    /// The run crosses no multiple of this many frames; a power of two, or 0 for no boundary.
    pub boundary_pages: u64,
    /// What the memory will be used for: one of the types that [can
    /// merge](MigrateType::is_mergeable).
    pub migrate_type: MigrateType,
    /// The node; [`NodeChoice::Any`] means near the calling CPU.
    pub node: NodeChoice,
    /// The highest zone that will do; lower zones serve when it has no memory.
    pub zone: ZoneKind,
    /// One past the highest address that will do.
    pub max_address: u64,
    /// Whether the content is zero; otherwise it is undefined. Zeroed memory lies below
    /// [`Platform::direct_limit`](crate::Platform::direct_limit), as the manager has to write to
    /// it.
    pub zeroed: bool,
    /// How far the request may go into the emergency reserves, once draining caches and the reclaim
    /// hook did not help.
    pub reserves: Reserves,
    /// Whether to fail when memory is short, without draining caches or calling the reclaim hook
    /// ([`Reclaim`](super::Reclaim)): for callers that have an alternative, or that hold what the
    /// hook needs. The hook is never called where waiting is not allowed.
    pub fail_fast: bool,
}

/// How much a request may have of the memory that other requests leave below a zone's min watermark
/// (Linux: `mm/page_alloc.c`, `__zone_watermark_ok`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Reserves {
    /// Nothing.
    #[default]
    None,
    /// Half: for requests that others wait for (`__GFP_HIGH`).
    Half,
    /// Five eighths: for such requests from contexts that cannot wait (`GFP_ATOMIC`).
    Atomic,
    /// All, lowmem reserves included: for callers that free memory with it (`__GFP_MEMALLOC`).
    All,
}

impl Reserves {
    /// Returns the lowest mark that such a request keeps to.
    pub(super) const fn mark(self) -> Mark {
        match self {
            Self::None => Mark::Min,
            Self::Half => Mark::Half,
            Self::Atomic => Mark::Atomic,
            Self::All => Mark::Nothing,
        }
    }
}

impl Request {
    /// A request for movable memory of `order` near the caller, at any address.
    #[must_use]
    pub const fn new(order: Order) -> Self {
        Self::pages(order.pages())
    }

    /// A request for `pages` frames in one run, movable, near the caller, at any address.
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
            reserves: Reserves::None,
            fail_fast: false,
        }
    }

    /// Returns the order to allocate, which the allocation then cuts to `pages`.
    pub(super) fn order(&self) -> Result<Order, AllocateError> {
        let order = Order::for_pages(self.pages).filter(|_| self.pages != 0);
        let order = order.ok_or(AllocateError::BadSize { pages: self.pages })?.max(self.align);
        // A naturally aligned power-of-two run crosses no multiple of its size or more, so only a
        // boundary smaller than the run cannot be kept.
        let fits = self.boundary_pages == 0
            || self.boundary_pages.is_power_of_two() && self.pages <= self.boundary_pages;
        if fits {
            Ok(order)
        } else {
            Err(AllocateError::BadBoundary { boundary_pages: self.boundary_pages })
        }
    }
}

/// The nodes that may serve a request. A set is borrowed, so that requests for any node, or for
/// one, build none.
#[derive(Clone, Copy)]
pub(crate) enum Allowed<'a> {
    /// All nodes.
    All,
    /// One node.
    Only(NodeId),
    /// Some nodes.
    Set(&'a NodeMask),
}

impl Allowed<'_> {
    pub(super) fn contains(self, node: NodeId) -> bool {
        match self {
            Self::All => true,
            Self::Only(only) => only == node,
            Self::Set(nodes) => nodes.contains(node),
        }
    }

    /// Returns the nodes as a set.
    pub(crate) const fn nodes(self) -> NodeMask {
        match self {
            Self::All => NodeMask::ALL,
            Self::Only(node) => NodeMask::only(node),
            Self::Set(nodes) => *nodes,
        }
    }
}

/// Where a request looks for memory, and of which type, once its node is known.
#[derive(Clone, Copy)]
pub(crate) struct Search<'a> {
    /// The other nodes are asked in order of their distance from this one.
    pub(super) first: NodeId,
    /// The node whose memory is wanted; memory of another node counts as a NUMA miss.
    pub(super) wanted: NodeId,
    /// The request named the node, which may not be the caller's.
    pub(super) is_named: bool,
    /// Only these nodes may serve.
    pub(super) allowed: Allowed<'a>,
    pub(super) highest: ZoneKind,
    pub(super) max_address: u64,
    pub(super) migrate_type: MigrateType,
}

impl Search<'_> {
    /// Looks for memory of a type, anywhere near a node.
    pub(super) const fn near(first: NodeId, migrate_type: MigrateType) -> Self {
        Self {
            first,
            wanted: first,
            is_named: false,
            allowed: Allowed::All,
            highest: ZoneKind::Normal,
            max_address: u64::MAX,
            migrate_type,
        }
    }

    pub(super) const fn first(&self) -> NodeId {
        self.first
    }

    pub(super) const fn nodes(&self) -> NodeMask {
        self.allowed.nodes()
    }

    pub(super) const fn highest(&self) -> ZoneKind {
        self.highest
    }

    pub(super) const fn migrate_type(&self) -> MigrateType {
        self.migrate_type
    }

    /// One past the highest address that the request may have. For memory to be cleared this can be
    /// lower than the request said.
    pub(super) const fn max_address(&self) -> u64 {
        self.max_address
    }
}

/// Why a request was not served. A failed request has changed nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllocateError {
    /// No allowed zone has a large enough run above its watermark.
    /// [`Manager::shortfall`](crate::Manager::shortfall) says what is missing, and
    /// [`bootlog::allocation_failure`](crate::bootlog::allocation_failure) writes a message with
    /// all zones.
    OutOfMemory {
        /// The order that was wanted.
        order: Order,
    },
    /// The number of pages is zero or more than 1 GiB.
    BadSize {
        /// The number of pages as given.
        pages: u64,
    },
    /// The boundary is not a power of two, or is smaller than the run.
    BadBoundary {
        /// The boundary as given.
        boundary_pages: u64,
    },
    /// The given place is not aligned to the order.
    NotAligned {
        /// The first frame of the place.
        start: Pfn,
        /// The order.
        order: Order,
    },
    /// The place, or a part of the range wanted there, is not free or not managed.
    NotFree(PfnRange),
    /// There is no such node.
    NoNode(NodeId),
    /// No request may name this migrate type: it is that of isolated blocks or of a grade. Movable
    /// requests get the memory of grades.
    BadType(MigrateType),
    /// The memory found had been written to while it was free (`page_poison=1`). It is filled with
    /// poison again and free, so the next attempt may get it.
    Damaged(Damage),
    /// There is no manager yet, and bringing it up has failed
    /// ([`LazyManager`](crate::LazyManager)).
    NoManager,
}

impl fmt::Display for AllocateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory { order } => {
                write!(f, "out of memory: no run of {order:?} where the request allows")
            }
            Self::BadSize { pages } => {
                write!(f, "cannot allocate {pages} pages in one run")
            }
            Self::BadBoundary { boundary_pages } => {
                write!(
                    f,
                    "cannot keep the run within {boundary_pages} pages: a boundary is a power of \
                     two and no smaller than the run"
                )
            }
            Self::NotAligned { start, order } => {
                write!(f, "pfn {start} is not aligned to {order:?}")
            }
            Self::NotFree(range) => write!(f, "{range:?} is not free"),
            Self::NoNode(node) => write!(f, "there is no node {node}"),
            Self::BadType(migrate_type) => {
                let name = migrate_type.name();
                write!(
                    f,
                    "{name} is no migrate type of requests: Movable, Unmovable, Reclaimable are"
                )
            }
            Self::Damaged(damage) => damage.fmt(f),
            Self::NoManager => f.write_str("there is no manager yet"),
        }
    }
}

impl core::error::Error for AllocateError {}

/// The watermark that a pass over the zones keeps to. Passes go from the highest mark down.
#[derive(Clone, Copy)]
pub(super) enum Mark {
    Low,
    Min,
    /// Half of the min watermark.
    Half,
    /// Three eighths of the min watermark.
    Atomic,
    Nothing,
}

impl Mark {
    /// Returns the pages that must stay free or withheld in the whole zone, whatever is free there;
    /// `zone` may be one of its parts.
    pub(super) fn keeps_of_all(
        self,
        zone: &Zone,
        highest: ZoneKind,
        migrate_type: MigrateType,
    ) -> u64 {
        let mark_pages = match self {
            Self::Low => zone.low_pages(migrate_type),
            Self::Min => zone.min_pages(migrate_type),
            Self::Half => half_of_min(zone.min_pages(migrate_type)),
            Self::Atomic => atomic_part_of_min(zone.min_pages(migrate_type)),
            Self::Nothing => return 0,
        };
        zone.watermark_for(mark_pages, highest, migrate_type)
    }
}

/// Half of a zone's min watermark, rounded as in Linux (`mm/page_alloc.c`, `__zone_watermark_ok`).
const fn half_of_min(min_pages: u64) -> u64 {
    min_pages.div_ceil(2)
}

/// Three eighths of a zone's min watermark, for callers that cannot wait.
const fn atomic_part_of_min(min_pages: u64) -> u64 {
    let half = half_of_min(min_pages);
    half - half / 4
}

/// The marks that ordinary requests keep to: first they look where memory is plentiful, then down
/// to the min watermark.
pub(super) const ORDINARY: &[Mark] = &[Mark::Low, Mark::Min];

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::{atomic_part_of_min, half_of_min};

    #[test]
    fn parts_of_min_round_as_linux_does() {
        for (min_pages, half, atomic) in
            [(0, 0, 0), (1, 1, 1), (4, 2, 2), (5, 3, 3), (8, 4, 3), (13, 7, 6), (1024, 512, 384)]
        {
            assert_eq!(half_of_min(min_pages), half, "{min_pages}");
            assert_eq!(atomic_part_of_min(min_pages), atomic, "{min_pages}");
        }
    }
}
