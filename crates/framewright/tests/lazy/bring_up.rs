//! How the manager collects its memory, and what the first request does.

use super::{Lazy, add, drain, free, lazy};
use crate::common::{check, mib};
use framewright::lazy::{AddError, NotUp};
use framewright::units::{Order, PfnRange, PhysRange};
use framewright::{AllocateError, BringUpError, LazyManager, Platform};
use framewright_testkit::FakeMachine;
use std::alloc::Layout;
use std::sync::Barrier;

fn machine(size: PhysRange) -> &'static FakeMachine {
    FakeMachine::builder().ram(size).cpus(4).build()
}

fn kib(start: u64, end: u64) -> PhysRange {
    PhysRange::new(start << 10, end << 10)
}

fn of_pages(pages: u64) -> Layout {
    Layout::from_size_align(usize::try_from(pages << 12).expect("small"), 4096).expect("a layout")
}

#[test]
fn ranges_in_any_order_are_handed_out_and_gaps_are_not() {
    let orders: [[usize; 4]; 4] = [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1], [1, 3, 0, 2]];
    let ranges = [kib(4, 640), mib(1, 3), kib(5 << 10, (20 << 10) + 12), mib(40, 64)];
    let mut all = Vec::new();
    for order in orders {
        let lazy = lazy(machine(mib(0, 64)));
        assert!(lazy.get().is_none());
        for index in order {
            assert_eq!(add(lazy, ranges[index]), Ok(ranges[index].size() >> 12));
        }
        assert_eq!(lazy.usage(), framewright::lazy::Usage::default());
        let pages = drain(lazy, &ranges);
        check(lazy.get().expect("it is up"));
        assert!(pages.len() > 10_500, "{}", pages.len());
        assert_eq!(lazy.lost_pages(), 0);
        all.push(pages);
    }
    assert!(all.windows(2).all(|two| two[0] == two[1]), "the order makes a difference");
}

#[test]
fn parts_of_frames_are_left_out_and_nothing_is_nothing() {
    let lazy = lazy(machine(mib(0, 64)));
    assert_eq!(add(lazy, PhysRange::new(0x100, 0xf00)), Ok(0));
    assert_eq!(add(lazy, PhysRange::new(0x10_0001, 0x10_3fff)), Ok(2));
    assert!(add(lazy, PhysRange { start: u64::MAX - 8191, end: u64::MAX }).is_err());
    assert_eq!(lazy.lost_pages(), 1);
}

#[test]
fn what_overlaps_and_what_is_too_much_is_refused_and_counted() {
    let lazy: LazyManager<_, 3> = LazyManager::new(machine(mib(0, 64)));
    for start in [1, 9, 5] {
        assert_eq!(add(&lazy, mib(start, start + 2)), Ok(512));
    }
    let frames = |range: PhysRange| range.whole_frames();
    assert_eq!(add(&lazy, mib(2, 4)), Err(AddError::Overlaps(frames(mib(2, 3)))));
    assert_eq!(add(&lazy, mib(0, 64)), Err(AddError::Overlaps(frames(mib(1, 3)))));
    assert_eq!(add(&lazy, mib(20, 21)), Err(AddError::Full(frames(mib(20, 21)))));
    assert_eq!(lazy.lost_pages(), 512 + 64 * 256 + 256);
    // A range that touches another needs no new place, and frees some.
    assert_eq!(add(&lazy, mib(3, 5)), Ok(512));
    assert_eq!(add(&lazy, mib(20, 21)), Ok(256));
}

#[test]
fn a_gap_is_its_users_until_they_free_it() {
    let lazy = lazy(machine(mib(0, 64)));
    for range in [mib(1, 16), mib(18, 63)] {
        add(lazy, range).expect("there is room");
    }
    let gap = mib(16, 18).whole_frames();
    // Before the first request nobody can take it.
    assert!(!free(lazy, PfnRange::new(gap.start.0, gap.start.0 + 3)));
    assert_eq!(lazy.lost_pages(), 3);
    let manager = lazy.bring_up().expect("it comes up");
    let before = lazy.usage();
    assert_eq!(before.total_pages - before.free_pages, gap.pages(), "used, all of it");
    // Page by page, and as one run.
    for page in gap.start.0..gap.start.0 + 8 {
        assert!(free(lazy, PfnRange::new(page, page + 1)), "{page}");
    }
    assert!(free(lazy, PfnRange::new(gap.start.0 + 8, gap.end.0)));
    check(manager);
    let after = lazy.usage();
    assert_eq!((after.total_pages, after.free_pages), (before.total_pages, before.total_pages));
    assert_eq!(lazy.lost_pages(), 3);
    let pages = drain(lazy, &[mib(1, 63)]);
    assert!((gap.start.0..gap.end.0).all(|page| pages.binary_search(&page).is_ok()));
}

