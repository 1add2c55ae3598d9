//! Compaction on behalf of requests and pools: a request gets a run although memory is in pieces,
//! and a caller that may not wait, or has another way, does not wait for compaction.

use super::policies::{machine, node, nodes};
use crate::common::{Fake, bring_up_with, check, filled, mib, order, with_pages};
use framewright::hugetlb::PoolSize;
use framewright::manager::{InterleaveCursor, MovingEvents, NumaPolicy};
use framewright::parameters::Pages;
use framewright::units::{Order, Pfn, PfnRange};
use framewright::{AllocateError, MigrateType, Request};
use framewright_jobs::NoHelpers;
use framewright_testkit::workload::{Habits, Handles};
use framewright_testkit::{FakeMachine, Owner};

/// All memory is in pieces of a page, and half of it is free; the movers live for ever.
fn fragmented(size_mib: u64) -> (&'static Fake, &'static Handles<'static, FakeMachine>) {
    let machine = FakeMachine::builder().ram(mib(0, size_mib)).build();
    let manager: &'static Fake = Box::leak(Box::new(
        bring_up_with(machine, &[], &with_pages(Pages::None)).expect("bring-up"),
    ));
    (manager, filled(manager, 1 << 16, |pfn| pfn % 2 != 0))
}

fn look_at_all(handles: &Handles<'_, FakeMachine>) {
    handles.held().for_each(|handle| handles.check(handle).expect("intact"));
}

fn events(manager: &Fake) -> MovingEvents {
    manager.moving().events()
}

#[test]
fn a_request_for_a_run_compacts_and_gets_it() {
    for of in [1, 5, 9, 11] {
        let (manager, handles) = fragmented(128);
        let request = Request::new(order(of));
        assert!(manager.allocate(&request).is_err(), "nobody moves anything");
        assert_eq!(events(manager), MovingEvents::default());
        manager.moving().set_mover(Some(handles));
        let run = manager.allocate(&request).unwrap_or_else(|error| panic!("{of}: {error}"));
        let told = events(manager);
        assert_eq!((told.compact_stalls, told.compact_successes), (1, 1), "{of}");
        assert!(told.moved_pages != 0);
        look_at_all(handles);
        check(manager);
        manager.give_back(run).expect("ours");
        // An unmovable request has room then, too.
        let fixed = Request { migrate_type: MigrateType::Unmovable, ..request };
        let run = manager.allocate(&fixed).expect("memory");
        manager.give_back(run).expect("ours");
        check(manager);
    }
}

#[test]
fn who_has_another_way_or_may_not_wait_does_not_compact() {
    let (manager, handles) = fragmented(64);
    manager.moving().set_mover(Some(handles));
    let request = Request::new(Order::BLOCK);
    let fast = manager.allocate(&Request { fail_fast: true, ..request });
    assert_eq!(fast, Err(AllocateError::OutOfMemory { order: Order::BLOCK }));
    let in_a_handler = manager.platform().interrupt(|| manager.allocate(&request));
    assert!(in_a_handler.is_err());
    assert_eq!(events(manager), MovingEvents::default());
    // Single pages are available.
    let page = manager.allocate(&Request::new(Order::PAGE)).expect("half is free");
    assert_eq!(events(manager).compact_stalls, 0);
    manager.give_back(page).expect("ours");
}

/// A handler finds out that there is no run at present, but nothing about what compaction can do.
#[test]
fn what_a_handler_did_not_get_a_task_may_get() {
    let (manager, handles) = fragmented(64);
    manager.moving().set_mover(Some(handles));
    let request = Request::new(Order::BLOCK);
    for _ in 0..2 {
        assert!(manager.platform().interrupt(|| manager.allocate(&request)).is_err());
    }
    let run = manager.allocate(&request).expect("it is compacted for");
    assert_eq!(events(manager).compact_stalls, 1);
    manager.give_back(run).expect("ours");
    look_at_all(handles);
    check(manager);
}

/// After failures at order 9, one request in 2, 4, .. 64 tries again; order 3 is not affected.
#[test]
fn what_failed_is_not_tried_again_at_once() {
    let (manager, handles) = fragmented(64);
    manager.moving().set_mover(Some(handles));
    handles.set_habits(Habits { refuse_every: 1, ..Habits::default() });
    // Frees a page in between, so that the failure is not remembered.
    let free_one = || {
        let page = manager.allocate(&Request::new(Order::PAGE)).expect("half is free");
        manager.give_back_to_zone(page).expect("ours");
    };
    let attempt = |of| {
        free_one();
        let before = events(manager).compact_stalls;
        assert!(manager.allocate(&Request::new(order(of))).is_err());
        events(manager).compact_stalls - before
    };
    let tries: Vec<u64> = (0..140).map(|_| attempt(9)).collect();
    let places = tries.iter().enumerate().filter(|(_, tried)| **tried == 1);
    let places: Vec<usize> = places.map(|(at, _)| at).collect();
    let gaps: Vec<usize> = places.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!((places[0], &gaps[..6]), (0, &[2, 4, 8, 16, 32, 64][..]), "{places:?}");
    // Order 3 has not failed.
    assert_eq!(attempt(3), 1);
    handles.set_habits(Habits::default());
    let got = (0..70).find_map(|_| {
        free_one();
        manager.allocate(&Request::new(Order::BLOCK)).ok()
    });
    manager.give_back(got.expect("tried again some time")).expect("ours");
    look_at_all(handles);
    check(manager);
}

