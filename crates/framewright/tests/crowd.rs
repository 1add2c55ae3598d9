//! Everybody at once: CPUs allocate and free in every way, also in interrupt handlers, and hand
//! frames to one another, while other threads isolate, claim, drain, resize, demote, report memory
//! errors and give memory maps back.
//!
//! One bit per frame says that the frame has an owner; one serial number per block says since when
//! the block is isolated. A frame that is handed out twice, or out of an isolated block, fails the
//! test at once. At the end every page is accounted for.
#![cfg(not(any(loom, shuttle)))]

mod common;

use common::{Fake, bring_up_with, gib, mib, parameters};
use framewright::hugetlb::{PoolError, PoolSize};
use framewright::memblock::NodeChoice;
use framewright::units::{NodeId, Order, Pfn, PfnRange};
use framewright::vmemmap_space::BlockRange;
use framewright::zone::MigrateType;
use framewright::zone::ZoneKind;
use framewright::{Frames, Request, Reserves};
use framewright_jobs::NoHelpers;
use framewright_testkit::workload::Random;
use framewright_testkit::{FakeMachine, FakeVmemmap, Owner, PoolOwner};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// The number of blocks up to the end of memory.
const BLOCKS: u32 = 6 * 512;
/// The number of CPUs that allocate and free.
const USERS: u64 = 4;

/// Steps of each user. `CROWD_STEPS` in the environment overrides the number.
fn steps() -> u64 {
    std::env::var("CROWD_STEPS").ok().and_then(|steps| steps.parse().ok()).unwrap_or(4000)
}

/// The random seed. `CROWD_SEED` in the environment overrides it.
fn seed() -> u64 {
    std::env::var("CROWD_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0)
}

/// The model of who owns what.
struct Model {
    machine: &'static FakeMachine,
    /// One bit per frame: set while the frame has an owner.
    owned: Vec<AtomicU64>,
    /// For each block, the serial number at which it was isolated; 0 if it is not isolated.
    isolated: Vec<AtomicU64>,
    now: AtomicU64,
}

impl Model {
    fn new(machine: &'static FakeMachine) -> Self {
        let zeros = |count: u32| (0..count).map(|_| AtomicU64::new(0)).collect();
        Self { machine, owned: zeros(BLOCKS * 8), isolated: zeros(BLOCKS), now: AtomicU64::new(1) }
    }

    /// Returns the serial number to keep before a request begins.
    fn now(&self) -> u64 {
        self.now.load(Ordering::SeqCst)
    }

    /// Records that a request that began at `asked` returned `range`.
    fn got(&self, range: PfnRange, asked: u64) {
        assert!(!range.is_empty());
        self.change(range, true);
        for block in range.start.0 / 512..range.end.0.div_ceil(512) {
            let since =
                self.isolated[usize::try_from(block).expect("small")].load(Ordering::SeqCst);
            assert!(
                since == 0 || since > asked,
                "{range:?} was isolated at {since}, before {asked}"
            );
        }
        // SAFETY: the frame was handed out just now, and the model has seen that nobody else has
        // it.
        unsafe { self.machine.store(range.start.address(), range.start.0 ^ 0x5a5a) };
    }

    /// Records that the owner of `range` is about to free it.
    fn gives(&self, range: PfnRange, is_stamped: bool) {
        if is_stamped {
            assert_eq!(
                self.machine.load(range.start.address()),
                range.start.0 ^ 0x5a5a,
                "{range:?} was written to"
            );
        }
        self.change(range, false);
    }

    fn change(&self, range: PfnRange, owned: bool) {
        let mut frame = range.start.0;
        while frame < range.end.0 {
            let end = range.end.0.min((frame / 64 + 1) * 64);
            let bits = (u64::MAX >> (64 - (end - frame))) << (frame % 64);
            let word = &self.owned[usize::try_from(frame / 64).expect("small")];
            let before = if owned {
                word.fetch_or(bits, Ordering::SeqCst)
            } else {
                word.fetch_and(!bits, Ordering::SeqCst)
            };
            assert_eq!(
                before & bits,
                if owned { 0 } else { bits },
                "frames from {frame:#x} of {range:?}"
            );
            frame = end;
        }
    }

    fn isolate(&self, range: BlockRange, isolated: bool) {
        let now = if isolated { self.now.fetch_add(1, Ordering::SeqCst) + 1 } else { 0 };
        let blocks = &self.isolated[range.start.0 as usize..range.end.0 as usize];
        blocks.iter().for_each(|block| block.store(now, Ordering::SeqCst));
    }
}

/// Something that a user owns.
#[derive(Clone, Copy)]
enum Held {
    Order(PfnRange, Order),
    Range(PfnRange),
    Page(PfnRange, PoolSize),
}

/// What CPUs are handing over to one another.
type Table = Mutex<Vec<Held>>;

struct User<'a> {
    manager: &'a Fake,
    model: &'a Model,
    table: &'a Table,
    random: Random,
    held: Vec<Held>,
    has_array: bool,
}

