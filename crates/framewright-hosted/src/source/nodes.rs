//! Reads the nodes of a running Linux: `/sys/devices/system/node`.
//!
//! Nothing here is an error: a machine without node files has one node, and files that cannot be
//! used are left out with a note.

use super::machine::{Affinity, CpuAffinity, Machine};
use super::{size, split, sysfs};
use framewright::firmware::LOCAL_DISTANCE;
use framewright::units::PhysRange;
use std::path::{Path, PathBuf};

/// A node and its folder.
struct Node {
    number: u32,
    folder: PathBuf,
}

/// Adds nodes, online CPUs and distances to a machine whose memory is known.
pub(super) fn read(root: &Path, machine: &mut Machine) {
    let folder = root.join("sys/devices/system/node");
    let numbers = sysfs::numbered(&folder, "node").unwrap_or_default();
    let nodes: Vec<Node> = numbers
        .into_iter()
        .filter_map(|number| {
            Some(Node {
                number: u32::try_from(number).ok()?,
                folder: folder.join(format!("node{number}")),
            })
        })
        .collect();
    if nodes.is_empty() {
        machine.notes.push(format!("using one node: {} names none", folder.display()));
    }
    read_cpus(root, &nodes, machine);
    // A single node 0 owns all memory without being listed.
    if nodes.len() > 1 || nodes.iter().any(|node| node.number != 0) {
        read_memory(root, &nodes, machine);
        read_distances(&nodes, machine);
    }
}

fn read_cpus(root: &Path, nodes: &[Node], machine: &mut Machine) {
    let online = root.join("sys/devices/system/cpu/online");
    let online = sysfs::value(&online).ok().and_then(|text| size::parse_cpu_list(&text));
    for node in nodes {
        let list = sysfs::value(&node.folder.join("cpulist"))
            .ok()
            .and_then(|text| size::parse_cpu_list(&text));
        let Some(list) = list else {
            machine.notes.push(format!("the CPUs of node {} cannot be read", node.number));
            continue;
        };
        let list = list
            .into_iter()
            .filter(|cpu| online.as_ref().is_none_or(|online| online.contains(cpu)));
        machine.cpus.extend(list.map(|cpu| CpuAffinity { cpu, node: node.number }));
    }
    if machine.cpus.is_empty() {
        let node = nodes.first().map_or(0, |node| node.number);
        machine.cpus = online.into_iter().flatten().map(|cpu| CpuAffinity { cpu, node }).collect();
    }
    machine.cpus.sort_unstable_by_key(|cpu| cpu.cpu);
    machine.cpus.dedup_by_key(|cpu| cpu.cpu);
    if machine.cpus.is_empty() {
        machine.notes.push("no CPU is named".to_owned());
    }
}

/// Reads which of the kernel's memory blocks each node has or, if there are no blocks, only the
/// sizes of the nodes.
fn read_memory(root: &Path, nodes: &[Node], machine: &mut Machine) {
    let mut owned: Vec<(u64, u32)> = Vec::new();
    for node in nodes {
        let blocks = sysfs::numbered(&node.folder, "memory").unwrap_or_default();
        owned.extend(blocks.into_iter().map(|block| (block, node.number)));
    }
    let bytes = match sysfs::block_bytes(root) {
        Ok(bytes) if !owned.is_empty() => bytes,
        _ => return read_sizes(nodes, machine),
    };
    owned.sort_unstable();
    let before = owned.len();
    owned.dedup_by_key(|block| block.0);
    if owned.len() < before {
        let shared = before - owned.len();
        machine.notes.push(format!(
            "{shared} memory blocks lie on two nodes; each is given to the lower one"
        ));
    }
    for (block, node) in owned {
        let Some(range) = sysfs::block_range(block, bytes) else { continue };
        match machine.affinities.last_mut() {
            Some(last) if last.node == node && last.range.end == range.start => {
                last.range.end = range.end
            }
            _ => machine.affinities.push(Affinity { range, node, hot_pluggable: false }),
        }
    }
}

fn read_sizes(nodes: &[Node], machine: &mut Machine) {
    let sizes: Vec<u64> = nodes
        .iter()
        .map(|node| sysfs::value(&node.folder.join("meminfo")).unwrap_or_default())
        .map(|text| sysfs::mem_total(&text, "MemTotal:").unwrap_or(0))
        .collect();
    let present = machine.present().unwrap_or_default();
    if present.is_empty() || sizes.iter().all(|&size| size == 0) {
        machine.notes.push(
            "which memory belongs to which node is unknown; all goes to the lowest node".to_owned(),
        );
        let range = PhysRange::new(0, present.last().map_or(0, |range| range.end));
        machine.affinities.push(Affinity { range, node: nodes[0].number, hot_pluggable: false });
        return;
    }
    for (node, range) in nodes.iter().zip(split::by_weight(&present, &sizes)) {
        if !range.is_empty() {
            machine.affinities.push(Affinity { range, node: node.number, hot_pluggable: false });
        }
    }
    machine.notes.push(
        "nodes are laid out one after another by their sizes: where they begin is unknown"
            .to_owned(),
    );
}

/// Reads the distances. A row has one number for every node, in ascending order of nodes.
fn read_distances(nodes: &[Node], machine: &mut Machine) {
    let mut distances = Vec::new();
    for from in nodes {
        let text = sysfs::value(&from.folder.join("distance")).unwrap_or_default();
        let row: Vec<Option<u8>> = text.split_whitespace().map(size::parse_decimal).collect();
        if row.len() != nodes.len() {
            machine.notes.push(format!(
                "distances are not used: those of node {} are {text:?}",
                from.number
            ));
            return;
        }
        for (to, distance) in nodes.iter().zip(row) {
            match distance {
                Some(distance)
                    if (distance == LOCAL_DISTANCE) == (from.number == to.number)
                        && distance >= LOCAL_DISTANCE =>
                {
                    distances.push((from.number, to.number, distance));
                }
                // Emulated nodes all have the distance of a node to itself.
                _ => {
                    machine.notes.push(format!(
                        "distances are not used: those of node {} are {text:?}",
                        from.number
                    ));
                    return;
                }
            }
        }
    }
    machine.distances = distances;
}
