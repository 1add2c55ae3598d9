//! The manager against a naive model: random machines page by page, random requests block by block,
//! without page descriptors and with descriptors inside the blocks.

use crate::common::{
    Fake, bring_up_with, check, descriptor_frames_of, in_use, order, parameters, settled,
};
use framewright::firmware::MemoryKind;
use framewright::memblock::NodeChoice;
use framewright::parameters::Pages;
use framewright::units::{NodeId, PAGE_SIZE, PAGES_PER_BLOCK, Pfn, PfnRange, PhysRange};
use framewright::vmemmap_space::BlockNumber;
use framewright::zone::MigrateType;
use framewright::zone::{ZoneId, ZoneKind};
use framewright::{AllocateError, Request, Reserves};
use framewright_testkit::{FakeMachine, Owner};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A machine as a test describes it; sizes are in pages.
#[derive(Clone, Debug)]
struct Shape {
    /// First page, number of pages, and kind of each region.
    regions: Vec<(u64, u64, MemoryKind)>,
    /// Where each node after the first begins.
    borders: Vec<u64>,
    reserved: Vec<(u64, u64)>,
}

fn page_near(anchors: Vec<u64>, spread: u64) -> impl Strategy<Value = u64> + Clone {
    (prop::sample::select(anchors), 0..spread).prop_map(|(anchor, offset)| anchor + offset)
}

/// Regions of up to `pages` pages around places where something changes: 1 MiB, 16 MiB, 1 GiB, 4
/// GiB.
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
        self.reserved
            .iter()
            .map(|&(start, pages)| PfnRange::new(start, start + pages).to_phys())
            .collect()
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
        pages
            .retain(|&page, kind| kind.is_present() && page != 0 && !(0xa0..0x100).contains(&page));
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

/// Counts per zone, from the pages alone.
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
    assert_eq!(zones.len(), manager.views().count());
    for ((node, kind), expected) in zones {
        let id = ZoneId { node: NodeId::new(node).expect("a node"), kind };
        let zone = manager.view(id).expect("the zone has pages");
        assert_eq!(zone.present_pages(), expected.present, "{id} present");
        assert_eq!(zone.stray_pages(), expected.stray, "{id} stray");
        // The span is the node's, cut by the kind's limits.
        assert!(
            zone.span().start.0 <= expected.first && zone.span().end.0 > expected.last,
            "{id} span"
        );
    }
}

/// Unallocated frames as maximal runs: at first all that the manager hands out, then as the test
/// changes them. Frames that hold descriptors are among them; because they change, the test asks
/// the manager which they are.
struct Model {
    free: BTreeMap<u64, u64>,
    allocated: u64,
}

impl Model {
    /// Allocates every frame, one by one, and frees them.
    fn new(manager: &Fake) -> Self {
        let mut model = Self { free: BTreeMap::new(), allocated: 0 };
        let mut pages =
            vec![Pfn(0); usize::try_from(manager.totals().managed_pages).expect("small") + 1];
        let request = Request { reserves: Reserves::All, ..Request::pages(1) };
        let taken = manager.allocate_bulk(&request, &mut pages).expect("there is memory");
        let totals = manager.totals();
        assert_eq!(
            taken as u64 + totals.descriptor_pages,
            totals.managed_pages,
            "every managed frame can be had"
        );
        pages.truncate(taken);
        check(manager);
        let maps = descriptor_frames_of(manager);
        assert_eq!(maps.len() as u64, totals.descriptor_pages);
        for &page in &pages {
            model.give(PfnRange::new(page.0, page.0 + 1));
            manager.give_back_to_zone(PfnRange::new(page.0, page.0 + 1)).expect("allocated");
        }
        check(manager);
        for page in maps {
            model.give(PfnRange::new(page.0, page.0 + 1));
        }
        model.allocated = 0;
        model
    }

    fn is_free(&self, range: PfnRange) -> bool {
        self.free.range(..=range.start.0).next_back().is_some_and(|(_, &end)| end >= range.end.0)
    }

    fn any_free(&self, range: PfnRange) -> bool {
        self.free.range(..range.end.0).next_back().is_some_and(|(_, &end)| end > range.start.0)
    }

    fn take(&mut self, range: PfnRange) {
        let (&start, &end) = self
            .free
            .range(..=range.start.0)
            .next_back()
            .expect("somebody handed out what was not free");
        assert!(end >= range.end.0, "{range:?} was not free");
        self.free.remove(&start);
        if start < range.start.0 {
            self.free.insert(start, range.start.0);
        }
        if range.end.0 < end {
            self.free.insert(range.end.0, end);
        }
        self.allocated += range.pages();
    }

