//! A task is preempted at every possible point, and another task on its CPU runs to its end before
//! the first goes on, as under strict priorities. Whatever the second task asks of the manager, it
//! must not wait for the task that it has preempted.

use crate::common::{check, mib, order, parameters};
use framewright::hugetlb::PoolSize;
use framewright::internals::SectionState;
use framewright::manager::{PoolBatch, PoolVmemmap};
use framewright::parameters::{Pages, Policy};
use framewright::units::{NodeId, Order, Pfn};
use framewright::vmemmap_space::{BlockNumber, BlockRange, VmemmapSpace};
use framewright::zone::MigrateType;
use framewright::{BringUp, IrqState, Manager, PinnedCpu, Platform, Request, Reserves};
use framewright_jobs::NoHelpers;
use framewright_testkit::{FakeMachine, FakeVmemmap, Owner, memblock_of};
use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Frames of a section.
const SECTION: u64 = 32768;
/// Turns after which a wait counts as endless.
const FOR_EVER: u32 = 100_000;

/// What the other task does.
type Task = Box<dyn FnOnce()>;

thread_local! {
    static OTHER: RefCell<Option<Task>> = const { RefCell::new(None) };
}

/// A kernel with preemption, on one thread: the other task runs where a task may lose its CPU, at
/// the calls of the platform.
struct Preemptive {
    machine: &'static FakeMachine,
    pins: AtomicU32,
    /// Preemption points left until the other task runs.
    countdown: AtomicU32,
    /// Whether the other task is running.
    preempted: AtomicBool,
    turns: AtomicU32,
}

