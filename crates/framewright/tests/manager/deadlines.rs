//! Budgets by the clock: a call that has begun ends once its deadline has passed, between two runs
//! and never within one. What it moved stays moved, everything else is untouched, and later calls
//! carry on.

use crate::common::{Fake, blocks, bring_up_with, check, is_in, mib, parameters, settled};
use framewright::manager::{
    AreaError, AreaName, Budget, Obstacle, ObstacleKind, RangeError, VacateError,
};
use framewright::units::{Order, Pfn, PfnRange};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::{MoveFailed, MoveToken, Mover, NotNow, Occupant, Platform};
use framewright_testkit::workload::{Habits, Handle, Handles};
use framewright_testkit::{Builder, FakeMachine};
use std::sync::atomic::{AtomicU32, Ordering};

type Held = Handles<'static, FakeMachine>;

/// Number of moves that are settled together.
const BATCH: u64 = 32;
/// Turns of the delay loop in a copy, and the copy's time at a microsecond per turn.
const TURNS: u32 = 10;
const COPY_NS: u64 = 10_000;

/// A machine's manager, and a mover with room for handles.
fn up(machine: &'static FakeMachine) -> (&'static Fake, &'static Held) {
    let manager = bring_up_with(machine, &[], &parameters("pages=none")).expect("bring-up");
    let manager: &'static Fake = Box::leak(Box::new(manager));
    let handles = Handles::new(manager, 1 << 15).expect("memory");
    (manager, Box::leak(Box::new(handles)))
}

fn builder() -> Builder {
    FakeMachine::builder().ram(mib(4096, 4096 + 64))
}

fn now(manager: &Fake) -> u64 {
    manager.platform().now_ns().expect("a clock")
}

/// Blocks in which every page is a single-page handle, and the handles in order of place.
fn fill_blocks(manager: &Fake, handles: &Held, count: u32) -> (BlockRange, Vec<Handle>) {
    // A range that is all free, so that it does not matter where the manager's tables are.
    let is_free = |first: &u32| {
        manager
            .isolation()
            .survey(blocks(*first, count))
            .is_ok_and(|found| found.free_pages == u64::from(count) * 512)
    };
    let first = (2048..2080 - count).find(is_free).expect("most is free");
    let range = blocks(first, count);
    let start = range.start.start();
    // Everything else is allocated meanwhile.
    let mut others = Vec::new();
    let mut mine = Vec::new();
    while mine.len() < count as usize * 512 {
        let handle = handles.allocate(Order::PAGE).expect("memory");
        let at = handles.range(handle).expect("held").start;
        let is_mine = start <= at && at < range.end.start();
        if is_mine { &mut mine } else { &mut others }.push(handle);
    }
    others.into_iter().for_each(|handle| handles.free(handle).expect("held"));
    settled(manager);
    mine.sort_by_key(|&handle| handles.range(handle).map(|run| run.start));
    (range, mine)
}

fn places(handles: &Held, of: &[Handle]) -> Vec<PfnRange> {
    of.iter().map(|&handle| handles.range(handle).expect("held")).collect()
}

/// Counts the handles that are where they were, and checks that these are the last ones.
fn unmoved(handles: &Held, of: &[Handle], before: &[PfnRange]) -> u64 {
    let after = places(handles, of);
    let moved = after.iter().zip(before).take_while(|(now, was)| now != was).count();
    assert!(after[moved..] == before[moved..], "what was not moved is where it was");
    of.iter().for_each(|&handle| handles.check(handle).expect("intact"));
    (of.len() - moved) as u64
}

fn end(manager: &Fake, handles: &Held) {
    end_with(manager, handles, 0);
}

/// Frees everything, and checks that only `own` pages of the manager are still in use.
fn end_with(manager: &Fake, handles: &Held, own: u64) {
    let held: Vec<Handle> = handles.held().collect();
    for handle in held {
        handles.pin(handle, false).expect("held");
        handles.free(handle).expect("intact");
    }
    let totals = settled(manager);
    let in_use = totals.allocated_pages - own;
    assert_eq!((totals.isolated_pages, in_use), (0, handles.table_pages()));
    check(manager);
}

/// Handles whose copies take time: a microsecond for each turn of a delay loop.
struct Slow {
    manager: &'static Fake,
    handles: &'static Held,
    /// Moves that have begun and not ended.
    under_way: AtomicU32,
    aborted: AtomicU32,
}

