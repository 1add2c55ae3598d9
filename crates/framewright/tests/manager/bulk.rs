//! Bulk requests for single frames, and calls that take a size: where the frames come from, that
//! wrong frees are refused while all the others succeed, and that nothing is lost.

use super::HERE;
use crate::common::{check, gib, idle_pages, mib, order, settled};
use framewright::units::{Order, PAGE_SIZE, Pfn, PfnRange};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::{FreeError, MigrateType};
use framewright::{AllocateError, Request, Reserves};
use framewright_testkit::{FakeMachine, Owner};
use std::alloc::Layout;
use std::collections::BTreeSet;

#[test]
fn a_few_pages_come_out_of_the_cache_and_go_there() {
    let manager = HERE.bring_up(FakeMachine::builder().ram(gib(0, 6)).build());
    let free = idle_pages(&manager);
    for migrate_type in [MigrateType::Movable, MigrateType::Unmovable, MigrateType::Reclaimable] {
        let request = Request { migrate_type, ..Request::new(Order::PAGE) };
        let mut pages = [Pfn(0); 40];
        assert_eq!(manager.allocate_bulk(&request, &mut pages), Ok(40));
        assert_eq!(pages.iter().collect::<BTreeSet<_>>().len(), 40, "all are different");
        manager.give_back_bulk(&pages).expect("allocated");
        if crate::common::is_careful() {
            continue;
        }
        let (zone, cached) = (manager.totals().free_pages, manager.caches().pages());
        let mut again = [Pfn(0); 16];
        for _ in 0..20 {
            assert_eq!(manager.allocate_bulk(&request, &mut again), Ok(16));
            assert_eq!(manager.caches().pages(), cached - 16, "{migrate_type:?}");
            manager.give_back_bulk(&again).expect("allocated");
            assert_eq!(manager.caches().pages(), cached);
        }
        assert_eq!(manager.totals().free_pages, zone, "the zone was not asked");
    }
    check(&manager);
    assert_eq!(settled(&manager).allocated_pages, 0);
    assert_eq!(idle_pages(&manager), free);
}

#[test]
fn what_cannot_be_freed_is_named_and_all_else_goes() {
    let manager = HERE.bring_up(FakeMachine::builder().ram(mib(0, 512)).build());
    let free = idle_pages(&manager);
    for count in [1, 2, 63, 64, 65, 130, 1000] {
        for wrong in [0, count / 2, count - 1] {
            let mut pages = vec![Pfn(0); count];
            let request = Request::new(Order::PAGE);
            assert_eq!(manager.allocate_bulk(&request, &mut pages), Ok(count));
            let held = std::mem::replace(&mut pages[wrong], Pfn(1 << 39));
            let refused = manager.give_back_bulk(&pages);
            assert_eq!(refused, Err(FreeError::NotManaged(Pfn(1 << 39))), "{wrong} of {count}");
            manager.give_back_bulk(&[held]).expect("this one was not named");
            manager.give_back_bulk(&[]).expect("nothing is nothing");
            assert_eq!(settled(&manager).allocated_pages, 0);
        }
    }
    check(&manager);
    assert_eq!(idle_pages(&manager), free);
}

#[test]
fn bulk_requests_get_the_last_page_and_no_more() {
    let manager = HERE.bring_up(FakeMachine::builder().ram(mib(0, 64)).build());
    let mut all = Vec::new();
    let request = Request { reserves: Reserves::All, ..Request::new(Order::PAGE) };
    loop {
        let mut some = [Pfn(0); 48];
        match manager.allocate_bulk(&request, &mut some) {
            Ok(got) => all.extend(&some[..got]),
            Err(error) => {
                assert_eq!(error, AllocateError::OutOfMemory { order: Order::PAGE });
                break;
            }
        }
    }
    assert_eq!((manager.totals().free_pages, manager.caches().pages()), (0, 0));
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
    manager.give_back_bulk(&all).expect("allocated");
    check(&manager);
    assert_eq!(settled(&manager).allocated_pages, 0);
}

