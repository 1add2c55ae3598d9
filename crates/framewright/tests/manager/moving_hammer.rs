//! Moving memory beside everything else that happens to memory, and movers that are used or behave
//! wrongly.

use crate::common::{
    Fake, blocks, bring_up_with, check, gib, idle_pages, mib, order, plain_with_pages, settled,
};
use framewright::manager::{
    Budget, CompactError, ContiguousRequest, Obstacle, ObstacleKind, RangeError, VacateError,
};
use framewright::parameters::{Pages, Policy};
use framewright::units::{Order, Pfn, PfnRange};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::MigrateType;
use framewright::{MoveFailed, MoveToken, Mover, NotNow, Occupant, Parameters, Platform};
use framewright_testkit::reporting::{Answer, FakeHost, Traits};
use framewright_testkit::workload::{Habits, Handle, Handles};
use framewright_testkit::{FakeMachine, FakeVmemmap, Owner};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn fake(machine: &'static FakeMachine, line: &str, pages: Pages) -> Fake {
    let mut parameters = Parameters::parse(line, &mut |problem| panic!("{problem}"));
    parameters.pages = pages;
    bring_up_with(machine, &[], &parameters).expect("bring-up")
}

fn random(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

fn below(seed: &mut u64, limit: usize) -> usize {
    usize::try_from(random(seed)).expect("31 bits") % limit
}

/// Single-page handles, `count` at first, of which every second one is free again.
fn scattered(manager: &Fake, count: u32) -> Handles<'_, FakeMachine> {
    let handles = Handles::new(manager, 1 << 15).expect("memory");
    let held: Vec<Handle> =
        (0..count).map(|_| handles.allocate(Order::PAGE).expect("memory")).collect();
    held.iter().step_by(2).for_each(|&handle| handles.free(handle).expect("held"));
    settled(manager);
    handles
}

fn look_at_all(handles: &Handles<'_, FakeMachine>) {
    handles.held().for_each(|handle| handles.check(handle).expect("contents survive"));
}

fn none_left(manager: &Fake, handles: Handles<'_, FakeMachine>) {
    drop(handles);
    assert_eq!(settled(manager).allocated_pages, 0);
    assert_eq!(manager.totals().isolated_pages, 0);
    check(manager);
}

/// A handle whose block holds nothing of the manager's tables.
fn middle(handles: &Handles<'_, FakeMachine>) -> Handle {
    handles.held().nth(handles.held().count() / 2).expect("some")
}

/// The block that holds a handle's run.
fn block_of(handles: &Handles<'_, FakeMachine>, handle: Handle) -> BlockRange {
    let block = BlockNumber::containing(handles.range(handle).expect("held").start);
    BlockRange { start: block, end: BlockNumber(block.0 + 1) }
}

/// The other manager's frame numbers are equal, but mean other memory.
#[test]
fn a_mover_of_another_manager_is_not_asked() {
    let machine = || FakeMachine::builder().ram(mib(0, 64)).build();
    let (one, other) = (fake(machine(), "", Pages::None), fake(machine(), "", Pages::None));
    let (ours, theirs) = (scattered(&one, 3000), scattered(&other, 3000));
    let moving = one.moving().by(&theirs);
    assert_eq!(moving.compact(None, u64::MAX, Budget::UNLIMITED), Err(CompactError::NoMover));
    let handle = middle(&ours);
    let error = moving.vacate(block_of(&ours, handle), Budget::UNLIMITED).expect_err("in use");
    let VacateError::Obstacles { moved, obstacles } = error else { panic!("{error:?}") };
    assert_eq!((moved.moved_runs, obstacles.first.kind), (0, ObstacleKind::Unknown));
    look_at_all(&ours);
    look_at_all(&theirs);
    none_left(&one, ours);
    none_left(&other, theirs);
}