impl Slow {
    fn new(manager: &'static Fake, handles: &'static Held) -> Self {
        handles.set_habits(Habits { delay_turns: TURNS, ..Habits::default() });
        Self { manager, handles, under_way: AtomicU32::new(0), aborted: AtomicU32::new(0) }
    }

    fn assert_quiet(&self) {
        assert_eq!(self.under_way.load(Ordering::Relaxed), 0, "each move has ended");
        assert_eq!(self.aborted.load(Ordering::Relaxed), 0, "what has begun is finished");
    }
}

// SAFETY: `Handles` makes all the moves, and keeps the contract.
unsafe impl Mover for Slow {
    fn serves(&self, manager: *const ()) -> bool {
        self.handles.serves(manager)
    }

    fn occupant(&self, pfn: Pfn) -> Occupant {
        self.handles.occupant(pfn)
    }

    fn begin(&self, run: PfnRange) -> Result<MoveToken, NotNow> {
        let begun = self.handles.begin(run)?;
        self.under_way.fetch_add(1, Ordering::Relaxed);
        Ok(begun)
    }

    unsafe fn relocate(
        &self,
        token: MoveToken,
        run: PfnRange,
        to: PfnRange,
    ) -> Result<(), MoveFailed> {
        let machine = self.manager.platform();
        let before = machine.calls().relax;
        // SAFETY: the caller upholds the same contract.
        let moved = unsafe { self.handles.relocate(token, run, to) };
        let turns = machine.calls().relax - before;
        assert_eq!(turns, u64::from(TURNS));
        machine.advance_ns(turns * 1000);
        self.under_way.fetch_sub(1, Ordering::Relaxed);
        moved
    }

    unsafe fn abort(&self, token: MoveToken, run: PfnRange) {
        self.under_way.fetch_sub(1, Ordering::Relaxed);
        self.aborted.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller upholds the same contract.
        unsafe { self.handles.abort(token, run) }
    }
}

fn out_of_time(moved: Result<impl Sized, VacateError>) -> u64 {
    let Err(VacateError::OutOfTime { moved }) = moved.map(|_| ()) else {
        panic!("it is not out of time")
    };
    assert_eq!(moved.moved_runs, moved.moved_pages);
    moved.moved_runs
}

/// Every reading of the clock takes a microsecond, and the clock is read before each run.
#[test]
fn a_call_that_has_begun_ends_after_its_deadline_and_later_ones_go_on() {
    let (manager, handles) = up(builder().clock_step_ns(1000).build());
    let (range, mine) = fill_blocks(manager, handles, 2);
    let moving = manager.moving().by(handles);
    let mut left = mine.len() as u64;
    let mut calls = 0;
    while left > 300 {
        let (before, begun) = (places(handles, &mine), moving.events().begun_runs);
        let totals = settled(manager);
        let deadline = now(manager) + 100_000;
        let moved = out_of_time(moving.vacate(range, Budget::until(deadline)));
        assert!((1..=100).contains(&moved), "{moved}");
        assert!(now(manager) >= deadline);
        assert_eq!(moving.events().begun_runs - begun, moved);
        // The remaining runs are where they were, and exactly these are still in use there.
        let done = mine.len() - usize::try_from(left).expect("1024 at most");
        let stayed = unmoved(handles, &mine[done..], &before[done..]);
        assert_eq!(stayed, left - moved);
        assert_eq!(manager.isolation().survey(range).expect("there").in_use_pages, stayed);
        assert_eq!(settled(manager), totals);
        check(manager);
        (left, calls) = (stayed, calls + 1);
    }
    assert!(calls >= 8, "{calls}");
    let rest = moving.vacate(range, Budget::UNLIMITED).expect("there is time");
    assert_eq!(rest.moved_runs, left);
    assert_eq!(manager.isolation().survey(range).expect("there").free_pages, 2 * 512);
    manager.isolation().unisolate(range).expect("isolated");
    end(manager, handles);
}

