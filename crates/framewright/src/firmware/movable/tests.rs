//! Tests against Linux's answers and against a plain model.

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

#[test]
fn nodes_that_have_no_more_are_not_asked_again() {
    let others = (1..MAX_NODES as u64).map(|node| {
        let start = 100 * GIB + node * 512;
        run(usize::try_from(node).expect("small"), start, start + 512)
    });
    let memory: Vec<_> = std::iter::once(run(0, 4 * GIB, 68 * GIB)).chain(others).collect();
    let looked = std::cell::Cell::new(0_usize);
    let counted = memory.iter().copied().inspect(|_| looked.set(looked.get() + 1));
    let starts = movable_starts(counted, NORMAL, &kernel(gib(32)));
    assert!(starts.on_node(NodeId::ZERO).is_some());
    let most = 8 * memory.len() * MAX_NODES;
    assert!(looked.get() < most, "{} of {most}: each range once a node and round", looked.get());
}
