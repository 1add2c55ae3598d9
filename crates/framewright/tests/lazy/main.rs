//! Managers whose memory arrives range by range, and what builds on them: platforms written in safe
//! code, and other crates' allocators.
#![cfg(not(any(loom, shuttle)))]

#[path = "../common/mod.rs"]
mod common;

mod bring_up;
#[cfg(feature = "buddy_system_allocator")]
mod buddy_system;
#[cfg(feature = "frame-alloc")]
mod frame_alloc;
mod gaps;
mod late;
mod linear;

use framewright::LazyManager;
use framewright::lazy::AddError;
use framewright::units::{PfnRange, PhysRange};
use framewright_testkit::FakeMachine;

/// A platform over a fake machine, all of whose memory belongs to the test.
type Lazy = LazyManager<FakeMachine>;

fn lazy(machine: &'static FakeMachine) -> &'static Lazy {
    Box::leak(Box::new(LazyManager::new(machine)))
}

fn add<const RANGES: usize>(
    lazy: &LazyManager<FakeMachine, RANGES>,
    range: PhysRange,
) -> Result<u64, AddError> {
    // SAFETY: the machine has it, and nobody but the test uses it.
    unsafe { lazy.add(range) }
}

fn free(lazy: &Lazy, range: PfnRange) -> bool {
    // SAFETY: the test owns all memory of the machine.
    unsafe { lazy.free_pages(range.start, range.pages()) }.is_ok()
}

/// Takes all free memory page by page, and checks that each page is `within` and handed out once.
fn drain(lazy: &Lazy, within: &[PhysRange]) -> Vec<u64> {
    let manager = lazy.bring_up().expect("it comes up");
    let take = || {
        manager.allocate(&framewright::Request {
            reserves: framewright::Reserves::All,
            ..framewright::Request::pages(1)
        })
    };
    let mut pages: Vec<u64> = std::iter::from_fn(|| take().ok()).map(|page| page.start.0).collect();
    pages.sort_unstable();
    let inside = |page: u64| {
        within.iter().any(|it| it.whole_frames().contains(framewright::units::Pfn(page)))
    };
    assert!(pages.iter().all(|&page| inside(page)), "memory that was not added");
    assert!(pages.windows(2).all(|two| two[0] != two[1]), "a page twice");
    pages
}