#[test]
fn what_is_lost_is_counted_up_to_the_largest_number() {
    let lazy = lazy(machine(mib(0, 64)));
    for _ in 0..3 {
        assert!(!free(lazy, PfnRange::new(1, u64::MAX)));
    }
    assert_eq!(lazy.lost_pages(), u64::MAX);
}

#[test]
fn what_is_larger_than_a_gap_is_no_memory() {
    let lazy: Lazy = LazyManager::new(machine(mib(0, 64))).with_largest_gap(1 << 20);
    add(&lazy, mib(1, 16)).expect("there is room");
    add(&lazy, mib(17, 32)).expect("there is room");
    add(&lazy, mib(40, 64)).expect("there is room");
    let manager = lazy.bring_up().expect("it comes up");
    assert_eq!(manager.totals().present_pages, (31 + 24) * 256);
    assert!(free(&lazy, mib(16, 17).whole_frames()));
    assert!(!free(&lazy, mib(32, 33).whole_frames()));
    assert_eq!(lazy.lost_pages(), 256);
    check(manager);
}

#[test]
fn content_of_gaps_stays() {
    let machine = machine(mib(0, 64));
    let lazy = lazy(machine);
    add(lazy, mib(1, 16)).expect("there is room");
    add(lazy, mib(20, 64)).expect("there is room");
    drain(lazy, &[mib(1, 16), mib(20, 64)]);
    for page in (16 << 8)..(20 << 8) {
        assert!(machine.is_poisoned(framewright::units::Pfn(page)), "page {page} was written");
    }
}

#[test]
fn who_comes_first_brings_it_up_for_all() {
    for _ in 0..20 {
        let lazy = lazy(machine(mib(0, 64)));
        add(lazy, mib(1, 30)).expect("there is room");
        add(lazy, mib(31, 64)).expect("there is room");
        let start = Barrier::new(4);
        let request = || {
            start.wait();
            let taken: Vec<_> = (0..64)
                .map(|_| lazy.allocate_layout(of_pages(1)).expect("there is memory"))
                .collect();
            let manager: *const _ = lazy.get().expect("it is up");
            (manager.addr(), taken)
        };
        let all = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(request)).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Vec<_>>()
        });
        assert!(all.iter().all(|(manager, _)| *manager == all[0].0), "one manager");
        let mut pages: Vec<_> =
            all.iter().flat_map(|(_, taken)| taken).map(|it| it.start).collect();
        pages.sort_unstable();
        pages.dedup();
        assert_eq!(pages.len(), 256, "a page was handed out twice");
        for (_, taken) in all {
            assert!(taken.into_iter().all(|range| free(lazy, range)));
        }
        check(lazy.get().expect("it is up"));
    }
}

#[test]
fn who_adds_while_it_comes_up_loses_nothing() {
    for turn in 0..20 {
        let lazy = lazy(machine(mib(0, 64)));
        add(lazy, mib(1, 16)).expect("there is room");
        add(lazy, mib(18, 32)).expect("there is room");
        let start = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                lazy.bring_up().map(drop).expect("it comes up");
            });
            scope.spawn(|| {
                start.wait();
                (0..turn).for_each(|_| std::thread::yield_now());
                // In a gap, if the manager came first.
                assert_eq!(add(lazy, mib(16, 18)), Ok(512));
            });
        });
        assert_eq!(lazy.lost_pages(), 0);
        let usage = lazy.usage();
        assert_eq!(usage.free_pages, usage.total_pages, "turn {turn}");
    }
}

