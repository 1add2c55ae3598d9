//! Page tables built in simulated memory, walked and compared with a model.

use framewright::units::{PAGE_SIZE, PhysRange};
use framewright_arch::paging::{
    Access, Entry, MapFault, MapRequest, Mapped, PageSize, PageTable, TableMemory, translate,
};
use proptest::prelude::*;
use std::collections::HashMap;

const MEDIUM: u64 = 2 << 20;
const LARGE: u64 = 1 << 30;
const DIRECT: u64 = 0xffff_8000_0000_0000;

/// Frames that exist once they are taken, up to a maximum number.
struct Frames {
    tables: HashMap<u64, [Entry; 512]>,
    left: usize,
}

impl Frames {
    fn new(left: usize) -> Self {
        Self { tables: HashMap::new(), left }
    }
}

impl TableMemory for Frames {
    fn allocate(&mut self) -> Option<u64> {
        self.left = self.left.checked_sub(1)?;
        let frame = 0x7000_0000 + self.tables.len() as u64 * PAGE_SIZE;
        self.tables.insert(frame, [Entry::default(); 512]);
        Some(frame)
    }

    fn read(&self, table: u64, index: usize) -> Entry {
        self.tables[&table][index]
    }

    fn write(&mut self, table: u64, index: usize, entry: Entry) {
        self.tables.get_mut(&table).expect("a table that was allocated")[index] = entry;
    }
}

#[test]
fn the_largest_pages_that_fit_are_used() {
    let mut frames = Frames::new(100);
    let tables = PageTable::new(&mut frames, PageSize::Large).expect("there are frames");
    let mut mapped = Mapped::default();
    // One small page before a medium one, one medium before a large one, and the reverse at the
    // end.
    let range = PhysRange::new(LARGE - MEDIUM - PAGE_SIZE, 2 * LARGE + MEDIUM + PAGE_SIZE);
    tables
        .map(
            &mut frames,
            &MapRequest { address: DIRECT + range.start, range, access: Access::DATA },
            &mut mapped,
        )
        .expect("there is room");
    assert_eq!((mapped.small, mapped.medium, mapped.large), (2, 2, 1));
    assert_eq!(mapped.bytes(), range.size());
    // One pointer table, the directories of the first and the third GiB, and a last-level table in
    // each.
    assert_eq!(mapped.tables, 5);
    let (physical, size, access) =
        translate(&frames, tables.root(), DIRECT + LARGE + 12345).expect("is mapped");
    assert_eq!((physical, size, access), (LARGE + 12345, PageSize::Large, Access::DATA));
}

#[test]
fn rights_are_found_as_they_were_given() {
    let mut frames = Frames::new(100);
    let tables = PageTable::new(&mut frames, PageSize::Large).expect("there are frames");
    let all = [
        Access::CODE,
        Access::CONSTANTS,
        Access::DATA,
        Access::DEVICE,
        Access { global: false, ..Access::DATA },
    ];
    for (address, access) in (0..).step_by(4096).zip(all) {
        let page = PhysRange::with_size(address + 4096, PAGE_SIZE);
        tables
            .map(&mut frames, &MapRequest { address, range: page, access }, &mut Mapped::default())
            .expect("is free");
        assert_eq!(
            translate(&frames, tables.root(), address),
            Some((page.start, PageSize::Small, access))
        );
    }
    // An entry at a higher level forbids access for everything below it.
    let pointers = frames.read(tables.root(), 0).address();
    let directory = frames.read(pointers, 0).address();
    let lowest = frames.read(directory, 0).address();
    frames.write(directory, 0, Entry::read_only_table(lowest));
    let (_, _, access) = translate(&frames, tables.root(), 2 * 4096).expect("mapped");
    assert_eq!(access, Access::CONSTANTS);
}