#[test]
fn no_mover_is_asked_where_nobody_may_wait() {
    let machine = FakeMachine::builder().cpus(1).ram(mib(0, 64)).build();
    let manager = fake(machine, "", Pages::None);
    let handles = scattered(&manager, 3000);
    let handle = middle(&handles);
    let range = block_of(&handles, handle);
    let moving = manager.moving().by(&handles);
    let state = machine.irq_save();
    let (vacated, compacted) = (
        moving.vacate(range, Budget::UNLIMITED),
        moving.compact(None, u64::MAX, Budget::UNLIMITED),
    );
    // SAFETY: what `irq_save` returned, once, on this CPU.
    unsafe { machine.irq_restore(state) };
    assert!(matches!(vacated, Err(VacateError::Obstacles { moved, .. }) if moved.moved_runs == 0));
    assert_eq!(compacted, Err(CompactError::CannotWait));
    assert_eq!(manager.moving().events().begun_runs, 0);
    moving.vacate(range, Budget::UNLIMITED).expect("from here it may");
    manager.isolation().unisolate(range).expect("isolated");
    none_left(&manager, handles);
}

#[test]
fn no_place_is_found_over_a_hole() {
    // The hole begins and ends within larger blocks, and is too small to end a segment.
    let machine =
        FakeMachine::builder().ram(mib(0, 70)).ram(mib(96, 102)).ram(mib(130, 256)).build();
    let manager = fake(machine, "", Pages::None);
    for mib in [20_u64, 40, 60, 100, 120] {
        let request = ContiguousRequest::new(mib << 8);
        let found = manager.moving().find_contiguous(&request).expect("a place");
        let left = manager.isolation().survey(BlockRange {
            start: BlockNumber::containing(found.start),
            end: BlockNumber::containing(found.end),
        });
        let left = left.expect("there");
        assert_eq!((left.absent_pages, left.reserved_pages), (0, 0), "{mib} MiB at {found:?}");
    }
    assert!(manager.moving().find_contiguous(&ContiguousRequest::new(128 << 8)).is_err());
}

/// Neighbouring pages were allocated at different lines.
#[test]
fn page_owners_get_everything_back() {
    let machine = || FakeMachine::builder().ram(mib(0, 128)).build();
    for line in ["page_owner=on", "page_owner=on page_poison=1", "page_poison=1"] {
        for pages in [Pages::None, Pages::Inside] {
            let manager = fake(machine(), line, pages);
            let handles = scattered(&manager, 9000);
            let allocated = settled(&manager).allocated_pages;
            for _ in 0..3 {
                let moving = manager.moving().by(&handles);
                moving.compact(None, 3, Budget::UNLIMITED).expect("a mover");
                // Pages that are allocated here come to lie beside moved pages.
                let more: Vec<Handle> =
                    (0..700).map(|_| handles.allocate(Order::PAGE).expect("memory")).collect();
                let range = block_of(&handles, more[300]);
                if moving.vacate(range, Budget::UNLIMITED).is_ok() {
                    manager.isolation().unisolate(range).expect("isolated");
                }
                more.into_iter().for_each(|handle| handles.free(handle).expect("held"));
            }
            let events = manager.moving().events();
            assert_eq!(events.obstacles[ObstacleKind::Failed as usize], 0, "{line} {pages:?}");
            assert_eq!(settled(&manager).allocated_pages, allocated, "{line} {pages:?}");
            look_at_all(&handles);
            none_left(&manager, handles);
        }
    }
}

