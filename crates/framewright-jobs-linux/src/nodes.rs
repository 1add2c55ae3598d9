//! The CPUs of each NUMA node of this machine.

use super::sysfs::{cpu_list, numbered};
use super::system::{self, CpuMask};
use framewright_jobs::{MAX_NODES, NodeSet};
use std::path::Path;

/// The nodes that have CPUs; empty on a machine with one node, or if no node is known.
#[derive(Default)]
pub(super) struct Nodes {
    masks: Vec<(u32, CpuMask)>,
    of_cpu: Vec<u32>,
}

impl Nodes {
    /// Reads the nodes from `sys/devices/system/node` under `root`.
    pub fn read(root: &Path) -> Self {
        let folder = root.join("sys/devices/system/node");
        let mut nodes = Self::default();
        for node in numbered(&folder, "node") {
            let list = std::fs::read_to_string(folder.join(format!("node{node}/cpulist"))).ok();
            let cpus = list.and_then(|list| cpu_list(&list)).unwrap_or_default();
            if cpus.is_empty() || node >= MAX_NODES {
                continue;
            }
            for &cpu in &cpus {
                let cpu = cpu as usize;
                nodes.of_cpu.resize(nodes.of_cpu.len().max(cpu.saturating_add(1).min(1 << 13)), 0);
                if let Some(place) = nodes.of_cpu.get_mut(cpu) {
                    *place = node;
                }
            }
            nodes.masks.push((node, CpuMask::of(cpus)));
        }
        if nodes.masks.len() < 2 { Self::default() } else { nodes }
    }

    pub fn set(&self) -> NodeSet {
        if self.masks.is_empty() {
            return NodeSet::EMPTY.with(0);
        }
        self.masks.iter().map(|&(node, _)| node).collect()
    }

    /// The CPUs of `node`, if there is more than one node.
    pub fn cpus(&self, node: u32) -> Option<&CpuMask> {
        self.masks.iter().find(|&&(number, _)| number == node).map(|(_, cpus)| cpus)
    }

    /// The node on which the calling thread runs.
    pub fn current(&self) -> u32 {
        if self.masks.is_empty() {
            return 0;
        }
        self.of_cpu.get(system::cpu() as usize).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn nodes_of_a_tree_and_of_one_without() {
        let root = std::env::temp_dir().join(format!("framewright-nodes-{}", std::process::id()));
        let folder = root.join("sys/devices/system/node");
        assert_eq!(Nodes::read(&root).set(), NodeSet::EMPTY.with(0));
        for (node, cpus) in [(0, "0-1,4\n"), (2, "2-3\n"), (3, "\n"), (9, "nonsense")] {
            fs::create_dir_all(folder.join(format!("node{node}"))).expect("a folder");
            fs::write(folder.join(format!("node{node}/cpulist")), cpus).expect("a file");
        }
        let nodes = Nodes::read(&root);
        fs::remove_dir_all(&root).expect("it is there");
        // A node without CPUs and a node that cannot be read are left out.
        assert_eq!(nodes.set(), NodeSet::EMPTY.with(0).with(2));
        assert_eq!(nodes.of_cpu, [0, 0, 2, 2, 0]);
        assert_eq!(
            [0, 2, 3].map(|node| nodes.cpus(node).map(CpuMask::count)),
            [Some(3), Some(2), None]
        );
    }
}
