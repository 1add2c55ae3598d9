//! The manager against a naive model: random machines page by page, random requests block by block.

mod common;

use common::{Fake, bring_up_reserving, check, order};
use framewright::block::MigrateType;
use framewright::early::NodeChoice;
use framewright::firmware::MemoryKind;
use framewright::map_space::BlockNumber;
use framewright::units::{NodeId, PAGE_SIZE, PAGES_PER_BLOCK, Pfn, PfnRange, PhysRange};
use framewright::zone::{ZoneId, ZoneKind};
use framewright::{AllocateError, Request};
use framewright_testkit::FakeMachine;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// A machine as a test describes it; sizes in pages.
#[derive(Clone, Debug)]
struct Shape {
    /// First page of each region, its pages, and its kind.
    regions: Vec<(u64, u64, MemoryKind)>,
    /// Where each node after the first begins.
    borders: Vec<u64>,
    reserved: Vec<(u64, u64)>,
}

fn page_near(anchors: Vec<u64>, spread: u64) -> impl Strategy<Value = u64> + Clone {
    (prop::sample::select(anchors), 0..spread).prop_map(|(anchor, offset)| anchor + offset)
}

/// Regions of up to `pages` around places where something changes: 1 MiB, 16 MiB, 1 GiB, 4 GiB.
fn shape(pages: u64) -> impl Strategy<Value = Shape> {
    let anchors = vec![0, 0xff0, 0x1000, 0x3_fe00, 0xf_f000, 0x10_0000, 0x14_0000];
    let kind = prop::sample::select(vec![
        MemoryKind::Conventional,
        MemoryKind::Conventional,
        MemoryKind::Conventional,
        MemoryKind::HotPluggable,
        MemoryKind::Unaccepted,
        MemoryKind::AcpiNvs,
    ]);
    let region = (page_near(anchors.clone(), 3000), 1..pages, kind);
    let places = page_near(anchors, 6000);
    (
        prop::collection::vec(region, 1..6),
        prop::collection::btree_set(places.clone(), 0..3),
        prop::collection::vec((places, 1_u64..700), 0..6),
    )
        .prop_map(|(mut regions, borders, reserved)| {
            // Enough ordinary memory for the tables.
            regions.push((0x1e_0000, 4096, MemoryKind::Conventional));
            Shape { regions, borders: borders.into_iter().collect(), reserved }
        })
}

impl Shape {
    fn machine(&self) -> &'static FakeMachine {
        let mut builder = FakeMachine::builder();
        for &(start, pages, kind) in &self.regions {
            builder = builder.memory(PfnRange::new(start, start + pages).to_phys(), kind);
        }
        let mut start = 0;
        for (node, &border) in self.borders.iter().enumerate() {
            builder = builder.node(PfnRange::new(start, border).to_phys(), node);
            start = border;
        }
        builder.node(PhysRange::new(start * PAGE_SIZE, 1 << 52), self.borders.len()).build()
    }

    fn reservations(&self) -> Vec<PhysRange> {
        self.reserved.iter().map(|&(start, pages)| PfnRange::new(start, start + pages).to_phys()).collect()
    }

    fn node_of(&self, page: u64) -> usize {
        self.borders.iter().filter(|&&border| border <= page).count()
    }

    /// Every page that some region names, with its kind.
    fn pages(&self) -> BTreeMap<u64, MemoryKind> {
        let mut pages = BTreeMap::new();
        for &(start, count, kind) in &self.regions {
            for page in start..start + count {
                let entry = pages.entry(page).or_insert(kind);
                *entry = kind.max(*entry);
            }
        }
        pages.retain(|&page, kind| kind.is_present() && page != 0 && !(0xa0..0x100).contains(&page));
        pages
    }
}

#[derive(Default)]
struct ZoneTally {
    present: u64,
    stray: u64,
    first: u64,
    last: u64,
    blocks: BTreeMap<u64, u64>,
}

