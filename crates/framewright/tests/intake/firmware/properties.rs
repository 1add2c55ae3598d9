//! Random firmware maps and topologies against a model that looks at one page at a time.

use framewright::firmware::{
    MapBuilder, MapError, MapRange, MemoryAffinity, MemoryKind, NodeRange, Topology, TopologyError,
    node_ranges,
};
use framewright::units::{MAX_NODES, NodeId, PAGE_SIZE, PHYSICAL_ADDRESS_END, PhysRange};
use framewright_testkit::PageModel;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// A failing case is printed in full, so no regression file is needed.
fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases) }
}

type Range = (PhysRange, MemoryKind);

/// Where ranges begin: close together, so that they overlap and touch, at the bottom, in the middle
/// and at the very end of the address space.
fn address() -> impl Strategy<Value = u64> {
    let base = select(vec![
        0,
        0x9_0000,
        0xf_0000,
        0xff_f000,
        1 << 32,
        1 << 45,
        PHYSICAL_ADDRESS_END - 0x4_0000,
    ]);
    let offset = prop_oneof![
        2 => (0u64..0x40).prop_map(|page| page * PAGE_SIZE),
        1 => 0u64..0x4_0000,
        1 => (0u64..0x400).prop_map(|piece| piece * 0x100),
    ];
    (base, offset).prop_map(|(base, offset)| base + offset)
}

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => (0u64..0x20).prop_map(|pages| pages * PAGE_SIZE),
        4 => 0u64..0x6000,
        2 => (0u64..0x80).prop_map(|piece| piece * 0x100),
        1 => 0u64..(1 << 46),
    ]
}

fn range() -> impl Strategy<Value = PhysRange> {
    (address(), size()).prop_map(|(start, size)| PhysRange::with_size(start, size))
}

fn kind() -> impl Strategy<Value = MemoryKind> {
    prop_oneof![3 => Just(MemoryKind::Conventional), 2 => select(&MemoryKind::ALL[..])]
}

fn ranges(most: usize) -> impl Strategy<Value = Vec<Range>> {
    vec((range(), kind()), 0..most)
}

fn model_of(ranges: &[Range]) -> PageModel {
    let mut model = PageModel::new();
    for &(range, kind) in ranges {
        model.add(range, kind);
    }
    model
}

/// Storage as large as the documentation of `MapBuilder::new` requires.
fn storage(ranges: usize) -> Vec<MapRange> {
    vec![MapRange::EMPTY; 2 * ranges + 5]
}

fn add_all(builder: &mut MapBuilder<'_>, ranges: &[Range]) {
    for &(range, kind) in ranges {
        builder
            .add(range.start, range.size(), kind)
            .expect("the storage is as large as documented");
    }
}

fn assert_sorted_and_joined(ranges: &[MapRange]) {
    for pair in ranges.windows(2) {
        assert!(pair[0].range.end <= pair[1].range.start, "{pair:x?} overlap or are out of order");
        assert!(
            pair[0].range.end < pair[1].range.start || pair[0].kind != pair[1].kind,
            "{pair:x?} should be joined"
        );
    }
    assert!(ranges.iter().all(|entry| !entry.range.is_empty()), "an empty range in {ranges:x?}");
}

/// Compares what `finish` makes of the builder with the model.
fn assert_finishes_as(builder: MapBuilder<'_>, model: &PageModel, anything_told: bool) {
    let expected = model.map();
    match builder.finish() {
        Ok(map) => {
            assert_sorted_and_joined(map.ranges());
            assert_eq!(map.ranges(), expected);
            let present = expected.iter().filter(|entry| entry.kind.is_present());
            assert_eq!(
                map.present_bytes(),
                present.clone().map(|entry| entry.range.size()).sum::<u64>()
            );
            assert_eq!(map.present_end(), present.map(|entry| entry.range.end).max().unwrap_or(0));
        }
        Err(error) => assert_is_no_map(error, &expected, anything_told),
    }
}

/// Checks that refusing a map is right where `expected` would be the map.
fn assert_is_no_map(error: MapError, expected: &[MapRange], anything_told: bool) {
    match error {
        MapError::Empty => assert!(!anything_told, "something was told"),
        MapError::NoUsableMemory => {
            assert!(!expected.iter().any(|entry| entry.kind.is_usable()))
        }
        error => panic!("{error}"),
    }
}

