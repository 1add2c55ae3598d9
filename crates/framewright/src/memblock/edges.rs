//! Places for tables that cost no 1 GiB page, or little of the largest block.
//!
//! A table anywhere in a free GiB breaks it up. The memory that belongs to no whole free GiB is at
//! the edges: below the first GiB boundary, above the last, beside holes and reservations, and in a
//! GiB that another table already broke. If 1 GiB pages are wanted, tables go there.

use super::allocator::Memblock;
use super::error::MemblockError;
use super::request::{MemblockRequest, Tables};
use super::search::{FreeRuns, Place, Query, whole_gigabytes};
use crate::platform::Platform;
use crate::units::{MAX_NODES, NodeId, Order, PAGE_SIZE, PHYSICAL_ADDRESS_END, PhysRange, sort};

/// The end of the memory that tables avoid if they can: devices with 24 address bits, or code in
/// real mode, can use no other memory.
const LOW_END: u64 = if cfg!(feature = "dma-zones") { 16 << 20 } else { 1 << 20 };
/// The start of the memory that devices with 32 address bits do not reach.
const HIGH_START: u64 = 4 << 30;

impl<P: Platform> Memblock<'_, P> {
    /// Sets where tables go from now on.
    pub(crate) fn set_tables(&mut self, tables: Tables) {
        self.tables = if cfg!(feature = "pools") { tables } else { Tables::High };
    }

    /// Returns whether a device with 32 address bits reaches all memory.
    pub(crate) fn is_all_low(&self) -> bool {
        self.memory().last().is_none_or(|last| last.range.end <= HIGH_START)
    }

    /// Returns the number of whole free GiBs of each node.
    pub(crate) fn gigabytes(&self) -> [u64; MAX_NODES] {
        let mut gigabytes = [0; MAX_NODES];
        let window = PhysRange::new(0, PHYSICAL_ADDRESS_END);
        for run in FreeRuns::new(self.memory.regions(), self.reserved.regions(), window) {
            let whole = whole_gigabytes(run.range).size() / (Order::MAX.pages() * PAGE_SIZE);
            gigabytes[run.node.unwrap_or(NodeId::ZERO).index()] += whole;
        }
        gigabytes
    }

    /// Allocates memory for a table of `node`: at an edge if tables go there and one has room,
    /// otherwise as [`allocate`](Self::allocate) does. An edge is chosen only by size, alignment
    /// and whether to clear the memory. Where mirrored memory is first choice, it comes before an
    /// edge.
    pub(crate) fn allocate_table(
        &mut self,
        request: &MemblockRequest,
        node: NodeId,
    ) -> Result<PhysRange, MemblockError> {
        self.check_live()?;
        let place = match self.tables {
            _ if !cfg!(feature = "pools") => None,
            Tables::Tight if !self.bottom_up => self.reserve_tight(request, node)?,
            Tables::High | Tables::Tight => None,
            Tables::Edges => self.reserve_at_edge(request, &[node])?,
            Tables::EdgesAnywhere => self.reserve_at_any_edge(request, node)?,
        };
        match place {
            Some(range) => Ok(range),
            None => self.allocate(request),
        }
    }

    /// Reserves memory of a node at a place that breaks no large block if possible.
    #[inline(never)]
    fn reserve_tight(
        &mut self,
        request: &MemblockRequest,
        node: NodeId,
    ) -> Result<Option<PhysRange>, MemblockError> {
        let query = self.table_query(request, node);
        let place = query.tightest(self.memory.regions(), self.reserved.regions());
        self.reserve_found(place, request)
    }

    /// Reserves memory at an edge of the nearest node that has room there.
    #[inline(never)]
    fn reserve_at_any_edge(
        &mut self,
        request: &MemblockRequest,
        node: NodeId,
    ) -> Result<Option<PhysRange>, MemblockError> {
        let topology = self.topology;
        let mut nodes = [NodeId::ZERO; MAX_NODES];
        let count = topology.node_count();
        nodes.iter_mut().zip(topology.nodes()).for_each(|(place, node)| *place = node);
        let far = |&other: &NodeId| (topology.distance(node, other), other);
        sort(&mut nodes[..count], &mut |one, other| far(one) < far(other));
        self.reserve_at_edge(request, &nodes[..count])
    }

    /// Reserves memory at an edge of the first of these nodes that has room there.
    #[inline(never)]
    fn reserve_at_edge(
        &mut self,
        request: &MemblockRequest,
        nodes: &[NodeId],
    ) -> Result<Option<PhysRange>, MemblockError> {
        for &near in nodes {
            let query = Query { edges: true, ..self.table_query(request, near) };
            let place = query.find(self.memory.regions(), self.reserved.regions(), &[]);
            if let Some(range) = self.reserve_found(place, request)? {
                return Ok(Some(range));
            }
        }
        Ok(None)
    }

    fn table_query(&self, request: &MemblockRequest, node: NodeId) -> Query {
        let end = self.platform.direct_limit().min(PHYSICAL_ADDRESS_END);
        Query {
            size: request.size_bytes,
            align: request.align_bytes,
            window: PhysRange::new(LOW_END.min(end), end),
            node: Some(node),
            hot_pluggable: !self.movable_node,
            unaccepted: false,
            mirrored: self.prefers_mirrored(),
            bottom_up: self.bottom_up,
            edges: false,
        }
    }

    fn reserve_found(
        &mut self,
        place: Option<Place>,
        request: &MemblockRequest,
    ) -> Result<Option<PhysRange>, MemblockError> {
        match place {
            Some(place) if self.secure(place.range())? => {
                self.reserve_place(&place, request).map(Some)
            }
            _ => Ok(None),
        }
    }
}
