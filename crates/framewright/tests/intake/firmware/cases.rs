//! The intake's requirements, with a named case for each.

use MemoryKind::{
    AcpiNvs, AcpiReclaimable, Conventional, HotPluggable, Persistent, Reserved, SoftReserved,
    Unaccepted, Unusable,
};
use framewright::firmware::{
    MapBuilder, MapError, MapRange, MemoryAffinity, MemoryKind, NodeRange, Topology, TopologyError,
    node_ranges,
};
use framewright::units::{NodeId, PHYSICAL_ADDRESS_END, PfnRange, PhysRange};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Returns the finished map of `told` (start, end, kind), with nothing below 1 MiB except what
/// `told` has there.
fn finish(told: &[(u64, u64, MemoryKind)]) -> Result<Vec<(u64, u64, MemoryKind)>, MapError> {
    let mut storage = vec![MapRange::EMPTY; 2 * told.len() + 5];
    let mut builder = MapBuilder::new(&mut storage);
    for &(start, end, kind) in told {
        builder.add(start, end - start, kind)?;
    }
    let map = builder.finish()?;
    Ok(map.ranges().iter().map(|entry| (entry.range.start, entry.range.end, entry.kind)).collect())
}

/// Returns the ranges at and above 1 MiB; some must be usable.
fn above(told: &[(u64, u64, MemoryKind)]) -> Vec<(u64, u64, MemoryKind)> {
    let map = finish(told).expect("a good map");
    map.into_iter().filter(|&(start, ..)| start >= MIB).collect()
}

fn node(index: usize) -> NodeId {
    NodeId::new(index).expect("a node")
}

/// Applies claims (start, end, node, hot-pluggable) to conventional memory from 1 MiB to 1 GiB.
fn nodes(claims: &[(u64, u64, usize, bool)]) -> Vec<NodeRange> {
    let mut storage = [MapRange::EMPTY; 16];
    let mut builder = MapBuilder::new(&mut storage);
    builder.add(MIB, GIB - MIB, Conventional).expect("room");
    let map = builder.finish().expect("a good map");
    let mut affinity = [MemoryAffinity::EMPTY; 16];
    let mut topology = Topology::new(&mut affinity);
    for &(start, end, index, hot_pluggable) in claims {
        topology
            .add_memory(PhysRange::new(start, end), node(index), hot_pluggable)
            .expect("no overlap");
    }
    node_ranges(map, &topology).collect()
}

fn run(start: u64, end: u64, kind: MemoryKind, index: usize, claimed: bool) -> NodeRange {
    NodeRange { range: PfnRange::new(start >> 12, end >> 12), kind, node: node(index), claimed }
}

#[test]
fn ranges_may_be_unsorted() {
    let map = above(&[
        (8 * MIB, 9 * MIB, Reserved),
        (MIB, 2 * MIB, Conventional),
        (4 * MIB, 5 * MIB, AcpiNvs),
    ]);
    assert_eq!(
        map,
        [(MIB, 2 * MIB, Conventional), (4 * MIB, 5 * MIB, AcpiNvs), (8 * MIB, 9 * MIB, Reserved)]
    );
}

#[test]
fn the_most_restrictive_type_wins_where_ranges_overlap() {
    let map = above(&[
        (MIB, 10 * MIB, Conventional),
        (4 * MIB, 6 * MIB, Reserved),
        (3 * MIB, 5 * MIB, AcpiNvs),
    ]);
    assert_eq!(
        map,
        [
            (MIB, 3 * MIB, Conventional),
            (3 * MIB, 4 * MIB, AcpiNvs),
            (4 * MIB, 6 * MIB, Reserved),
            (6 * MIB, 10 * MIB, Conventional)
        ]
    );
    // This holds for any two kinds, whichever comes first.
    for (index, &weak) in MemoryKind::ALL.iter().enumerate() {
        for &strong in &MemoryKind::ALL[index..] {
            for pair in [[weak, strong], [strong, weak]] {
                let told = [
                    (MIB, 2 * MIB, Conventional),
                    (4 * MIB, 5 * MIB, pair[0]),
                    (4 * MIB, 5 * MIB, pair[1]),
                ];
                assert_eq!(above(&told)[1], (4 * MIB, 5 * MIB, strong), "{pair:?}");
            }
        }
    }
}

