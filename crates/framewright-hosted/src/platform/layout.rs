//! Which offset in the reservation stands for each physical address.
//!
//! The layout is linear if the machine's addresses fit the process, so that computing a frame's
//! address is one addition. Otherwise large holes are left out, and a sorted table says where each
//! run of memory lies.

use framewright::firmware::MemoryMap;
use framewright::units::{BLOCK_SIZE, PhysRange};

/// Highest physical address of a machine that is laid out linearly: half of what a Linux process on
/// x86-64 can address.
pub(super) const LINEAR_END: u64 = 64 << 40;
/// Holes up to this size do not start a new run: a short table is worth more than saved addresses.
const BRIDGED_HOLE: u64 = 1 << 30;

/// How physical addresses lie in the reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Offset and physical address are equal.
    Linear,
    /// Large holes are left out.
    Compact,
}

/// A run of physical addresses that is contiguous in the reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// First physical address, a multiple of 2 MiB.
    pub start: u64,
    /// One past the last physical address, a multiple of 2 MiB.
    pub end: u64,
    /// Where `start` lies in the reservation, a multiple of 2 MiB.
    pub offset: u64,
}

/// The runs of a machine, ascending both in address and in offset.
#[derive(Debug)]
pub(super) struct Runs {
    runs: Vec<Run>,
}

impl Runs {
    /// Returns one run from address 0 to the end of memory.
    pub fn linear(map: MemoryMap<'_>) -> Self {
        let end = map.present_end().next_multiple_of(BLOCK_SIZE);
        Self { runs: vec![Run { start: 0, end, offset: 0 }] }
    }

    /// Returns runs without the large holes. Each begins and ends at a 2 MiB boundary, so no block
    /// is split.
    pub fn compact(map: MemoryMap<'_>) -> Self {
        let mut runs: Vec<Run> = Vec::new();
        for block in blocks(map, BRIDGED_HOLE) {
            let offset = runs.last().map_or(0, |last| last.offset + (last.end - last.start));
            runs.push(Run { start: block.start, end: block.end, offset });
        }
        Self { runs }
    }

    /// Returns how many bytes of addresses all runs need.
    pub fn span(&self) -> u64 {
        self.runs.last().map_or(0, |last| last.offset + (last.end - last.start))
    }

    /// Returns the end of the first run if that begins at 0, otherwise 0. Below it, offset and
    /// address are equal.
    pub fn identity_end(&self) -> u64 {
        self.runs.first().filter(|first| first.start == 0).map_or(0, |first| first.end)
    }

    /// Returns where a physical address lies in the reservation.
    pub fn offset(&self, address: u64) -> Option<u64> {
        let run = self.runs.get(self.runs.partition_point(|run| run.end <= address))?;
        (run.start <= address && address < run.end).then(|| run.offset + (address - run.start))
    }
}

/// Returns the 2 MiB blocks that hold any present memory, as ranges. Holes of up to `bridged` bytes
/// become part of them.
pub(super) fn blocks(map: MemoryMap<'_>, bridged: u64) -> Vec<PhysRange> {
    let mut out: Vec<PhysRange> = Vec::new();
    for entry in map.ranges().iter().filter(|entry| entry.kind.is_present()) {
        let start = entry.range.start / BLOCK_SIZE * BLOCK_SIZE;
        let end = entry.range.end.next_multiple_of(BLOCK_SIZE);
        match out.last_mut() {
            Some(last) if start <= last.end.saturating_add(bridged) => last.end = last.end.max(end),
            _ => out.push(PhysRange::new(start, end)),
        }
    }
    out
}
