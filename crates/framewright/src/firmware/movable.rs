//! Where movable memory begins on each node, by Linux's rule (`find_zone_movable_pfns_for_nodes` in
//! Linux's `mm/mm_init.c`), so that `kernelcore=`, `movablecore=` and `movable_node` mean what they
//! mean in Linux. Nothing is stored: memory and a setting go in, one frame per node comes out.
//!
//! Movable memory is at the top of a node, and only in the highest kind of zone that the machine
//! has: what lies below that zone is always the kernel's. The kernel's need is dealt out over the
//! nodes in equal shares. A node with less memory than its share leaves a remainder, which is dealt
//! out again among one node fewer, until at most a page for each of them is left. Each round
//! continues where the previous one stopped.

use super::MemoryRun;
use crate::units::{MAX_NODES, NodeId, NodeMask, PAGE_SIZE, Pfn};
use core::fmt;

/// Movable memory begins at a multiple of this: 4 MiB, the largest order of Linux's allocator.
const ALIGNMENT_PAGES: u64 = 1 << 10;

/// Memory below 4 GiB is the kernel's even if it is not mirrored.
const FOUR_GIB: Pfn = Pfn(1 << 20);

/// An amount of memory in a setting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CoreSize {
    /// This many bytes, rounded down to pages.
    Bytes(u64),
    /// This percentage of all memory; more than 100 counts as 100.
    Percent(u8),
}

impl CoreSize {
    fn pages(self, total_pages: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes / PAGE_SIZE,
            Self::Percent(percent) => {
                let pages = u128::from(total_pages) * u128::from(percent.min(100)) / 100;
                u64::try_from(pages).unwrap_or(total_pages)
            }
        }
    }
}

/// What `kernelcore=` asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KernelCore {
    /// At least this much memory is not movable.
    Size(CoreSize),
    /// All unmirrored memory from 4 GiB on is movable, whatever `movablecore=` says, as in Linux.
    /// If nothing is mirrored, there is no movable memory.
    Mirror,
}

/// What to report about [`KernelCore::Mirror`]; it prints as in Linux.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MirrorNote {
    /// No memory is mirrored, so the setting was ignored.
    NoneMirrored,
    /// Some memory below 4 GiB, which is always the kernel's, is not mirrored.
    LowUnmirrored,
}

impl fmt::Display for MirrorNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoneMirrored => "The system has no mirror memory, ignore kernelcore=mirror.",
            Self::LowUnmirrored => "This configuration results in unmirrored kernel memory.",
        })
    }
}

/// What the command line says about movable memory. By default there is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MovableSetting {
    /// `movable_node`: a node's movable memory begins where its hot-pluggable memory does. The
    /// other settings are ignored then.
    pub movable_node: bool,
    /// `kernelcore=`.
    pub kernelcore: Option<KernelCore>,
    /// `movablecore=`: at least this much memory is movable. If both sizes are given, the one that
    /// leaves more to the kernel counts.
    pub movablecore: Option<CoreSize>,
}

/// Where each node's movable memory begins. See [`movable_starts`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MovableStarts {
    /// Zero for nodes that have none.
    starts: [u64; MAX_NODES],
    mirror: Option<MirrorNote>,
}

impl MovableStarts {
    /// No node has movable memory.
    pub const NONE: Self = Self { starts: [0; MAX_NODES], mirror: None };

    /// Returns the frame from which on all memory of a node is movable, except mirrored memory
    /// under [`KernelCore::Mirror`]; a multiple of 4 MiB. None if the node has no movable memory.
    #[must_use]
    pub fn on_node(&self, node: NodeId) -> Option<Pfn> {
        Some(Pfn(self.starts[node.index()])).filter(|&start| start != Pfn(0))
    }

    /// Returns what to report about [`KernelCore::Mirror`], if it was asked for.
    #[must_use]
    pub const fn mirror_note(&self) -> Option<MirrorNote> {
        self.mirror
    }

    /// Returns these starts, but with no movable memory on `nodes`.
    pub(crate) fn without(mut self, nodes: NodeMask) -> Self {
        nodes.nodes().for_each(|node| self.starts[node.index()] = 0);
        self
    }

    /// Returns whether no node has movable memory.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.starts == [0; MAX_NODES]
    }
}

/// Returns where movable memory begins on each node. `memory` is all present memory, ascending.
/// `lowest` is the first frame of the highest kind of zone that the machine has memory in (4 GiB if
/// any lies above, else 16 MiB): with a size, nothing below it is movable. With
/// [`movable_node`](MovableSetting::movable_node) movable memory may begin anywhere, and with
/// [`KernelCore::Mirror`] from 4 GiB on. Nodes that hold the kernel are not hot-pluggable, whatever
/// firmware says: [`Memblock::set_movable_node`](crate::memblock::Memblock::set_movable_node).
///
/// ```
/// use framewright::Parameters;
/// use framewright::firmware::{MapBuilder, MapRange, MemoryKind, MemoryRun, Topology};
/// use framewright::firmware::{movable_starts, node_ranges};
/// use framewright::units::{NodeId, Pfn};
///
/// let mut ranges = [MapRange::EMPTY; 8];
/// let mut builder = MapBuilder::new(&mut ranges);
/// builder.add(0x1000, 0x9_e000, MemoryKind::Conventional)?;
/// builder.add(0x10_0000, (2 << 30) - 0x10_0000, MemoryKind::Conventional)?;
/// let (map, topology) = (builder.finish()?, Topology::new(&mut []));
///
/// let parameters = Parameters::parse("kernelcore=512M", &mut |_| ());
/// let setting = parameters.core.setting(parameters.movable_node);
/// let memory = node_ranges(map, &topology).map(MemoryRun::from);
/// // All of it is below 4 GiB, so the highest zone begins at 16 MiB.
/// let starts = movable_starts(memory, Pfn(0x1000), &setting);
/// assert_eq!(starts.on_node(NodeId::ZERO), Some(Pfn(0x2_0400)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn movable_starts(
    memory: impl Iterator<Item = MemoryRun> + Clone,
    lowest: Pfn,
    setting: &MovableSetting,
) -> MovableStarts {
    let mut starts = MovableStarts::NONE;
    if setting.movable_node {
        hot_pluggable(memory.clone(), &mut starts.starts);
    } else if setting.kernelcore == Some(KernelCore::Mirror) {
        starts.mirror = unmirrored(memory.clone(), &mut starts.starts);
    } else if let Some(need_pages) = need_pages(memory.clone(), setting) {
        deal_out(memory.clone(), lowest, need_pages, &mut starts.starts);
    }
    let mut ends = [0; MAX_NODES];
    for run in memory {
        let end: &mut u64 = &mut ends[run.node.index()];
        *end = run.range.end.0.max(*end);
    }
    for (start, end) in starts.starts.iter_mut().zip(ends) {
        let aligned = start.checked_next_multiple_of(ALIGNMENT_PAGES);
        *start = aligned.filter(|&start| start < end).unwrap_or(0);
    }
    starts
}

