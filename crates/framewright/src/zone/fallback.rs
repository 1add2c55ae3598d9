//! The order in which nodes are tried when the preferred one has no memory to give.

use crate::firmware::{Topology, UNREACHABLE_DISTANCE};
use crate::units::{MAX_NODES, NodeId, sort};

/// What decides the place of a node in another node's fallback list.
pub(crate) struct Candidate {
    pub(crate) node: NodeId,
    pub(crate) distance: u8,
    /// How slow its memory is.
    pub(crate) tier: u8,
    pub(crate) has_cpus: bool,
}

/// The place of a node in another node's fallback list, in ascending order: the node itself, then
/// the others by tier, faster tiers first, and in each tier the nearest first. Among equally
/// distant nodes those without CPUs come first, as they have no users of their own, then the ones
/// after `from` in cyclic order, so that not all nodes fall back to node 0. Unreachable nodes come
/// last.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    is_another: bool,
    is_out_of_reach: bool,
    tier: u8,
    distance: u8,
    has_cpus: bool,
    cyclic: usize,
}

impl Rank {
    /// The place of `candidate` in the list of `from`, on a machine of `nodes` nodes.
    pub(crate) fn of(from: NodeId, nodes: usize, candidate: &Candidate) -> Self {
        let &Candidate { node, distance, tier, has_cpus } = candidate;
        Self {
            is_another: node != from,
            is_out_of_reach: distance == UNREACHABLE_DISTANCE,
            tier,
            distance,
            has_cpus,
            cyclic: (node.index() + nodes - from.index()) % nodes.max(1),
        }
    }
}

/// Writes all nodes with memory to `order`, sorted by [`Rank`] as if all were of one tier. Returns
/// how many there are.
pub fn fallback_order(
    topology: &Topology<'_>,
    from: NodeId,
    has_memory: &dyn Fn(NodeId) -> bool,
    order: &mut [NodeId; MAX_NODES],
) -> usize {
    let nodes = topology.node_count();
    let mut len = 0;
    for node in topology.nodes().filter(|&node| has_memory(node)) {
        order[len] = node;
        len += 1;
    }
    if MAX_NODES == 1 {
        return len;
    }
    let rank = |&node: &NodeId| {
        let distance = topology.distance(from, node);
        let has_cpus = topology.cpus(node) != 0;
        Rank::of(from, nodes, &Candidate { node, distance, tier: 0, has_cpus })
    };
    sort(&mut order[..len], &mut |one, other| rank(one) < rank(other));
    len
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::firmware::MemoryAffinity;

    fn order_of(topology: &Topology<'_>, from: usize, memory: &[usize]) -> std::vec::Vec<usize> {
        let mut order = [NodeId::ZERO; MAX_NODES];
        let from = NodeId::new(from).unwrap_or_default();
        let len =
            fallback_order(topology, from, &|node| memory.contains(&node.index()), &mut order);
        order[..len].iter().map(|node| node.index()).collect()
    }

    #[test]
    fn nearest_first_and_ties_go_round() {
        let mut storage = [MemoryAffinity::EMPTY; 1];
        let mut topology = Topology::new(&mut storage);
        for node in 0..4 {
            let node = topology.declare_node(node).unwrap_or_default();
            let _ = topology.add_cpu(node);
        }
        assert_eq!(order_of(&topology, 0, &[0, 1, 2, 3]), [0, 1, 2, 3]);
        assert_eq!(order_of(&topology, 2, &[0, 1, 2, 3]), [2, 3, 0, 1]);
        let (one, three) = (NodeId::new(1).unwrap_or_default(), NodeId::new(3).unwrap_or_default());
        assert!(topology.set_distance(NodeId::ZERO, three, 12).is_ok());
        assert!(topology.set_distance(NodeId::ZERO, one, 255).is_ok());
        assert_eq!(order_of(&topology, 0, &[0, 1, 2, 3]), [0, 3, 2, 1]);
        assert_eq!(order_of(&topology, 0, &[1, 2]), [2, 1]);
    }

    #[test]
    fn a_node_without_cpus_is_preferred_among_equals() {
        let mut storage = [MemoryAffinity::EMPTY; 1];
        let mut topology = Topology::new(&mut storage);
        assert!(topology.declare_node(2).is_ok());
        for node in [0, 1] {
            assert!(topology.add_cpu(NodeId::new(node).unwrap_or_default()).is_ok());
        }
        assert_eq!(order_of(&topology, 0, &[0, 1, 2]), [0, 2, 1]);
    }
}
