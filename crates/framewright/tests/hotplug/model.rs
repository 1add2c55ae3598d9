//! Random histories of releases, hotplug and requests against a model that knows of each block and
//! of each reserved page whether the manager owns it.

use crate::add::{add, node};
use crate::common::{Fake, bring_up_with, check, gib, mib, order, parameters, settled};
use framewright::manager::{Budget, HotplugError, ReleaseError};
use framewright::memblock::NodeChoice;
use framewright::units::{Pfn, PfnRange, PhysRange};
use framewright::zone::{Grade, MigrateType};
use framewright::{AllocateError, Request};
use framewright_testkit::workload::Random;
use framewright_testkit::{FakeMachine, FakeVmemmap, Owner};

const BLOCK_BYTES: u64 = 2 << 20;
const BLOCK_PAGES: u64 = 512;
/// A reserved range of node 0, not managed at first; it begins and ends within blocks.
const RESERVED: PhysRange = PhysRange::new(0x200_3000, 0x281_5000);
/// Places where memory comes and goes, with their nodes.
const PLACES: [(PhysRange, usize); 3] = [
    (PhysRange::new(4 << 30, (4 << 30) + (512 << 20)), 0),
    (PhysRange::new(6 << 30, (6 << 30) + (512 << 20)), 1),
    // In the zone of the memory that was there at boot.
    (PhysRange::new(512 << 20, 768 << 20), 0),
];

/// The expected state.
struct Model {
    /// For each block of each place: whether it is memory.
    there: Vec<Vec<bool>>,
    /// For each page of the reserved range: whether it was released.
    released: Vec<bool>,
    held: Vec<PfnRange>,
}

impl Model {
    fn added_pages(&self) -> u64 {
        let blocks = self.there.iter().flatten().filter(|there| **there).count() as u64;
        blocks * BLOCK_PAGES
    }

    fn released_pages(&self) -> u64 {
        self.released.iter().filter(|released| **released).count() as u64
    }

    fn is_used(&self, range: PfnRange) -> bool {
        self.held.iter().any(|held| held.start < range.end && range.start < held.end)
    }

    /// Returns whether all of a range may be handed out and is not in use.
    fn may_be_had(&self, range: PfnRange) -> bool {
        let reserved = RESERVED.whole_frames();
        let is_there = |pfn: Pfn| {
            if reserved.contains(pfn) {
                return self.released[usize::try_from(pfn.0 - reserved.start.0).expect("small")];
            }
            let place = PLACES.iter().position(|(place, _)| place.whole_frames().contains(pfn));
            place.is_none_or(|place| {
                let first = PLACES[place].0.whole_frames().start;
                self.there[place][usize::try_from((pfn.0 - first.0) / BLOCK_PAGES).expect("small")]
            })
        };
        !self.is_used(range) && (range.start.0..range.end.0).all(|pfn| is_there(Pfn(pfn)))
    }
}

/// Releases some frames of the reserved range or beside it, and compares the answer with the model.
fn release(manager: &Fake, model: &mut Model, random: &mut Random) {
    let reserved = RESERVED.whole_frames();
    let start = reserved.start.0 - 4 + random.below(reserved.pages() + 8);
    let most = if random.one_in(4) { 1200 } else { 9 };
    let pages = 1 + random.below(most);
    let range = PfnRange::new(start, start + pages);
    // SAFETY: nobody uses reserved frames, and the call refuses all others.
    let released = unsafe { manager.hotplug().release(range) };
    let is_inside = range.start >= reserved.start && range.end <= reserved.end;
    let first = usize::try_from(start.saturating_sub(reserved.start.0)).expect("small");
    let at = first..first + usize::try_from(pages).expect("small");
    if is_inside && model.released[at.clone()].iter().all(|released| !released) {
        match released {
            Ok(released) => {
                assert_eq!(released.pages, pages);
                model.released[at].fill(true);
            }
            Err(ReleaseError::TooManyPieces(_)) => {}
            Err(error) => panic!("{range:?}: {error}"),
        }
    } else {
        // Tables may lie beside the range.
        let is_refused =
            matches!(released, Err(ReleaseError::Managed(_) | ReleaseError::Manager(_)));
        assert!(is_refused, "{range:?}: {released:?}");
    }
}