#[test]
fn touching_ranges_of_one_type_are_joined() {
    let map = above(&[
        (MIB, 2 * MIB, Conventional),
        (2 * MIB, 3 * MIB, Conventional),
        (3 * MIB, 4 * MIB, Persistent),
    ]);
    assert_eq!(map, [(MIB, 3 * MIB, Conventional), (3 * MIB, 4 * MIB, Persistent)]);
}

#[test]
fn empty_ranges_mean_nothing() {
    let map = above(&[
        (MIB, 2 * MIB, Conventional),
        (MIB + 5, MIB + 5, Unusable),
        (u64::MAX, u64::MAX, Reserved),
    ]);
    assert_eq!(map, [(MIB, 2 * MIB, Conventional)]);
}

#[test]
fn usable_memory_shrinks_inward() {
    for kind in [Conventional, HotPluggable, Unaccepted, SoftReserved, Persistent] {
        let map = above(&[(8 * MIB, 9 * MIB, Conventional), (MIB + 1, 2 * MIB + 0xfff, kind)]);
        assert_eq!(map[0], (MIB + 0x1000, 2 * MIB, kind));
    }
}

#[test]
fn reserved_memory_grows_outward() {
    for kind in [AcpiReclaimable, AcpiNvs, Reserved, Unusable] {
        let map = above(&[(8 * MIB, 9 * MIB, Conventional), (2 * MIB + 0xfff, 3 * MIB + 1, kind)]);
        assert_eq!(map[0], (2 * MIB, 3 * MIB + 0x1000, kind));
    }
}

#[test]
fn a_frame_of_several_ranges_is_the_most_restrictive() {
    // Two halves of memory make a whole frame; one byte of another kind takes the frame over; a
    // missing byte leaves a hole.
    let frame = |pieces: &[(u64, u64, MemoryKind)]| {
        let mut told = vec![(8 * MIB, 9 * MIB, Conventional)];
        told.extend(pieces.iter().map(|&(start, end, kind)| (MIB + start, MIB + end, kind)));
        above(&told).first().copied().filter(|&(start, ..)| start == MIB).map(|(_, _, kind)| kind)
    };
    assert_eq!(
        frame(&[(0, 0x800, Conventional), (0x800, 0x1000, HotPluggable)]),
        Some(HotPluggable)
    );
    assert_eq!(frame(&[(0, 0x1000, Conventional), (0x7ff, 0x800, Unusable)]), Some(Unusable));
    assert_eq!(frame(&[(0, 0x800, Conventional), (0x801, 0x1000, Conventional)]), None);
    assert_eq!(
        frame(&[(0, 0x800, Conventional), (0xfff, 0x1000, AcpiReclaimable)]),
        Some(AcpiReclaimable)
    );
}

#[test]
fn addresses_have_up_to_52_bits() {
    let end = PHYSICAL_ADDRESS_END;
    let map = above(&[(end - GIB, end, Conventional), (end - 1, end, Reserved)]);
    assert_eq!(map, [(end - GIB, end - 0x1000, Conventional), (end - 0x1000, end, Reserved)]);
    let beyond = |start, size_bytes| Err(MapError::BeyondAddressSpace { start, size_bytes });
    let mut storage = [MapRange::EMPTY; 8];
    let mut builder = MapBuilder::new(&mut storage);
    assert_eq!(builder.add(end - 0x1000, 0x1001, Conventional), beyond(end - 0x1000, 0x1001));
    assert_eq!(builder.add(u64::MAX, 2, Conventional), beyond(u64::MAX, 2));
    assert!(builder.ranges().is_empty());
}

#[test]
fn hundreds_of_entries_fit_in_the_documented_storage() {
    // The worst case: every small range cuts the large one, and another large one covers
    // everything.
    let mut told = vec![(MIB, 2 * GIB, Conventional)];
    told.extend((1..500).map(|index| (index * 4 * MIB, index * 4 * MIB + MIB, Reserved)));
    told.push((MIB, 3 * GIB, HotPluggable));
    let map = above(&told);
    assert_eq!(map.len(), 2 * 499 + 1);
    assert_eq!(map[0], (MIB, 4 * MIB, HotPluggable));
    assert_eq!(map[map.len() - 1], (499 * 4 * MIB + MIB, 3 * GIB, HotPluggable));
}

#[test]
fn kinds_are_kept() {
    let told: Vec<_> =
        (1..).zip(MemoryKind::ALL).map(|(at, kind)| (at * MIB, at * MIB + MIB, kind)).collect();
    assert_eq!(above(&told), told);
}

