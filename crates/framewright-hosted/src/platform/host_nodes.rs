//! Spreads a machine's nodes over the nodes of this host: the memory of node `i` of the machine
//! prefers host node `i % n`.

use super::HostedPlatform;
use super::mapping::Mapping;
use crate::source::size::parse_cpu_list;
use framewright::firmware::{MemoryMap, Topology};
use framewright::units::{NodeId, PAGE_SIZE};
use std::fmt;
use std::io;
use std::path::Path;

/// How the host's nodes were used to keep the machine's nodes apart.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HostNodes {
    /// The memory of each node prefers one of this many nodes of the host.
    Bound {
        /// How many nodes the host has.
        host_nodes: usize,
    },
    /// The host has one node, or does not say which it has.
    One,
    /// The system refused, for example because a container may not place memory.
    Refused {
        /// The `errno` of the refusal.
        errno: Option<i32>,
    },
}

impl fmt::Display for HostNodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bound { host_nodes } => {
                write!(f, "each node's memory prefers one of the host's {host_nodes} nodes")
            }
            Self::One => f.write_str("all nodes lie on the host's one node"),
            Self::Refused { errno } => {
                let error = errno.map(io::Error::from_raw_os_error);
                f.write_str("nodes lie wherever the host puts them, as it offers no choice")?;
                error.map_or(Ok(()), |error| write!(f, ": {error}"))
            }
        }
    }
}

/// The online nodes of this host; node 0 alone if they are not known.
pub(super) fn online(root: &Path) -> Vec<u32> {
    let list = std::fs::read_to_string(root.join("sys/devices/system/node/online"));
    let nodes = list.ok().and_then(|list| parse_cpu_list(&list)).unwrap_or_default();
    if nodes.is_empty() { vec![0] } else { nodes }
}

/// Makes every part prefer the host node that its machine node maps to. `bind` places one part.
/// Stops after the first refusal; parts that are bound already stay bound, which does no harm.
pub(super) fn deal_out<T>(
    parts: impl IntoIterator<Item = (T, NodeId)>,
    host: &[u32],
    bind: &mut dyn FnMut(T, u32) -> io::Result<()>,
) -> HostNodes {
    if host.len() < 2 {
        return HostNodes::One;
    }
    for (part, node) in parts {
        if let Err(error) = bind(part, host[node.index() % host.len()]) {
            return HostNodes::Refused { errno: error.raw_os_error() };
        }
    }
    HostNodes::Bound { host_nodes: host.len() }
}

/// Makes `bytes` bytes of a mapping from `offset` come from a node of the host while it has memory.
pub(super) fn prefer(mapping: &Mapping, offset: u64, bytes: u64, node: u32) -> io::Result<()> {
    let mut mask = [0_u64; 1024 / 64];
    let word = mask.get_mut(node as usize / 64);
    *word.ok_or(io::ErrorKind::InvalidInput)? |= 1 << (node % 64);
    mapping.prefer(offset, bytes, &mask)
}

impl HostedPlatform {
    /// Makes the memory of each node of the machine prefer a node of this host, if the host has
    /// several. `map` and `topology` are those that the machine was made from. To be called before
    /// anybody touches memory, because pages that exist stay where they are.
    #[must_use]
    pub fn place_nodes(&self, map: MemoryMap<'_>, topology: &Topology<'_>) -> HostNodes {
        let host = online(Path::new("/"));
        let parts = framewright::firmware::node_ranges(map, topology);
        let parts = parts.map(|run| (run.range, run.node));
        deal_out(parts, &host, &mut |range, node| {
            let offset =
                self.runs.offset(range.start.address()).ok_or(io::ErrorKind::InvalidInput)?;
            prefer(&self.mapping, offset, range.pages() * PAGE_SIZE, node)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(index: usize) -> NodeId {
        NodeId::new(index).expect("a node")
    }

    #[test]
    fn nodes_of_the_host_take_turns() {
        let parts = || [0, 1, 2, 3, 63, 64, 1023].map(|index| (index, node(index)));
        let mut bound = Vec::new();
        let mut note = |part, on| {
            bound.push((part, on));
            Ok(())
        };
        let done = deal_out(parts(), &[0, 2, 5], &mut note);
        assert_eq!(done, HostNodes::Bound { host_nodes: 3 });
        assert_eq!(bound, [(0, 0), (1, 2), (2, 5), (3, 0), (63, 0), (64, 2), (1023, 0)]);
    }

    #[test]
    fn one_node_is_asked_for_nothing_and_a_refusal_ends_it() {
        let mut asked = 0;
        let mut refuse = |_, _| {
            asked += 1;
            Err(io::Error::from_raw_os_error(libc::EPERM))
        };
        let parts = || [((), node(0)), ((), node(1))];
        assert_eq!(deal_out(parts(), &[0], &mut refuse), HostNodes::One);
        let refused = deal_out(parts(), &[0, 1], &mut refuse);
        assert_eq!(refused, HostNodes::Refused { errno: Some(libc::EPERM) });
        assert_eq!(asked, 1);
    }

    #[test]
    fn nodes_of_a_tree_and_of_one_without() {
        let root = std::env::temp_dir().join(format!("framewright-online-{}", std::process::id()));
        let folder = root.join("sys/devices/system/node");
        assert_eq!(online(&root), [0]);
        std::fs::create_dir_all(&folder).expect("a folder");
        for (list, nodes) in [("0-1,4\n", vec![0, 1, 4]), ("\n", vec![0]), ("x", vec![0])] {
            std::fs::write(folder.join("online"), list).expect("a file");
            assert_eq!(online(&root), nodes);
        }
        std::fs::remove_dir_all(&root).expect("it is there");
    }

    /// Checked only if the system has the call. The memory is there afterwards in any case.
    #[test]
    fn memory_can_prefer_the_first_node() {
        let mapping = Mapping::reserve(1 << 20, 0, false).expect("addresses");
        mapping.open(0, 1 << 20).expect("memory");
        match prefer(&mapping, 0, 1 << 20, 0) {
            Ok(()) => assert!(prefer(&mapping, 0, 1 << 20, 1023).is_err(), "there are not so many"),
            Err(error) => {
                let known = [libc::ENOSYS, libc::EPERM].map(Some);
                assert!(known.contains(&error.raw_os_error()), "{error}");
            }
        }
        assert!(prefer(&mapping, 0, 1 << 21, 0).is_err(), "beyond its end");
        assert!(prefer(&mapping, 0, 1 << 20, 1024).is_err(), "beyond the mask");
    }
}
