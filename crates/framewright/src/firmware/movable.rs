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
    let nodes = memory.clone().fold(NodeMask::EMPTY, |nodes, run| nodes.with(run.node));
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
mod tests {
    use super::*;
    use crate::firmware::MemoryKind;
    use crate::units::PfnRange;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::vec::Vec;

    const GIB: u64 = 1 << 18;
    const NORMAL: Pfn = Pfn(4 * GIB);
    const DMA32: Pfn = Pfn(0x1000);

    fn run(node: usize, start: u64, end: u64) -> MemoryRun {
        let node = NodeId::new(node).expect("a node");
        MemoryRun {
            range: PfnRange::new(start, end),
            node,
            kind: MemoryKind::Conventional,
            is_ahead: false,
            is_mirrored: false,
        }
    }

    /// Returns a PC's memory; the first frame and the BIOS's hole below 1 MiB are left out.
    fn pc(low_end: u64, above: &[(usize, u64, u64)]) -> Vec<MemoryRun> {
        let low = [run(0, 1, 0x9f), run(0, 0x100, low_end)];
        let above = above.iter().map(|&(node, start, end)| run(node, start * GIB, end * GIB));
        low.into_iter().chain(above).collect()
    }

    fn kernel(size: CoreSize) -> MovableSetting {
        let kernelcore = Some(KernelCore::Size(size));
        MovableSetting { kernelcore, ..MovableSetting::default() }
    }

    fn movable(size: CoreSize) -> MovableSetting {
        MovableSetting { movablecore: Some(size), ..MovableSetting::default() }
    }

    fn gib(size: u64) -> CoreSize {
        CoreSize::Bytes(size << 30)
    }

    fn starts(memory: &[MemoryRun], lowest: Pfn, setting: &MovableSetting) -> [u64; 2] {
        let starts = movable_starts(memory.iter().copied(), lowest, setting);
        [0, 1].map(|node| {
            let start = starts.on_node(NodeId::new(node).expect("a node"));
            start.map_or(0, |start| start.0)
        })
    }

    #[test]
    fn sizes_are_dealt_out_over_two_nodes_as_linux_does() {
        let even = pc(3 * GIB, &[(0, 4, 9), (1, 9, 17)]);
        for setting in [kernel(gib(4)), kernel(CoreSize::Percent(25))] {
            assert_eq!(starts(&even, NORMAL, &setting), [0x12_0400, 0x26_0400], "{setting:?}");
        }
        // 12 GiB, except for two roundings.
        assert_eq!((9 * GIB - 0x12_0400) + (17 * GIB - 0x26_0400), 12 * GIB - 0x800);
        assert_eq!(starts(&even, NORMAL, &movable(gib(8))), [0x14_0400, 0x34_0000]);
        let uneven = pc(3 * GIB, &[(0, 4, 5), (1, 5, 17)]);
        assert_eq!(starts(&uneven, NORMAL, &kernel(gib(10))), [0, 0x2c_0400]);
    }

    #[test]
    fn one_node_below_4_gib() {
        let memory = pc(2 * GIB, &[]);
        let at = |setting| starts(&memory, DMA32, &setting)[0];
        assert_eq!(at(kernel(CoreSize::Bytes(512 << 20))), 0x2_0400);
        // 3 MiB are rounded up to 4.
        assert_eq!(at(movable(CoreSize::Bytes(3 << 20))), 2 * GIB - 0x400);
        assert_eq!(at(movable(CoreSize::Bytes(4 << 20))), 2 * GIB - 0x400);
        assert_eq!(at(movable(CoreSize::Bytes((4 << 20) + 4096))), 2 * GIB - 0x800);
        // Less than the lowest 16 MiB, which are the kernel's anyway.
        assert_eq!(at(kernel(CoreSize::Bytes(4 << 20))), 0x1000);
        assert_eq!(at(kernel(CoreSize::Bytes(4096))), 0x1000);
        // The larger of the two needs counts.
        let both = |kernel_gib, movable_gib| MovableSetting {
            movablecore: Some(gib(movable_gib)),
            ..kernel(gib(kernel_gib))
        };
        assert_eq!(at(both(1, 1)), at(kernel(gib(1))));
        assert_eq!(at(both(0, 1)), at(movable(gib(1))));
    }

    #[test]
    fn there_is_none_where_nobody_asks_and_where_the_kernel_needs_all() {
        let memory = pc(2 * GIB, &[]);
        for setting in [
            MovableSetting::default(),
            kernel(gib(2)),
            kernel(gib(3)),
            kernel(gib(0)),
            kernel(CoreSize::Bytes(4095)),
            kernel(CoreSize::Bytes(u64::MAX)),
            kernel(CoreSize::Percent(0)),
            kernel(CoreSize::Percent(100)),
            kernel(CoreSize::Percent(255)),
            movable(gib(0)),
            // All memory would be movable, and the kernel would have none.
            movable(gib(2)),
            movable(CoreSize::Bytes(u64::MAX)),
            movable(CoreSize::Percent(100)),
            MovableSetting { movablecore: Some(gib(1)), ..kernel(gib(2)) },
        ] {
            let starts = movable_starts(memory.iter().copied(), DMA32, &setting);
            assert_eq!(starts, MovableStarts::NONE, "{setting:?}");
            assert!(starts.is_empty());
        }
        assert!(movable_starts([].into_iter(), DMA32, &kernel(gib(1))).is_empty());
    }