/// Counts per zone from the pages alone.
fn tally(shape: &Shape) -> BTreeMap<(usize, ZoneKind), ZoneTally> {
    let mut zones: BTreeMap<(usize, ZoneKind), ZoneTally> = BTreeMap::new();
    let mut owners: BTreeMap<u64, BTreeMap<usize, u64>> = BTreeMap::new();
    for &page in shape.pages().keys() {
        let node = shape.node_of(page);
        let zone = zones.entry((node, ZoneKind::of(Pfn(page)))).or_default();
        zone.first = if zone.present == 0 { page } else { zone.first };
        zone.last = page;
        zone.present += 1;
        *zone.blocks.entry(page / PAGES_PER_BLOCK).or_default() += 1;
        *owners.entry(page / PAGES_PER_BLOCK).or_default().entry(node).or_default() += 1;
    }
    for (&(node, _), zone) in &mut zones {
        for (block, pages) in &zone.blocks {
            let shares = &owners[block];
            let most = shares.values().max().expect("somebody has a page");
            let owner = shares.iter().find(|(_, pages)| *pages == most).expect("the maximum").0;
            if *owner != node {
                zone.stray += pages;
            }
        }
    }
    zones
}

fn compare_zones(shape: &Shape, manager: &Fake) {
    let zones = tally(shape);
    assert_eq!(zones.len(), manager.zones().len());
    for ((node, kind), expected) in zones {
        let id = ZoneId { node: NodeId::new(node).expect("a node"), kind };
        let zone = manager.zone(id).expect("the zone has pages");
        assert_eq!(zone.present_pages(), expected.present, "{id} present");
        assert_eq!(zone.stray_pages(), expected.stray, "{id} stray");
        // The span is the node's, cut by the kind's limits.
        assert!(zone.span().start.0 <= expected.first && zone.span().end.0 > expected.last, "{id} span");
    }
}

/// Which blocks are free, by the tables' own words at the start, then by what the test did.
struct Model {
    free: BTreeSet<u32>,
    allocated: BTreeSet<u32>,
}

impl Model {
    fn new(shape: &Shape, manager: &Fake) -> Self {
        let blocks: BTreeSet<u64> = shape.pages().keys().map(|page| page / PAGES_PER_BLOCK).collect();
        let free = blocks
            .into_iter()
            .map(|block| u32::try_from(block).expect("small"))
            .filter(|&block| {
                manager.block_state(BlockNumber(block)).is_some_and(|state| state.is(framewright::block::State::Free))
            })
            .collect();
        Self { free, allocated: BTreeSet::new() }
    }

    fn blocks(range: PfnRange) -> std::ops::Range<u32> {
        BlockNumber::containing(range.start).0..BlockNumber::containing(range.end).0
    }

    fn take(&mut self, range: PfnRange) {
        for block in Self::blocks(range) {
            assert!(self.free.remove(&block), "block {block} was not free");
            self.allocated.insert(block);
        }
    }

    fn give(&mut self, range: PfnRange) {
        for block in Self::blocks(range) {
            assert!(self.allocated.remove(&block));
            self.free.insert(block);
        }
    }

    /// Whether some aligned free piece would have done.
    fn could(&self, shape: &Shape, of: u8, allowed: &dyn Fn(usize, ZoneKind, u64) -> bool) -> bool {
        let size = 1_u32 << (of - 9);
        self.free.iter().filter(|&&block| block % size == 0).any(|&block| {
            let zone_of = |block: u32| {
                let page = u64::from(block) * PAGES_PER_BLOCK;
                (shape.node_of(page + 511), ZoneKind::of(Pfn(page)))
            };
            let zone = zone_of(block);
            let end = u64::from(block + size) * PAGES_PER_BLOCK;
            (block..block + size).all(|block| self.free.contains(&block) && zone_of(block) == zone)
                && allowed(zone.0, zone.1, end)
        })
    }
}

#[derive(Clone, Debug)]
enum Step {
    Allocate { of: u8, kind: ZoneKind, exact: Option<usize>, max_page: Option<u64>, migrate_type: usize },
    At { slot: usize, of: u8 },
    Free { slot: usize, first: u64, blocks: u64 },
    FreeWrong { block: u32, blocks: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (9_u8..=18, prop::sample::select(ZoneKind::ALL.to_vec()), prop::option::weighted(0.3, 0_usize..4),
            prop::option::weighted(0.3, page_near(vec![0x1000, 0x3_fe00, 0x10_0000, 0x14_0000], 4000)), 0_usize..3)
            .prop_map(|(of, kind, exact, max_page, migrate_type)| Step::Allocate { of, kind, exact, max_page, migrate_type }),
        2 => (any::<prop::sample::Index>(), 9_u8..=18)
            .prop_map(|(slot, of)| Step::At { slot: slot.index(1 << 20), of }),
        4 => (any::<prop::sample::Index>(), 0_u64..600, 1_u64..600)
            .prop_map(|(slot, first, blocks)| Step::Free { slot: slot.index(1 << 20), first, blocks }),
        1 => (0_u32..4000, 1_u64..4).prop_map(|(block, blocks)| Step::FreeWrong { block, blocks }),
    ]
}