impl User<'_> {
    fn order(&mut self) -> Order {
        let most = if self.random.one_in(40) { 19 } else { 10 };
        let most = self.random.below(most);
        Order::new(u8::try_from(self.random.below(most + 1)).expect("small")).expect("an order")
    }

    fn migrate_type(&mut self) -> MigrateType {
        let types = [
            MigrateType::Movable,
            MigrateType::Movable,
            MigrateType::Unmovable,
            MigrateType::Reclaimable,
        ];
        self.random.choose(&types).expect("there are some")
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..28 => self.allocate_order(),
            28..34 => self.allocate(),
            34..37 => self.allocate_at(),
            37..39 => self.allocate_bulk(),
            39..43 => self.allocate_page(),
            43..46 => self.interrupt(),
            46 => self.frames(),
            47 if self.random.one_in(8) => self.change_vmemmap(),
            48 if self.random.one_in(8) => _ = self.manager.drain().expect("good frames"),
            49..56 => self.exchange(),
            _ => self.give_back(),
        }
        if self.held.len() > 300 {
            self.give_back();
        }
    }

    fn allocate_order(&mut self) {
        let (order, kind, asked) = (self.order(), self.migrate_type(), self.model.now());
        if let Ok(start) = self.manager.allocate_order(order, kind) {
            let range = PfnRange { start, end: start.add(order.pages()) };
            self.model.got(range, asked);
            self.held.push(Held::Order(range, order));
        }
    }

    fn allocate(&mut self) {
        let order = self.order();
        let mut request = Request {
            migrate_type: self.migrate_type(),
            fail_fast: self.random.one_in(2),
            reserves: if self.random.one_in(2) { Reserves::All } else { Reserves::None },
            zeroed: order < Order::BLOCK && self.random.one_in(4),
            ..Request::pages(1 + self.random.below(order.pages()))
        };
        if self.random.one_in(4) {
            request.max_address = self.random.below(6 << 30);
        }
        if self.random.one_in(4) {
            request.zone = self.random.choose(&ZoneKind::ALL).expect("some");
        }
        let asked = self.model.now();
        if let Ok(range) = self.manager.allocate(&request) {
            assert!(range.end.address() <= request.max_address);
            if request.zeroed {
                assert!(
                    range.pages() > 1 << 9
                        || self.model.machine.load(range.start.address() + 8) == 0
                );
            }
            self.model.got(range, asked);
            self.held.push(Held::Range(range));
        }
    }

    fn allocate_at(&mut self) {
        let order = self.order();
        let start = Pfn(self.random.below(u64::from(BLOCKS) * 512) & !(order.pages() - 1));
        let (kind, asked) = (self.migrate_type(), self.model.now());
        if let Ok(range) = self.manager.allocate_at(start, order, kind) {
            self.model.got(range, asked);
            self.held.push(Held::Range(range));
        }
    }

    fn allocate_bulk(&mut self) {
        let mut pages = [Pfn(0); 90];
        let request = Request { migrate_type: self.migrate_type(), ..Request::pages(1) };
        let (wanted, asked) = (1 + self.random.index(90), self.model.now());
        if let Ok(done) = self.manager.allocate_bulk(&request, &mut pages[..wanted]) {
            for &start in &pages[..done] {
                let range = PfnRange { start, end: start.add(1) };
                self.model.got(range, asked);
                self.held.push(Held::Order(range, Order::PAGE));
            }
        }
    }

    fn allocate_page(&mut self) {
        let size = PoolSize::ALL[usize::from(self.random.one_in(20))];
        let asked = self.model.now();
        if let Ok(range) = self.manager.pool(size).allocate(NodeChoice::Any, false) {
            self.model.got(range, asked);
            self.held.push(Held::Page(range, size));
        }
    }

    /// An interrupt handler frees some of what its CPU owns, allocates some, and frees that again.
    fn interrupt(&mut self) {
        let machine = self.model.machine;
        machine.interrupt(|| {
            for _ in 0..3 {
                self.allocate_order();
                self.give_back();
            }
            if self.random.one_in(8) {
                self.manager.drain().expect("good frames");
            }
        });
    }

    fn frames(&mut self) {
        let (order, asked) = (self.order(), self.model.now());
        let Ok(mut frames) = self.manager.frames(&Request::new(order)) else { return };
        let range = frames.range();
        self.model.got(range, asked);
        let rest = frames.split_off(self.random.below(order.pages() + 2));
        if self.random.one_in(2) {
            let kept = frames.into_range();
            self.held.push(Held::Range(kept));
        } else {
            self.model.gives(frames.range(), true);
            drop(frames);
        }
        if let Some(rest) = rest {
            self.model.gives(rest.range(), false);
            Frames::free(rest).expect("ours");
        }
    }

    fn change_vmemmap(&mut self) {
        let at = self.random.index(self.held.len());
        if self.has_array
            && let Some(&(Held::Order(range, _) | Held::Range(range))) = self.held.get(at)
        {
            if self.random.one_in(3) {
                self.manager.restore_vmemmap(&[range]).expect("managed");
            } else {
                self.manager.optimize_vmemmap(&[range]).expect("managed");
            }
        }
    }

    /// Puts something on the table and takes what another CPU put there.
    fn exchange(&mut self) {
        let mut table = self.table.lock().expect("nobody panicked");
        if self.random.one_in(2) && table.len() < 200 && !self.held.is_empty() {
            let held = self.held.swap_remove(self.random.index(self.held.len()));
            table.push(held);
        } else if !table.is_empty() {
            let at = self.random.index(table.len());
            self.held.push(table.swap_remove(at));
        }
    }

    fn give_back(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let held = self.held.swap_remove(self.random.index(self.held.len()));
        match held {
            Held::Order(range, order) => {
                if order != Order::PAGE && self.random.one_in(4) {
                    return self.give_back_in_parts(range);
                }
                self.model.gives(range, true);
                self.manager
                    .give_back_order(range.start, order)
                    .unwrap_or_else(|error| panic!("{range:?}: {error}"));
            }
            Held::Range(range) if self.random.one_in(3) => self.give_back_in_parts(range),
            Held::Range(range) => {
                self.model.gives(range, true);
                self.manager.give_back(range).unwrap_or_else(|error| panic!("{range:?}: {error}"));
            }
            Held::Page(range, size) => {
                self.model.gives(range, true);
                let freed = self.manager.pool(size).give_back_page(range.start);
                freed.unwrap_or_else(|error| panic!("{range:?}: {error}"));
            }
        }
    }

    fn give_back_in_parts(&mut self, range: PfnRange) {
        let middle = range.start.0 + self.random.below(range.pages());
        let parts = [PfnRange::new(range.start.0, middle), PfnRange::new(middle, range.end.0)];
        for part in parts.into_iter().filter(|part| !part.is_empty()) {
            self.model.gives(part, part.start == range.start);
            self.manager.give_back(part).unwrap_or_else(|error| panic!("{part:?}: {error}"));
        }
    }
}

