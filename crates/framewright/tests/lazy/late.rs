//! Memory that is added after the manager is up.
#![cfg(feature = "hotplug")]

use super::{Lazy, add, drain, lazy};
use crate::common::{check, gib, mib, order};
use framewright::lazy::AddError;
use framewright::manager::{Budget, HotplugEvent, HotplugNotifier, Veto};
use framewright::units::{Pfn, PfnRange, PhysRange};
use framewright::{LazyManager, Parameters};
use framewright_testkit::{FakeMachine, Owner};
use std::sync::Mutex;

fn machine() -> &'static FakeMachine {
    FakeMachine::builder().ram(mib(0, 256)).spare(gib(4, 5)).build()
}

/// A manager that is up, with a gap in its memory.
fn with_gap<const RANGES: usize>(
    lazy: &LazyManager<FakeMachine, RANGES>,
    gap: PhysRange,
    line: &str,
) {
    add(lazy, PhysRange::new(1 << 20, gap.start)).expect("there is room");
    add(lazy, PhysRange::new(gap.end, 256 << 20)).expect("there is room");
    let parameters = Parameters::parse(line, &mut |problem| panic!("{problem}"));
    lazy.bring_up_with(&parameters).expect("it comes up");
}

#[test]
fn memory_in_a_gap_is_free_when_it_is_added() {
    let lazy = lazy(machine());
    with_gap(lazy, mib(100, 110), "");
    let before = lazy.usage();
    // Part of the gap whose size is no multiple of a block, that part once more, and the rest.
    let first = PhysRange::new(0x64_5000, 0x64_5000);
    assert_eq!(add(lazy, first), Ok(0));
    let (one, other) =
        (PhysRange::new(101 << 20, 0x653_3000), PhysRange::new(0x653_3000, 109 << 20));
    assert_eq!(add(lazy, one), Ok(one.size() >> 12));
    assert_eq!(add(lazy, one), Err(AddError::Overlaps(one.whole_frames())));
    assert_eq!(add(lazy, other), Ok(other.size() >> 12));
    let after = lazy.usage();
    assert_eq!(after.total_pages, before.total_pages);
    assert_eq!(after.free_pages, before.free_pages + 8 * 256);
    assert_eq!(lazy.lost_pages(), one.size() >> 12);
    check(lazy.get().expect("it is up"));
    drain(lazy, &[mib(1, 100), mib(101, 109), mib(110, 256)]);
}

#[test]
fn memory_elsewhere_comes_by_blocks() {
    let lazy = lazy(machine());
    add(lazy, mib(1, 256)).expect("there is room");
    lazy.bring_up().expect("it comes up");
    let before = lazy.usage();
    let odd = PhysRange::new((4 << 30) + 0x1000, (4 << 30) + (65 << 20));
    // 31 blocks; the edges are lost.
    assert_eq!(add(lazy, odd), Ok(31 * 512));
    assert_eq!(lazy.lost_pages(), 65 * 256 - 1 - 31 * 512);
    let after = lazy.usage();
    // Some pages hold its tables.
    assert!((31 * 512 - 32..=31 * 512).contains(&(after.free_pages - before.free_pages)));
    let none = PhysRange::with_size((4 << 30) + (70 << 20) + 0x1000, 2 << 20);
    assert_eq!(add(lazy, none), Err(AddError::NoBlock(none.whole_frames())));
    assert!(matches!(add(lazy, odd), Err(AddError::Overlaps(_))));
    check(lazy.get().expect("it is up"));
    let pages = drain(lazy, &[mib(1, 256), odd]);
    assert!(pages.iter().filter(|&&page| page >= 1 << 20).count() > 30 * 512);
}

#[test]
fn a_gap_that_is_too_large_comes_by_blocks() {
    let lazy: Lazy = LazyManager::new(machine()).with_largest_gap(1 << 20);
    let between = PhysRange::new(100 << 20, 0x6e0_1000);
    with_gap(&lazy, between, "");
    assert_eq!(add(&lazy, between), Ok(10 * 256));
    assert_eq!(lazy.lost_pages(), 1);
    check(lazy.get().expect("it is up"));
}

