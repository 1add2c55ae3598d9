//! Fake `proc` and `sys` trees, and the machine that runs the test.

use crate::common::pages;
use framewright::firmware::MemoryKind;
use framewright::units::PhysRange;
use framewright_hosted::{Machine, SourceError};
use std::fs;
use std::path::{Path, PathBuf};

/// A tree of files in a folder of its own, which is removed at the end.
struct Tree(PathBuf);

impl Tree {
    fn new(name: &str) -> Self {
        let root =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(&root).unwrap();
        Self(root)
    }

    fn file(&self, path: &str, content: &str) -> &Self {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        self
    }

    fn firmware(&self, index: usize, start: &str, end: &str, kind: &str) -> &Self {
        self.file(&format!("sys/firmware/memmap/{index}/start"), &format!("{start}\n"))
            .file(&format!("sys/firmware/memmap/{index}/end"), &format!("{end}\n"))
            .file(&format!("sys/firmware/memmap/{index}/type"), &format!("{kind}\n"))
    }

    fn node(&self, node: u32, cpus: &str, distance: &str, blocks: std::ops::Range<u32>) -> &Self {
        self.file(&format!("sys/devices/system/node/node{node}/cpulist"), &format!("{cpus}\n"));
        self.file(
            &format!("sys/devices/system/node/node{node}/distance"),
            &format!("{distance}\n"),
        );
        for block in blocks {
            self.file(
                &format!("sys/devices/system/node/node{node}/memory{block}/state"),
                "online\n",
            );
        }
        self
    }