    #[test]
    fn mirror_is_ignored_and_a_size_beside_it_is_not_used() {
        let memory = pc(2 * GIB, &[]);
        let setting = MovableSetting {
            kernelcore: Some(KernelCore::Mirror),
            movablecore: Some(gib(1)),
            movable_node: false,
        };
        let starts = movable_starts(memory.iter().copied(), DMA32, &setting);
        assert!(starts.is_empty());
        assert_eq!(starts.mirror_note(), Some(MirrorNote::NoneMirrored));
    }

    /// Results of Linux's `find_zone_movable_pfns_for_nodes`, a machine a line.
    #[test]
    fn mirrored_memory_is_the_kernels_and_the_rest_from_4_gib_on_is_movable() {
        let setting = MovableSetting {
            kernelcore: Some(KernelCore::Mirror),
            // Neither of them counts.
            movablecore: Some(gib(1)),
            movable_node: false,
        };
        let mirrored = |run| MemoryRun { is_mirrored: true, ..run };
        let low = || pc(3 * GIB, &[]);
        let safe_low = || low().into_iter().map(mirrored).collect::<Vec<_>>();
        let high = |node, start, end| run(node, start * GIB, end * GIB);
        let cases = [
            // All low memory is mirrored, and the first half of each node's high memory.
            (
                safe_low(),
                [mirrored(high(0, 4, 6)), high(0, 6, 9), mirrored(high(1, 9, 13)), high(1, 13, 17)],
                [6 * GIB, 13 * GIB],
                None,
            ),
            // Now with low memory that is not mirrored.
            (
                low(),
                [mirrored(high(0, 4, 6)), high(0, 6, 9), mirrored(high(1, 9, 13)), high(1, 13, 17)],
                [6 * GIB, 13 * GIB],
                Some(MirrorNote::LowUnmirrored),
            ),
            // Mirrored memory above other memory does not move the start.
            (
                safe_low(),
                [high(0, 4, 6), mirrored(high(0, 6, 9)), high(1, 9, 13), mirrored(high(1, 13, 17))],
                [4 * GIB, 9 * GIB],
                None,
            ),
            // A node that is wholly mirrored has no movable memory.
            (
                safe_low(),
                [
                    mirrored(high(0, 4, 6)),
                    mirrored(high(0, 6, 9)),
                    high(1, 9, 13),
                    mirrored(high(1, 13, 17)),
                ],
                [0, 9 * GIB],
                None,
            ),
            // A run that begins below 4 GiB counts as low, wherever it ends.
            (
                safe_low(),
                [
                    run(0, 4 * GIB - 1, 6 * GIB),
                    high(0, 7, 9),
                    mirrored(high(1, 9, 13)),
                    high(1, 13, 17),
                ],
                [7 * GIB, 13 * GIB],
                Some(MirrorNote::LowUnmirrored),
            ),
            // Rounded up to 4 MiB, past the end of node 1.
            (
                safe_low(),
                [
                    mirrored(high(0, 4, 6)),
                    run(0, 6 * GIB + 1, 9 * GIB),
                    mirrored(high(1, 9, 13)),
                    run(1, 13 * GIB + 1, 13 * GIB + 0x400),
                ],
                [6 * GIB + 0x400, 0],
                None,
            ),
        ];
        for (number, (mut memory, above, expected, note)) in cases.into_iter().enumerate() {
            memory.extend(above);
            let found = movable_starts(memory.iter().copied(), NORMAL, &setting);
            assert_eq!(starts(&memory, NORMAL, &setting), expected, "case {number}");
            assert_eq!(found.mirror_note(), note, "case {number}");
            // `movable_node` takes precedence.
            let setting = MovableSetting { movable_node: true, ..setting };
            assert_eq!(starts(&memory, NORMAL, &setting), [0, 0], "case {number}");
        }
    }