#[test]
fn frame_0_and_the_legacy_hole_are_never_usable() {
    let map = finish(&[(0, 4 * MIB, Conventional)]).expect("a good map");
    assert_eq!(
        map,
        [
            (0, 0x1000, Reserved),
            (0x1000, 0xa_0000, Conventional),
            (0xa_0000, MIB, Reserved),
            (MIB, 4 * MIB, Conventional)
        ]
    );
}

#[test]
fn an_empty_map_is_refused() {
    assert_eq!(finish(&[]), Err(MapError::Empty));
    assert_eq!(finish(&[(MIB, MIB, Conventional)]), Err(MapError::Empty));
}

#[test]
fn a_map_without_usable_memory_is_refused() {
    for told in [
        (MIB, 2 * MIB, Reserved),
        (MIB, 2 * MIB, Unaccepted),
        (MIB + 1, MIB + 0x1fff, Conventional),
        (0, 0x1000, Conventional),
        (0xa_0000, MIB, Conventional),
    ] {
        assert_eq!(finish(&[told]), Err(MapError::NoUsableMemory), "{told:x?}");
    }
}

#[test]
fn too_many_ranges_are_refused_and_named() {
    let mut storage = [MapRange::EMPTY; 2];
    let mut builder = MapBuilder::new(&mut storage);
    builder.add(MIB, MIB, Conventional).expect("room");
    builder.add(4 * MIB, MIB, Conventional).expect("room");
    let range = PhysRange::new(8 * MIB, 9 * MIB);
    let error = builder.add(8 * MIB, MIB, Reserved).expect_err("no room");
    assert_eq!(error, MapError::TooManyRanges { range, capacity: 2 });
    assert!(
        error.to_string().contains("[mem 0x0000000000800000-0x00000000008fffff] in 2 entries"),
        "{error}"
    );
    assert_eq!(builder.ranges().len(), 2);
    builder.add(4 * MIB, MIB, Reserved).expect("needs no entry");
    builder.add(5 * MIB, MIB, Reserved).expect("joins the last");
    builder.add(6 * MIB, MIB, Conventional).expect_err("no room");
    let last = MapRange { range: PhysRange::new(4 * MIB, 6 * MIB), kind: Reserved };
    assert_eq!(builder.ranges().last(), Some(&last));
}

#[cfg(feature = "many-nodes")]
#[test]
fn proximity_domains_may_be_sparse() {
    let mut topology = Topology::new(&mut []);
    assert_eq!(topology.node_of_domain(4_000_000_000), Ok(node(0)));
    assert_eq!(topology.node_of_domain(7), Ok(node(1)));
    assert_eq!(topology.node_of_domain(4_000_000_000), Ok(node(0)));
    assert_eq!(
        (topology.node_count(), topology.domain(node(1)), topology.find_domain(8)),
        (2, 7, None)
    );
    for domain in 100..1122 {
        topology.node_of_domain(domain).expect("room");
    }
    assert_eq!(topology.node_of_domain(5), Err(TopologyError::TooManyDomains { domain: 5 }));
}

#[test]
fn nodes_may_have_no_memory_or_no_cpu() {
    let mut affinity = [MemoryAffinity::EMPTY; 2];
    let mut topology = Topology::new(&mut affinity);
    topology.add_memory(PhysRange::new(0, GIB), node(0), false).expect("room");
    topology.add_cpu(node(2)).expect("declared");
    let cpus: Vec<u32> = topology.nodes().map(|node| topology.cpus(node)).collect();
    assert_eq!(cpus, [0, 0, 1]);
    assert_eq!(topology.memory().len(), 1);
}

#[test]
fn memory_that_no_node_claims_goes_to_the_nearest_below() {
    assert_eq!(nodes(&[]), [run(MIB, GIB, Conventional, 0, true)]);
    let told = nodes(&[(64 * MIB, 128 * MIB, 2, false), (256 * MIB, 512 * MIB, 1, false)]);
    assert_eq!(
        told,
        [
            run(MIB, 64 * MIB, Conventional, 2, false),
            run(64 * MIB, 128 * MIB, Conventional, 2, true),
            run(128 * MIB, 256 * MIB, Conventional, 2, false),
            run(256 * MIB, 512 * MIB, Conventional, 1, true),
            run(512 * MIB, GIB, Conventional, 1, false)
        ]
    );
}