#[test]
fn a_range_is_freed_in_one_piece_or_in_parts_whoever_looks() {
    for line in ["page_owner=on", "page_poison=1", "zone_parts=4 page_owner=on page_poison=1"] {
        // Two parts of the zone meet at 5 GiB.
        let machine = FakeMachine::builder()
            .ram(mib(0, 64))
            .ram(mib(5 * 1024 - 32, 5 * 1024 + 32))
            .ram(mib(6 * 1024 - 32, 6 * 1024 + 32))
            .cpus(4)
            .build();
        let manager = fake(machine, line, Pages::None);
        let border = 5 << 18;
        for range in [
            PfnRange::new(border - 1000, border - 100),
            PfnRange::new(border - 2048, border - 512),
            PfnRange::new(border - 1030, border + 700),
            PfnRange::new(border - 1024, border + 1024),
        ] {
            let take = || {
                let taken = manager.moving().allocate_range(range, Budget::UNLIMITED);
                assert_eq!(taken, Ok(range), "{line}");
                check(&manager);
            };
            take();
            manager.give_back_to_zone(range).expect("in one piece");
            take();
            let cuts = [range.start.0, range.start.0 + 300, border, range.end.0];
            for (start, end) in cuts.iter().zip(&cuts[1..]) {
                let part = PfnRange::new(*start, (*end).min(range.end.0));
                if !part.is_empty() {
                    manager.give_back_to_zone(part).expect("in parts");
                }
            }
            assert_eq!(settled(&manager).allocated_pages, 0, "{line} {range:?}");
            assert_eq!(manager.totals().isolated_pages, 0);
            check(&manager);
        }
    }
}

/// Writes to free memory are found at either end of a range or between, and everything is undone.
#[test]
fn a_range_with_damage_is_given_back() {
    for pages in [Pages::None, Pages::Inside] {
        let machine = FakeMachine::builder().ram(mib(0, 64)).build();
        let manager = fake(machine, "page_poison=1 page_owner=on", pages);
        let range = PfnRange::new(18 * 512 + 300, 22 * 512 + 90);
        // Only memory that was freed once holds poison.
        let all = manager.moving().allocate_range(range, Budget::UNLIMITED).expect("free");
        manager.give_back_to_zone(all).expect("ours");
        settled(&manager);
        let idle = idle_pages(&manager);
        for at in [range.start.0 + 4, 20 * 512 + 7, range.end.0 - 3] {
            let place = machine.direct(at << 12);
            // SAFETY: the frame is free, so that nobody uses it.
            unsafe { place.write_bytes(3, 8) };
            let taken = manager.moving().allocate_range(range, Budget::UNLIMITED);
            assert!(matches!(taken, Err(RangeError::Damaged(_))), "{taken:?}");
            let left = settled(&manager);
            assert_eq!((left.allocated_pages, left.isolated_pages), (0, 0));
            assert_eq!(idle_pages(&manager), idle);
            check(&manager);
        }
        assert_eq!(manager.moving().allocate_range(range, Budget::UNLIMITED), Ok(range));
        manager.give_back_to_zone(range).expect("ours");
        assert_eq!(settled(&manager).allocated_pages, 0);
        check(&manager);
    }
}

#[test]
fn withheld_memory_is_a_place_too() {
    let machine = FakeMachine::builder().ram(mib(0, 64)).ram(gib(4, 10)).build();
    FakeVmemmap::install_with(machine, false, false);
    let mut parameters = plain_with_pages(Pages::Auto);
    parameters.policy = Policy::Deferred;
    let manager = bring_up_with(machine, &[], &parameters).expect("bring-up");
    assert!(manager.totals().deferred_pages > 1 << 18);
    let request = ContiguousRequest::new((5 << 18) + 5);
    let taken = manager.moving().allocate_contiguous(&request, Budget::UNLIMITED);
    let taken = taken.expect("nobody has anything");
    check(&manager);
    manager.give_back_to_zone(taken).expect("ours");
    check(&manager);
}

/// A mover that wraps handles, misbehaves and counts.
struct Odd<'a> {
    handles: &'a Handles<'a, FakeMachine>,
    /// Frees each run as soon as it is in its new place.
    frees: bool,
    /// Reports these neighbouring handles as one run, refuses to move it, and counts the refusals.
    joined: Option<PfnRange>,
    refused: AtomicU64,
}

