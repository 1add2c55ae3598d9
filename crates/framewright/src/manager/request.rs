//! What a request asks for, where it looks, and why it fails.

use crate::block::MigrateType;
use crate::debug::Damage;
use crate::memblock::NodeChoice;
use crate::units::{NodeId, NodeMask, Order, Pfn, PfnRange};
use crate::zone::{Zone, ZoneKind};
use core::fmt;

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
    /// can be written to, below [`Platform::direct_limit`](crate::Platform::direct_limit).
    pub zeroed: bool,
    /// How much of what is kept for emergencies the request may have, once draining caches and the
    /// reclaim hook did not help.
    pub reserves: Reserves,
    /// Whether to fail rather than to drain caches and to call the reclaim hook
    /// ([`Reclaim`](super::Reclaim)) when memory is short: for callers that have another way, or
    /// that hold what the hook needs. Where waiting is not allowed the hook is not called anyway.
    pub fail_fast: bool,
}

/// How much a request may have of what other requests leave below a zone's min watermark (Linux:
/// `mm/page_alloc.c`, `__zone_watermark_ok`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Reserves {
    /// Nothing.
    #[default]
    None,
    /// Half: for requests that others wait for (`__GFP_HIGH`).
    Half,
    /// Five eighths: for such requests from contexts that cannot wait (`GFP_ATOMIC`).
    Atomic,
    /// All, lowmem reserves included: for those who free memory with it (`__GFP_MEMALLOC`).
    All,
}

impl Reserves {
    /// The mark that such a request keeps at least.
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
            reserves: Reserves::None,
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

/// Which nodes will do. A set is borrowed: a request that names none, or one, writes none.
#[derive(Clone, Copy)]
pub(crate) enum Allowed<'a> {
    /// All that there are.
    All,
    /// One.
    Only(NodeId),
    /// Some.
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

    /// As a set.
    pub(crate) const fn nodes(self) -> NodeMask {
        match self {
            Self::All => NodeMask::ALL,
            Self::Only(node) => NodeMask::only(node),
            Self::Set(nodes) => *nodes,
        }
    }
}

/// Where a request looks for memory and for what, once its node is known.
#[derive(Clone, Copy)]
pub(crate) struct Search<'a> {
    /// The others are asked by how far they are from this one.
    pub(super) first: NodeId,
    /// Whose memory is wanted; another's is counted as a miss.
    pub(super) wanted: NodeId,
    /// The node was named, and may not be the caller's.
    pub(super) is_named: bool,
    /// No other nodes will do.
    pub(super) allowed: Allowed<'a>,
    pub(super) highest: ZoneKind,
    pub(super) max_address: u64,
    pub(super) migrate_type: MigrateType,
}

impl Search<'_> {
    /// Anything of a type, near a node.
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

    /// One past the highest address that it may have, which what is to be cleared can make less
    /// than was asked.
    pub(super) const fn max_address(&self) -> u64 {
        self.max_address
    }
}

/// Why a request was not served. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllocateError {
    /// No zone that will do has a run large enough above its watermark.
    /// [`Manager::shortfall`](crate::Manager::shortfall) says which of these it is, and
    /// [`bootlog::allocation_failure`](crate::bootlog::allocation_failure) writes a message with
    /// all zones.
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
                write!(
                    f,
                    "cannot allocate {pages} pages in one run: 1 to {} are possible",
                    Order::MAX.pages()
                )
            }
            Self::BadBoundary { boundary_pages } => {
                write!(
                    f,
                    "cannot keep within {boundary_pages} pages: it takes a power of two that holds \
                     the run"
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
            Self::NoManager => f.write_str("there is no manager yet"),
        }
    }
}

impl core::error::Error for AllocateError {}

/// Which mark a pass keeps: first where memory is plenty, then where it will do, then what is left.
#[derive(Clone, Copy)]
pub(super) enum Mark {
    Low,
    Min,
    /// Half of the min watermark.
    Half,
    /// Three eighths of it.
    Atomic,
    Nothing,
}

impl Mark {
    /// The pages that must stay free or withheld in a zone, of which `zone` may be a part.
    pub(super) fn keeps_of_all(self, zone: &Zone, highest: ZoneKind) -> u64 {
        match self {
            Self::Low => zone.watermark_for(zone.low_pages(), highest),
            Self::Min => zone.watermark_for(zone.min_pages(), highest),
            Self::Half => zone.watermark_for(part_of_min(zone, 4), highest),
            Self::Atomic => zone.watermark_for(part_of_min(zone, 3), highest),
            Self::Nothing => 0,
        }
    }
}

/// So many eighths of a zone's min watermark.
fn part_of_min(zone: &Zone, eighths: u64) -> u64 {
    zone.min_pages().saturating_mul(eighths).div_ceil(8)
}

/// Marks that ordinary requests keep: first memory where there is plenty, then where it will do.
pub(super) const ORDINARY: &[Mark] = &[Mark::Low, Mark::Min];
