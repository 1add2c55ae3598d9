//! Where compaction works for a request: in the zones and below the address that the request asks
//! for, in its order, and only on memory that it may have when that is whole.

use crate::common::{Fake, bring_up_with, check, filled, mib, order, parameters, with_pages};
use framewright::parameters::{Pages, Parameters};
use framewright::units::Order;
use framewright::zone::ZoneKind;
use framewright::{MigrateType, Request};
use framewright_testkit::workload::{Habits, Handles};
use framewright_testkit::{FakeMachine, Owner};

/// The first frame that is not in zone DMA, and the first above 64 MiB.
const DMA32: u64 = 16 << 8;
const HIGH: u64 = 64 << 8;

/// A machine of 128 MiB in which single pages stay allocated where `stays` says so.
fn in_pieces(
    stays: impl Fn(u64) -> bool,
) -> (&'static Fake, &'static Handles<'static, FakeMachine>) {
    let machine = FakeMachine::builder().ram(mib(0, 128)).build();
    let manager: &'static Fake = Box::leak(Box::new(
        bring_up_with(machine, &[], &with_pages(Pages::None)).expect("bring-up"),
    ));
    let handles = filled(manager, 1 << 16, stays);
    manager.moving().set_mover(Some(handles));
    (manager, handles)
}

fn in_parts(line: &str) -> Parameters {
    let mut wanted = parameters(line);
    wanted.pages = Pages::None;
    wanted
}

/// Compaction of DMA, which is less full and has the lower address, would leave DMA32 as it is.
#[test]
fn the_zone_that_is_asked_first_is_compacted_first() {
    let (manager, handles) = in_pieces(|pfn| pfn % if pfn < DMA32 { 8 } else { 2 } == 0);
    for _ in 0..4 {
        let run = manager.allocate(&Request::new(Order::BLOCK)).expect("compaction makes room");
        assert!(run.start.0 >= DMA32, "{run:?}");
    }
    handles.held().for_each(|handle| handles.check(handle).expect("intact"));
    check(manager);
}

/// The blocks above 64 MiB are the emptiest of their zone and of no use.
#[test]
fn below_an_address_only_what_is_below_is_emptied() {
    let (manager, handles) =
        in_pieces(|pfn| pfn < DMA32 || pfn % if pfn < HIGH { 2 } else { 8 } == 0);
    for of in [9, 5, 9] {
        let request = Request { max_address: 64 << 20, ..Request::new(order(of)) };
        let run = manager.allocate(&request).expect("compaction makes room");
        assert!(run.start.0 < HIGH, "{run:?}");
    }
    handles.held().for_each(|handle| handles.check(handle).expect("intact"));
    check(manager);
}

/// What is movable only comes first by its place in the first part, and stays movable only.
#[test]
fn an_unmovable_request_empties_only_what_it_may_have() {
    let machine = FakeMachine::builder().ram(mib(0, 1024)).build();
    let wanted = in_parts("kernelcore=512M zone_parts=4");
    let manager: &'static Fake =
        Box::leak(Box::new(bring_up_with(machine, &[], &wanted).expect("bring-up")));
    let handles = filled(manager, 1 << 19, |pfn| pfn % 2 != 0);
    manager.moving().set_mover(Some(handles));
    let request = Request { migrate_type: MigrateType::Unmovable, ..Request::new(Order::BLOCK) };
    for _ in 0..4 {
        manager.allocate(&request).expect("compaction makes room");
    }
    assert_eq!(manager.moving().events().compact_stalls, 4);
    check(manager);
}

#[test]
fn failures_for_one_zone_do_not_keep_requests_for_another_from_trying() {
    let (manager, handles) = in_pieces(|pfn| pfn % 2 == 0);
    handles.set_habits(Habits { refuse_every: 1, ..Habits::default() });
    let low = Request { zone: ZoneKind::Dma, ..Request::new(order(4)) };
    for _ in 0..20 {
        assert!(manager.allocate(&low).is_err());
        // Frees a page, so that the failure is not remembered.
        let page = manager.allocate(&Request::new(Order::PAGE)).expect("half is free");
        manager.give_back_to_zone(page).expect("ours");
    }
    handles.set_habits(Habits::default());
    manager.allocate(&Request::new(Order::BLOCK)).expect("nothing has failed there");
    check(manager);
}
