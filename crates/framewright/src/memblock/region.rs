//! The elements of the two sets: regions, and the marks that they carry.

use crate::units::{NodeId, PhysRange};
use core::fmt;

/// Marks of a region; a set of bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct RegionFlags(u8);

impl RegionFlags {
    /// No mark.
    pub const NONE: Self = Self(0);
    /// Memory that may be taken out later. With [`movable_node`](super::Memblock::set_movable_node)
    /// it is allocated only on request or as a last resort; it is always handed over.
    pub const HOT_PLUGGABLE: Self = Self(1);
    /// Memory that must be accepted before its first use. If the platform can accept memory
    /// ([`Platform::accept_memory`](crate::Platform::accept_memory)), allocations from it are
    /// accepted, and the rest is handed over as it is. Otherwise it is neither allocated nor handed
    /// over.
    pub const UNACCEPTED: Self = Self(1 << 1);
    /// A reservation whose pages the vmemmap leaves alone
    /// ([`MemblockRequest::no_init`](super::MemblockRequest::no_init)).
    pub const NO_INIT: Self = Self(1 << 2);
    /// A reservation that holds one of the allocator's own arrays.
    pub const KERNEL: Self = Self(1 << 3);

    /// Memory that was marked unaccepted and has been accepted ahead of its use, because the memory
    /// before it was handed out and may be read past its end. It is still handed out as unaccepted
    /// memory is: once the memory behind it is accepted.
    pub const AHEAD: Self = Self(1 << 4);
    /// Memory that the machine stores twice or protects equally well: see
    /// [`mark_mirrored`](super::Memblock::mark_mirrored).
    pub const MIRRORED: Self = Self(1 << 5);
    /// A reservation of whole frames whose user frees them to the manager like any allocation.
    pub(crate) const IN_USE: Self = Self(1 << 6);

    /// The printed name of every mark.
    const NAMES: [(Self, &'static str); 7] = [
        (Self::HOT_PLUGGABLE, "hot-pluggable"),
        (Self::UNACCEPTED, "unaccepted"),
        (Self::NO_INIT, "no-init"),
        (Self::KERNEL, "kernel"),
        (Self::AHEAD, "ahead"),
        (Self::MIRRORED, "mirrored"),
        (Self::IN_USE, "in use"),
    ];

    /// Returns whether every mark of `other` is among these.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns these without the marks of `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns the marks of both.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Debug for RegionFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (flag, name) in Self::NAMES {
            if self.contains(flag) {
                write!(f, "{separator}{name}")?;
                separator = "|";
            }
        }
        if separator.is_empty() { f.write_str("-") } else { Ok(()) }
    }
}

/// An entry of the memory set or the reserved set.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// The bytes; never empty. The memory set has whole frames, the reserved set any bytes.
    pub range: PhysRange,
    /// The node. Memory and allocations always have one; reservations by the adopter have none.
    pub node: Option<NodeId>,
    /// The marks.
    pub flags: RegionFlags,
}

impl Region {
    /// Filler for entries that are not in use.
    pub(crate) const EMPTY: Self =
        Self { range: PhysRange::new(0, 0), node: None, flags: RegionFlags::NONE };

    /// Returns whether the two would be one region if they touched.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.node == other.node && self.flags == other.flags
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.node {
            Some(node) => write!(f, "{:?} {node:?} {:?}", self.range, self.flags),
            None => write!(f, "{:?} no node {:?}", self.range, self.flags),
        }
    }
}

/// What the allocator knows about mirrored memory.
#[derive(Clone, Copy, Default)]
pub(super) struct EarlyMirror {
    /// Whether mirrored memory is first choice.
    pub(super) first: bool,
    /// Whether there is any.
    pub(super) any: bool,
    /// The bytes that should have been mirrored and are not.
    pub(super) failed_bytes: u64,
}
