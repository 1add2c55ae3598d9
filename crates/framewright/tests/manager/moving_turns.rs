//! Moves that are settled together, and what others see of them meanwhile: a batch in which some
//! moves fail, hooks and callers in the middle of a move, budgets that several places share, and
//! places that another task is busy with.

use crate::common::{Fake, blocks, bring_up_with, check, mib, parameters, settled};
use framewright::manager::{
    AreaError, Budget, ContiguousError, ContiguousRequest, ObstacleKind, RangeError, VacateError,
};
use framewright::units::{Order, Pfn, PfnRange};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::{Grade, MigrateType};
use framewright::{
    MoveFailed, MoveToken, Mover, NotNow, Occupant, Platform, Reclaim, Request, Reserves, Shortage,
};
use framewright_testkit::workload::{Habits, Handle, Handles};
use framewright_testkit::{FakeMachine, Owner};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

type Held = Handles<'static, FakeMachine>;

/// A machine of 64 MiB, nearly all of it single-page handles.
fn full(line: &str) -> (&'static Fake, &'static Held) {
    let machine = FakeMachine::builder().ram(mib(0, 64)).cpus(3).build();
    let manager = bring_up_with(machine, &[], &parameters(line)).expect("bring-up");
    let manager: &'static Fake = Box::leak(Box::new(manager));
    let handles: &'static Held =
        Box::leak(Box::new(Handles::new(manager, 1 << 15).expect("memory")));
    while manager.totals().free_pages > 600 && handles.allocate(Order::PAGE).is_ok() {}
    settled(manager);
    (manager, handles)
}

/// The handles of a block, in order of place.
fn inside(handles: &Held, range: BlockRange) -> Vec<Handle> {
    let pages = PfnRange { start: range.start.start(), end: range.end.start() };
    let at = |handle: &Handle| handles.range(*handle).expect("held").start;
    let mut found: Vec<Handle> =
        handles.held().filter(|handle| pages.contains(at(handle))).collect();
    found.sort_by_key(at);
    found
}

/// Frees every second handle outside these blocks, so that the pages inside have somewhere to go.
fn make_room(manager: &Fake, handles: &Held, but: BlockRange) {
    let mine = inside(handles, but);
    let others: Vec<Handle> = handles.held().filter(|handle| !mine.contains(handle)).collect();
    others.iter().step_by(2).for_each(|&handle| handles.free(handle).expect("held"));
    settled(manager);
}

fn end(manager: &Fake, handles: &Held) {
    let held: Vec<Handle> = handles.held().collect();
    for handle in held {
        handles.pin(handle, false).expect("held");
        handles.free(handle).expect("intact");
    }
    assert_eq!(manager.totals().isolated_pages, 0);
    check(manager);
}

/// Handles with a hook that runs before a move begins.
struct Watched<'a> {
    handles: &'a Held,
    /// Returns whether the move is refused as busy.
    begins: &'a (dyn Fn(PfnRange) -> bool + Sync),
    /// Whether a pinned page is reported as pinned only when its move begins.
    hides_pins: bool,
    in_move: &'a AtomicU32,
}

// SAFETY: `Handles` makes all the moves, and keeps the contract.
unsafe impl Mover for Watched<'_> {
    fn serves(&self, manager: *const ()) -> bool {
        self.handles.serves(manager)
    }

    fn occupant(&self, pfn: Pfn) -> Occupant {
        match self.handles.occupant(pfn) {
            Occupant::Pinned if self.hides_pins => {
                Occupant::Movable(PfnRange::of_order(pfn, Order::PAGE))
            }
            occupant => occupant,
        }
    }

    fn begin(&self, run: PfnRange) -> Result<MoveToken, NotNow> {
        if (self.begins)(run) {
            return Err(NotNow::Busy);
        }
        let begun = self.handles.begin(run)?;
        self.in_move.fetch_add(1, Ordering::Relaxed);
        Ok(begun)
    }

    unsafe fn relocate(
        &self,
        token: MoveToken,
        run: PfnRange,
        to: PfnRange,
    ) -> Result<(), MoveFailed> {
        self.in_move.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: the caller upholds the same contract.
        unsafe { self.handles.relocate(token, run, to) }
    }

    unsafe fn abort(&self, token: MoveToken, run: PfnRange) {
        self.in_move.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: the caller upholds the same contract.
        unsafe { self.handles.abort(token, run) }
    }
}