#[test]
fn who_cannot_wait_brings_it_up_where_nobody_has_to() {
    let machine = machine(mib(0, 64));
    let lazy = lazy(machine);
    add(lazy, mib(1, 64)).expect("there is room");
    // Interrupts are off, as in a handler: the call waits for no other CPU, and need not.
    let state = machine.irq_save();
    let taken = lazy.allocate_layout(of_pages(1));
    // SAFETY: saved just now.
    unsafe { machine.irq_restore(state) };
    assert!(taken.is_ok());
}

#[test]
fn without_memory_there_is_an_error_and_later_there_is_none() {
    let lazy = lazy(machine(mib(0, 64)));
    assert_eq!(lazy.allocate_layout(of_pages(1)), Err(AllocateError::NoManager));
    assert_eq!(lazy.allocate_pages(1, Order::PAGE), Err(AllocateError::NoManager));
    assert_eq!(lazy.bring_up().map(drop), Err(NotUp::NoMemory));
    // Less memory than the tables take.
    assert_eq!(add(lazy, kib(1 << 10, (1 << 10) + 8)), Ok(2));
    let error = lazy.bring_up().map(drop).expect_err("too little");
    assert!(matches!(error, NotUp::BringUp(BringUpError::NoRoomForTables { .. })), "{error}");
    assert_eq!(lazy.allocate_layout(of_pages(1)), Err(AllocateError::NoManager));
    assert_eq!(lazy.bring_up().map(drop), Err(error), "it lasts");
    assert_eq!(lazy.lost_pages(), 0);
    // More memory ends this state, and the memory that was there before is part of the manager's.
    assert_eq!(add(lazy, mib(2, 64)), Ok(62 * 256));
    let taken = lazy.allocate_layout(of_pages(3)).expect("there is memory");
    assert_eq!(taken.pages(), 3);
    assert!(free(lazy, taken));
    let usage = lazy.usage();
    assert!(usage.total_pages > 61 * 256);
    check(lazy.get().expect("it is up"));
}

/// Memory that is large enough for the usual parameters comes up with them, whatever was tried
/// before.
#[test]
fn a_line_that_takes_too_much_is_no_obstacle() {
    let with =
        |line: &str| framewright::Parameters::parse(line, &mut |problem| panic!("{problem}"));
    // Somewhere between what both take.
    let found = (8..256).find(|&pages| {
        let lazy = lazy(machine(mib(0, 4)));
        add(lazy, kib(1024, 1024 + 4 * pages)).expect("there is room");
        let tried = lazy.bring_up_with(&with("page_owner=on")).map(drop);
        tried.is_err() && lazy.bring_up().is_ok()
    });
    assert!(found.is_some());
}

#[test]
fn a_command_line_is_that_of_who_is_first() {
    let lazy = lazy(machine(mib(0, 64)));
    add(lazy, mib(1, 64)).expect("there is room");
    let with =
        |line: &str| framewright::Parameters::parse(line, &mut |problem| panic!("{problem}"));
    let manager = lazy.bring_up_with(&with("min_free_kbytes=1024")).expect("it comes up");
    assert_eq!(manager.sysctl().min_free_kbytes(), 1024);
    let again = lazy.bring_up_with(&with("min_free_kbytes=2048")).expect("it is up");
    assert!(std::ptr::eq(manager, again));
}

#[test]
fn out_of_memory_is_an_ordinary_answer() {
    let lazy = lazy(machine(mib(0, 64)));
    add(lazy, mib(1, 64)).expect("there is room");
    let too_much = lazy.allocate_pages(64 << 8, Order::PAGE);
    assert!(
        matches!(too_much, Err(AllocateError::OutOfMemory { .. } | AllocateError::BadSize { .. })),
        "{too_much:?}"
    );
    let mut held = Vec::new();
    while let Ok(taken) = lazy.allocate_layout(of_pages(1)) {
        held.push(taken);
    }
    assert!(held.len() > 15_000, "{}", held.len());
    assert!(held.into_iter().all(|range| free(lazy, range)));
    check(lazy.get().expect("it is up"));
    assert!(!free(lazy, mib(0, 1).whole_frames()), "not the manager's");
    assert_eq!(lazy.lost_pages(), 256);
}