/// Blocks that are in use from the start are in the lots of blocks that are allocated whole.
#[test]
fn the_table_is_right_before_memory_in_a_gap_is_added() {
    let lazy = lazy(machine());
    with_gap(lazy, mib(100, 110), "");
    check(lazy.get().expect("it is up"));
}

#[test]
fn too_many_late_ranges_are_refused() {
    let lazy: LazyManager<_, 2> = LazyManager::new(machine());
    add(&lazy, mib(2, 100)).expect("there is room");
    lazy.bring_up().expect("it comes up");
    assert_eq!(add(&lazy, PhysRange::with_size(4 << 30, 4 << 20)), Ok(1024));
    let more = PhysRange::with_size((4 << 30) + (8 << 20), 2 << 20);
    assert_eq!(add(&lazy, more), Err(AddError::Full(more.whole_frames())));
    let next = PhysRange::with_size((4 << 30) + (4 << 20), 4 << 20);
    assert_eq!(add(&lazy, next), Ok(1024), "it touches");
    assert_eq!(add(&lazy, more), Ok(512), "it touches now");
    assert_eq!(lazy.lost_pages(), 512);
}

#[test]
fn what_was_freed_and_is_added_again_is_lost() {
    let lazy = lazy(machine());
    with_gap(lazy, mib(100, 110), "");
    let frames = PfnRange::new(100 << 8, (100 << 8) + 512);
    assert!(super::free(lazy, frames));
    // The cache may hold the frames: the zone's tables show them as free only once they leave it.
    lazy.get().expect("it is up").drain().expect("it may wait");
    let again = add(lazy, frames.to_phys());
    assert!(matches!(again, Err(AddError::Refused(_))), "{again:?}");
    assert_eq!(lazy.lost_pages(), 512);
    check(lazy.get().expect("it is up"));
}

/// If memory begins at 0, all of it is added except the block of frame 0.
#[test]
fn memory_from_0_on_comes_without_its_first_block() {
    let machine = FakeMachine::builder().spare(mib(0, 128)).ram(gib(1, 2)).build();
    let lazy: &Lazy = Box::leak(Box::new(LazyManager::new(machine).with_largest_gap(0)));
    add(lazy, gib(1, 2)).expect("there is room");
    lazy.bring_up().expect("it comes up");
    assert_eq!(add(lazy, mib(0, 128)), Ok(63 * 512));
    assert_eq!(lazy.lost_pages(), 512);
    check(lazy.get().expect("it is up"));
}

/// Memory between two ranges may belong to two zones: ZONE_DMA ends at 16 MiB.
#[test]
fn a_gap_of_two_zones_is_taken_whole() {
    let lazy = lazy(machine());
    with_gap(lazy, mib(8, 24), "");
    let before = lazy.usage();
    assert_eq!(add(lazy, mib(12, 20)), Ok(8 * 256));
    assert_eq!(lazy.usage().free_pages, before.free_pages + 8 * 256);
    assert_eq!(lazy.lost_pages(), 0);
    check(lazy.get().expect("it is up"));
    drain(lazy, &[mib(1, 8), mib(12, 20), mib(24, 256)]);
}

/// The part that touches existing memory comes first, so that there is a place for the other part.
#[test]
fn a_gap_of_two_zones_needs_no_place_of_its_own() {
    let lazy: LazyManager<_, 2> = LazyManager::new(machine());
    with_gap(&lazy, mib(8, 24), "");
    assert_eq!(add(&lazy, mib(12, 24)), Ok(12 * 256));
    assert_eq!(lazy.lost_pages(), 0);
    check(lazy.get().expect("it is up"));
}

/// Memory that was in use when the manager came up is freed like any allocation, whichever debug
/// aid watches.
#[test]
fn what_was_adopted_is_freed_with_page_owners_too() {
    for line in ["page_owner=on", "page_owner=on page_poison=1", "init_on_free=1"] {
        let lazy = lazy(machine());
        with_gap(lazy, mib(100, 110), line);
        let page = PfnRange::new(105 << 8, (105 << 8) + 1);
        assert!(super::free(lazy, page), "{line}");
        assert!(!super::free(lazy, page) || line.starts_with("init"), "{line}: freed twice");
        assert_eq!(add(lazy, mib(101, 105)), Ok(4 * 256), "{line}");
        check(lazy.get().expect("it is up"));
    }
}