#[test]
fn claims_may_be_hot_pluggable_and_end_inside_a_frame() {
    let told = nodes(&[(0, 64 * MIB + 1, 0, true), (64 * MIB + 1, GIB, 1, false)]);
    let first = run(MIB, 64 * MIB + 0x1000, HotPluggable, 0, true);
    assert_eq!(told, [first, run(64 * MIB + 0x1000, GIB, Conventional, 1, true)]);
}

#[test]
fn claims_of_one_node_may_overlap_but_not_of_two() {
    let mut affinity = [MemoryAffinity::EMPTY; 2];
    let mut topology = Topology::new(&mut affinity);
    topology.add_memory(PhysRange::new(0, 64 * MIB), node(0), false).expect("room");
    topology.add_memory(PhysRange::new(0, 64 * MIB), node(0), false).expect("nothing new");
    topology.add_memory(PhysRange::new(32 * MIB, 96 * MIB), node(0), false).expect("one new part");
    let error = topology
        .add_memory(PhysRange::new(80 * MIB, 200 * MIB), node(3), false)
        .expect_err("overlap");
    let range = PhysRange::new(80 * MIB, 96 * MIB);
    assert_eq!(error, TopologyError::OverlappingNodes { first: node(0), second: node(3), range });
    assert_eq!((topology.memory().len(), topology.node_count()), (2, 1));
    let full = topology.add_memory(PhysRange::new(GIB, 2 * GIB), node(0), false);
    assert_eq!(full, Err(TopologyError::TooManyRanges { capacity: 2 }));
}

#[cfg(feature = "many-nodes")]
#[test]
fn a_node_beyond_the_limit_is_refused() {
    let mut topology = Topology::new(&mut []);
    assert_eq!(
        topology.declare_node(framewright::units::MAX_NODES),
        Err(TopologyError::NodeBeyondLimit { node: 1024 })
    );
    assert_eq!(topology.node_count(), 1);
    assert_eq!(topology.declare_node(framewright::units::MAX_NODES - 1), Ok(node(1023)));
    assert_eq!(topology.node_count(), 1024);
    assert_eq!(topology.domain(node(1023)), 1023);
}

#[cfg(feature = "many-nodes")]
#[test]
fn distances_of_many_nodes_need_a_table() {
    let mut topology = Topology::new(&mut []);
    assert!(topology.set_distance(node(63), node(0), 99).is_ok());
    assert_eq!(topology.distance(node(63), node(0)), 99);
    let refused = Err(TopologyError::TooFewDistances { node: node(64), nodes: 64 });
    assert_eq!(topology.set_distance(node(0), node(64), 30), refused);
    assert_eq!(topology.distance(node(1023), node(1023)), 10);
    assert_eq!(topology.distance(node(1023), node(64)), 20);
    let mut table = vec![0; 130 * 130 + 1];
    let mut topology = Topology::new(&mut []).with_distances(&mut table);
    for (from, to, distance) in [(0, 129, 30), (129, 0, 31), (64, 63, 32), (128, 127, 255)] {
        assert_eq!(topology.distance(node(from), node(to)), 20);
        assert_eq!(topology.set_distance(node(from), node(to), distance), Ok(()));
        assert_eq!(topology.distance(node(from), node(to)), distance);
    }
    assert!((0..1024).all(|index| topology.distance(node(index), node(index)) == 10));
    let refused = Err(TopologyError::TooFewDistances { node: node(130), nodes: 130 });
    assert_eq!(topology.set_distance(node(130), node(0), 30), refused);
    topology.forget_distances();
    assert_eq!(topology.distance(node(0), node(129)), 20);
}

#[test]
fn distances_default_and_bad_ones_are_refused() {
    let mut topology = Topology::new(&mut []);
    assert_eq!(
        (topology.distance(node(1), node(1)), topology.distance(node(0), node(1))),
        (10, 20)
    );
    topology.set_distance(node(0), node(1), 31).expect("a distance");
    assert_eq!(
        (topology.distance(node(0), node(1)), topology.distance(node(1), node(0))),
        (31, 20)
    );
    for (from, to, distance) in [(0, 1, 10), (0, 1, 0), (2, 2, 11)] {
        let (from, to) = (node(from), node(to));
        let refused = Err(TopologyError::BadDistance { from, to, distance });
        assert_eq!(topology.set_distance(from, to, distance), refused);
    }
}