// SAFETY: `Handles` makes all the moves, and keeps the contract; the joined run is never moved.
unsafe impl Mover for Odd<'_> {
    fn serves(&self, manager: *const ()) -> bool {
        self.handles.serves(manager)
    }

    fn occupant(&self, pfn: Pfn) -> Occupant {
        match self.joined {
            Some(joined) if joined.contains(pfn) => Occupant::Movable(joined),
            _ => self.handles.occupant(pfn),
        }
    }

    fn begin(&self, run: PfnRange) -> Result<MoveToken, NotNow> {
        if Some(run) == self.joined {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err(NotNow::Busy);
        }
        self.handles.begin(run)
    }

    unsafe fn relocate(
        &self,
        token: MoveToken,
        run: PfnRange,
        to: PfnRange,
    ) -> Result<(), MoveFailed> {
        // SAFETY: passed on from the caller.
        unsafe { self.handles.relocate(token, run, to) }?;
        if self.frees {
            self.handles.free(Handles::<FakeMachine>::moved_by(token)).expect("held");
        }
        Ok(())
    }

    unsafe fn abort(&self, token: MoveToken, run: PfnRange) {
        // SAFETY: passed on from the caller.
        unsafe { self.handles.abort(token, run) };
    }
}

/// Other threads know the new place at once, and may free it before the manager looks at it.
#[test]
fn who_frees_a_new_place_at_once_is_no_liar() {
    let machine = FakeMachine::builder().ram(mib(0, 64)).build();
    let manager = fake(machine, "page_poison=1", Pages::None);
    let handles = scattered(&manager, 3000);
    let odd = Odd { handles: &handles, frees: true, joined: None, refused: AtomicU64::new(0) };
    let range = block_of(&handles, middle(&handles));
    let moved = manager.moving().by(&odd).vacate(range, Budget::UNLIMITED).expect("all moves");
    assert!(moved.moved_runs > 100, "{moved:?}");
    assert_eq!(manager.moving().events().obstacles[ObstacleKind::NotMoved as usize], 0);
    manager.isolation().unisolate(range).expect("isolated");
    none_left(&manager, handles);
}

#[test]
fn a_run_in_two_blocks_is_refused_once() {
    let machine = FakeMachine::builder().ram(mib(0, 64)).build();
    let manager = fake(machine, "", Pages::None);
    let handles = scattered(&manager, 3000);
    // Two neighbouring pages in the emptiest of all blocks.
    let joined = PfnRange::new(12 * 512 - 1, 12 * 512 + 1);
    let pair = [joined.start, Pfn(joined.start.0 + 1)]
        .map(|pfn| manager.allocate_at(pfn, Order::PAGE, MigrateType::Movable).expect("free"));
    let odd = |joined| Odd { handles: &handles, frees: false, joined, refused: AtomicU64::new(0) };
    let range = blocks(11, 2);
    let mut named = Vec::new();
    let vacating = odd(Some(joined));
    let moving = manager.moving().by(&vacating);
    let failed = moving.vacate_naming(range, Budget::UNLIMITED, &mut |found| named.push(found));
    assert!(matches!(failed, Err(VacateError::Obstacles { .. })), "{failed:?}");
    assert_eq!(named, [Obstacle { run: joined, kind: ObstacleKind::Busy }]);
    assert_eq!(vacating.refused.load(Ordering::Relaxed), 1);
    assert_eq!(manager.totals().isolated_pages, 0);
    let compacting = odd(Some(joined));
    let moving = manager.moving().by(&compacting);
    let compacted = moving.compact(None, u64::MAX, Budget::UNLIMITED).expect("a mover");
    assert_eq!((compacting.refused.load(Ordering::Relaxed), compacted.refused_runs), (1, 1));
    look_at_all(&handles);
    pair.into_iter().for_each(|one| manager.give_back(one).expect("ours"));
    none_left(&manager, handles);
}