#[test]
fn addresses_that_do_not_match_force_small_pages() {
    let mut frames = Frames::new(100);
    let tables = PageTable::new(&mut frames, PageSize::Large).expect("there are frames");
    let mut mapped = Mapped::default();
    let range = PhysRange::new(0, 2 * MEDIUM);
    tables
        .map(
            &mut frames,
            &MapRequest { address: PAGE_SIZE, range, access: Access::CODE },
            &mut mapped,
        )
        .expect("there is room");
    assert_eq!((mapped.small, mapped.medium, mapped.large), (1024, 0, 0));
    assert_eq!(translate(&frames, tables.root(), 0), None);
    assert_eq!(
        translate(&frames, tables.root(), PAGE_SIZE),
        Some((
            0,
            PageSize::Small,
            Access { write: false, execute: true, global: true, device: false }
        ))
    );
}

#[test]
fn what_is_mapped_stays_as_it_is() {
    let mut frames = Frames::new(100);
    let tables = PageTable::new(&mut frames, PageSize::Medium).expect("there are frames");
    let mut map = |address, range, access| {
        let mut mapped = Mapped::default();
        tables.map(&mut frames, &MapRequest { address, range, access }, &mut mapped)
    };
    map(MEDIUM, PhysRange::new(0, MEDIUM), Access::CONSTANTS).expect("is free");
    let taken = Err(MapFault::Occupied { address: MEDIUM });
    assert_eq!(
        map(MEDIUM, PhysRange::new(MEDIUM, 2 * MEDIUM), Access::DATA),
        taken,
        "a page by a page"
    );
    assert_eq!(map(MEDIUM, PhysRange::new(0, PAGE_SIZE), Access::DATA), taken, "a page by a table");
    map(2 * MEDIUM, PhysRange::new(0, PAGE_SIZE), Access::DATA).expect("is free");
    let taken = Err(MapFault::Occupied { address: 2 * MEDIUM });
    assert_eq!(
        map(2 * MEDIUM, PhysRange::new(0, MEDIUM), Access::DATA),
        taken,
        "a table by a page"
    );
    assert_eq!(
        translate(&frames, tables.root(), MEDIUM),
        Some((0, PageSize::Medium, Access::CONSTANTS))
    );
}

/// Firmware, or a part of the kernel with tables of its own, may forbid something for all below.
#[test]
fn what_a_table_above_forbids_is_not_mapped() {
    let mut frames = Frames::new(100);
    let tables = PageTable::new(&mut frames, PageSize::Large).expect("there are frames");
    let below = frames.allocate().expect("a frame");
    frames.write(tables.root(), 0, Entry::read_only_table(below));
    let range = PhysRange::new(MEDIUM, MEDIUM + PAGE_SIZE);
    let mut map = |address, access| {
        let request = MapRequest { address, range, access };
        tables.map(&mut frames, &request, &mut Mapped::default())
    };
    for access in [Access::DATA, Access::CODE, Access::DEVICE] {
        assert_eq!(map(0, access), Err(MapFault::Forbidden { address: 0 }), "{access:?}");
    }
    assert_eq!(map(PAGE_SIZE, Access::CONSTANTS), Ok(()));
    let (_, _, access) = translate(&frames, tables.root(), PAGE_SIZE).expect("mapped");
    assert_eq!(access, Access::CONSTANTS);
    // How a table itself is cached is nothing to its pages.
    let uncached = Entry(Entry::table(below).0 | 1 << 4 | 1 << 3);
    frames.write(tables.root(), 0, uncached);
    let request = MapRequest { address: 0, range, access: Access::DATA };
    assert_eq!(tables.map(&mut frames, &request, &mut Mapped::default()), Ok(()));
    let (_, _, access) = translate(&frames, tables.root(), 0).expect("mapped");
    assert_eq!(access, Access::DATA);
}

