//! `Frames`, which own memory: the memory comes back once, when its owner is dropped, but not if
//! the owner has given up its ownership.

use crate::common::{bring_up, mib, settled};
use framewright::units::Order;
use framewright::zone::MigrateType;
use framewright::{Frames, Request};
use framewright_testkit::{FakeMachine, Owner};

fn order(of: u8) -> Order {
    Order::new(of).expect("an order")
}

#[test]
fn frames_are_free_when_their_owner_goes() {
    let manager = bring_up(FakeMachine::builder().ram(mib(1, 65)).build());
    let before = settled(&manager);
    let sizes = [1, 2, 3, 511, 512, 513, 1024];
    let held: Vec<_> =
        sizes.map(|pages| manager.frames(&Request::pages(pages)).expect("there is memory")).into();
    let pages: u64 = held.iter().map(|frames| frames.range().pages()).sum();
    assert_eq!(pages, sizes.iter().sum());
    assert_eq!(manager.totals().allocated_pages - before.allocated_pages, pages);
    drop(held);
    assert_eq!(settled(&manager), before);
}

#[test]
fn the_short_way_has_owners_too() {
    let manager = bring_up(FakeMachine::builder().ram(mib(1, 65)).build());
    let before = settled(&manager);
    for of in 0..=order(10).get() {
        let frames =
            manager.frames_of_order(order(of), MigrateType::Movable).expect("there is memory");
        assert_eq!((frames.start(), frames.range().pages()), (frames.range().start, 1 << of));
        frames.free().expect("it is owned");
    }
    assert_eq!(settled(&manager), before);
}

#[test]
fn parts_are_freed_by_themselves() {
    let manager = bring_up(FakeMachine::builder().ram(mib(1, 65)).build());
    let before = settled(&manager);
    let mut frames = manager.frames(&Request::pages(100)).expect("there is memory");
    let whole = frames.range();
    for refused in [0, 100, 101, u64::MAX] {
        assert!(frames.split_off(refused).is_none(), "{refused} of 100");
        assert_eq!(frames.range(), whole);
    }
    let rest = frames.split_off(33).expect("33 of 100");
    assert_eq!((frames.range().start, frames.range().end), (whole.start, rest.range().start));
    assert_eq!((rest.range().pages(), rest.range().end), (67, whole.end));
    drop(frames);
    assert_eq!(in_use(&settled(&manager)) - in_use(&before), 67);
    drop(rest);
    assert_eq!(settled(&manager), before);
}

#[test]
fn what_was_given_up_stays_until_somebody_owns_it_again() {
    let manager = bring_up(FakeMachine::builder().ram(mib(1, 65)).build());
    let before = settled(&manager);
    let range = manager.frames(&Request::new(Order::BLOCK)).expect("there is memory").into_range();
    assert_eq!(in_use(&settled(&manager)) - in_use(&before), 512);
    // SAFETY: given up above, and nobody else has it (invariant 42).
    let frames = unsafe { Frames::from_range(&manager, range) }.expect("not empty");
    assert_eq!(frames.range(), range);
    drop(frames);
    assert_eq!(settled(&manager), before);
    // SAFETY: an empty range names no frame.
    let none = unsafe { Frames::from_range(&manager, framewright::units::PfnRange::new(7, 7)) };
    assert!(none.is_none());
}

#[test]
fn a_free_that_fails_is_told() {
    let manager = bring_up(FakeMachine::builder().ram(mib(1, 65)).build());
    let frames = manager.frames(&Request::pages(3)).expect("there is memory");
    // Another call frees memory that it does not own.
    manager.give_back(frames.range()).expect("it is allocated");
    let before = manager.verify().expect("the tables are right");
    frames.free().expect_err("it is free already");
    assert_eq!(manager.verify().expect("the tables are right"), before);
}

fn in_use(counts: &framewright::zone::Counts) -> u64 {
    counts.allocated_pages
}
