//! The manager with its per-CPU caches against a model that knows every page: random operations on
//! several CPUs in turn, inside and outside interrupt handlers, with full accounting after each.
//! `framewright-testkit/tests/testkit/traffic.rs` does something similar with CPUs that really run
//! at once.

use super::HERE;
use crate::common::{Fake, check, order};
use framewright::units::{PAGE_SIZE, Pfn, PfnRange};
use framewright::zone::MigrateType;
use framewright::zone::{FreeError, ZoneKind};
use framewright::{AllocateError, Request, Reserves};
use framewright_testkit::{FakeMachine, Owner};
use proptest::prelude::*;

const CPUS: u32 = 3;
const PAGES: usize = 12 << 10;

/// What the model knows about a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Page {
    Unmanaged,
    Free,
    Held,
}

#[derive(Clone, Debug)]
enum Operation {
    Order { of: u8, migrate_type: usize },
    Request { pages: u64, migrate_type: usize, zone: ZoneKind, max_page: Option<u64> },
    Bulk { count: usize, migrate_type: usize, reserves: bool },
    At { page: u64, of: u8 },
    Free { slot: prop::sample::Index, ordered: bool },
    FreePart { slot: prop::sample::Index, first: u64, pages: u64 },
    FreeWithNeighbour { slot: prop::sample::Index },
    FreeWrong { page: u64, pages: u64 },
    Drain,
}

#[derive(Clone, Debug)]
struct Step {
    cpu: u32,
    in_handler: bool,
    operation: Operation,
}

fn operation() -> impl Strategy<Value = Operation> {
    let small = prop::sample::select(vec![0_u8, 0, 0, 1, 2, 3, 4, 6, 8, 9, 9, 10, 12]);
    let page = 0..PAGES as u64;
    let slot = any::<prop::sample::Index>();
    prop_oneof![
        8 => (small.clone(), 0_usize..3)
            .prop_map(|(of, migrate_type)| Operation::Order { of, migrate_type }),
        3 => (
            1_u64..3000,
            0_usize..3,
            prop::sample::select(ZoneKind::ALL.to_vec()),
            prop::option::weighted(0.3, page.clone()),
        )
            .prop_map(|(pages, migrate_type, zone, max_page)| Operation::Request {
                pages,
                migrate_type,
                zone,
                max_page,
            }),
        2 => (1_usize..600, 0_usize..3, any::<bool>()).prop_map(|(count, migrate_type, reserves)| {
            Operation::Bulk { count, migrate_type, reserves }
        }),
        2 => (page.clone(), small)
            .prop_map(|(page, of)| Operation::At { page: page >> of << of, of }),
        7 => (slot.clone(), prop::bool::weighted(0.8))
            .prop_map(|(slot, ordered)| Operation::Free { slot, ordered }),
        2 => (slot.clone(), any::<u64>(), 1_u64..2000)
            .prop_map(|(slot, first, pages)| Operation::FreePart { slot, first, pages }),
        1 => slot.prop_map(|slot| Operation::FreeWithNeighbour { slot }),
        1 => (page, 1_u64..700).prop_map(|(page, pages)| Operation::FreeWrong { page, pages }),
        1 => Just(Operation::Drain),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    (0..CPUS, prop::bool::weighted(0.2), operation())
        .prop_map(|(cpu, in_handler, operation)| Step { cpu, in_handler, operation })
}

struct Model {
    pages: Vec<Page>,
    /// Runs that are held; a whole run is exactly what one call returned.
    held: Vec<(PfnRange, bool)>,
}

impl Model {
    /// Learns the machine by allocating every page and giving it back.
    fn new(manager: &Fake) -> Self {
        let mut pages = vec![Page::Unmanaged; PAGES];
        let mut all = vec![Pfn(0); PAGES + 1];
        let request = Request { reserves: Reserves::All, ..Request::pages(1) };
        let taken = manager.allocate_bulk(&request, &mut all).expect("there is memory");
        assert_eq!(taken as u64, manager.totals().managed_pages);
        for &page in &all[..taken] {
            pages[index(page)] = Page::Free;
            manager.give_back(PfnRange { start: page, end: page.add(1) }).expect("allocated");
        }
        Self { pages, held: Vec::new() }
    }

    fn take(&mut self, range: PfnRange) {
        for page in &mut self.pages[index(range.start)..index(range.end)] {
            assert_eq!(
                *page,
                Page::Free,
                "{range:?} was given though somebody has it, or it is not managed"
            );
            *page = Page::Held;
        }
        self.held.push((range, true));
    }

    fn give(&mut self, range: PfnRange) {
        for page in &mut self.pages[index(range.start)..index(range.end)] {
            assert_eq!(*page, Page::Held, "the model is wrong");
            *page = Page::Free;
        }
    }

    fn pick(&self, slot: &prop::sample::Index) -> Option<usize> {
        (!self.held.is_empty()).then(|| slot.index(self.held.len()))
    }

    fn is(&self, range: PfnRange, wanted: Page) -> bool {
        let end = index(range.end).min(self.pages.len());
        self.pages
            .get(index(range.start)..end)
            .is_some_and(|pages| pages.iter().all(|&page| page == wanted))
            && index(range.end) <= self.pages.len()
    }

    fn held_pages(&self) -> u64 {
        self.held.iter().map(|(range, _)| range.pages()).sum()
    }

    /// Whether some aligned free run in one zone would have served.
    fn could(&self, of: u8, zone: ZoneKind, end: u64) -> bool {
        let size = 1_u64 << of;
        let starts = (0..PAGES as u64).step_by(1 << of);
        starts.filter(|start| start + size <= end && start + size <= zone.reach().0).any(|start| {
            let range = PfnRange::new(start, start + size);
            self.is(range, Page::Free) && same_zone(range)
        })
    }
}

fn index(pfn: Pfn) -> usize {
    usize::try_from(pfn.0).expect("small")
}

/// The machine: two nodes, a zone border at 16 MiB, a node border inside a block, and a hole.
fn machine() -> &'static FakeMachine {
    let pages = |start: u64, end: u64| PfnRange::new(start, end).to_phys();
    FakeMachine::builder()
        .ram(pages(0, 9000))
        .ram(pages(9777, PAGES as u64))
        .node(pages(0, 7300), 0)
        .node(pages(7300, 1 << 20), 1)
        .cpus_on(0, CPUS - 1)
        .cpus_on(1, 1)
        .build()
}

