//! Requests to the memblock allocator.

use crate::units::NodeId;
use core::fmt;

/// Which node an allocation wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum NodeChoice {
    /// Any node.
    #[default]
    Any,
    /// This node, or else any other within the same limits.
    Preferred(NodeId),
    /// This node only.
    Exact(NodeId),
}

impl fmt::Display for NodeChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any node"),
            Self::Preferred(node) => write!(f, "node {node} or any other"),
            Self::Exact(node) => write!(f, "node {node} alone"),
        }
    }
}

/// What to allocate. Start from [`MemblockRequest::new`] and change what differs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemblockRequest {
    /// The size in bytes; it is not rounded.
    pub size_bytes: u64,
    /// The alignment in bytes, a power of two; 0 means a cache line (64).
    pub align_bytes: u64,
    /// The lowest address (tried first, then dropped, as in `mm/memblock.c`).
    pub min_address: u64,
    /// One past the highest address. Memory that the allocator or the caller touches also ends at
    /// [`Platform::direct_limit`](crate::Platform::direct_limit).
    pub max_address: u64,
    /// The node to allocate on.
    pub node: NodeChoice,
    /// Whether to clear the memory; if not, its content is undefined.
    pub zeroed: bool,
    /// Marks the reservation so that the vmemmap skips it (Linux: `mm/memblock.c`,
    /// `memblock_reserved_mark_noinit`). If `zeroed` is false, nobody touches the memory yet, so it
    /// may lie above the direct map.
    pub no_init: bool,
    /// Accepts hot-pluggable memory as well as any other, also under
    /// [`movable_node`](super::Memblock::set_movable_node): the allocation goes away with the
    /// memory, or can be moved.
    pub hot_pluggable: bool,
}

impl MemblockRequest {
    /// Requests `size_bytes`, aligned to `align_bytes`, anywhere, zeroed.
    #[must_use]
    pub const fn new(size_bytes: u64, align_bytes: u64) -> Self {
        Self {
            size_bytes,
            align_bytes,
            min_address: 0,
            max_address: u64::MAX,
            node: NodeChoice::Any,
            zeroed: true,
            no_init: false,
            hot_pluggable: false,
        }
    }
}

/// Where tables go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tables {
    /// As high as possible on their node, where they take nothing of low memory.
    High,
    /// As high as possible, or at the low end of the same free run if that spares a large block:
    /// for machines on which all memory is low.
    Tight,
    /// At the edges of their node, as long as there is room.
    Edges,
    /// At the edges of their node, or of the nearest node that has room there.
    EdgesAnywhere,
}