/// Isolates blocks, claims some, and puts them back.
fn isolate(manager: &Fake, model: &Model, mut random: Random, steps: u64) {
    let mut isolated: Vec<BlockRange> = Vec::new();
    let mut claimed: Vec<PfnRange> = Vec::new();
    for _ in 0..steps {
        match random.below(6) {
            0..2 => {
                let start = u32::try_from(random.below(u64::from(BLOCKS))).expect("small");
                let most = 1 << random.below(11);
                let blocks = 1 + u32::try_from(random.below(most)).expect("small");
                let range = BlockRange::new(start, (start + blocks).min(BLOCKS));
                let overlaps =
                    |other: &BlockRange| other.start < range.end && range.start < other.end;
                if !isolated.iter().any(overlaps) && manager.isolation().isolate(range).is_ok() {
                    model.isolate(range, true);
                    isolated.push(range);
                }
            }
            2 if !isolated.is_empty() => {
                let at = random.index(isolated.len());
                if let Ok(pages) = manager.isolation().claim(isolated[at]) {
                    model.isolate(isolated.swap_remove(at), false);
                    model.got(pages, u64::MAX);
                    claimed.push(pages);
                }
            }
            3 if !claimed.is_empty() => {
                let pages = claimed.swap_remove(random.index(claimed.len()));
                model.gives(pages, true);
                manager.give_back(pages).unwrap_or_else(|error| panic!("{pages:?}: {error}"));
            }
            _ if !isolated.is_empty() => {
                let range = isolated.swap_remove(random.index(isolated.len()));
                model.isolate(range, false);
                manager
                    .isolation()
                    .unisolate(range)
                    .unwrap_or_else(|error| panic!("{range:?}: {error}"));
            }
            _ => thread::yield_now(),
        }
    }
    for range in isolated {
        model.isolate(range, false);
        manager.isolation().unisolate(range).unwrap_or_else(|error| panic!("{range:?}: {error}"));
    }
    for pages in claimed {
        model.gives(pages, true);
        manager.give_back(pages).unwrap_or_else(|error| panic!("{pages:?}: {error}"));
    }
}

