//! Requests that are known to fail are tried again when what was in the way may have gone.

use crate::common::{Fake, bring_up_with, check, filled, mib, parameters};
use framewright::hugetlb::PoolSize;
use framewright::manager::ContiguousRequest;
use framewright::units::{Order, Pfn, PfnRange};
use framewright::zone::MigrateType;
use framewright::{MoveFailed, MoveToken, Mover, NotNow, Occupant, Parameters, Request, Reserves};
use framewright_jobs::NoHelpers;
use framewright_testkit::workload::Handles;
use framewright_testkit::{FakeMachine, Owner};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Passes calls on, but while it is busy it begins no move.
struct Busy {
    handles: &'static Handles<'static, FakeMachine>,
    is_busy: AtomicBool,
    begun: AtomicU64,
}

// SAFETY: calls are passed on to a mover, or refused.
unsafe impl Mover for Busy {
    fn occupant(&self, pfn: Pfn) -> Occupant {
        self.handles.occupant(pfn)
    }

    fn begin(&self, run: PfnRange) -> Result<MoveToken, NotNow> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        if self.is_busy.load(Ordering::Relaxed) {
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
        unsafe { self.handles.relocate(token, run, to) }
    }

    unsafe fn abort(&self, token: MoveToken, run: PfnRange) {
        // SAFETY: passed on from the caller.
        unsafe { self.handles.abort(token, run) };
    }
}

/// A machine on which every second page is in use, so that whole blocks come from compaction alone.
fn fragmented() -> (&'static Fake, &'static Handles<'static, FakeMachine>) {
    let machine = FakeMachine::builder().ram(mib(4096, 4096 + 128)).cpus(2).build();
    let manager = bring_up_with(machine, &[], &parameters("")).expect("bring-up");
    let manager: &'static Fake = Box::leak(Box::new(manager));
    (manager, filled(manager, 1 << 18, |pfn| pfn % 2 == 0))
}

/// [`fragmented`], with a mover that is busy.
fn busy() -> (&'static Fake, &'static Busy) {
    let (manager, handles) = fragmented();
    let is_busy = AtomicBool::new(true);
    let mover = Box::leak(Box::new(Busy { handles, is_busy, begun: AtomicU64::new(0) }));
    manager.moving().set_mover(Some(mover));
    (manager, mover)
}

fn is_served(manager: &Fake) -> bool {
    manager.allocate_order(Order::BLOCK, MigrateType::Movable).is_ok()
}

/// Compaction is tried for one in this many requests, and more often at first.
const MOST_REQUESTS: usize = 64;

#[test]
fn runs_that_were_busy_are_tried_again() {
    let (manager, mover) = busy();
    assert!(!is_served(manager));
    let begun = mover.begun.load(Ordering::Relaxed);
    assert_ne!(begun, 0);
    // As long as they are, this does not happen at every request.
    let before = manager.pressure().events().drains;
    assert!((0..4 * MOST_REQUESTS).all(|_| !is_served(manager)));
    let tries = mover.begun.load(Ordering::Relaxed) / begun - 1;
    assert!((1..=8).contains(&tries), "{tries}");
    let drains = manager.pressure().events().drains - before;
    assert!(drains <= 8 * 8, "{drains}");
    mover.is_busy.store(false, Ordering::Relaxed);
    assert!((0..=MOST_REQUESTS).any(|_| is_served(manager)));
    check(manager);
}

#[test]
fn runs_that_were_pinned_are_tried_again() {
    let (manager, handles) = fragmented();
    manager.moving().set_mover(Some(handles));
    let all: Vec<_> = handles.held().collect();
    all.iter().for_each(|&handle| handles.pin(handle, true).expect("held"));
    assert!(!is_served(manager));
    all.iter().for_each(|&handle| handles.pin(handle, false).expect("held"));
    let request = Request::new(Order::BLOCK);
    assert!((0..=MOST_REQUESTS).any(|_| manager.allocate(&request).is_ok()));
    check(manager);
}

#[test]
fn so_are_those_that_a_pool_wants() {
    let (manager, mover) = busy();
    let pool = manager.pool(PoolSize::TwoMib);
    let is_short = || pool.resize(1, &NoHelpers).expect("nobody else resizes").is_short();
    assert!(is_short());
    mover.is_busy.store(false, Ordering::Relaxed);
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
