//! Random maps of hundreds of ranges: the memblock allocator keeps all of them, and its arrays lie
//! in memory that nothing else uses.

use super::platform::{Early, FakePlatform, assert_well_formed, frame_key, map, node};
use framewright::firmware::{MemoryAffinity, MemoryKind, Topology};
use framewright::memblock::{MemblockError, SetName};
use framewright::units::{PAGE_SIZE, PhysRange};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 32,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Checks that the set equals the map, or that there really was no place for it.
    #[test]
    fn large_maps_are_taken_in_whole(
        frames in prop::collection::vec((prop::bool::weighted(0.6), 0..2_usize), 500..700),
        reserved in prop::collection::vec((0..600_u64, 1..3_u64), 0..350),
        bottom_up: bool,
    ) {
        let base = 0x4000_0000;
        let frame = |number: u64| PhysRange::with_size(base + number * PAGE_SIZE, PAGE_SIZE);
        let count = frames.len() as u64;
        let mut ranges = Vec::new();
        let mut storage = vec![MemoryAffinity::EMPTY; 1500];
        let mut topology = Topology::new(&mut storage);
        for (number, &(present, owner)) in (0..).zip(&frames) {
            topology.add_memory(frame(number), node(owner), false).unwrap();
            if present {
                ranges.push((frame(number), MemoryKind::Conventional));
            }
        }
        prop_assume!(!ranges.is_empty());
        let map = map(&ranges);
        let reserved: Vec<_> = reserved
            .iter()
            .map(|&(start, len)| PhysRange::new(frame(start).start, frame(start + len).start))
            .collect();
        let mut early = Early::empty(FakePlatform::leak(base, 1024 * PAGE_SIZE), &topology);
        early.set_bottom_up(bottom_up);
        let is_free = |number: u64| {
            frames[usize::try_from(number).unwrap()].0
                && reserved.iter().all(|hold| hold.intersection(frame(number)).is_empty())
        };
        match early.start(map, &reserved) {
            Ok(()) => {
                assert_well_formed(early.memory());
                for number in 0..count {
                    let bytes = frame(number);
                    let owner = early
                        .memory()
                        .iter()
                        .find(|region| region.range.intersection(bytes) == bytes);
                    prop_assert_eq!(
                        owner.and_then(|region| region.node),
                        frame_key(map, &topology, bytes).and_then(|(owner, _)| owner)
                    );
                }
                for array in early.storage() {
                    for number in array.whole_frames().start.0..array.whole_frames().end.0 {
                        prop_assert!(
                            is_free(number - base / PAGE_SIZE),
                            "the array took what was \
                            taken"
                        );
                    }
                }
            }
            Err(MemblockError::NoRoomToGrow { set: SetName::Memory, needed_bytes, .. }) => {
                let pages = needed_bytes / PAGE_SIZE;
                let owner = |number: u64| frames[usize::try_from(number).unwrap()].1;
                let fits = (0..count.saturating_sub(pages - 1)).any(|first| {
                    (first..first + pages)
                        .all(|number| is_free(number) && owner(number) == owner(first))
                });
                prop_assert!(!fits, "there was room for {} pages", pages);
                prop_assert!(early.memory().is_empty());
            }
            Err(error) => {
                prop_assert!(
                    matches!(error, MemblockError::NoRoomToGrow { set: SetName::Reserved, .. }),
                    "{}",
                    error
                );
                prop_assert!(early.memory().is_empty() && early.reserved().len() == 1);
            }
        }
    }
}
