//! Shared by several tests: present pages by node and zone, and the machines of the repository.
#![allow(dead_code, reason = "each test uses a part")]

use framewright::firmware::{MapBuilder, Topology, node_ranges};
use framewright::units::PfnRange;
use framewright_hosted::Machine;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The first frame of each zone and the frame after its last.
const ZONES: [(&str, u64, u64); 3] =
    [("DMA", 0, 0x1000), ("DMA32", 0x1000, 0x10_0000), ("Normal", 0x10_0000, u64::MAX)];

/// A number of pages and the frames that they span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    pub pages: u64,
    pub start: u64,
    pub end: u64,
}

/// Returns the path of a machine's file in the repository.
pub fn machine_path(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../machines").join(file)
}

/// Returns the text of a machine's file.
pub fn machine_text(file: &str) -> String {
    std::fs::read_to_string(machine_path(file)).unwrap()
}

/// Counts present pages by node and zone.
pub fn count(machine: &Machine) -> BTreeMap<(usize, &'static str), Count> {
    let (mut ranges, mut claims) = (machine.map_storage(), machine.topology_storage());
    let (mut map, mut topology) = (MapBuilder::new(&mut ranges), Topology::new(&mut claims));
    machine.load(&mut map, &mut topology).unwrap();
    let map = map.finish().unwrap();
    let mut out: BTreeMap<(usize, &'static str), Count> = BTreeMap::new();
    for run in node_ranges(map, &topology) {
        for (zone, start, end) in ZONES {
            let part = run.range.intersection(PfnRange::new(start, end));
            if part.is_empty() {
                continue;
            }
            let new = Count { pages: 0, start: part.start.0, end: 0 };
            let count = out.entry((run.node.index(), zone)).or_insert(new);
            count.pages += part.pages();
            count.end = part.end.0;
        }
    }
    out
}

/// Counts the pages only.
pub fn pages(machine: &Machine) -> Vec<(usize, &'static str, u64)> {
    count(machine).into_iter().map(|((node, zone), count)| (node, zone, count.pages)).collect()
}

/// Returns whether reading a byte kills a child process.
pub fn is_killed_by_touching(byte: *const u8) -> bool {
    // SAFETY: the child reads one byte and ends; it takes no lock and calls nothing that is not
    // safe after fork.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
    if child == 0 {
        // SAFETY: the address is in a mapping of this process; if it may not be read, the child
        // dies, as the test expects.
        std::hint::black_box(unsafe { byte.read_volatile() });
        // SAFETY: ends the child without running code of the parent.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: the child is ours, and the status is a live value.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(waited, child);
    libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV
}