/// Resizes pools and demotes pages.
fn resize(manager: &Fake, mut random: Random, steps: u64) {
    for _ in 0..steps {
        let size = PoolSize::ALL[usize::from(random.one_in(4))];
        let pool = manager.pool(size);
        let pages = random.below(if size == PoolSize::TwoMib { 400 } else { 3 });
        let node = NodeId::new(random.index(2)).expect("a node");
        let resized = match random.below(5) {
            0 => pool.resize_node(node, pages, &NoHelpers).map(drop),
            1 => pool.demote(1).map(drop),
            2 if size == PoolSize::TwoMib => pool.set_overcommit(random.below(20)),
            _ => pool.resize(pages, &NoHelpers).map(drop),
        };
        match resized {
            Ok(())
            | Err(PoolError::Busy | PoolError::NothingToDemote | PoolError::NotPossible(_)) => {}
            Err(error) => panic!("{error}"),
        }
        // Pages on their way to a user, or on their way out with an error, are counted at one end
        // only, but not for long.
        let mut fault = manager.hugetlb().verify().err();
        for _ in 0..10_000 {
            if fault.is_none() {
                break;
            }
            thread::yield_now();
            fault = manager.hugetlb().verify().err();
        }
        assert!(fault.is_none(), "{fault:?}");
    }
}

/// Reports memory errors until enough pages have one.
fn poison(manager: &Fake, mut random: Random, ended: &AtomicBool) {
    let mut left = 120;
    while left != 0 && !ended.load(Ordering::Relaxed) {
        let size = PoolSize::ALL[usize::from(random.one_in(500))];
        let frame = Pfn(random.below(u64::from(BLOCKS) * 512));
        let poisoned = if random.one_in(2) {
            manager.platform().interrupt(|| manager.pool(size).poison(frame))
        } else {
            manager.pool(size).poison(frame)
        };
        if poisoned.is_ok() {
            // Report it again because machine checks come in bursts.
            let _ = manager.pool(size).poison(frame);
            left -= if size == PoolSize::OneGib { 120 } else { 1 };
            thread::yield_now();
        }
        if random.one_in(64) {
            thread::yield_now();
        }
    }
}