#[test]
fn a_size_or_a_layout_is_all_that_need_be_said() {
    let manager = HERE.bring_up(FakeMachine::builder().ram(gib(0, 6)).build());
    let free = idle_pages(&manager);
    for (pages, align) in [(1, 0), (3, 0), (3, 4), (280, 0), (280, 9), (512, 0), (1000, 12)] {
        let range = manager.allocate_pages(pages, order(align)).expect("there is memory");
        assert_eq!(range.pages(), pages);
        assert!(range.start.is_aligned(order(align)), "{range:?}");
        manager.give_back_pages(range.start, pages).expect("allocated");
    }
    let page = usize::try_from(PAGE_SIZE).expect("small");
    for (bytes, align, pages) in [
        (0, 1, 1),
        (1, 8, 1),
        (page, page, 1),
        (page + 1, 8, 2),
        (5 * page, 64 * page, 5),
        (3 << 20, 1, 768),
    ] {
        let layout = Layout::from_size_align(bytes, align).expect("a layout");
        let range = manager.allocate_layout(layout).expect("there is memory");
        assert_eq!(range.pages(), pages, "{layout:?}");
        assert!(range.start.address().is_multiple_of(align as u64), "{layout:?}");
        // SAFETY: allocated just now with this size, and used by nobody.
        let free = || unsafe { manager.free_bytes(range.start, bytes as u64) };
        free().expect("allocated");
        // The second free is refused at once, while the cache has the run or what it was cut from.
        assert!(free().is_err(), "{layout:?}");
    }
    let layout = Layout::from_size_align(8, 2 << 30).expect("a layout");
    let refused = manager.allocate_layout(layout);
    assert_eq!(refused, Err(AllocateError::BadSize { pages: 1 << 19 }));
    let layout = Layout::from_size_align(2 << 30, 8).expect("a layout");
    let long = manager.allocate_layout(layout).expect("of neighbouring blocks");
    assert_eq!(long.pages(), 1 << 19);
    manager.give_back(long).expect("ours");
    assert_eq!(manager.allocate_pages(0, Order::PAGE), Err(AllocateError::BadSize { pages: 0 }));
    check(&manager);
    assert_eq!(settled(&manager).allocated_pages, 0);
    assert_eq!(idle_pages(&manager), free);
}

/// Pages of an isolated block cannot be allocated although they are free; a run that begins behind
/// them is found.
#[test]
fn a_run_behind_pages_that_cannot_be_had_is_found() {
    let manager = HERE.bring_up(FakeMachine::builder().ram(gib(4, 5)).build());
    let all = Request { reserves: Reserves::All, fail_fast: true, ..Request::new(Order::BLOCK) };
    let mut held: Vec<PfnRange> = std::iter::from_fn(|| manager.allocate(&all).ok()).collect();
    held.sort_unstable_by_key(|block| block.start);
    let pages = |start: Pfn, pages| PfnRange { start, end: start.add(pages) };
    let at = (1..held.len() - 2).find(|&at| held[at + 2].start == held[at].start.add(1024));
    let first = held.remove(at.expect("there are three in a row")).start;
    let behind = [first.add(512), first.add(1024)];
    held.retain(|block| !behind.contains(&block.start));
    manager.give_back(pages(first.add(504), 8)).expect("held");
    manager.give_back(pages(behind[0], 600)).expect("held");
    // Frees single blocks elsewhere, so that watermarks refuse nothing.
    let others = held.iter().rev().step_by(2).take(16).map(|block| block.start);
    let others: Vec<Pfn> = others.filter(|&start| start > behind[1].add(512)).collect();
    held.retain(|block| !others.contains(&block.start));
    others.into_iter().for_each(|start| manager.give_back(pages(start, 512)).expect("held"));
    manager.drain().expect("only good frames are cached");
    let block = BlockNumber::containing(first);
    let blocks = BlockRange { start: block, end: BlockNumber(block.0 + 1) };
    manager.isolation().isolate(blocks).expect("nobody else has it isolated");
    let run = manager.allocate_pages(600, Order::PAGE).expect("there is one");
    assert_eq!(run, pages(behind[0], 600));
    manager.isolation().unisolate(blocks).expect("isolated");
    held.extend([run, pages(first, 504), pages(run.end, 424)]);
    held.into_iter().for_each(|range| manager.give_back(range).expect("held"));
    check(&manager);
    assert_eq!(settled(&manager).allocated_pages, 0);
}
