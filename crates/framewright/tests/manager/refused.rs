//! Requests that are known to fail are tried again when what was in the way may have gone.

use crate::common::{Fake, bring_up_with, check, filled, mib, parameters};
use framewright::hugetlb::PoolSize;
use framewright::manager::ContiguousRequest;
use framewright::units::Order;
use framewright::zone::MigrateType;
use framewright::{Parameters, Request, Reserves};
use framewright_jobs::NoHelpers;
use framewright_testkit::workload::Handles;
use framewright_testkit::{FakeMachine, Owner};

/// A machine on which every second page is in use, so that whole blocks come from compaction alone.
fn fragmented() -> (&'static Fake, &'static Handles<'static, FakeMachine>) {
    let machine = FakeMachine::builder().ram(mib(4096, 4096 + 128)).cpus(2).build();
    let manager = bring_up_with(machine, &[], &parameters("")).expect("bring-up");
    let manager: &'static Fake = Box::leak(Box::new(manager));
    (manager, filled(manager, 1 << 18, |pfn| pfn % 2 == 0))
}

/// [`fragmented`], with a mover that is asked in vain while all pages are pinned.
fn pinned() -> (&'static Fake, &'static Handles<'static, FakeMachine>) {
    let (manager, handles) = fragmented();
    manager.moving().set_mover(Some(handles));
    pin(handles, true);
    (manager, handles)
}

fn pin(handles: &Handles<'_, FakeMachine>, is_pinned: bool) {
    let all: Vec<_> = handles.held().collect();
    all.iter().for_each(|&handle| handles.pin(handle, is_pinned).expect("held"));
}

fn is_served(manager: &Fake) -> bool {
    manager.allocate_order(Order::BLOCK, MigrateType::Movable).is_ok()
}

/// Compaction is tried for one in this many requests, and more often at first.
const MOST_REQUESTS: usize = 64;

#[test]
fn runs_that_were_pinned_are_tried_again() {
    let (manager, handles) = pinned();
    let tries = || manager.moving().events().compact_stalls;
    assert!(!is_served(manager));
    let first = tries();
    assert_ne!(first, 0);
    // As long as they are, this does not happen at every request.
    let before = manager.pressure().events().drains;
    assert!((0..4 * MOST_REQUESTS).all(|_| !is_served(manager)));
    let more = tries() - first;
    assert!((1..=8).contains(&more), "{more}");
    let drains = manager.pressure().events().drains - before;
    assert!(drains <= 8 * 8, "{drains}");
    pin(handles, false);
    assert!((0..=MOST_REQUESTS).any(|_| is_served(manager)));
    check(manager);
}

#[test]
fn by_any_request_for_as_much() {
    let (manager, handles) = pinned();
    let request = Request::new(Order::BLOCK);
    assert!(manager.allocate(&request).is_err());
    pin(handles, false);
    assert!((0..=MOST_REQUESTS).any(|_| manager.allocate(&request).is_ok()));
    check(manager);
}

#[test]
fn and_for_a_pool() {
    let (manager, handles) = pinned();
    let pool = manager.pool(PoolSize::TwoMib);
    let is_short = || pool.resize(1, &NoHelpers).expect("nobody else resizes").is_short();
    assert!(is_short());
    pin(handles, false);
    assert!((0..=MOST_REQUESTS).any(|_| !is_short()));
    check(manager);
}

#[test]
fn a_lower_threshold_of_compaction_helps_at_once() {
    let (manager, handles) = fragmented();
    manager.moving().set_mover(Some(handles));
    manager.sysctl().set_extfrag_threshold(1000).expect("allowed");
    assert!(!is_served(manager), "not suitable for compaction");
    manager.sysctl().set_extfrag_threshold(0).expect("allowed");
    assert!(is_served(manager));
    check(manager);
}

/// With descriptors inside blocks a block that is all free, but kept split, becomes whole: then the
/// frames of its descriptors are free, too.
#[test]
fn whoever_merges_the_spare_tells() {
    let queries: [fn(&Fake); 2] = [
        |manager| _ = manager.shortfall(&Request::new(Order::BLOCK)),
        |manager| _ = manager.moving().find_contiguous(&ContiguousRequest::new(512)),
    ];
    for query in queries {
        let machine = FakeMachine::builder().ram(mib(4096, 4096 + 64)).cpus(2).build();
        // Never careful: which block is the spare follows from the order of frees.
        let never_careful = Parameters::parse("pages=inside", &mut |problem| panic!("{problem}"));
        let manager = bring_up_with(machine, &[], &never_careful).expect("bring-up");
        manager.sysctl().set_min_free_kbytes(64).expect("small");
        let all = Request { reserves: Reserves::All, ..Request::new(Order::PAGE) };
        let mut held = Vec::new();
        while let Ok(page) = manager.allocate(&all) {
            held.push(page);
        }
        let block = held[held.len() / 2].start.0 >> 9;
        for page in held.iter().filter(|page| page.start.0 >> 9 == block) {
            manager.give_back(*page).expect("ours");
        }
        manager.drain().expect("in order");
        let free = manager.totals().free_pages;
        manager.sysctl().set_min_free_kbytes((free + 2) * 4).expect("allowed");
        let is_served = || manager.allocate_order(Order::PAGE, MigrateType::Movable).is_ok();
        assert!(!is_served(), "{free} are free, and two more are kept");
        query(&manager);
        assert!(manager.totals().free_pages > free);
        assert!(is_served());
    }
}