    #[test]
    fn movable_node_begins_at_the_lowest_hot_pluggable_frame() {
        let mut memory = pc(3 * GIB, &[(0, 4, 9), (1, 9, 10), (1, 10, 11), (1, 12, 13)]);
        let setting = MovableSetting { movable_node: true, ..kernel(gib(1)) };
        assert_eq!(starts(&memory, NORMAL, &setting), [0, 0], "nothing is hot-pluggable");
        for run in &mut memory[4..] {
            run.kind = MemoryKind::HotPluggable;
        }
        memory[4].range.start.0 += 1;
        assert_eq!(starts(&memory, NORMAL, &setting), [0, 10 * GIB + 0x400]);
        // The highest zone does not matter.
        memory[1].kind = MemoryKind::HotPluggable;
        assert_eq!(starts(&memory, NORMAL, &setting), [0x400, 10 * GIB + 0x400]);
        // Nothing is left after a few pages are rounded.
        let few = [MemoryRun { kind: MemoryKind::HotPluggable, ..run(0, 0x2001, 0x2300) }];
        assert_eq!(starts(&few, DMA32, &setting), [0, 0]);
    }

    #[test]
    fn a_node_below_the_line_leaves_its_share_to_others() {
        // Node 0 has no memory above 4 GiB, node 1 has only such memory.
        let memory = [run(0, 0, 2 * GIB), run(1, 4 * GIB, 8 * GIB)];
        assert_eq!(starts(&memory, NORMAL, &kernel(gib(3))), [0, 4 * GIB + GIB / 2 + GIB / 2]);
        // The memory that the kernel has anyway exceeds what it asked for.
        assert_eq!(starts(&memory, NORMAL, &kernel(gib(1))), [0, 4 * GIB]);
    }

    fn machine() -> impl Strategy<Value = Vec<MemoryRun>> {
        let run = (0_usize..5, 0_u64..0x3000, 1_u64..0x2_8000);
        vec(run, 1..12).prop_map(|runs| {
            let mut at = 0;
            let place = |(node, gap, pages): (usize, u64, u64)| {
                let start = at + gap;
                at = start + pages;
                self::run(node, start, at)
            };
            runs.into_iter().map(place).collect()
        })
    }

    fn core_size() -> impl Strategy<Value = CoreSize> {
        prop_oneof![
            (0_u8..=255).prop_map(CoreSize::Percent),
            (0_u64..0x20_0000).prop_map(|pages| CoreSize::Bytes(pages * PAGE_SIZE)),
            any::<u64>().prop_map(CoreSize::Bytes),
        ]
    }

    /// Returns the pages of `memory` in the frames that `has` names.
    fn pages(memory: &[MemoryRun], has: impl Fn(&MemoryRun) -> PfnRange) -> u64 {
        memory.iter().map(|run| run.range.intersection(has(run)).pages()).sum()
    }

    proptest! {
        #[test]
        fn the_kernel_gets_what_it_needs_and_hardly_more(
            memory in machine(),
            kernelcore in proptest::option::of(core_size()),
            movablecore in proptest::option::of(core_size()),
            lowest in prop_oneof![Just(0), Just(0x1000), 0_u64..0x10_0000],
        ) {
            let kernelcore = kernelcore.map(KernelCore::Size);
            let setting = MovableSetting { movable_node: false, kernelcore, movablecore };
            let starts = movable_starts(memory.iter().copied(), Pfn(lowest), &setting);
            let Some(need) = need_pages(memory.iter().copied(), &setting) else {
                prop_assert!(starts.is_empty());
                return Ok(());
            };
            let nodes = memory.iter().fold(NodeMask::EMPTY, |nodes, run| nodes.with(run.node));
            let nodes = nodes.nodes().count() as u64;
            let kernel = pages(&memory, |run| {
                PfnRange::new(0, starts.on_node(run.node).map_or(u64::MAX, |start| start.0))
            });
            let low = pages(&memory, |_| PfnRange::new(0, lowest));
            prop_assert!(kernel + nodes >= need, "{kernel} of {need}");
            prop_assert!(kernel <= need + low + nodes * ALIGNMENT_PAGES, "{kernel} of {need}");
            if nodes == 1 {
                prop_assert!(kernel >= need);
                prop_assert!(kernel < need.max(low) + ALIGNMENT_PAGES);
            }
            for node in NodeMask::ALL.nodes() {
                let Some(start) = starts.on_node(node) else { continue };
                prop_assert!(start.0 >= lowest && start.0 % ALIGNMENT_PAGES == 0);
                let above = memory.iter().filter(|run| run.node == node);
                prop_assert!(above.clone().any(|run| run.range.end > start));
            }
        }

        #[test]
        fn no_input_makes_it_panic(
            runs in vec((0_usize..MAX_NODES, any::<u64>(), any::<u64>()), 0..8),
            kernelcore in core_size(),
            movablecore in proptest::option::of(core_size()),
            lowest in any::<u64>(),
            movable_node in any::<bool>(),
        ) {
            let runs: Vec<_> =
                runs.into_iter().map(|(node, one, other)| run(node, one, other)).collect();
            let kernelcore = Some(KernelCore::Size(kernelcore));
            let setting = MovableSetting { movable_node, kernelcore, movablecore };
            let _ = movable_starts(runs.iter().copied(), Pfn(lowest), &setting);
        }
    }
}