/// A call that ran out of frames may have created tables before that, at any level.
#[test]
fn empty_tables_are_filled_with_smaller_pages() {
    let of_size = |size| PhysRange::new(0, size);
    for (frames_at_first, largest) in [(2, PageSize::Large), (3, PageSize::Medium)] {
        let mut frames = Frames::new(frames_at_first);
        let tables = PageTable::new(&mut frames, PageSize::Large).expect("there are frames");
        let mut map = |left, range: PhysRange| {
            frames.left = left;
            let mut mapped = Mapped::default();
            let access = Access::DATA;
            let request = MapRequest { address: DIRECT + range.start, range, access };
            let result = tables.map(&mut frames, &request, &mut mapped);
            (result, mapped)
        };
        let (failed, _) = map(frames_at_first - 1, of_size(PAGE_SIZE));
        assert_eq!(failed, Err(MapFault::OutOfFrames { address: DIRECT }));
        // The second GiB has no tables.
        let (result, mapped) = map(100, of_size(2 * LARGE));
        assert_eq!((result, mapped.bytes()), (Ok(()), 2 * LARGE));
        let large = if largest == PageSize::Large { 2 } else { 1 };
        assert_eq!((mapped.large, mapped.small, mapped.tables), (large, 0, 0));
        let (_, size, _) = translate(&frames, tables.root(), DIRECT).expect("mapped");
        assert_eq!(size, largest);
    }
}

/// What is mapped is found page by page where a larger page would be.
#[test]
fn a_page_in_the_middle_of_a_larger_one_is_named() {
    let mut frames = Frames::new(100);
    let tables = PageTable::new(&mut frames, PageSize::Medium).expect("there are frames");
    let mut map = |address, range| {
        let request = MapRequest { address, range, access: Access::DATA };
        tables.map(&mut frames, &request, &mut Mapped::default())
    };
    map(MEDIUM + 7 * PAGE_SIZE, PhysRange::new(0, PAGE_SIZE)).expect("is free");
    let taken = Err(MapFault::Occupied { address: MEDIUM + 7 * PAGE_SIZE });
    assert_eq!(map(MEDIUM, PhysRange::new(MEDIUM, 3 * MEDIUM)), taken);
    let (physical, ..) = translate(&frames, tables.root(), MEDIUM).expect("below the address");
    assert_eq!(physical, MEDIUM);
}

#[test]
fn bad_ranges_and_empty_stores_are_errors() {
    assert!(PageTable::new(&mut Frames::new(0), PageSize::Large).is_none());
    let mut frames = Frames::new(2);
    let tables = PageTable::new(&mut frames, PageSize::Large).expect("there is one");
    let mut mapped = Mapped::default();
    let mut map = |address, start, end| {
        tables.map(
            &mut frames,
            &MapRequest { address, range: PhysRange { start, end }, access: Access::DATA },
            &mut mapped,
        )
    };
    assert_eq!(map(0, 0, PAGE_SIZE), Err(MapFault::OutOfFrames { address: 0 }));
    for (address, start, end) in [
        (1, 0, PAGE_SIZE),
        (0, 1, PAGE_SIZE),
        (0, 0, PAGE_SIZE + 1),
        (1 << 47, 0, PAGE_SIZE),
        ((1 << 47) - PAGE_SIZE, 0, 2 * PAGE_SIZE),
        (u64::MAX - PAGE_SIZE + 1, 0, 2 * PAGE_SIZE),
        (0, 0, (1 << 52) + PAGE_SIZE),
    ] {
        assert!(matches!(map(address, start, end), Err(MapFault::BadRange { .. })), "{address:#x}");
    }
}

#[test]
fn the_last_page_of_each_half_can_be_mapped() {
    let mut frames = Frames::new(20);
    let tables = PageTable::new(&mut frames, PageSize::Large).expect("there are frames");
    for address in [(1 << 47) - PAGE_SIZE, u64::MAX - PAGE_SIZE + 1] {
        let range = PhysRange::new(PAGE_SIZE, 2 * PAGE_SIZE);
        tables
            .map(
                &mut frames,
                &MapRequest { address, range, access: Access::DATA },
                &mut Mapped::default(),
            )
            .expect("there is room");
        assert!(translate(&frames, tables.root(), address).is_some());
    }
}

