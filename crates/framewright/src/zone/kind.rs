//! The zones of a node and their borders.

use crate::units::{NodeId, Pfn, PfnRange};
use core::fmt;

/// A kind of zone, by how many address bits a device needs to reach it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum ZoneKind {
    /// Below 16 MiB, for devices with 24 address bits. Without the feature `dma-zones` it has no
    /// memory.
    Dma = 0,
    /// Below 4 GiB, for devices with 32 address bits. Without the feature it has no memory, like
    /// [`Dma`](Self::Dma).
    Dma32 = 1,
    /// All other memory.
    Normal = 2,
}

impl ZoneKind {
    /// The number of kinds.
    pub const COUNT: usize = 3;
    /// All kinds, ascending.
    pub const ALL: [Self; Self::COUNT] = [Self::Dma, Self::Dma32, Self::Normal];

    /// One past the highest frame that is reachable for the devices that this kind of memory is
    /// kept for.
    #[must_use]
    pub const fn reach(self) -> Pfn {
        match self {
            Self::Dma => Pfn(0x1000),
            Self::Dma32 => Pfn(0x10_0000),
            Self::Normal => Pfn(1 << 40),
        }
    }

    /// The frames that a zone of this kind may have. Without the feature `dma-zones` all frames
    /// belong to [`Normal`](Self::Normal).
    #[must_use]
    pub const fn frames(self) -> PfnRange {
        let has_zones = cfg!(feature = "dma-zones");
        let start = match self {
            Self::Dma | Self::Dma32 if !has_zones => return PfnRange::new(0, 0),
            Self::Normal if !has_zones => Pfn(0),
            Self::Dma => Pfn(0),
            Self::Dma32 => Self::Dma.reach(),
            Self::Normal => Self::Dma32.reach(),
        };
        PfnRange { start, end: self.reach() }
    }

    /// The highest zone that may serve a request for memory in reach of `self` and below
    /// `max_address`, and the address below which that memory must then be.
    pub(crate) const fn within(self, max_address: u64) -> (Self, u64) {
        if cfg!(feature = "dma-zones") {
            // Higher zones cannot serve, so what is kept from requests that they could serve is not
            // kept from this one.
            let kind = match () {
                () if max_address <= Self::Dma.reach().address() => Self::Dma,
                () if max_address <= Self::Dma32.reach().address() => Self::Dma32,
                () => Self::Normal,
            };
            return (if (kind as u8) < self as u8 { kind } else { self }, max_address);
        }
        let reach = self.reach().address();
        let is_all = matches!(self, Self::Normal) || max_address < reach;
        (Self::Normal, if is_all { max_address } else { reach })
    }

    /// The kind to which `pfn` belongs.
    #[must_use]
    pub fn of(pfn: Pfn) -> Self {
        if Self::Dma.frames().contains(pfn) {
            Self::Dma
        } else if Self::Dma32.frames().contains(pfn) {
            Self::Dma32
        } else {
            Self::Normal
        }
    }

    /// The next lower kind.
    pub(crate) const fn below(self) -> Option<Self> {
        match self {
            Self::Dma => None,
            Self::Dma32 => Some(Self::Dma),
            Self::Normal => Some(Self::Dma32),
        }
    }

    /// Linux's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dma => "DMA",
            Self::Dma32 => "DMA32",
            Self::Normal => "Normal",
        }
    }
}

impl fmt::Display for ZoneKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Identifies a zone of a machine by node and kind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ZoneId {
    /// The node.
    pub node: NodeId,
    /// The kind of zone.
    pub kind: ZoneKind,
}

impl ZoneId {
    /// A dense number: nodes ascending, and kinds ascending in each node.
    #[must_use]
    pub const fn index(self) -> usize {
        self.node.index() * ZoneKind::COUNT + self.kind as usize
    }

    /// The zone with this [`index`](Self::index).
    pub(crate) fn at(index: usize) -> Option<Self> {
        let node = crate::units::NodeId::new(index / ZoneKind::COUNT)?;
        Some(Self { node, kind: ZoneKind::ALL[index % ZoneKind::COUNT] })
    }

    /// All possible zones, by [`index`](Self::index).
    pub(crate) fn all() -> impl Iterator<Item = Self> + Clone {
        (0..crate::units::MAX_NODES)
            .filter_map(NodeId::new)
            .flat_map(|node| ZoneKind::ALL.map(|kind| Self { node, kind }))
    }

    /// One past the largest [`index`](Self::index).
    pub const LIMIT: usize = crate::units::MAX_NODES * ZoneKind::COUNT;
}

impl fmt::Display for ZoneId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} zone {}", self.node, self.kind)
    }
}