fn run(shape: &Shape, steps: &[Step]) {
    let Ok(manager) = bring_up_reserving(shape.machine(), &shape.reservations()) else {
        // The reservations left too little.
        return;
    };
    compare_zones(shape, &manager);
    let mut model = Model::new(shape, &manager);
    let mut held: Vec<PfnRange> = Vec::new();
    for step in steps {
        match *step {
            Step::Allocate { of, kind, exact, max_page, migrate_type } => {
                let node = exact.filter(|&node| node <= shape.borders.len()).and_then(NodeId::new);
                let request = Request {
                    migrate_type: MigrateType::ALL[migrate_type],
                    node: node.map_or(NodeChoice::Any, NodeChoice::Exact),
                    zone: kind,
                    max_address: max_page.map_or(u64::MAX, |page| page * PAGE_SIZE),
                    reserves: true,
                    ..Request::new(order(of))
                };
                let allowed = |in_node: usize, in_kind: ZoneKind, end: u64| {
                    node.is_none_or(|node| node.index() == in_node)
                        && in_kind <= kind
                        && max_page.is_none_or(|page| end <= page)
                };
                match manager.allocate(&request) {
                    Ok(range) => {
                        let zone = (shape.node_of(range.end.0 - 1), ZoneKind::of(range.start));
                        assert!(range.start.is_aligned(order(of)) && range.pages() == 1 << of);
                        assert!(allowed(zone.0, zone.1, range.end.0), "{range:?} is not what {step:?} wants");
                        model.take(range);
                        held.push(range);
                    }
                    Err(AllocateError::OutOfMemory { .. }) => {
                        assert!(!model.could(shape, of, &allowed), "{step:?} failed for no reason");
                    }
                    Err(error) => panic!("{step:?}: {error}"),
                }
            }
            Step::At { slot, of } => {
                let free: Vec<u32> = model.free.iter().copied().collect();
                let Some(&block) = free.get(slot % free.len().max(1)) else { continue };
                let size = 1 << (of - 9);
                let start = BlockNumber(block & !(size - 1));
                let all_free = (start.0..start.0 + size).all(|block| model.free.contains(&block));
                match manager.allocate_at(start.start(), order(of), MigrateType::Movable) {
                    Ok(range) => {
                        assert!(all_free);
                        model.take(range);
                        held.push(range);
                    }
                    Err(error) => {
                        let zones: BTreeSet<_> = (start.0..start.0 + size)
                            .map(|block| {
                                (shape.node_of(u64::from(block) * 512 + 511), ZoneKind::of(BlockNumber(block).start()))
                            })
                            .collect();
                        assert!(!all_free || zones.len() > 1, "{step:?}: {error}");
                    }
                }
            }
            Step::Free { slot, first, blocks } => {
                if held.is_empty() {
                    continue;
                }
                let index = slot % held.len();
                let range = held.swap_remove(index);
                let total = range.pages() / PAGES_PER_BLOCK;
                let first = first % total;
                let piece = common::part(range, first, blocks.min(total - first));
                manager.free(piece).expect("it is held");
                model.give(piece);
                let rest =
                    [PfnRange { start: range.start, end: piece.start }, PfnRange { start: piece.end, end: range.end }];
                held.extend(rest.into_iter().filter(|rest| !rest.is_empty()));
            }
            Step::FreeWrong { block, blocks } => {
                let range = PfnRange::new(u64::from(block) * 512, (u64::from(block) + blocks) * 512);
                let any_free = Model::blocks(range).any(|block| !model.allocated.contains(&block));
                if any_free {
                    let before = manager.totals();
                    assert!(manager.free(range).is_err(), "{range:?} is not all allocated");
                    assert_eq!(manager.totals(), before);
                }
            }
        }
    }
    check(&manager);
    for range in held {
        manager.free(range).expect("it is held");
    }
    check(&manager);
    let totals = manager.totals();
    assert_eq!(totals.free_pages, totals.managed_pages);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn small_machines(shape in shape(6000), steps in prop::collection::vec(step(), 0..60)) {
        run(&shape, &steps);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn machines_with_whole_gib(shape in shape(0x9_0000), steps in prop::collection::vec(step(), 0..120)) {
        run(&shape, &steps);
    }
}