#[test]
fn of_one_batch_every_third_run_fails_and_the_others_move() {
    let (manager, handles) = full("pages=none");
    let range = blocks(20, 1);
    make_room(manager, handles, range);
    let there = inside(handles, range);
    let before: Vec<_> = there.iter().map(|&handle| handles.range(handle)).collect();
    assert_eq!(there.len(), 512);
    handles.set_habits(Habits { fail_every: 3, ..Habits::default() });
    let error = manager.moving().by(handles).vacate(range, Budget::UNLIMITED).expect_err("some");
    let VacateError::Obstacles { moved, obstacles } = error else { panic!("{error:?}") };
    assert_eq!((obstacles.count, obstacles.first.kind), (170, ObstacleKind::Failed));
    assert_eq!(moved.moved_runs, 512 - 170);
    for (number, (&handle, was)) in there.iter().zip(before).enumerate() {
        assert_eq!(handles.range(handle) == was, number % 3 == 2, "{number}");
        handles.check(handle).expect("intact");
    }
    end(manager, handles);
}

#[test]
fn who_panics_when_told_of_an_obstacle_leaves_nothing_isolated() {
    let (manager, handles) = full("pages=none");
    let range = blocks(20, 1);
    make_room(manager, handles, range);
    handles.pin(inside(handles, range)[100], true).expect("held");
    // The caller is told at the end, because further frames may belong to the obstacle until then.
    let mut name = |_| panic!("told");
    let moving = manager.moving().by(handles);
    let vacate = || moving.vacate_naming(range, Budget::UNLIMITED, &mut name);
    assert!(catch_unwind(AssertUnwindSafe(vacate)).is_err());
    assert_eq!(manager.totals().isolated_pages, 0);
    end(manager, handles);
}

/// Otherwise, a caller that looks at the block would see frames that nobody knows.
#[test]
fn what_a_batch_moved_is_free_before_the_next_begins() {
    let (manager, handles) = full("pages=none");
    let range = blocks(20, 1);
    make_room(manager, handles, range);
    let begun = AtomicU64::new(0);
    let begins = |_: PfnRange| {
        let begun = begun.fetch_add(1, Ordering::Relaxed);
        let free = manager.isolation().survey(range).expect("there").free_pages;
        assert_eq!(free, begun / 32 * 32);
        false
    };
    let watched =
        Watched { handles, begins: &begins, hides_pins: false, in_move: &AtomicU32::new(0) };
    manager.moving().by(&watched).vacate(range, Budget::UNLIMITED).expect("all of it moves");
    assert_eq!(begun.load(Ordering::Relaxed), 512);
    manager.isolation().unisolate(range).expect("isolated");
    end(manager, handles);
}

/// A reclaim hook that enters runs while another task moves a run for a pin.
struct Hook {
    handles: &'static Held,
    in_move: AtomicU32,
    calls: AtomicU32,
    victim: Mutex<Vec<Handle>>,
}

impl Reclaim for Hook {
    fn reclaim(&self, _: &Shortage) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed);
        assert_eq!(self.in_move.load(Ordering::Relaxed), 0, "it would wait for the move");
        for handle in self.handles.held().take(100) {
            self.handles.check(handle).expect("intact");
        }
        let victims: Vec<Handle> = {
            let mut victims = self.victim.lock().expect("no panic");
            let left = victims.len().saturating_sub(400);
            victims.drain(left..).collect()
        };
        victims.iter().for_each(|&handle| self.handles.free(handle).expect("held"));
        victims.len() as u64
    }
}