/// Finds the lowest hot-pluggable frame of each node.
fn hot_pluggable(memory: impl Iterator<Item = MemoryRun>, starts: &mut [u64; MAX_NODES]) {
    for run in memory.filter(|run| run.kind == super::MemoryKind::HotPluggable) {
        lower(&mut starts[run.node.index()], run);
    }
}

/// Lowers a node's mark to the first frame of a run.
fn lower(mark: &mut u64, run: MemoryRun) {
    *mark = if *mark == 0 { run.range.start.0 } else { run.range.start.0.min(*mark) };
}

/// Finds, on each node, the lowest start from 4 GiB on of an unmirrored run, if any memory is
/// mirrored.
fn unmirrored(
    memory: impl Iterator<Item = MemoryRun> + Clone,
    starts: &mut [u64; MAX_NODES],
) -> Option<MirrorNote> {
    if !memory.clone().any(|run| run.is_mirrored) {
        return Some(MirrorNote::NoneMirrored);
    }
    let mut note = None;
    for run in memory.filter(|run| !run.is_mirrored) {
        if run.range.start < FOUR_GIB {
            note = Some(MirrorNote::LowUnmirrored);
            continue;
        }
        lower(&mut starts[run.node.index()], run);
    }
    note
}

/// Returns the number of pages that the kernel needs; none if that is all of memory, or if no size
/// was given.
fn need_pages(memory: impl Iterator<Item = MemoryRun>, setting: &MovableSetting) -> Option<u64> {
    let total_pages = memory.fold(0_u64, |sum, run| sum.saturating_add(run.range.pages()));
    let kernel_pages = match setting.kernelcore {
        Some(KernelCore::Mirror) => return None,
        Some(KernelCore::Size(size)) => size.pages(total_pages),
        None => 0,
    };
    let movable_pages = setting.movablecore.map_or(0, |size| size.pages(total_pages));
    let need_pages = if movable_pages == 0 {
        kernel_pages
    } else {
        let movable_pages =
            movable_pages.checked_next_multiple_of(ALIGNMENT_PAGES).unwrap_or(total_pages);
        kernel_pages.max(total_pages.saturating_sub(movable_pages))
    };
    (1..total_pages).contains(&need_pages).then_some(need_pages)
}

/// Moves the nodes' marks up until the memory below them meets the kernel's need.
fn deal_out(
    memory: impl Iterator<Item = MemoryRun> + Clone,
    lowest: Pfn,
    need_pages: u64,
    marks: &mut [u64; MAX_NODES],
) {
    let mut nodes = memory.clone().fold(NodeMask::EMPTY, |nodes, run| nodes.with(run.node));
    let mut divisor = nodes.nodes().map(|_| 1_u64).sum();
    let mut need = need_pages;
    while divisor != 0 {
        let mut share = need / divisor;
        for node in nodes.nodes() {
            if need < share {
                share = need / divisor;
            }
            let of_node = memory.clone().filter(|run| run.node == node);
            let taken = take(of_node, lowest.0, share, &mut marks[node.index()]);
            need = need.saturating_sub(taken);
            if taken == 0 && share != 0 {
                // It has no more, in later rounds either, and looking takes long on many nodes.
                nodes = nodes.without(node);
            }
        }
        divisor -= 1;
        if need <= divisor {
            break;
        }
    }
}

/// Moves a node's mark up by `share` pages of its memory. Memory below `lowest` is the kernel's
/// anyway, even if it is more than that. Returns the number of pages between the old mark and the
/// new one.
fn take(memory: impl Iterator<Item = MemoryRun>, lowest: u64, share: u64, mark: &mut u64) -> u64 {
    let (mut rest, mut taken) = (share, 0);
    for run in memory {
        let (mut start, end) = (run.range.start.0.max(*mark), run.range.end.0);
        if start >= end {
            continue;
        }
        if start < lowest {
            let below = end.min(lowest) - start;
            rest = rest.saturating_sub(below);
            taken += below;
            if end <= lowest {
                // A later round must not count it again.
                *mark = end;
                continue;
            }
            start = lowest;
        }
        let pages = rest.min(end - start);
        *mark = start + pages;
        rest -= pages;
        taken += pages;
        if rest == 0 {
            break;
        }
    }
    taken
}

#[cfg(test)]
mod tests;