    fn read(&self) -> Machine {
        Machine::from_file(&self.0).unwrap()
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Describes 4 GiB of memory, below 2 GiB and from 4 GiB on, in blocks of 128 MiB.
fn two_nodes(name: &str) -> Tree {
    let tree = Tree::new(name);
    tree.firmware(0, "0x0", "0x9fbff", "System RAM")
        .firmware(1, "0x9fc00", "0xfffff", "Reserved")
        .firmware(2, "0x100000", "0x7fffffff", "System RAM")
        .firmware(10, "0x100000000", "0x17fffffff", "System RAM")
        .firmware(11, "0x180000000", "0x18fffffff", "Unheard of")
        .file("sys/devices/system/memory/block_size_bytes", "8000000\n")
        .file("sys/devices/system/cpu/online", "0-2\n");
    tree
}

#[test]
fn firmware_map_and_sparse_nodes() {
    let tree = two_nodes("sparse");
    tree.node(0, "0,2-3", "10 21", 0..16)
        .node(2, "1", "21 10", 32..48)
        .file("sys/devices/system/node/online", "0,2\n");
    let machine = tree.read();
    assert_eq!(
        pages(&machine),
        [(0, "DMA", 3998), (0, "DMA32", 0x8_0000 - 4096), (2, "Normal", 0x8_0000)]
    );
    let cpus: Vec<_> = machine.cpus.iter().map(|cpu| (cpu.cpu, cpu.node)).collect();
    assert_eq!(cpus, [(0, 0), (1, 2), (2, 0)], "CPU 3 is offline");
    assert_eq!(machine.distances, [(0, 0, 10), (0, 2, 21), (2, 0, 21), (2, 2, 10)]);
    assert_eq!(machine.affinities.len(), 2);
    assert_eq!(machine.affinities[1].range, PhysRange::new(0x1_0000_0000, 0x1_8000_0000));
    assert_eq!(machine.ranges[4].kind, MemoryKind::Reserved);
    assert!(machine.notes.iter().any(|note| note.contains("Unheard of")));
    assert!(machine.name.contains("sys/firmware/memmap"));
    assert_eq!(Machine::parse("", &machine.to_text()).unwrap(), machine);
}

#[test]
fn a_block_of_two_nodes_goes_to_the_lower() {
    let tree = two_nodes("shared");
    tree.node(0, "0", "10 20", 0..33).node(1, "1", "20 10", 32..48);
    let machine = tree.read();
    assert_eq!(pages(&machine)[2..], [(0, "Normal", 0x8000), (1, "Normal", 0x7_8000)]);
    assert!(
        machine.notes.iter().any(|note| note.contains("1 memory blocks lie on two nodes")),
        "{:?}",
        machine.notes
    );
}

#[test]
fn without_blocks_sizes_decide() {
    let tree = two_nodes("sizes");
    for (node, kilobytes) in [(0, 1_000_000), (1, 3_000_000)] {
        tree.node(node, "", "10 10", 0..0).file(
            &format!("sys/devices/system/node/node{node}/meminfo"),
            &format!("Node {node} MemTotal:       {kilobytes} kB\nNode {node} MemFree: 1 kB\n"),
        );
    }
    let machine = tree.read();
    let own =
        |node| pages(&machine).iter().filter(|zone| zone.0 == node).map(|zone| zone.2).sum::<u64>();
    let total = own(0) + own(1);
    assert!(own(0).abs_diff(total / 4) <= 512, "{} of {total}", own(0));
    assert!(machine.distances.is_empty(), "a distance of 10 to another node is refused");
    assert!(machine.notes.iter().any(|note| note.contains("distances are not used")));
    assert_eq!(
        machine.cpus.len(),
        3,
        "CPUs that no node names are taken from the list of those online"
    );
}

#[test]
fn worse_sources_are_used_when_better_ones_say_nothing() {
    let tree = Tree::new("worse");
    let error = Machine::from_system(&tree.0).unwrap_err();
    assert!(
        matches!(&error, SourceError::NoSource { reasons, .. } if reasons.len() == 4),
        "{error}"
    );

    tree.file("proc/meminfo", "MemTotal:        4194304 kB\nMemFree: 1 kB\n");
    let machine = tree.read();
    assert!(machine.notes.iter().any(|note| note.contains("made up")), "{:?}", machine.notes);
    assert_eq!(pages(&machine).last(), Some(&(0, "Normal", 0x8_0000)));

    tree.file("sys/devices/system/memory/block_size_bytes", "8000000\n");
    for (block, state) in [(0, "online"), (1, "online"), (2, "offline"), (32, "online")] {
        tree.file(&format!("sys/devices/system/memory/memory{block}/state"), &format!("{state}\n"));
    }
    let machine = tree.read();
    let ranges: Vec<_> = machine.ranges.iter().map(|entry| entry.range).collect();
    assert_eq!(
        ranges,
        [PhysRange::new(0, 0x1000_0000), PhysRange::new(0x1_0000_0000, 0x1_0800_0000)]
    );

    tree.file("proc/iomem", "00000000-00000000 : System RAM\n00000000-00000000 : Reserved\n");
    let machine = tree.read();
    assert_eq!(machine.ranges.len(), 2);
    assert!(
        machine.notes.iter().any(|note| note.contains("hidden from this user")),
        "{:?}",
        machine.notes
    );

    tree.file("proc/iomem", "00001000-0009fbff : System RAM\n00100000-7fffffff : System RAM\n");
    let machine = tree.read();
    assert_eq!(machine.ranges[1].range, PhysRange::new(0x10_0000, 0x8000_0000));
    assert!(machine.name.ends_with("proc/iomem"));

    tree.firmware(0, "0x0", "nonsense", "System RAM");
    assert!(tree.read().notes.iter().any(|note| note.contains("nonsense")));
    tree.firmware(0, "0x100000", "0x3fffffff", "System RAM");
    assert_eq!(tree.read().ranges[0].range, PhysRange::new(0x10_0000, 0x4000_0000));
}

#[test]
fn this_machine_is_found() {
    let machine = Machine::this().unwrap();
    assert!(machine.cpu_count() >= 1);
    assert!(!pages(&machine).is_empty(), "{machine:?}");
    assert_eq!(Machine::parse("", &machine.to_text()).unwrap(), machine);
    println!("{}", machine.to_text());
}