#[test]
fn a_hook_that_enters_runs_waits_for_no_move_to_a_pin() {
    let (manager, handles) = full("pages=none");
    let range = blocks(20, 1);
    manager.moving().set_grade(range, Grade::MovableOnly).expect("movable");
    let one = inside(handles, range)[7];
    // Nothing is left except for what only the hook can free.
    let unmovable = Request { migrate_type: MigrateType::Unmovable, ..Request::new(Order::PAGE) };
    let mut held = Vec::new();
    while let Ok(page) = manager.allocate(&Request { reserves: Reserves::All, ..unmovable }) {
        held.push(page);
    }
    let victims = inside(handles, blocks(10, 5));
    let hook: &'static Hook = Box::leak(Box::new(Hook {
        handles,
        in_move: AtomicU32::new(0),
        calls: AtomicU32::new(0),
        victim: Mutex::new(victims),
    }));
    manager.pressure().set_reclaim(Some(hook));
    let watched =
        Watched { handles, begins: &|_| false, hides_pins: false, in_move: &hook.in_move };
    let was = handles.range(one).expect("held");
    let to = manager.moving().by(&watched).move_for_pin(was).expect("the hook frees some");
    assert!(hook.calls.load(Ordering::Relaxed) != 0 && to != was);
    assert_eq!(handles.range(one), Some(to));
    handles.check(one).expect("intact");
    // A run that stays leaves nothing allocated behind.
    let next = inside(handles, range)[3];
    handles.pin(next, true).expect("held");
    let before = settled(manager).allocated_pages;
    let was = handles.range(next).expect("held");
    let refused = manager.moving().by(&watched).move_for_pin(was);
    assert_eq!(refused, Err(ObstacleKind::Pinned));
    handles.pin(next, false).expect("held");
    handles.set_habits(Habits { fail_every: 1, ..Habits::default() });
    let refused = manager.moving().by(&watched).move_for_pin(was);
    assert_eq!(refused, Err(ObstacleKind::Failed));
    assert_eq!((handles.range(next), settled(manager).allocated_pages), (Some(was), before));
    manager.pressure().set_reclaim(None);
    held.into_iter().for_each(|page| manager.give_back(page).expect("ours"));
    end(manager, handles);
}

/// A run of two allocations, which is moved once.
struct One {
    machine: &'static FakeMachine,
    run: PfnRange,
    to: Mutex<Option<PfnRange>>,
}

// SAFETY: the run is two allocations of the test, which uses them no more.
unsafe impl Mover for One {
    fn occupant(&self, pfn: Pfn) -> Occupant {
        if self.run.contains(pfn) { Occupant::Movable(self.run) } else { Occupant::Unknown }
    }

    fn begin(&self, _: PfnRange) -> Result<MoveToken, NotNow> {
        Ok(MoveToken(0))
    }

    unsafe fn relocate(&self, _: MoveToken, run: PfnRange, to: PfnRange) -> Result<(), MoveFailed> {
        for (from, to) in (run.start.0..run.end.0).zip(to.start.0..to.end.0) {
            let at = |pfn: u64| self.machine.direct(Pfn(pfn).address()).as_ptr();
            // SAFETY: both are the mover's, and two pages of memory.
            unsafe { at(to).copy_from_nonoverlapping(at(from), 4096) };
        }
        *self.to.lock().expect("no panic") = Some(to);
        Ok(())
    }

    unsafe fn abort(&self, _: MoveToken, _: PfnRange) {}
}

#[test]
fn a_run_over_two_parts_of_a_zone_is_moved_for_a_pin() {
    let builder = FakeMachine::builder().ram(mib(0, 64)).ram(mib(5 * 1024 - 32, 5 * 1024 + 32));
    let builder = builder.ram(mib(6 * 1024 - 32, 6 * 1024 + 32)).cpus(4);
    let manager =
        bring_up_with(builder.build(), &[], &parameters("pages=none zone_parts=4")).expect("up");
    let border = 5 << 18;
    for block in [border / 512 - 1, border / 512] {
        let block = u32::try_from(block).expect("small");
        manager.moving().set_grade(blocks(block, 1), Grade::MovableOnly).expect("free");
    }
    let run = PfnRange::new(border - 1, border + 1);
    manager.moving().allocate_range(run, Budget::UNLIMITED).expect("free");
    let one = One { machine: manager.platform(), run, to: Mutex::default() };
    let to = manager.moving().by(&one).move_for_pin(run).expect("it moves");
    assert_eq!(*one.to.lock().expect("no panic"), Some(to));
    assert!(to.intersection(run).is_empty());
    assert_eq!(settled(&manager).allocated_pages, 2);
    manager.give_back(to).expect("ours");
    check(&manager);
}

