//! In which order nodes are asked when the preferred one has nothing.

use crate::firmware::{Topology, UNREACHABLE_DISTANCE};
use crate::units::{MAX_NODES, NodeId, sort};

/// All nodes with memory, nearest to `from` first, written to `order`; returns how many. Among
/// equally far nodes those with fewer CPUs to share with come first, then the ones after `from` in
/// cyclic order, so that nodes do not all lean on node 0. Nodes out of reach come last.
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
    let near = |&node: &NodeId| {
        let distance = topology.distance(from, node);
        let cyclic = (node.index() + nodes - from.index()) % nodes;
        (node != from, distance == UNREACHABLE_DISTANCE, distance, topology.cpus(node) != 0, cyclic)
    };
    sort(&mut order[..len], &mut |one, other| near(one) < near(other));
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