/// Requests that no machine can serve, and invalid ranges.
#[test]
fn absurd_requests_are_refused() {
    let machine = FakeMachine::builder().ram(mib(0, 64)).build();
    let manager = fake(machine, "", Pages::None);
    let moving = manager.moving();
    let max = u64::MAX;
    for pages in [0, 1, 511, 513, 1 << 18, (1 << 18) + 1, 1 << 40, 1 << 52, max / 512, max] {
        for align in [Order::PAGE, Order::BLOCK, Order::MAX] {
            for max_address in [0, 1, 4096, 1 << 25, max] {
                let request =
                    ContiguousRequest { align, max_address, ..ContiguousRequest::new(pages) };
                let found = moving.find_contiguous(&request);
                let taken = moving.allocate_contiguous(&request, Budget::UNLIMITED);
                assert_eq!(found.is_ok(), taken.is_ok(), "{request:?}: {found:?}, {taken:?}");
                if let Ok(taken) = taken {
                    assert_eq!(found, Ok(taken));
                    assert!(taken.pages() == pages && taken.end.0 << 12 <= max_address);
                    assert!(taken.start.is_aligned(align));
                    manager.give_back_to_zone(taken).expect("ours");
                }
            }
        }
    }
    for (start, end) in
        [(max, max), (max - 1, max), (0, max), (max, 0), (1 << 52, (1 << 52) + 1), (5, 4), (0, 1)]
    {
        let range = PfnRange::new(start, end);
        let taken = moving.allocate_range(range, Budget::UNLIMITED);
        if taken.is_ok() {
            manager.give_back_to_zone(range).expect("ours");
        }
    }
    for (start, end) in [(u32::MAX, u32::MAX), (0, u32::MAX), (u32::MAX - 1, u32::MAX), (3, 2)] {
        let range = BlockRange { start: BlockNumber(start), end: BlockNumber(end) };
        assert!(moving.vacate(range, Budget::UNLIMITED).is_err());
    }
    assert_eq!(moving.compact(None, 0, Budget::runs(0)), Err(CompactError::NoMover));
    assert_eq!(settled(&manager).allocated_pages, 0);
    assert_eq!(manager.totals().isolated_pages, 0);
    check(&manager);
}