/// Pins the last page of each block, so that a call that vacates a block has begun much by then.
fn pin_ends(handles: &Held) {
    let mut last: Option<(u64, Handle)> = None;
    let mut held: Vec<(u64, Handle)> = handles
        .held()
        .map(|handle| (handles.range(handle).expect("held").start.0, handle))
        .collect();
    held.sort_unstable();
    for (at, handle) in held.into_iter().chain([(u64::MAX, Handle(0))]) {
        if let Some((before, pinned)) = last.filter(|(before, _)| before / 512 != at / 512) {
            assert!(before < at);
            handles.pin(pinned, true).expect("held");
        }
        last = Some((at, handle));
    }
}

#[test]
fn a_budget_is_for_all_places_together() {
    let (manager, handles) = full("pages=none");
    make_room(manager, handles, blocks(0, 0));
    pin_ends(handles);
    let mover =
        Watched { handles, begins: &|_| false, hides_pins: true, in_move: &AtomicU32::new(0) };
    let moving = manager.moving().by(&mover);
    let begun = || moving.events().begun_runs;
    let request = ContiguousRequest::new(700);
    for runs in [0, 5, 300, 900, 2000] {
        let before = begun();
        let refused = moving.allocate_contiguous(&request, Budget::runs(runs));
        let Err(ContiguousError::InTheWay(RangeError::Vacate(error))) = refused else {
            panic!("{refused:?}")
        };
        assert!(begun() - before <= runs, "{} of {runs}", begun() - before);
        let is_over = matches!(error, VacateError::OutOfTime { .. });
        assert!(is_over || runs >= 300, "{error:?}");
    }
    end(manager, handles);
}

/// A reserve area of 16 MiB, all of which is lent.
fn lent() -> (&'static Fake, &'static Held, usize, PfnRange) {
    let (manager, handles) = full("pages=none cma=16M");
    let number = manager.moving().area_named("reserved").expect("made");
    let (_, range, _) = manager.moving().area(number).expect("made");
    let around = BlockRange {
        start: BlockNumber::containing(range.start),
        end: BlockNumber::containing(range.end),
    };
    assert!(inside(handles, around).len() > 4000, "nothing is lent");
    make_room(manager, handles, around);
    (manager, handles, number, range)
}

#[test]
fn a_budget_is_for_all_places_of_an_area() {
    let (manager, handles, number, range) = lent();
    pin_ends(handles);
    let mover =
        Watched { handles, begins: &|_| false, hides_pins: true, in_move: &AtomicU32::new(0) };
    let moving = manager.moving().by(&mover);
    for runs in [5, 300, 1500] {
        let before = moving.events().begun_runs;
        let refused = moving.allocate_in_area(number, 700, Order::BLOCK, Budget::runs(runs));
        let Err(AreaError::Moving(RangeError::Vacate(VacateError::OutOfTime { .. }))) = refused
        else {
            panic!("{refused:?}")
        };
        let begun = moving.events().begun_runs - before;
        assert!(begun <= runs, "{begun} of {runs}");
    }
    assert_eq!(moving.area(number).expect("made").2.available_pages, range.pages());
    end(manager, handles);
}

/// Another task is moving the page at that moment, and has finished a little later.
#[test]
fn a_place_of_an_area_that_is_busy_once_is_asked_again() {
    let (manager, handles, number, range) = lent();
    // A page that is always busy does not make the call try for ever.
    let asked = AtomicU32::new(0);
    let begins = |run: PfnRange| {
        let is_it = run.start.0 == range.start.0 + 77;
        is_it && asked.fetch_add(1, Ordering::Relaxed) < 9
    };
    let watched =
        Watched { handles, begins: &begins, hides_pins: false, in_move: &AtomicU32::new(0) };
    let moving = manager.moving().by(&watched);
    let take = || moving.allocate_in_area(number, range.pages(), Order::BLOCK, Budget::UNLIMITED);
    assert_eq!(take(), Err(AreaError::NoRun { pages: range.pages() }));
    assert_eq!(asked.swap(8, Ordering::Relaxed), 2);
    assert_eq!(take(), Ok(range));
    assert_eq!(asked.load(Ordering::Relaxed), 10);
    // SAFETY: the area gave the run to this test, which no longer uses it.
    unsafe { moving.release_to_area(number, range) }.expect("ours");
    end(manager, handles);
}