/// Owners are asked before anything moves, however little time there is and however late the pins
/// lie.
#[test]
fn pins_are_named_before_the_deadline_and_before_anything_moves() {
    let (manager, handles) = up(builder().build());
    let (range, mine) = fill_blocks(manager, handles, 1);
    let slow = Slow::new(manager, handles);
    let (early, late) = (mine[5], mine[200]);
    [early, late].into_iter().for_each(|handle| handles.pin(handle, true).expect("held"));
    let mut named = Vec::new();
    let deadline = now(manager) + 1;
    let error =
        manager.moving().by(&slow).vacate_naming(range, Budget::until(deadline), &mut |it| {
            named.push(it);
        });
    let Err(VacateError::Obstacles { moved, obstacles }) = error else { panic!("{error:?}") };
    let pinned = [early, late].map(|handle| {
        let run = handles.range(handle).expect("held");
        Obstacle { run, kind: ObstacleKind::Pinned }
    });
    assert_eq!(named, pinned);
    assert_eq!((obstacles.count, obstacles.first, moved.moved_runs), (2, named[0], 0));
    assert_eq!(manager.isolation().survey(range).expect("there").in_use_pages, 512);
    slow.assert_quiet();
    end(manager, handles);
}

/// Single-page runs are begun 32 at a time. A deadline that passes during some copies stops the
/// next batch, exactly when the clock says so.
#[test]
fn a_slow_mover_is_stopped_between_batches_and_in_none() {
    let copies = BATCH * COPY_NS;
    for (ns, batches) in [
        (1, 1),
        (COPY_NS, 1),
        (copies - 1, 1),
        (copies, 1),
        (copies + 1, 2),
        (2 * copies, 2),
        (3 * copies - COPY_NS / 2, 3),
    ] {
        let (manager, handles) = up(builder().build());
        let (range, mine) = fill_blocks(manager, handles, 1);
        let slow = Slow::new(manager, handles);
        let (before, began) = (places(handles, &mine), now(manager));
        let moved =
            out_of_time(manager.moving().by(&slow).vacate(range, Budget::until(began + ns)));
        assert_eq!(moved, batches * BATCH, "{ns}");
        assert_eq!(now(manager) - began, batches * copies, "{ns}");
        slow.assert_quiet();
        assert_eq!(unmoved(handles, &mine, &before), 512 - moved);
        end(manager, handles);
    }
}

/// Blocks are moved one by one.
#[test]
fn a_block_whose_move_takes_too_long_is_moved_and_the_next_is_not() {
    let (manager, handles) = up(builder().build());
    let slow = Slow::new(manager, handles);
    let mut all: Vec<(PfnRange, Handle)> = Vec::new();
    while let Ok(handle) = handles.allocate(Order::BLOCK) {
        all.push((handles.range(handle).expect("held"), handle));
    }
    all.sort_unstable_by_key(|(run, _)| run.start);
    // Three neighbouring blocks stay, wherever the tables are.
    let three = all.windows(3).find(|three| three[0].0.start.add(1024) == three[2].0.start);
    let three: Vec<(PfnRange, Handle)> = three.expect("most are").to_vec();
    let others = all.iter().filter(|one| !three.contains(one));
    others.for_each(|&(_, handle)| handles.free(handle).expect("held"));
    settled(manager);
    let mine: Vec<Handle> = three.iter().map(|&(_, handle)| handle).collect();
    let before = places(handles, &mine);
    let start = BlockNumber::containing(before[0].start);
    let range = BlockRange { start, end: BlockNumber(start.0 + 3) };
    for (ns, left) in [(1, 2), (COPY_NS, 1)] {
        let until = Budget::until(now(manager) + ns);
        let error = manager.moving().by(&slow).vacate(range, until);
        let Err(VacateError::OutOfTime { moved }) = error else { panic!("{error:?}") };
        assert_eq!((moved.moved_runs, moved.moved_pages), (1, 512), "{ns}");
        assert_eq!(unmoved(handles, &mine, &before), left);
        slow.assert_quiet();
    }
    // A deadline that passes during the last move does not matter, because nothing is begun after
    // it.
    let until = Budget::until(now(manager) + 1);
    let last = manager.moving().by(&slow).vacate(range, until).expect("one run");
    assert_eq!(last.moved_runs, 1);
    manager.isolation().unisolate(range).expect("isolated");
    assert_eq!(unmoved(handles, &mine, &before), 0);
    end(manager, handles);
}

