//! Searches among many split blocks that turn out to have fewer free pages than the index says:
//! they end where they should, whatever changed while they had let go of the lock.

use super::HERE;
use crate::common::{Fake, check, gib, order, settled};
use framewright::units::{Order, Pfn, PfnRange};
use framewright::zone::MigrateType;
use framewright::{AllocateError, Request, Reserves};
use framewright_testkit::{FakeMachine, Owner};

const WHOLE: Request = Request { reserves: Reserves::All, ..Request::new(Order::BLOCK) };

/// A machine with one zone in which every second page is free in each block; `whole` other blocks
/// are free as a whole. Returns what is held, too.
fn half_free(whole: usize) -> (Fake, Vec<PfnRange>) {
    let manager = HERE.bring_up(FakeMachine::builder().ram(gib(4, 6)).build());
    let mut blocks = Vec::new();
    while let Ok(block) = manager.allocate(&WHOLE) {
        blocks.push(block);
    }
    // Allocates the rest of blocks that are in pieces from the start.
    let mut held = Vec::new();
    while let Ok(page) = manager.allocate(&Request { reserves: Reserves::All, ..Request::pages(1) })
    {
        held.push(page);
    }
    blocks.sort_unstable_by_key(|block| block.start);
    for block in blocks.drain(..whole) {
        manager.give_back(block).expect("it is held");
    }
    for block in blocks {
        for page in block.start.0..block.end.0 {
            let page = PfnRange::new(page, page + 1);
            if page.start.0.is_multiple_of(2) {
                manager.give_back(page).expect("it is held");
            } else {
                held.push(page);
            }
        }
    }
    manager.drain().expect("only good frames are cached");
    check(&manager);
    (manager, held)
}

#[test]
fn a_whole_block_is_used_before_all_others_were_sorted() {
    let (manager, held) = half_free(3);
    let free_blocks = |manager: &Fake| {
        manager.views().map(|zone| zone.free_blocks().iter().sum::<u32>()).sum::<u32>()
    };
    assert!(free_blocks(&manager) > 0);
    for of in [1, 4, 8, 2] {
        let run = manager.allocate(&Request::new(order(of))).expect("three blocks are whole");
        assert!(run.start.is_aligned(order(of)));
        check(&manager);
        manager.give_back(run).expect("it is held");
    }
    held.into_iter().for_each(|page| manager.give_back(page).expect("it is held"));
    assert_eq!(settled(&manager).allocated_pages, 0);
}

#[test]
fn the_last_run_is_found_and_its_absence_noticed() {
    let (manager, mut held) = half_free(0);
    let pairs = Request { fail_fast: true, ..Request::pages(2) };
    let mut bulk = vec![Pfn(0); 1000];
    for migrate_type in [MigrateType::Movable, MigrateType::Unmovable] {
        let request = Request { migrate_type, ..pairs };
        assert_eq!(manager.allocate(&request), Err(AllocateError::OutOfMemory { order: order(1) }));
        assert!(manager.allocate_order(order(1), migrate_type).is_err());
        // One more free page, high up, makes a run.
        let page = held.pop().expect("there are many");
        manager.give_back_to_zone(page).expect("it is held");
        let run = manager.allocate(&request).expect("there is one run");
        assert!(run.contains(page.start), "{run:?} {page:?}");
        assert_eq!(manager.allocate(&request), Err(AllocateError::OutOfMemory { order: order(1) }));
        manager.give_back(PfnRange { start: run.start, end: page.start }).expect("it is held");
        held.push(page);
        // Single pages are available in any number.
        let request = Request { migrate_type, ..Request::pages(1) };
        assert_eq!(manager.allocate_bulk(&request, &mut bulk), Ok(bulk.len()));
        bulk.iter().for_each(|&page| {
            manager.give_back(PfnRange { start: page, end: page.add(1) }).expect("it is held");
        });
    }
    check(&manager);
    held.into_iter().for_each(|page| manager.give_back(page).expect("it is held"));
    assert_eq!(settled(&manager).allocated_pages, 0);
}
