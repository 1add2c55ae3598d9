//! Runs of more than a block: what is free in neighbouring blocks is found before anything is freed
//! for the request, and what is missing is asked for as for any other request.

use crate::common::{Fake, check, gib};
use crate::pressure::{Hook, up};
use framewright::units::{Order, Pfn, PfnRange};
use framewright::{AllocateError, Request, Reserves, Shortage};
use framewright_testkit::{FakeMachine, Owner};
use std::sync::{Arc, Mutex};

/// Takes all blocks of 2 MiB, reserves included.
fn take_blocks(manager: &Fake) -> Vec<PfnRange> {
    let all = Request { reserves: Reserves::All, fail_fast: true, ..Request::new(Order::BLOCK) };
    let mut held: Vec<_> = std::iter::from_fn(|| manager.allocate(&all).ok()).collect();
    held.sort_unstable_by_key(|block| block.start);
    held
}

fn give(manager: &Fake, blocks: impl IntoIterator<Item = PfnRange>) -> u64 {
    let free = |block: PfnRange| manager.give_back_to_zone(block).map(|()| block.pages());
    blocks.into_iter().map(|block| free(block).expect("held")).sum()
}

#[test]
fn nothing_is_freed_for_a_run_that_is_there() {
    let manager = up(FakeMachine::builder().ram(gib(4, 6)).build());
    let mut held = take_blocks(manager);
    // 64 neighbours that begin in the middle of an aligned block of their size.
    let first = held.iter().position(|block| block.start.0.is_multiple_of(1 << 15)).expect("one");
    give(manager, held.drain(first + 32..first + 96));
    let hook = Hook::set(manager, |_| 0);
    let before = manager.pressure().events();
    let run = manager.allocate_pages(60 << 9, Order::PAGE).expect("it is free");
    assert_eq!(run.pages(), 60 << 9);
    let now = manager.pressure().events();
    assert_eq!((hook.calls(), now.failures, now.stalls), (0, before.failures, before.stalls));
    give(manager, [run]);
    check(manager);
    // What is not there is asked for, with its own size.
    let wanted: Arc<Mutex<Vec<Shortage>>> = Arc::default();
    let asked = Arc::clone(&wanted);
    let rest = Mutex::new(held);
    Hook::set(manager, move |shortage| {
        asked.lock().expect("whole").push(*shortage);
        give(manager, rest.lock().expect("whole").drain(..))
    });
    let run = manager.allocate_pages(100 << 9, Order::PAGE).expect("the hook frees it");
    assert_eq!(wanted.lock().expect("whole")[0].pages, 100 << 9);
    give(manager, [run]);
    check(manager);
}

#[test]
fn the_hook_is_asked_for_more_than_a_gib() {
    let manager = up(FakeMachine::builder().ram(gib(4, 7)).build());
    let pages = 3 << 17;
    let held = Mutex::new(take_blocks(manager));
    let out = Err(AllocateError::OutOfMemory { order: Order::MAX });
    assert_eq!(manager.allocate_pages(pages, Order::PAGE), out);
    let too_long = Err(AllocateError::BadSize { pages: 4 << 18 });
    assert_eq!(manager.allocate_pages(4 << 18, Order::PAGE), too_long);
    let hook = Hook::set(manager, move |shortage| {
        assert_eq!((shortage.pages, shortage.order), (pages, Order::MAX));
        give(manager, held.lock().expect("whole").drain(..))
    });
    assert_eq!(manager.allocate_pages(4 << 18, Order::PAGE), too_long);
    assert_eq!(hook.calls(), 0);
    let run = manager.allocate_pages(pages, Order::PAGE).expect("the hook frees it");
    assert_eq!((run.pages(), hook.calls()), (pages, 1));
    give(manager, [run]);
    // That there was no longer run says nothing about blocks of a GiB.
    manager.pressure().set_reclaim(None);
    let held = take_blocks(manager);
    let start = held.iter().find(|block| block.start.is_aligned(Order::MAX)).expect("one").start;
    let gib = PfnRange { start, end: Pfn(start.0 + Order::MAX.pages()) };
    give(manager, held.iter().copied().filter(|block| gib.contains(block.start)));
    assert_eq!(manager.allocate_pages(pages, Order::PAGE), out);
    let request = Request { reserves: Reserves::All, ..Request::new(Order::MAX) };
    assert_eq!(manager.allocate(&request), Ok(gib));
    check(manager);
}

/// A request that is known to fail has not searched when it asks the hook.
#[test]
fn a_bulk_request_that_cannot_succeed_asks_for_all_its_pages() {
    let manager = up(FakeMachine::builder().ram(gib(4, 5)).build());
    let held = take_blocks(manager);
    let mut pages = [Pfn(0); 300];
    let request = Request::pages(1);
    while manager.allocate_bulk(&request, &mut pages).is_ok() {}
    let wanted: Arc<Mutex<Vec<u64>>> = Arc::default();
    let asked = Arc::clone(&wanted);
    let rest = Mutex::new(held);
    Hook::set(manager, move |shortage| {
        asked.lock().expect("whole").push(shortage.pages);
        give(manager, rest.lock().expect("whole").drain(..))
    });
    assert_eq!(manager.allocate_bulk(&request, &mut pages), Ok(300));
    assert_eq!(*wanted.lock().expect("whole"), [300]);
}