/// Returns ranges near the boundaries that matter, in frames, ascending and disjoint.
fn ranges() -> impl Strategy<Value = Vec<PhysRange>> {
    let point = (
        0u64..4,
        prop_oneof![Just(0i64), -3i64..4, (-2i64..3).prop_map(|n| n * 512), -700i64..700],
    )
        .prop_map(|(gib, offset)| (gib << 18).saturating_add_signed(offset));
    prop::collection::btree_set(point, 2..9).prop_map(|points| {
        let points: Vec<_> = points.into_iter().collect();
        points
            .chunks_exact(2)
            .map(|pair| PhysRange::new(pair[0] * PAGE_SIZE, pair[1] * PAGE_SIZE))
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Exactly the frames of the ranges are mapped, each at the right address, in a page that lies
    /// within its range and could not be larger.
    #[test]
    fn a_direct_map_is_what_it_should_be(
        ranges in ranges(),
        largest in prop::sample::select(PageSize::DESCENDING.to_vec()),
        shift in 0u64..3,
    ) {
        // An offset that is not a multiple of the page sizes limits the page size.
        let offset = DIRECT + [0, MEDIUM, PAGE_SIZE][usize::try_from(shift).expect("small")];
        let mut frames = Frames::new(usize::MAX);
        let tables = PageTable::new(&mut frames, largest).expect("there are frames");
        let mut mapped = Mapped::default();
        // All of 4 GiB in small pages would take a million entries.
        prop_assume!(
            largest > PageSize::Small && shift < 2
                || ranges.iter().all(|range| range.size() < 64 << 20)
        );
        for range in &ranges {
            tables
                .map(
                    &mut frames,
                    &MapRequest {
                        address: offset + range.start,
                        range: *range,
                        access: Access::DATA,
                    },
                    &mut mapped,
                )
                .expect("is free");
        }
        prop_assert_eq!(mapped.bytes(), ranges.iter().map(|range| range.size()).sum::<u64>());
        prop_assert_eq!(mapped.tables + 1, frames.tables.len() as u64);
        let fits = |physical: u64, size: PageSize| {
            let (start, end) =
                (physical & !(size.bytes() - 1), (physical | (size.bytes() - 1)) + 1);
            (start + offset).is_multiple_of(size.bytes())
                && ranges.iter().any(|range| range.start <= start && end <= range.end)
        };
        for range in &ranges {
            for edge in [range.start, range.end] {
                for delta in -600i64..600 {
                    let physical = edge.saturating_add_signed(delta * 4096) & !(PAGE_SIZE - 1);
                    let inside =
                        ranges.iter().any(|range| range.start <= physical && physical < range.end);
                    match translate(&frames, tables.root(), offset + physical + 17) {
                        None => prop_assert!(!inside, "{physical:#x} is not mapped"),
                        Some((found, size, access)) => {
                            prop_assert!(inside, "{physical:#x} is mapped");
                            prop_assert_eq!(found, physical + 17);
                            prop_assert_eq!(access, Access::DATA);
                            prop_assert!(size <= largest && fits(physical, size));
                            let larger = PageSize::DESCENDING
                                .into_iter()
                                .filter(|&other| other > size && other <= largest);
                            prop_assert!(
                                larger.into_iter().all(|larger| !fits(physical, larger)),
                                "{physical:#x} could be larger"
                            );
                        }
                    }
                }
            }
        }
    }

    /// Running out of frames is an error at any point, and what was mapped before it is correct.
    #[test]
    fn running_out_of_frames_is_an_error(frames in 1usize..8) {
        let mut frames = Frames::new(frames);
        let tables = PageTable::new(&mut frames, PageSize::Medium).expect("there is one");
        let range = PhysRange::new(LARGE - PAGE_SIZE, 4 * LARGE);
        let mut mapped = Mapped::default();
        let result = tables.map(
            &mut frames,
            &MapRequest { address: DIRECT + range.start, range, access: Access::DATA },
            &mut mapped,
        );
        let reached = range.start + mapped.bytes();
        match result {
            Ok(()) => prop_assert_eq!(reached, range.end),
            Err(fault) => {
                prop_assert_eq!(fault, MapFault::OutOfFrames { address: DIRECT + reached })
            }
        }
        prop_assert_eq!(translate(&frames, tables.root(), DIRECT + reached), None);
    }
}