fn anything(ranges: &[Range]) -> bool {
    ranges.iter().any(|(range, _)| !range.is_empty())
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn every_page_has_the_most_restrictive_kind_of_its_bytes(
        told in ranges(24),
        probes in vec(any::<u64>(), 16),
    ) {
        let model = model_of(&told);
        let mut storage = storage(told.len());
        let mut builder = MapBuilder::new(&mut storage);
        add_all(&mut builder, &told);
        assert_sorted_and_joined(builder.ranges());
        // Checked down to single bytes, before anything is rounded.
        for entry in builder.ranges() {
            let inside = probes.iter().map(|probe| entry.range.start + probe % entry.range.size());
            for at in [entry.range.start, entry.range.end - 1].into_iter().chain(inside) {
                prop_assert_eq!(model.byte_kind(at), Some(entry.kind), "at {:#x}", at);
            }
        }
        assert_finishes_as(builder, &model, anything(&told));
    }

    #[test]
    fn the_order_of_ranges_does_not_matter(
        (told, shuffled) in ranges(32)
            .prop_flat_map(|told| (Just(told.clone()), Just(told).prop_shuffle())),
    ) {
        let (mut one, mut other) = (storage(told.len()), storage(told.len()));
        let (mut first, mut second) = (MapBuilder::new(&mut one), MapBuilder::new(&mut other));
        add_all(&mut first, &told);
        add_all(&mut second, &shuffled);
        prop_assert_eq!(first.ranges(), second.ranges());
        let (first, second) = (first.finish(), second.finish());
        prop_assert_eq!(
            first.map(|map| map.ranges().to_vec()),
            second.map(|map| map.ranges().to_vec())
        );
    }

    #[test]
    fn a_range_that_does_not_fit_changes_nothing(told in ranges(16), capacity in 0usize..24) {
        let mut storage = vec![MapRange::EMPTY; capacity];
        let mut builder = MapBuilder::new(&mut storage);
        let mut accepted = Vec::new();
        for &(range, kind) in &told {
            let before = builder.ranges().to_vec();
            match builder.add(range.start, range.size(), kind) {
                Ok(()) => accepted.push((range, kind)),
                Err(error) => {
                    prop_assert_eq!(error, MapError::TooManyRanges { range, capacity });
                    prop_assert_eq!(builder.ranges(), &before[..]);
                    prop_assert!(capacity < 2 * accepted.len() + 1, "there was room");
                }
            }
        }
        // What was accepted counts as if nothing else had been said, if the two fixed reservations
        // are certain to fit.
        if 2 * accepted.len() + 5 <= capacity {
            assert_finishes_as(builder, &model_of(&accepted), anything(&accepted));
        }
    }

    #[test]
    fn a_limit_takes_memory_away_and_leaves_reservations(
        before in ranges(12),
        after in ranges(4),
        limit in prop_oneof![address(), any::<u64>(), Just(0)],
    ) {
        let mut model = model_of(&before);
        let mut storage = storage(before.len() + after.len());
        let mut builder = MapBuilder::new(&mut storage);
        add_all(&mut builder, &before);
        builder.limit(limit).expect("room for one more cut");
        model.limit(limit);
        for entry in builder.ranges() {
            prop_assert!(
                entry.range.end <= limit || !entry.kind.shrinks(),
                "{:x?} is above {:#x}",
                entry,
                limit
            );
        }
        assert_sorted_and_joined(builder.ranges());
        add_all(&mut builder, &after);
        after.iter().for_each(|&(range, kind)| model.add(range, kind));
        let anything = !builder.ranges().is_empty();
        assert_finishes_as(builder, &model, anything);
    }

    #[test]
    fn sizes_that_wrap_or_reach_too_far_are_refused(
        start in any::<u64>(),
        size in 1u64..,
        kind in kind(),
    ) {
        let mut storage = storage(1);
        let mut builder = MapBuilder::new(&mut storage);
        let fits = u128::from(start) + u128::from(size) <= u128::from(PHYSICAL_ADDRESS_END);
        let refused = Err(MapError::BeyondAddressSpace { start, size_bytes: size });
        prop_assert_eq!(builder.add(start, size, kind), if fits { Ok(()) } else { refused });
        prop_assert_eq!(builder.ranges().len(), usize::from(fits));
    }
}

proptest! {
    #![proptest_config(cases(8))]

    #[test]
    fn hundreds_of_ranges(told in vec((range(), kind()), 200..500)) {
        let mut storage = storage(told.len());
        let mut builder = MapBuilder::new(&mut storage);
        add_all(&mut builder, &told);
        assert_finishes_as(builder, &model_of(&told), true);
    }
}