    fn give(&mut self, range: PfnRange) {
        assert!(!self.any_free(range), "{range:?} was free already");
        let (mut start, mut end) = (range.start.0, range.end.0);
        if let Some((&before, &touching)) = self.free.range(..start).next_back()
            && touching == start
        {
            self.free.remove(&before);
            start = before;
        }
        if let Some(after) = self.free.remove(&end) {
            end = after;
        }
        self.free.insert(start, end);
        self.allocated = self.allocated.saturating_sub(range.pages());
    }

    /// Whether some aligned free run would have served.
    fn could(
        &self,
        manager: &Fake,
        shape: &Shape,
        of: u8,
        allowed: &dyn Fn(usize, u64) -> bool,
    ) -> bool {
        let size = 1_u64 << of;
        let zone_of = |page: u64| (shape.node_of(page), ZoneKind::of(Pfn(page)));
        self.free.iter().any(|(&start, &end)| {
            let mut piece = start.next_multiple_of(size);
            while piece + size <= end {
                let zone = zone_of(piece);
                if zone == zone_of(piece + size - 1)
                    && allowed(zone.0, piece + size)
                    && is_available(manager, PfnRange::new(piece, piece + size))
                {
                    return true;
                }
                piece += size;
            }
            false
        })
    }
}

/// Whether unallocated frames can be allocated: they may hold descriptors of their block, or the
/// block may wait for room for its descriptors.
fn is_available(manager: &Fake, range: PfnRange) -> bool {
    let block = BlockNumber::containing(range.start);
    if range.pages() >= PAGES_PER_BLOCK {
        return true;
    }
    let in_descriptors = manager
        .vmemmap()
        .descriptor_frames(block)
        .is_some_and(|frames| frames.iter().any(|&frame| range.contains(frame)));
    !in_descriptors
        && !manager.block_state(block).is_some_and(framewright::zone::BlockState::is_unavailable)
}

#[derive(Clone, Debug)]
enum Step {
    Allocate {
        of: u8,
        kind: ZoneKind,
        exact: Option<usize>,
        max_page: Option<u64>,
        migrate_type: usize,
    },
    At {
        slot: usize,
        of: u8,
    },
    Free {
        slot: usize,
        first: u64,
        pages: u64,
    },
    FreeWrong {
        page: u64,
        pages: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (
            0_u8..=18,
            prop::sample::select(ZoneKind::ALL.to_vec()),
            prop::option::weighted(0.3, 0_usize..4),
            prop::option::weighted(
                0.3,
                page_near(vec![0x1000, 0x3_fe00, 0x10_0000, 0x14_0000], 4000),
            ),
            0_usize..3,
        )
            .prop_map(|(of, kind, exact, max_page, migrate_type)| Step::Allocate {
                of,
                kind,
                exact,
                max_page,
                migrate_type,
            }),
        2 => (any::<prop::sample::Index>(), 0_u8..=18)
            .prop_map(|(slot, of)| Step::At { slot: slot.index(1 << 20), of }),
        4 => (any::<prop::sample::Index>(), any::<u64>(), 0_u32..19).prop_map(
            |(slot, first, size)| Step::Free { slot: slot.index(1 << 20), first, pages: 1 << size },
        ),
        1 => (page_near(vec![0, 0xff0, 0x1000, 0xf_f000, 0x10_0000], 5000), 1_u64..2000)
            .prop_map(|(page, pages)| Step::FreeWrong { page, pages }),
    ]
}

fn run(shape: &Shape, steps: &[Step], pages: Pages, command_line: &str) {
    let machine = shape.machine();
    let mut parameters = parameters(command_line);
    parameters.pages = pages;
    // No reservation reaches the last region, which has room for the tables.
    let manager = bring_up_with(machine, &shape.reservations(), &parameters).expect("bring-up");
    compare(shape, &manager, steps, pages);
    // SAFETY: the manager, the only user, is gone.
    unsafe { machine.retire() };
}