fn zone_of(page: u64) -> (bool, ZoneKind) {
    (page >= 7300, ZoneKind::of(Pfn(page)))
}

fn same_zone(range: PfnRange) -> bool {
    zone_of(range.start.0) == zone_of(range.end.0 - 1)
}

fn apply(manager: &Fake, model: &mut Model, operation: &Operation, may_wait: bool) {
    match *operation {
        Operation::Order { of, migrate_type } => {
            match manager.allocate_order(order(of), MigrateType::ALL[migrate_type]) {
                Ok(start) => {
                    assert!(start.is_aligned(order(of)));
                    model.take(PfnRange { start, end: start.add(1 << of) });
                }
                Err(error) => assert_eq!(error, AllocateError::OutOfMemory { order: order(of) }),
            }
        }
        Operation::Request { pages, migrate_type, zone, max_page } => {
            let request = Request {
                migrate_type: MigrateType::ALL[migrate_type],
                zone,
                max_address: max_page.map_or(u64::MAX, |page| page * PAGE_SIZE),
                reserves: Reserves::All,
                ..Request::pages(pages)
            };
            let of = u8::try_from(pages.next_power_of_two().trailing_zeros()).expect("small");
            match manager.allocate(&request) {
                Ok(range) => {
                    assert_eq!(range.pages(), pages);
                    assert!(
                        range.end <= zone.reach() && range.end.0 <= max_page.unwrap_or(u64::MAX)
                    );
                    model.take(range);
                }
                Err(AllocateError::OutOfMemory { .. }) => {
                    let possible = model.could(of, zone, max_page.unwrap_or(u64::MAX));
                    assert!(!possible || !may_wait, "{operation:?} failed for no reason");
                }
                Err(error) => panic!("{operation:?}: {error}"),
            }
        }
        Operation::Bulk { count, migrate_type, reserves } => {
            let mut pages = vec![Pfn(0); count];
            let request = Request {
                migrate_type: MigrateType::ALL[migrate_type],
                reserves: if reserves { Reserves::All } else { Reserves::None },
                ..Request::pages(1)
            };
            let done = manager.allocate_bulk(&request, &mut pages).unwrap_or(0);
            for &page in &pages[..done] {
                model.take(PfnRange { start: page, end: page.add(1) });
            }
            if reserves && may_wait && done < count {
                assert_eq!(manager.totals().free_pages, 0, "{operation:?} stopped at {done}");
            }
        }
        Operation::At { page, of } => {
            let range = PfnRange::new(page, page + (1 << of));
            let free_before = model.is(range, Page::Free);
            match manager.allocate_at(range.start, order(of), MigrateType::Movable) {
                Ok(taken) => {
                    assert_eq!(taken, range);
                    model.take(taken);
                }
                // The frames may be in a cache, which `allocate_at` does not search.
                Err(error) => {
                    assert!(
                        !free_before || !same_zone(range) || manager.caches().pages() != 0,
                        "{operation:?}: {error}"
                    );
                }
            }
        }
        Operation::Free { ref slot, ordered } => {
            let Some(place) = model.pick(slot) else { return };
            let (range, whole) = model.held.swap_remove(place);
            if ordered && whole && range.pages().is_power_of_two() {
                let of = u8::try_from(range.pages().trailing_zeros()).expect("small");
                manager.give_back_order(range.start, order(of)).expect("it is held");
            } else {
                manager.give_back(range).expect("it is held");
            }
            model.give(range);
        }
        Operation::FreePart { ref slot, first, pages } => {
            let Some(place) = model.pick(slot) else { return };
            let (range, _) = model.held.swap_remove(place);
            let start = range.start.0 + first % range.pages();
            let part = PfnRange::new(start, (start + pages).min(range.end.0));
            manager.give_back(part).expect("it is held");
            model.give(part);
            let rest = [
                PfnRange { start: range.start, end: part.start },
                PfnRange { start: part.end, end: range.end },
            ];
            model
                .held
                .extend(rest.into_iter().filter(|rest| !rest.is_empty()).map(|rest| (rest, false)));
        }
        Operation::FreeWithNeighbour { ref slot } => {
            let Some(place) = model.pick(slot) else { return };
            let (range, _) = model.held[place];
            let Some(next) = model.held.iter().position(|(other, _)| other.start == range.end)
            else {
                return;
            };
            let both = PfnRange { start: range.start, end: model.held[next].0.end };
            if zone_of(range.start.0) != zone_of(model.held[next].0.start.0) {
                return;
            }
            model.held.retain(|(held, _)| *held != range && held.start != range.end);
            manager.give_back(both).expect("both are held");
            model.give(both);
        }
        Operation::FreeWrong { page, pages } => {
            // The tables count cached frames as allocated, so that such a free must fail only if
            // all caches are empty.
            manager.drain().expect("only good frames are cached");
            let range = PfnRange::new(page, page + pages);
            if manager.caches().pages() == 0 && !model.is(range, Page::Held) {
                let before = manager.totals();
                let refused = manager.give_back(range);
                assert!(refused.is_err(), "{range:?} is not all held");
                assert!(!matches!(refused, Err(FreeError::Empty(_))));
                assert_eq!(manager.totals(), before);
            }
        }
        Operation::Drain => {
            manager.drain().expect("only good frames are cached");
            if may_wait {
                assert_eq!(manager.caches().pages(), 0);
            }
        }
    }
}