/// Each kind of call, with a deadline that is now, just past, long past, or the earliest possible.
#[test]
fn nothing_is_begun_when_the_deadline_is_over() {
    let (manager, handles) = up(builder().build());
    let (range, mine) = fill_blocks(manager, handles, 2);
    let machine = manager.platform();
    machine.advance_ns(5_000_000_000);
    let before = (places(handles, &mine), settled(manager));
    let moving = manager.moving().by(handles);
    let begun = moving.events().begun_runs;
    let pages = PfnRange { start: range.start.start(), end: range.end.start() };
    for deadline in [now(manager), now(manager) - 1, 5, 0] {
        let over = Budget::until(deadline);
        assert_eq!(out_of_time(moving.vacate(range, over)), 0);
        for taken in [pages, PfnRange::new(pages.start.0 + 3, pages.end.0 - 9)] {
            let taken = moving.allocate_range(taken, over);
            let Err(RangeError::Vacate(error)) = taken else { panic!("{taken:?}") };
            assert_eq!(out_of_time(Err::<(), _>(error)), 0);
        }
        let compacted = moving.compact(None, u64::MAX, over).expect("a mover");
        assert_eq!(compacted.moved.moved_runs, 0);
        assert_eq!((places(handles, &mine), settled(manager)), before);
        check(manager);
    }
    assert_eq!(moving.events().begun_runs, begun);
    // A moment is enough, because the clock stands still during the call.
    let soon = Budget::until(now(manager) + 1);
    assert!(moving.vacate(range, soon).is_ok(), "the clock stands still");
    manager.isolation().unisolate(range).expect("isolated");
    end(manager, handles);
}

/// Taking free memory moves no run, and so needs no time.
#[test]
fn free_memory_is_vacated_after_the_deadline() {
    let (manager, handles) = up(builder().build());
    manager.platform().advance_ns(1000);
    let (range, mine) = fill_blocks(manager, handles, 1);
    mine.into_iter().for_each(|handle| handles.free(handle).expect("held"));
    settled(manager);
    let moving = manager.moving().by(handles);
    for deadline in [0, 1, 1000] {
        let vacated = moving.vacate(range, Budget::until(deadline)).expect("all of it is free");
        assert_eq!(vacated.moved_runs, 0);
        manager.isolation().unisolate(range).expect("isolated");
    }
    end(manager, handles);
}

/// Without a clock all deadlines but 0 lie in the future.
#[test]
fn without_a_clock_only_the_first_deadline_is_ever_over() {
    let (manager, handles) = up(builder().no_clock().build());
    let (range, mine) = fill_blocks(manager, handles, 1);
    let moving = manager.moving().by(handles);
    assert_eq!(out_of_time(moving.vacate(range, Budget::until(0))), 0);
    let moved = moving.vacate(range, Budget::until(1)).expect("nobody knows that it is over");
    assert_eq!(moved.moved_runs, mine.len() as u64);
    manager.isolation().unisolate(range).expect("isolated");
    end(manager, handles);
}

/// A request that waits for a place of an area ends at its deadline, even if most of the place is
/// vacated.
#[test]
fn a_request_for_an_area_ends_after_its_deadline() {
    let (manager, handles) = up(builder().build());
    let (area, mine) = fill_blocks(manager, handles, 8);
    mine.into_iter().for_each(|handle| handles.free(handle).expect("held"));
    settled(manager);
    let name = AreaName::new("slow").expect("a name");
    let number = manager.moving().create_area(name, area).expect("free");
    // Half of the free memory is filled, which lends pages of the area.
    while manager.totals().free_pages > 6000 && handles.allocate(Order::PAGE).is_ok() {}
    settled(manager);
    let lent = handles.held().filter(|&handle| is_in(area, handles.range(handle).expect("held")));
    assert!(lent.count() > 512);
    let slow = Slow::new(manager, handles);
    let moving = manager.moving().by(&slow);
    let take = |until| moving.allocate_in_area(number, 8 * 512, Order::PAGE, until);
    for copies in [0, 1, 2 * BATCH, 9 * BATCH] {
        let began = now(manager);
        let taken = take(Budget::until(began + copies * COPY_NS));
        let Err(AreaError::Moving(RangeError::Vacate(error))) = taken else { panic!("{taken:?}") };
        let moved = out_of_time(Err::<(), _>(error));
        assert!((copies..copies + BATCH).contains(&moved), "{moved} of {copies}");
        assert_eq!(now(manager) - began, moved * COPY_NS);
        slow.assert_quiet();
        let counts = moving.area(number).expect("made").2;
        assert_eq!((counts.available_pages, counts.success_pages), (8 * 512, 0));
        check(manager);
    }
    let all = take(Budget::UNLIMITED).expect("it is lent to what can be moved");
    // SAFETY: the area gave the run to this test, which no longer uses it.
    unsafe { moving.release_to_area(number, all) }.expect("ours");
    // One page is the area's bitmap.
    end_with(manager, handles, 1);
}