fn crowd(line: &str, has_array: bool) {
    let machine = FakeMachine::builder()
        .ram(mib(1, 3 * 1024))
        .ram(gib(4, 5))
        .ram(mib(5 * 1024, 6 * 1024 - 3))
        .node(gib(0, 4), 0)
        .node(gib(4, 6), 1)
        .cpus_on(0, 5)
        .cpus_on(1, 5)
        .build();
    let array = has_array.then(|| FakeVmemmap::install_with(machine, true, false));
    let manager = bring_up_with(machine, &[], &parameters(line)).expect("bring-up");
    let model = Model::new(machine);
    let table = Table::default();
    let ended = AtomicBool::new(false);
    let (steps, seed) = (steps(), seed() * 100);
    thread::scope(|scope| {
        let (manager, model, table, ended) = (&manager, &model, &table, &ended);
        let mut workers = Vec::new();
        for user in 0..USERS {
            workers.push(scope.spawn(move || {
                let random = Random::new(seed + user);
                let mut user = User { manager, model, table, random, held: Vec::new(), has_array };
                for _ in 0..steps {
                    user.step();
                }
                while !user.held.is_empty() {
                    user.give_back();
                }
            }));
        }
        workers
            .push(scope.spawn(move || isolate(manager, model, Random::new(seed + 10), steps / 20)));
        workers.push(scope.spawn(move || resize(manager, Random::new(seed + 11), steps / 60)));
        if line.contains("deferred") {
            workers.push(scope.spawn(move || manager.vmemmap().initialise_deferred(&NoHelpers)));
        }
        scope.spawn(move || poison(manager, Random::new(seed + 12), ended));
        let results: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        ended.store(true, Ordering::Relaxed);
        results.into_iter().for_each(|result| result.expect("a worker panicked"));
    });
    let random = Random::new(seed);
    let held = table.into_inner().expect("nobody panicked");
    let nothing = Table::default();
    let mut last =
        User { manager: &manager, model: &model, table: &nothing, random, held, has_array };
    while !last.held.is_empty() {
        last.give_back();
    }
    manager.vmemmap().initialise_deferred(&NoHelpers);
    // At least one page has an error, however slowly the thread that reports errors ran.
    let pool = manager.pool(PoolSize::TwoMib);
    pool.resize(4, &NoHelpers).expect("nobody else resizes");
    let page = pool.allocate(NodeChoice::Any, false).expect("there are four").start;
    pool.poison(page).expect("it is the pool's");
    pool.give_back_page(page).expect("it is ours");
    let mut leaked = 0;
    for size in PoolSize::ALL {
        let pool = manager.pool(size);
        pool.resize(u64::MAX, &NoHelpers).expect("nobody else resizes");
        manager.hugetlb().verify().unwrap_or_else(|fault| panic!("{fault}"));
        pool.resize(0, &NoHelpers).expect("nobody else resizes");
        assert_eq!(pool.counts().all.nr, 0);
        leaked += pool.counts().leaked * size.frames();
    }
    crate::common::check(&manager);
    manager.hugetlb().verify().unwrap_or_else(|fault| panic!("{fault}"));
    let totals = crate::common::settled(&manager);
    crate::common::check(&manager);
    assert_eq!(totals.isolated_pages, 0);
    let descriptor_pages = array.map_or(0, |array| array.counts().frames);
    assert!(leaked != 0, "no page had an error");
    assert!(
        (leaked..=leaked + descriptor_pages).contains(&totals.allocated_pages),
        "{} allocated, {leaked} lost to errors, {descriptor_pages} of the array",
        totals.allocated_pages
    );
    if array.is_none() {
        assert_eq!(totals.allocated_pages, leaked);
    }
    // SAFETY: the manager is not used any more.
    unsafe { machine.retire() };
}

#[test]
fn without_descriptors() {
    crowd("pages=none", false);
}

#[test]
fn with_descriptors_inside() {
    crowd("pages=inside", false);
}

#[test]
fn with_an_array_that_is_given_back() {
    crowd("memmap_init=eager hugetlb_free_vmemmap=on", true);
}

#[test]
fn while_memory_comes_up() {
    crowd("memmap_init=deferred hugetlb_free_vmemmap=on", true);
}

#[test]
fn shuffled() {
    crowd("pages=none page_alloc.shuffle=on page_alloc.shuffle_seed=7", false);
}

#[test]
fn watched() {
    crowd("pages=inside page_owner=on page_poison=on init_on_alloc=on", false);
}
