//! The zones of a node and where they end.

use crate::units::{NodeId, Pfn, PfnRange};
use core::fmt;

/// A zone of a node, by the width of the addresses that reach it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum ZoneKind {
    /// Below 16 MiB: devices with 24 address bits. Without the feature `dma-zones` it has no
    /// memory.
    Dma = 0,
    /// Below 4 GiB: devices with 32 address bits. As for [`Dma`](Self::Dma).
    Dma32 = 1,
    /// The rest.
    Normal = 2,
}

impl ZoneKind {
    /// How many there are.
    pub const COUNT: usize = 3;
    /// All, ascending.
    pub const ALL: [Self; Self::COUNT] = [Self::Dma, Self::Dma32, Self::Normal];

    /// One past the highest frame that devices reach for which memory of this kind is kept.
    #[must_use]
    pub const fn reach(self) -> Pfn {
        match self {
            Self::Dma => Pfn(0x1000),
            Self::Dma32 => Pfn(0x10_0000),
            Self::Normal => Pfn(1 << 40),
        }
    }

    /// The frames that a zone of this kind may have; without the feature `dma-zones` all frames
    /// are for [`Normal`](Self::Normal).
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

    /// The highest zone that has what is in reach of `self` and below `max_address`, and below
    /// which address it is.
    pub(crate) const fn within(self, max_address: u64) -> (Self, u64) {
        if cfg!(feature = "dma-zones") {
            return (self, max_address);
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

    /// The next lower one.
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

/// A zone of a machine before it has a place in memory: node and kind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ZoneId {
    /// The node.
    pub node: NodeId,
    /// Which of its zones.
    pub kind: ZoneKind,
}

impl ZoneId {
    /// Dense number: nodes ascending, kinds ascending in each.
    #[must_use]
    pub const fn index(self) -> usize {
        self.node.index() * ZoneKind::COUNT + self.kind as usize
    }

    /// The one of this [`index`](Self::index).
    pub(crate) fn at(index: usize) -> Option<Self> {
        let node = crate::units::NodeId::new(index / ZoneKind::COUNT)?;
        Some(Self { node, kind: ZoneKind::ALL[index % ZoneKind::COUNT] })
    }

    /// All that there can be, by [`index`](Self::index).
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