fn compare(shape: &Shape, manager: &Fake, steps: &[Step], pages: Pages) {
    compare_zones(shape, manager);
    let mut model = Model::new(manager);
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
                    reserves: Reserves::All,
                    ..Request::new(order(of))
                };
                let allowed = |in_node: usize, end: u64| {
                    node.is_none_or(|node| node.index() == in_node)
                        && end <= kind.reach().0
                        && max_page.is_none_or(|page| end <= page)
                };
                match manager.allocate(&request) {
                    Ok(range) => {
                        let zone = (shape.node_of(range.start.0), ZoneKind::of(range.start));
                        assert!(range.start.is_aligned(order(of)) && range.pages() == 1 << of);
                        assert!(
                            allowed(zone.0, range.end.0),
                            "{range:?} is not what {step:?} wants"
                        );
                        check_described(manager, range, pages);
                        model.take(range);
                        held.push(range);
                    }
                    Err(AllocateError::OutOfMemory { .. }) => {
                        assert!(
                            !model.could(manager, shape, of, &allowed),
                            "{step:?} failed for no reason"
                        );
                    }
                    Err(error) => panic!("{step:?}: {error}"),
                }
            }
            Step::At { slot, of } => {
                let (&start, &end) = model
                    .free
                    .iter()
                    .nth(slot % model.free.len().max(1))
                    .expect("something is free");
                let page = start + (slot as u64 * 7919) % (end - start);
                let range = PfnRange::new(page >> of << of, (page >> of << of) + (1 << of));
                let zones = [range.start.0, range.end.0 - 1]
                    .map(|page| (shape.node_of(page), ZoneKind::of(Pfn(page))));
                match manager.allocate_at(range.start, order(of), MigrateType::Movable) {
                    Ok(taken) => {
                        assert_eq!(taken, range);
                        check_described(manager, range, pages);
                        model.take(taken);
                        held.push(taken);
                    }
                    Err(error) => {
                        let could = model.is_free(range)
                            && zones[0] == zones[1]
                            && is_available(manager, range);
                        assert!(!could, "{step:?}: {error}");
                    }
                }
            }
            Step::Free { slot, first, pages } => {
                if held.is_empty() {
                    continue;
                }
                let index = slot % held.len();
                let range = held.swap_remove(index);
                let start = range.start.0 + first % range.pages();
                let piece = PfnRange::new(start, (start + pages).min(range.end.0));
                manager.give_back_to_zone(piece).expect("it is held");
                model.give(piece);
                let rest = [
                    PfnRange { start: range.start, end: piece.start },
                    PfnRange { start: piece.end, end: range.end },
                ];
                held.extend(rest.into_iter().filter(|rest| !rest.is_empty()));
            }
            Step::FreeWrong { page, pages } => {
                let range = PfnRange::new(page, page + pages);
                // The free is wrong unless every frame of the range is held.
                let held: u64 = held.iter().map(|held| held.intersection(range).pages()).sum();
                if held < pages {
                    let before = manager.totals();
                    assert!(
                        manager.give_back_to_zone(range).is_err(),
                        "{range:?} is not all allocated"
                    );
                    assert_eq!(manager.totals(), before);
                }
            }
        }
        assert_eq!(in_use(manager), model.allocated);
    }
    check(manager);
    for range in held {
        manager.give_back_to_zone(range).expect("it is held");
    }
    check(manager);
    let totals = settled(manager);
    assert_eq!(totals.free_pages + totals.descriptor_pages, totals.managed_pages);
}

/// Pages of runs smaller than a block have descriptors if the machine has any, all zero. None of
/// the descriptors lies in a frame of such a run.
fn check_described(manager: &Fake, range: PfnRange, pages: Pages) {
    let frames = manager.vmemmap().descriptor_frames(BlockNumber::containing(range.start));
    let described = pages == Pages::Inside && range.pages() < PAGES_PER_BLOCK;
    assert_eq!(frames.is_some(), described, "{range:?}");
    assert!(
        !frames.into_iter().flatten().any(|frame| range.contains(frame)),
        "{range:?} holds descriptors"
    );
    for page in [range.start, Pfn(range.end.0 - 1)] {
        // SAFETY: the page was just allocated.
        let page = unsafe { manager.vmemmap().page(page) };
        assert_eq!(page.is_some_and(framewright::Page::is_clear), described, "{range:?}");
    }
}

fn pages() -> impl Strategy<Value = Pages> {
    prop::sample::select(vec![Pages::None, Pages::Inside])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn small_machines(
        shape in shape(6000),
        steps in prop::collection::vec(step(), 0..60),
        pages in pages(),
    ) {
        run(&shape, &steps, pages, "");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20, ..ProptestConfig::default() })]

    #[test]
    fn machines_with_whole_gib(
        shape in shape(0x9_0000),
        steps in prop::collection::vec(step(), 0..120),
        pages in pages(),
    ) {
        // A careful run writes to every page that is freed, here to all of several GiB.
        if crate::common::is_careful() {
            return Ok(());
        }
        run(&shape, &steps, pages, "");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn small_machines_with_debug_aids(
        shape in shape(3000),
        steps in prop::collection::vec(step(), 0..60),
        aids in prop::sample::select(vec![
            "page_owner=on",
            "page_poison=1",
            "init_on_alloc=1 init_on_free=1",
            "page_owner=on page_poison=1 careful=5",
        ]),
        pages in pages(),
    ) {
        run(&shape, &steps, pages, aids);
    }
}