impl Preemptive {
    fn new(machine: &'static FakeMachine) -> &'static Self {
        Box::leak(Box::new(Self {
            machine,
            pins: AtomicU32::new(0),
            countdown: AtomicU32::new(0),
            preempted: AtomicBool::new(false),
            turns: AtomicU32::new(0),
        }))
    }

    /// Runs `task`, and once, at the `number`-th point (from 1 on) where it can be preempted,
    /// `other`. Returns whether there were that many points.
    fn run(&self, number: u32, task: impl FnOnce(), other: impl FnOnce() + 'static) -> bool {
        OTHER.set(Some(Box::new(other)));
        self.countdown.store(number, Ordering::Relaxed);
        task();
        self.countdown.store(0, Ordering::Relaxed);
        OTHER.take().is_none()
    }

    /// The task may lose its CPU here, unless it is pinned or has interrupts off.
    fn point(&self) {
        if self.countdown.load(Ordering::Relaxed) == 0
            || self.pins.load(Ordering::Relaxed) != 0
            || !self.machine.can_wait()
            || self.countdown.fetch_sub(1, Ordering::Relaxed) != 1
        {
            return;
        }
        let other = OTHER.take().expect("it comes once");
        self.preempted.store(true, Ordering::Relaxed);
        self.turns.store(0, Ordering::Relaxed);
        other();
        self.preempted.store(false, Ordering::Relaxed);
    }

    fn at_point<R>(&self, call: impl FnOnce(&'static FakeMachine) -> R) -> R {
        self.point();
        let result = call(self.machine);
        self.point();
        result
    }
}

// SAFETY: everything is the machine's; the other task runs only where the first task is neither
// pinned nor has interrupts off.
unsafe impl Platform for Preemptive {
    fn direct(&self, pa: u64) -> NonNull<u8> {
        self.at_point(|machine| machine.direct(pa))
    }

    fn pin(&self) -> PinnedCpu {
        self.point();
        self.pins.fetch_add(1, Ordering::Relaxed);
        self.machine.pin()
    }

    unsafe fn unpin(&self, cpu: PinnedCpu) {
        // SAFETY: passed on from the caller.
        unsafe { self.machine.unpin(cpu) };
        self.pins.fetch_sub(1, Ordering::Relaxed);
        self.point();
    }

    fn irq_save(&self) -> IrqState {
        self.at_point(Platform::irq_save)
    }

    unsafe fn irq_restore(&self, state: IrqState) {
        // SAFETY: passed on from the caller.
        self.at_point(|machine| unsafe { machine.irq_restore(state) });
    }

    fn direct_limit(&self) -> u64 {
        self.at_point(Platform::direct_limit)
    }

    fn cpus(&self) -> u32 {
        self.at_point(Platform::cpus)
    }

    fn cpu_node(&self, cpu: u32) -> NodeId {
        self.machine.cpu_node(cpu)
    }

    fn can_wait(&self) -> bool {
        self.at_point(Platform::can_wait)
    }

    /// Each reading is some time after the last, so that a wait by the clock passes few points;
    /// each point is tried on a machine of its own.
    fn now_ns(&self) -> Option<u64> {
        static LOOKS: AtomicU64 = AtomicU64::new(0);
        Some(LOOKS.fetch_add(1, Ordering::Relaxed) * 10_000)
    }

    fn cpu_barrier(&self) {
        assert_eq!(self.pins.load(Ordering::Relaxed), 0, "a barrier may sleep");
        self.at_point(Platform::cpu_barrier);
    }

    fn relax(&self) {
        self.at_point(Platform::relax);
        let turns = self.turns.fetch_add(1, Ordering::Relaxed);
        assert!(
            turns < FOR_EVER || !self.preempted.load(Ordering::Relaxed),
            "it waits for the task that it has preempted"
        );
    }

    fn vmemmap_space(&self) -> Option<&dyn VmemmapSpace> {
        self.machine.vmemmap_space()
    }
}

fn bring_up(platform: &'static Preemptive, line: &str) -> &'static Manager<Preemptive> {
    let machine = platform.machine;
    let mut parameters = parameters(line);
    if parameters.policy == Policy::OnDemand {
        // Every page that is free can be allocated.
        parameters.pages = Pages::None;
    }
    let early = memblock_of(platform, machine.map(), machine.topology(), &[]).expect("early");
    let input = BringUp { parameters: &parameters, started_ns: None };
    Box::leak(Box::new(Manager::bring_up(early, &input).expect("bring-up")))
}

/// Allocates all runs of an order and frees them.
fn take_all(manager: &Manager<Preemptive>, of: Order) {
    let mut taken = Vec::new();
    while let Ok(start) = manager.allocate_order(of, MigrateType::Movable) {
        taken.push(start);
    }
    while let Ok(range) = manager.allocate(&Request::new(of)) {
        taken.push(range.start);
    }
    taken.into_iter().for_each(|start| manager.give_back_order(start, of).expect("allocated"));
}

/// Runs `task` on fresh machines until `other` has preempted it at every possible point. Returns
/// the number of points.
fn at_every_point(
    cpus: u32,
    line: &str,
    task: fn(&Manager<Preemptive>),
    other: fn(&'static Manager<Preemptive>),
) -> u32 {
    for number in 1.. {
        let machine = FakeMachine::builder().ram(mib(0, 640)).cpus(cpus).build();
        FakeVmemmap::install_with(machine, false, false);
        let platform = Preemptive::new(machine);
        let manager = bring_up(platform, line);
        let was_preempted = platform.run(number, || task(manager), move || other(manager));
        manager.drain().expect("only good frames are cached");
        manager.verify().expect("the books are right");
        machine.assert_quiet();
        // SAFETY: the manager is no longer used.
        unsafe { machine.retire() };
        if !was_preempted {
            return number - 1;
        }
    }
    unreachable!("a task ends")
}

/// A GiB that is isolated as one run and freed meanwhile is put back as one, even if it is in
/// pieces by then.
#[test]
fn an_isolation_that_fails_is_undone_as_far_as_it_came() {
    let gib = |number: u32| BlockNumber(number * 512);
    let isolated_by_other = BlockRange { start: gib(3), end: BlockNumber(3 * 512 + 1) };
    let (mut failed, mut number) = (0, 0);
    loop {
        number += 1;
        let machine = FakeMachine::builder().ram(mib(0, 4096)).build();
        let platform = Preemptive::new(machine);
        let manager = bring_up(platform, "pages=none");
        let whole = manager.allocate_at(gib(2).start(), Order::MAX, MigrateType::Movable);
        let whole = whole.expect("free");
        manager.begin_references(whole).expect("a run");
        let range = BlockRange { start: gib(2), end: gib(4) };
        let mut got = None;
        let was_preempted = platform.run(
            number,
            || got = Some(manager.isolation().isolate(range).map(drop)),
            move || {
                manager.give_back_reference(gib(2).start()).expect("it has one");
                // Fails if the whole range is isolated already.
                let _ = manager.isolation().isolate(isolated_by_other);
            },
        );
        match got.expect("it ran") {
            Ok(()) => manager.isolation().unisolate(range).expect("isolated"),
            Err(_) => {
                failed += 1;
                manager.isolation().unisolate(isolated_by_other).expect("isolated");
            }
        }
        if !was_preempted {
            manager.give_back_reference(gib(2).start()).expect("it has one");
        }
        manager.drain().expect("only good frames are cached");
        manager.verify().expect("the books are right");
        let totals = manager.totals();
        assert_eq!((totals.isolated_pages, totals.allocated_pages), (0, 0), "at {number}");
        for number in [2, 3] {
            let all = manager.allocate_at(gib(number).start(), Order::MAX, MigrateType::Movable);
            manager.give_back(all.expect("free as one")).expect("allocated");
        }
        // SAFETY: the manager is no longer used.
        unsafe { machine.retire() };
        if !was_preempted {
            break;
        }
    }
    assert!(failed > 3, "{failed} of {number}");
}

#[test]
fn who_needs_memory_does_not_wait_for_a_task_that_was_preempted_while_it_brought_it_up() {
    for cpus in [1, 2] {
        for of in [Order::PAGE, Order::BLOCK] {
            let task =
                |manager: &Manager<Preemptive>| manager.vmemmap().initialise_deferred(&NoHelpers);
            let other = match of {
                Order::PAGE => {
                    |manager: &'static Manager<Preemptive>| take_all(manager, Order::PAGE)
                }
                _ => |manager: &'static Manager<Preemptive>| take_all(manager, Order::BLOCK),
            };
            let points = at_every_point(cpus, "memmap_init=deferred", task, other);
            assert!(points > 10, "{points} points are too few for a whole initialisation");
        }
    }
}

#[test]
fn initialising_the_rest_does_not_wait_for_a_preempted_request_that_brought_some_up() {
    let task = |manager: &Manager<Preemptive>| {
        let taken = manager
            .allocate_at(Pfn(4 * SECTION), Order::BLOCK, MigrateType::Movable)
            .expect("free");
        manager.give_back(taken).expect("allocated");
        take_all(manager, Order::MAX);
    };
    let points = at_every_point(1, "memmap_init=deferred", task, |manager| {
        manager.vmemmap().initialise_deferred(&NoHelpers)
    });
    assert!(points > 10, "{points} points are too few for a few requests");
}

#[test]
fn no_section_is_busy_where_a_task_may_lose_its_cpu() {
    let task = |manager: &Manager<Preemptive>| manager.vmemmap().initialise_deferred(&NoHelpers);
    at_every_point(1, "memmap_init=deferred", task, |manager| {
        for section in 0..5 {
            let states = manager.zones().iter().map(|zone| zone.section_state(section));
            assert!(
                states.into_iter().all(|state| state != SectionState::Busy),
                "section {section} is left busy"
            );
        }
    });
}

/// What one task does while the other task is in the middle of it.
fn empties_caches(manager: &Manager<Preemptive>) {
    let held = manager.allocate_order(order(3), MigrateType::Movable).expect("there is memory");
    manager.give_back_order(held, order(3)).expect("allocated");
    manager.drain().expect("only good frames are cached");
    assert_eq!(manager.caches().pages(), 0, "what was in caches when the drain began is in none");
}

/// Isolates blocks that no other call isolates meanwhile.
fn isolates(manager: &Manager<Preemptive>) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let first = 100 + NEXT.fetch_add(1, Ordering::Relaxed) % 100;
    let blocks = BlockRange { start: BlockNumber(first), end: BlockNumber(first + 1) };
    manager.isolation().isolate(blocks).expect("they are there");
    manager.isolation().unisolate(blocks).expect("they are isolated");
}

fn runs_out(manager: &Manager<Preemptive>) {
    take_all(manager, Order::MAX);
}

#[test]
fn who_empties_caches_does_not_wait_for_one_that_was_preempted_while_it_did() {
    let all: [fn(&Manager<Preemptive>); 3] = [empties_caches, isolates, runs_out];
    for task in all {
        let others: [fn(&'static Manager<Preemptive>); 3] =
            [|m| empties_caches(m), |m| isolates(m), |m| runs_out(m)];
        for other in others {
            let points = at_every_point(2, "memmap_init=on-demand", task, other);
            assert!(points > 5, "{points} points are too few for a drain");
        }
    }
}

/// Allocates and frees every page that it can get, and returns their number.
fn count_all(manager: &Manager<Preemptive>) -> u64 {
    let mut taken = Vec::new();
    while let Ok(range) =
        manager.allocate(&Request { reserves: Reserves::All, ..Request::new(Order::PAGE) })
    {
        taken.push(range);
    }
    let pages = taken.len() as u64;
    taken.into_iter().for_each(|range| manager.give_back(range).expect("allocated"));
    // The first task may have been in the middle of emptying caches, which then did not yet hold
    // any of these pages.
    manager.drain().expect("only good frames are cached");
    pages
}

#[test]
fn what_a_preempted_drainer_has_left_the_next_one_gets() {
    // The first task is stopped at every point, with some caches emptied and others not; the second
    // task wants all memory.
    let points = at_every_point(2, "memmap_init=on-demand", empties_caches, |manager| {
        let free = manager.totals().free_pages + manager.caches().pages();
        assert_eq!(count_all(manager), free, "all that nobody has, in caches or not");
    });
    assert!(points > 5, "{points} points are too few for a drain");
}

/// Descriptors of pool pages are given up and restored only once another task has got as far as
/// waiting.
struct Slow {
    machine: &'static FakeMachine,
    begun: AtomicBool,
}

impl PoolVmemmap for Slow {
    unsafe fn before_publish(&self, _: &PoolBatch<'_>) -> u64 {
        let is_first = !self.begun.swap(true, Ordering::AcqRel);
        let start = Instant::now();
        while is_first && self.machine.calls().yield_now == 0 {
            let waited = start.elapsed();
            assert!(waited < Duration::from_secs(60), "who waits for a task does not let it run");
            std::thread::yield_now();
        }
        0
    }

    unsafe fn before_free(&self, _: &PoolBatch<'_>) {}
}

#[test]
fn who_waits_for_another_resize_lets_other_tasks_run() {
    let machine = FakeMachine::builder().ram(mib(0, 64)).cpus(2).build();
    let manager = crate::common::bring_up(machine);
    let slow: &'static Slow = Box::leak(Box::new(Slow { machine, begun: AtomicBool::new(false) }));
    manager.hugetlb().set_vmemmap_hook(Some(slow));
    let pool = manager.pool(PoolSize::TwoMib);
    std::thread::scope(|scope| {
        scope.spawn(|| pool.resize(2, &NoHelpers).expect("it waits"));
        while !slow.begun.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        pool.resize(3, &NoHelpers).expect("it waits");
    });
    assert_eq!(pool.counts().all.nr, 3);
    assert!(machine.calls().yield_now > 0);
}

#[test]
fn the_machine_itself_is_sound() {
    let machine = FakeMachine::builder().ram(mib(0, 64)).cpus(1).build();
    let platform = Preemptive::new(machine);
    let manager = bring_up(platform, "memmap_init=on-demand");
    let was_preempted =
        platform.run(1, || empties_caches(manager), move || take_all(manager, Order::PAGE));
    assert!(was_preempted);
    let twin = crate::common::bring_up(FakeMachine::builder().ram(mib(0, 64)).build());
    check(&twin);
}

#[test]
#[should_panic(expected = "it waits for the task that it has preempted")]
fn a_wait_for_the_preempted_task_is_found() {
    static IS_DONE: AtomicBool = AtomicBool::new(false);
    let platform = Preemptive::new(FakeMachine::builder().ram(mib(0, 64)).cpus(1).build());
    let manager = bring_up(platform, "memmap_init=on-demand");
    let task = || {
        empties_caches(manager);
        IS_DONE.store(true, Ordering::Relaxed);
    };
    platform.run(1, task, move || {
        while !IS_DONE.load(Ordering::Relaxed) {
            platform.relax();
        }
    });
}