/// A claim: addresses, node, hot-pluggable.
type Claim = (PhysRange, usize, bool);

fn claims() -> impl Strategy<Value = Vec<Claim>> {
    let claim = prop_oneof![
        3 => range(),
        1 => (address(), 1u64..(1 << 33))
            .prop_map(|(start, size)| PhysRange::with_size(start, size)),
    ];
    vec((claim, prop_oneof![4 => 0usize..4, 1 => 0usize..64], any::<bool>()), 0..10)
}

/// Returns the runs that differ from the one before.
fn assert_cut_only_where_something_changes(ranges: &[NodeRange]) {
    for pair in ranges.windows(2) {
        let alike = (pair[0].kind, pair[0].node, pair[0].claimed)
            == (pair[1].kind, pair[1].node, pair[1].claimed);
        assert!(!alike || pair[0].range.end < pair[1].range.start, "{pair:x?} are one run");
    }
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn every_present_page_has_the_node_that_claims_its_first_byte(
        told in ranges(12),
        claims in claims(),
    ) {
        let mut model = model_of(&told);
        // n ranges of one node form at most 2n - 1 disjoint pieces.
        let mut affinity = vec![MemoryAffinity::EMPTY; 2 * claims.len()];
        let mut topology = Topology::new(&mut affinity);
        let mut nodes = 1;
        for &(range, node, hot_pluggable) in &claims {
            let node = NodeId::new(node).expect("below the limit");
            let before = (topology.memory().to_vec(), topology.node_count());
            let result = topology.add_memory(range, node, hot_pluggable);
            let expected =
                if range.is_empty() { Ok(()) } else { model.claim(range, node, hot_pluggable) };
            match (result, expected) {
                (Ok(()), Ok(())) => {
                    nodes = nodes.max(if range.is_empty() { 1 } else { node.index() + 1 })
                }
                (Err(TopologyError::OverlappingNodes { first, second, range: both }), Err(_)) => {
                    prop_assert_eq!(second, node);
                    prop_assert!(
                        !both.is_empty() && both.intersection(range) == both,
                        "{:?} is not in both",
                        both
                    );
                    let owner = topology
                        .memory()
                        .iter()
                        .find(|claim| claim.range.intersection(both) == both);
                    prop_assert_eq!(owner.map(|claim| claim.node), Some(first));
                    prop_assert_eq!((topology.memory().to_vec(), topology.node_count()), before);
                }
                (result, expected) => {
                    prop_assert!(false, "{:?}, the model says {:?}", result, expected)
                }
            }
        }
        prop_assert_eq!(topology.node_count(), nodes);
        for pair in topology.memory().windows(2) {
            prop_assert!(pair[0].range.end <= pair[1].range.start, "claims are out of order");
        }
        let mut storage = storage(told.len());
        let mut builder = MapBuilder::new(&mut storage);
        add_all(&mut builder, &told);
        match builder.finish() {
            Ok(map) => {
                let found: Vec<NodeRange> = node_ranges(map, &topology).collect();
                assert_cut_only_where_something_changes(&found);
                prop_assert_eq!(found, model.node_ranges());
            }
            Err(error) => assert_is_no_map(error, &model.map(), anything(&told)),
        }
    }

    #[test]
    fn sparse_domains_become_dense_nodes(
        domains in vec(any::<u32>(), 1..1100),
        cpus in vec(any::<Index>(), 0..40),
    ) {
        let mut affinity = [];
        let mut topology = Topology::new(&mut affinity);
        let mut known: Vec<u32> = Vec::new();
        for &domain in &domains {
            if !known.contains(&domain) && known.len() == MAX_NODES {
                prop_assert_eq!(
                    topology.node_of_domain(domain),
                    Err(TopologyError::TooManyDomains { domain })
                );
                continue;
            }
            if !known.contains(&domain) {
                known.push(domain);
            }
            let node = topology.node_of_domain(domain).expect("room");
            prop_assert_eq!(known[node.index()], domain);
            prop_assert_eq!(topology.domain(node), domain);
        }
        prop_assert_eq!(topology.node_count(), known.len());
        let mut counts = vec![0; known.len()];
        for cpu in &cpus {
            let node = cpu.index(known.len());
            counts[node] += 1;
            topology.add_cpu(NodeId::new(node).expect("a node")).expect("declared");
        }
        let found: Vec<u32> = topology.nodes().map(|node| topology.cpus(node)).collect();
        prop_assert_eq!(found, counts);
    }
}