/// One round of a thread that moves memory.
fn move_something(manager: &Fake, handles: &Handles<'_, FakeMachine>, seed: &mut u64, at: u32) {
    let moving = manager.moving().by(handles);
    let start = at + u32::try_from(random(seed) % 50).expect("small");
    match random(seed) % 7 {
        0 => {
            let range = blocks(start, 1 + u32::try_from(random(seed) % 4).expect("small"));
            if moving.vacate(range, Budget::UNLIMITED).is_ok() {
                if random(seed).is_multiple_of(2)
                    && let Ok(claimed) = manager.isolation().claim(range)
                {
                    manager.give_back_to_zone(claimed).expect("ours");
                } else {
                    manager.isolation().unisolate(range).expect("isolated");
                }
            }
        }
        1 | 2 => {
            let start = u64::from(start) * 512 + random(seed) % 512;
            let range = PfnRange::new(start, start + 1 + random(seed) % 1900);
            if moving.allocate_range(range, Budget::runs(random(seed) % 2000)).is_ok() {
                let cut = Pfn(range.start.0 + random(seed) % range.pages());
                for part in [PfnRange { end: cut, ..range }, PfnRange { start: cut, ..range }] {
                    if !part.is_empty() {
                        manager.give_back_to_zone(part).expect("ours");
                    }
                }
            }
        }
        3 => {
            let range = blocks(start, 2);
            if manager.isolation().isolate(range).is_ok() {
                manager.isolation().unisolate(range).expect("isolated");
            }
        }
        4 => {
            let request = ContiguousRequest::new(1 + random(seed) % 3000);
            if let Ok(taken) = moving.allocate_contiguous(&request, Budget::UNLIMITED) {
                manager.give_back_to_zone(taken).expect("ours");
            }
        }
        5 => {
            let at = Pfn(u64::from(start) * 512 + random(seed) % 512);
            if let Ok(one) = manager.allocate_at(at, Order::PAGE, MigrateType::Movable) {
                manager.give_back(one).expect("ours");
            }
        }
        _ => _ = moving.compact(None, 1 + random(seed) % 4, Budget::runs(3000)).expect("a mover"),
    }
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Two CPUs use memory and pin it, and two move it, all at once, with each debug aid.
#[test]
fn everything_at_once() {
    let rounds = std::env::var("HAMMER_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(40);
    for (number, (line, pages)) in (0_u64..).zip([
        ("", Pages::None),
        ("", Pages::Inside),
        ("page_owner=on page_poison=1", Pages::None),
        ("page_owner=on", Pages::Inside),
        ("page_reporting.page_reporting_order=0", Pages::None),
        ("page_reporting.page_reporting_order=2", Pages::Inside),
        ("zone_parts=4", Pages::None),
        ("zone_parts=4 page_poison=1", Pages::Inside),
    ]) {
        let parts = line.contains("parts");
        let builder = FakeMachine::builder().cpus(6);
        let builder = if parts {
            builder.ram(mib(0, 16)).ram(mib(4096 + 960, 4096 + 1088))
        } else {
            builder.ram(mib(0, 128))
        };
        let machine = builder.build();
        let manager = fake(machine, line, pages);
        let at = if parts { (4096 + 960) / 2 } else { 8 };
        let handles = Handles::new(&manager, 1 << 14).expect("memory");
        handles.set_habits(Habits { refuse_every: 13, fail_every: 17, ..Habits::default() });
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Stops the workers however the scope is left.
            let _stop = Stop(&stop);
            for worker in 0..2_u64 {
                let (handles, stop) = (&handles, &stop);
                scope.spawn(move || {
                    let mut seed = worker * 77 + number;
                    let mut mine = Vec::new();
                    while !stop.load(Ordering::Relaxed) {
                        let of = [0, 0, 0, 0, 1, 2, 3, 5, 9][below(&mut seed, 9)];
                        if mine.len() < 3000
                            && let Ok(handle) = handles.allocate(order(of))
                        {
                            mine.push(handle);
                        }
                        if mine.is_empty() {
                            continue;
                        }
                        let at = below(&mut seed, mine.len());
                        let handle = mine[at];
                        match random(&mut seed) % 6 {
                            0 => handles.check(handle).expect("intact"),
                            1 => {
                                handles.pin(handle, true).expect("mine");
                                handles.check(handle).expect("intact");
                                handles.pin(handle, false).expect("mine");
                            }
                            2 | 3 => handles.free(mine.swap_remove(at)).expect("mine"),
                            _ => {}
                        }
                    }
                    mine.into_iter().for_each(|handle| handles.free(handle).expect("mine"));
                });
            }
            if line.contains("reporting") {
                // The host writes to the memory that is reported to it as free.
                let (host, device) = FakeHost::new(machine, Traits::default());
                host.answer(Answer::After(2));
                let reporter = manager.register_reporting(device).map_err(|(error, _)| error);
                let (mut reporter, stop) = (reporter.expect("the only device"), &stop);
                scope.spawn(move || {
                    let mut now_ns = 0;
                    while !stop.load(Ordering::Relaxed) || reporter.out_pages() != 0 {
                        now_ns += 1_000_000_000;
                        reporter.poll(now_ns);
                    }
                });
            }
            // Otherwise the movers may be done before there is anything to move.
            let start = Instant::now();
            while handles.held().count() < 300 {
                assert!(start.elapsed() < Duration::from_secs(60), "the workers get no memory");
                std::thread::yield_now();
            }
            let movers: Vec<_> = (0..2_u64)
                .map(|worker| {
                    let (manager, handles) = (&manager, &handles);
                    scope.spawn(move || {
                        let mut seed = worker * 991 + number + 5;
                        for _ in 0..rounds {
                            move_something(manager, handles, &mut seed, at);
                        }
                    })
                })
                .collect();
            movers.into_iter().for_each(|mover| mover.join().expect("no panic"));
        });
        look_at_all(&handles);
        let events = manager.moving().events();
        assert_eq!(events.obstacles[ObstacleKind::NotMoved as usize], 0, "{line} {pages:?}");
        assert!(events.moved_pages > 0, "{line} {pages:?}");
        none_left(&manager, handles);
    }
}