fn account(manager: &Fake, model: &Model) {
    check(manager);
    let totals = manager.totals();
    assert_eq!(totals.allocated_pages, model.held_pages() + manager.caches().pages());
}

fn run(steps: &[Step]) {
    let machine = machine();
    let reserved = [PfnRange::new(5000, 5003).to_phys(), PfnRange::new(11_111, 11_200).to_phys()];
    let manager = HERE.bring_up_reserving(machine, &reserved).expect("bring-up");
    let mut model = Model::new(&manager);
    for step in steps {
        machine.run_on(step.cpu, || {
            if step.in_handler {
                machine.interrupt(|| apply(&manager, &mut model, &step.operation, false));
            } else {
                apply(&manager, &mut model, &step.operation, true);
            }
        });
        account(&manager, &model);
    }
    for (range, _) in std::mem::take(&mut model.held) {
        manager.give_back(range).expect("it is held");
    }
    manager.drain().expect("only good frames are cached");
    check(&manager);
    let totals = manager.totals();
    assert_eq!((totals.free_pages, manager.caches().pages()), (totals.managed_pages, 0));
    // SAFETY: the manager is no longer used.
    unsafe { machine.retire() };
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn every_page_is_where_the_model_has_it(steps in prop::collection::vec(step(), 0..250)) {
        // The test frees neighbouring allocations with one call, which page owners report as a
        // wrong size.
        if crate::common::is_careful() {
            return Ok(());
        }
        run(&steps);
    }
}