/// Memory in use across the border of two zones is freed as one piece, just as it is added as one.
#[test]
fn a_gap_of_two_zones_is_freed_whole() {
    let lazy = lazy(machine());
    with_gap(lazy, mib(8, 24), "");
    let before = lazy.usage();
    assert!(super::free(lazy, mib(12, 20).whole_frames()));
    assert_eq!(lazy.usage().free_pages, before.free_pages + 8 * 256);
    assert_eq!(lazy.lost_pages(), 0);
    check(lazy.get().expect("it is up"));
}

/// Adopted memory is one allocation, however large it is, and goes back in one piece.
#[test]
fn a_large_gap_is_freed_as_one_piece_with_page_owners() {
    for line in ["", "page_owner=on"] {
        let machine = FakeMachine::builder().ram(mib(0, 1280)).build();
        let lazy: &Lazy = Box::leak(Box::new(LazyManager::new(machine)));
        add(lazy, mib(1, 512)).expect("there is room");
        add(lazy, mib(1024, 1280)).expect("there is room");
        let parameters = Parameters::parse(line, &mut |problem| panic!("{problem}"));
        lazy.bring_up_with(&parameters).expect("it comes up");
        let before = lazy.usage();
        let manager = lazy.get().expect("it is up");
        // By order, which only a single allocation has.
        manager.give_back_order(Pfn(768 << 8), order(16)).expect("adopted");
        assert!(super::free(lazy, mib(512, 768).whole_frames()), "{line}");
        assert_eq!(lazy.lost_pages(), 0, "{line}");
        assert_eq!(lazy.usage().free_pages, before.free_pages + 512 * 256, "{line}");
        check(manager);
    }
}

/// Memory that was added later and memory that it touches are freed as one piece, whatever its
/// size.
#[test]
fn what_lies_in_memory_that_came_later_and_before_is_freed_whole() {
    for line in ["", "page_owner=on"] {
        let machine = FakeMachine::builder().ram(mib(0, 700)).build();
        let lazy: &Lazy = Box::leak(Box::new(LazyManager::new(machine).with_largest_gap(0)));
        add(lazy, mib(100, 256)).expect("there is room");
        // Memory for the tables.
        add(lazy, mib(600, 700)).expect("there is room");
        let parameters = Parameters::parse(line, &mut |problem| panic!("{problem}"));
        let manager = lazy.bring_up_with(&parameters).expect("it comes up");
        let take = |range: PhysRange| {
            let taken = manager.moving().allocate_range(range.whole_frames(), Budget::UNLIMITED);
            taken.expect("it is free");
        };
        take(mib(100, 104));
        add(lazy, mib(32, 100)).expect("it comes late");
        take(mib(96, 100));
        let over = mib(96, 104).whole_frames();
        let before = lazy.usage();
        assert!(super::free(lazy, over), "{line}");
        assert_eq!(lazy.usage().free_pages, before.free_pages + over.pages(), "{line}");
        assert_eq!(lazy.lost_pages(), 0, "{line}");
        check(manager);
    }
}

/// A notifier that adds memory while it is told of an addition would wait for itself.
#[test]
fn who_is_told_of_memory_cannot_add_any() {
    struct Adds(&'static Lazy, Mutex<Vec<Result<u64, AddError>>>);
    impl HotplugNotifier for Adds {
        fn notify(&self, _: HotplugEvent) -> Result<(), Veto> {
            self.1.lock().expect("one").push(add(self.0, mib(4608, 4864)));
            Ok(())
        }
    }
    let lazy = lazy(machine());
    add(lazy, mib(1, 256)).expect("there is room");
    let manager = lazy.bring_up().expect("it comes up");
    let adds: &Adds = Box::leak(Box::new(Adds(lazy, Mutex::new(Vec::new()))));
    manager.hotplug().set_notifier(Some(adds));
    assert_eq!(add(lazy, mib(4096, 4352)), Ok(256 << 8));
    manager.hotplug().set_notifier(None);
    let told = adds.1.lock().expect("one");
    assert!(!told.is_empty() && told.iter().all(|it| *it == Err(AddError::Busy)), "{told:?}");
    assert_eq!(add(lazy, mib(4608, 4864)), Ok(256 << 8));
    check(manager);
}