/// Adds or removes some blocks of a place.
fn change(manager: &Fake, model: &mut Model, random: &mut Random) {
    let place = random.index(PLACES.len());
    let (whole, on) = PLACES[place];
    let blocks = whole.size() / BLOCK_BYTES;
    let first = random.below(blocks);
    let most = if random.one_in(3) { blocks - first } else { (blocks - first).min(4) };
    let count = 1 + random.below(most);
    let start = whole.start + first * BLOCK_BYTES;
    let range = PhysRange::with_size(start, count * BLOCK_BYTES);
    let at = usize::try_from(first).expect("small")..usize::try_from(first + count).expect("small");
    let there = model.there[place][at.clone()].iter().filter(|there| **there).count() as u64;
    if random.one_in(2) {
        let grade = random.choose(&[Grade::Any, Grade::MovableOnly, Grade::Removable]);
        match add(manager, range, on, grade.expect("some")) {
            Ok(pages) => {
                assert_eq!((pages, there), (count * BLOCK_PAGES, 0));
                model.there[place][at].fill(true);
            }
            Err(HotplugError::Present(_)) => assert_ne!(there, 0),
            Err(HotplugError::NoWindow(_)) => {
                assert!(manager.hotplug().windows_left() < 2 && there == 0);
            }
            Err(error) => panic!("{range}: {error}"),
        }
    } else {
        // SAFETY: nothing looks up descriptors.
        match unsafe { manager.hotplug().remove(range, Budget::UNLIMITED) } {
            Ok(removed) => {
                assert_eq!((removed.pages, there), (count * BLOCK_PAGES, count));
                assert!(!model.is_used(range.whole_frames()), "{range} is in use");
                model.there[place][at].fill(false);
            }
            Err(HotplugError::Absent(_)) => assert_ne!(there, count),
            Err(HotplugError::Range(_)) => {
                assert!(model.is_used(range.whole_frames()), "{range} is free");
            }
            Err(HotplugError::Tables(_)) => {}
            Err(error) => panic!("{range}: {error}"),
        }
    }
}

fn request(manager: &Fake, model: &mut Model, random: &mut Random) {
    let machine = manager.platform();
    let cpu = u32::try_from(random.below(8)).expect("a CPU");
    if random.one_in(2) && model.held.len() < 200 {
        let order = order(random.choose(&[0, 0, 0, 1, 3, 5, 9, 10]).expect("some"));
        let node = match random.below(3) {
            0 => NodeChoice::Any,
            on => NodeChoice::Exact(node(usize::try_from(on - 1).expect("small"))),
        };
        let request = Request {
            node,
            migrate_type: random
                .choose(&[MigrateType::Movable, MigrateType::Unmovable])
                .expect("some"),
            ..Request::new(order)
        };
        match machine.run_on(cpu, || manager.allocate(&request)) {
            Ok(range) => {
                assert!(model.may_be_had(range), "{range:?} is nobody's to give");
                model.held.push(range);
            }
            Err(AllocateError::OutOfMemory { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    } else if !model.held.is_empty() {
        let range = model.held.swap_remove(random.index(model.held.len()));
        machine.run_on(cpu, || manager.give_back(range)).expect("held");
    }
}

fn history(line: &str, array: bool, seed: u64, steps: u64) {
    let mut builder = FakeMachine::builder()
        .ram(mib(0, 256))
        .ram(mib(256, 512))
        .node(mib(0, 256), 0)
        .node(mib(512, 768), 0)
        .node(gib(4, 5), 0)
        .node(mib(256, 512), 1)
        .node(gib(6, 7), 1)
        .cpus_on(0, 4)
        .cpus_on(1, 4);
    for (place, _) in PLACES {
        builder = builder.spare(place);
    }
    let machine = builder.build();
    if array {
        FakeVmemmap::install_with(machine, false, false);
    }
    let manager = bring_up_with(machine, &[RESERVED], &parameters(line)).expect("bring-up");
    manager.vmemmap().initialise_deferred(&framewright_jobs::NoHelpers);
    let blocks = |place: PhysRange| usize::try_from(place.size() / BLOCK_BYTES).expect("small");
    let mut model = Model {
        there: PLACES.iter().map(|(place, _)| vec![false; blocks(*place)]).collect(),
        released: vec![false; usize::try_from(RESERVED.whole_frames().pages()).expect("small")],
        held: Vec::new(),
    };
    let before = settled(&manager);
    let mut random = Random::new(seed);
    for step in 0..steps {
        match random.below(8) {
            0 => release(&manager, &mut model, &mut random),
            1 | 2 => change(&manager, &mut model, &mut random),
            _ => request(&manager, &mut model, &mut random),
        }
        if step % 16 == 0 {
            check(&manager);
            let now = settled(&manager);
            let added = model.added_pages();
            assert_eq!(now.present_pages, before.present_pages + added, "{line}, step {step}");
            let released = model.released_pages();
            assert_eq!(
                now.managed_pages,
                before.managed_pages + added + released,
                "{line}, step {step}"
            );
            assert_eq!(manager.hotplug().released_pages(), released);
        }
    }
    for range in std::mem::take(&mut model.held) {
        manager.give_back(range).expect("held");
    }
    check(&manager);
}

#[test]
fn the_manager_has_what_the_model_has() {
    let seed: u64 =
        std::env::var("HOTPLUG_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    for (number, (line, array)) in (0..).zip([
        ("pages=none", false),
        ("pages=inside", false),
        ("memmap_init=deferred", true),
        ("memmap_init=eager", true),
        ("zone_parts=4 pages=inside", false),
        ("zone_parts=4 memmap_init=eager", true),
        ("page_owner=on pages=inside hotplug_windows=2", false),
        ("page_alloc.shuffle=1 page_poison=1", false),
    ]) {
        history(line, array, seed * 100 + number, 2000);
    }
}