#[test]
fn a_pool_that_falls_short_compacts() {
    let (manager, handles) = fragmented(128);
    let pool = manager.pool(PoolSize::TwoMib);
    let none = pool.resize(20, &NoHelpers).expect("nobody else resizes");
    assert!(none.reached < 3, "{none:?}");
    manager.moving().set_mover(Some(handles));
    let all = pool.resize(20, &NoHelpers).expect("nobody else resizes");
    assert_eq!(all.reached, 20, "{:?}", events(manager));
    look_at_all(handles);
    check(manager);
    pool.resize(0, &NoHelpers).expect("nobody else resizes");
    let inside = |run: PfnRange| run.pages() == 1;
    assert!(handles.held().filter_map(|handle| handles.range(handle)).all(inside));
    check(manager);
}

/// A request that was skipped because it came too early says nothing about the next one, whether or
/// not anything is freed in between.
#[test]
fn what_was_skipped_is_tried_again_though_nothing_was_freed() {
    let (manager, handles) = fragmented(64);
    manager.moving().set_mover(Some(handles));
    handles.set_habits(Habits { refuse_every: 1, ..Habits::default() });
    assert!(manager.allocate(&Request::new(Order::BLOCK)).is_err());
    handles.set_habits(Habits::default());
    let page = manager.allocate(&Request::new(Order::PAGE)).expect("half is free");
    manager.give_back_to_zone(page).expect("ours");
    // The first of the two requests is skipped.
    assert!(manager.allocate(&Request::new(Order::BLOCK)).is_err());
    assert_eq!(events(manager).compact_stalls, 1);
    let run = manager.allocate(&Request::new(Order::BLOCK)).expect("it is compacted for");
    assert_eq!(events(manager).compact_stalls, 2);
    manager.give_back(run).expect("ours");
    look_at_all(handles);
    check(manager);
}

/// Two nodes of 64 MiB: the second is in pieces, and the first is almost empty. The movers live for
/// ever.
fn second_in_pieces() -> (&'static Fake, &'static Handles<'static, FakeMachine>) {
    let machine = machine(&[64, 64]).build();
    let manager: &'static Fake = Box::leak(Box::new(
        bring_up_with(machine, &[], &with_pages(Pages::None)).expect("bring-up"),
    ));
    let handles = filled(manager, 1 << 16, |pfn| pfn >= 2 << 20 && pfn % 2 != 0);
    manager.moving().set_mover(Some(handles));
    (manager, handles)
}

/// Memory of another node does not help, however little would have to be moved there.
#[test]
fn who_is_bound_to_a_node_has_a_long_run_vacated_there() {
    let (manager, handles) = second_in_pieces();
    let bound = NumaPolicy::bind(nodes("1"));
    let mut cursor = InterleaveCursor::START;
    let placed = manager.numa().allocate(&Request::new(order(11)), &bound, &mut cursor);
    let placed = placed.unwrap_or_else(|error| panic!("{error}: {:?}", events(manager)));
    assert_eq!(placed.node(), node(1));
    manager.give_back(placed.range).expect("ours");
    look_at_all(handles);
    check(manager);
}

/// Memory that cannot be cleared is not vacated for a request that wants zeros.
#[test]
fn who_wants_zeros_has_a_run_vacated_in_reach() {
    let limit = 4096 + 128;
    let builder = FakeMachine::builder().ram(mib(4096, limit + 128)).direct_limit(limit << 20);
    let machine = builder.build();
    let manager: &'static Fake = Box::leak(Box::new(
        bring_up_with(machine, &[], &with_pages(Pages::None)).expect("bring-up"),
    ));
    let handles = filled(manager, 1 << 17, |pfn| pfn < limit << 8 && pfn % 2 != 0);
    manager.moving().set_mover(Some(handles));
    let run = manager.allocate(&Request { zeroed: true, ..Request::new(order(11)) });
    let run = run.unwrap_or_else(|error| panic!("{error}: {:?}", events(manager)));
    assert!(run.end <= Pfn(limit << 8), "{run:?}");
    manager.give_back(run).expect("ours");
    look_at_all(handles);
    check(manager);
}

/// Bulk pages are single pages, whatever size their request names.
#[test]
fn many_single_pages_are_not_compacted_for() {
    let (manager, handles) = fragmented(128);
    let low = Request { max_address: 64 << 20, fail_fast: true, ..Request::new(Order::PAGE) };
    while manager.allocate(&low).is_ok() {}
    manager.moving().set_mover(Some(handles));
    let request = Request { pages: Order::BLOCK.pages(), fail_fast: false, ..low };
    assert!(manager.allocate_bulk(&request, &mut [Pfn(0); 8]).is_err());
    assert_eq!(events(manager), MovingEvents::default());
    look_at_all(handles);
    check(manager);
}
