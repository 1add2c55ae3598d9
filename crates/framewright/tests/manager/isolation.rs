//! Isolated blocks: nobody gets their pages, pages that are freed into them stay there, and putting
//! the blocks back leaves nothing behind. Tested without page descriptors and with them.

use crate::common::{
    Fake, blocks, bring_up_with, check, descriptor_frames_of, gib, mib, order, plain_with_pages,
};
use framewright::parameters::Pages;
use framewright::units::{NodeId, Order, Pfn, PfnRange};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::{BlockState, MigrateType, State};
use framewright::zone::{FreeError, IsolateError, IsolatedPages};
use framewright::{Parameters, Request, Reserves};
use framewright_testkit::model::{BlockModel, Wanted};
use framewright_testkit::{FakeMachine, Owner};
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

const BOTH: [Pages; 2] = [Pages::None, Pages::Inside];

fn frames(range: BlockRange) -> PfnRange {
    PfnRange { start: range.start.start(), end: range.end.start() }
}

fn machine(pages: Pages) -> Fake {
    bring_up_with(FakeMachine::builder().ram(mib(0, 64)).build(), &[], &plain_with_pages(pages))
        .expect("bring-up")
}

fn state(manager: &Fake, block: u32) -> BlockState {
    manager.block_state(BlockNumber(block)).expect("a block")
}

/// Everything that can be seen of a manager's free memory.
fn picture(manager: &Fake) -> Vec<String> {
    let zones = manager.views();
    zones.map(|zone| format!("{:?} {:?}", zone.free_pages(), zone.free_blocks())).collect()
}

#[test]
fn a_part_of_a_free_gib_is_isolated_and_put_back() {
    for pages in BOTH {
        let machine = FakeMachine::builder().ram(gib(0, 8)).build();
        let manager = bring_up_with(machine, &[], &plain_with_pages(pages)).expect("bring-up");
        let before = (manager.totals(), picture(&manager));
        let range = blocks(5 * 512 + 3, 1200);
        let isolated = manager.isolation().isolate(range).expect("free");
        let expected = IsolatedPages { free_pages: 1200 * 512, ..IsolatedPages::default() };
        assert_eq!(isolated, expected);
        check(&manager);
        assert_eq!(manager.totals().isolated_pages, 1200 * 512);
        assert_eq!(manager.totals().free_pages, before.0.free_pages - 1200 * 512);
        assert!(
            state(&manager, 5 * 512 + 3).is(State::Isolated)
                && state(&manager, 5 * 512 + 2).is(State::Free)
        );
        for of in [0, 9, 12] {
            let inside = Pfn(range.start.start().0 + 4096);
            assert!(manager.allocate_at(inside, order(of), MigrateType::Movable).is_err());
        }
        assert!(matches!(
            manager.give_back_to_zone(frames(range)),
            Err(FreeError::NotAllocated { .. })
        ));
        assert!(matches!(manager.isolation().isolate(range), Err(IsolateError::Isolated(_))));
        // Unisolates the range in parts, in any order.
        for part in
            [blocks(5 * 512 + 500, 400), blocks(5 * 512 + 3, 497), blocks(5 * 512 + 900, 303)]
        {
            manager.isolation().unisolate(part).expect("isolated");
            check(&manager);
        }
        assert_eq!((manager.totals(), picture(&manager)), before);
        assert!(matches!(manager.isolation().unisolate(range), Err(IsolateError::NotIsolated(_))));
    }
}

#[test]
fn what_cannot_be_isolated_wholly_is_not_isolated_at_all() {
    let machine = FakeMachine::builder().ram(gib(0, 8)).build();
    let manager = bring_up_with(machine, &[], &Parameters::default()).expect("bring-up");
    manager.isolation().isolate(blocks(6 * 512 + 100, 1)).expect("free");
    let before = (manager.totals(), picture(&manager));
    let error = manager.isolation().isolate(blocks(4 * 512 + 7, 2000));
    assert_eq!(error, Err(IsolateError::Isolated(BlockNumber(6 * 512 + 100).start())));
    check(&manager);
    assert_eq!((manager.totals(), picture(&manager)), before);
    // A block with a reference count cannot be divided; a block without one can.
    let block = manager.allocate_at(Pfn(5 << 18), Order::MAX, MigrateType::Movable).expect("free");
    manager.begin_references(block).expect("whole");
    let before = (manager.totals(), picture(&manager));
    let half = blocks(4 * 512, 768);
    assert_eq!(manager.isolation().isolate(half), Err(IsolateError::Indivisible(block.start)));
    check(&manager);
    assert_eq!((manager.totals(), picture(&manager)), before);
    manager.freeze_references(block.start, 1).expect("alone");
    assert!(manager.isolation().isolate(half).is_err(), "it may be unfrozen");
    manager.give_back_frozen(block.start).expect("frozen");
    let block = manager.allocate_at(Pfn(5 << 18), Order::MAX, MigrateType::Movable).expect("free");
    let isolated = manager.isolation().isolate(half).expect("it is divided");
    assert_eq!((isolated.free_pages, isolated.in_use_pages), (512 * 512, 256 * 512));
    check(&manager);
    manager.give_back_to_zone(block).expect("allocated, in two pieces by now");
    check(&manager);
    assert_eq!(manager.isolation().survey(half).expect("there").in_use_pages, 0);
    manager.isolation().unisolate(half).expect("isolated");
    manager.isolation().unisolate(blocks(6 * 512 + 100, 1)).expect("isolated");
    check(&manager);
    assert_eq!(manager.totals().allocated_pages, 0);
}

#[test]
fn places_without_a_zone_are_named() {
    let manager = machine(Pages::None);
    assert!(matches!(manager.isolation().isolate(blocks(20, 0)), Err(IsolateError::Empty(_))));
    assert!(matches!(
        manager.isolation().isolate(blocks(1 << 20, 1)),
        Err(IsolateError::Place(FreeError::NotManaged(_)))
    ));
    assert!(matches!(
        manager.isolation().isolate(blocks(4, 8)),
        Err(IsolateError::Place(FreeError::SpansZones(_)))
    ));
    assert!(matches!(manager.isolation().survey(blocks(31, 2)), Err(IsolateError::Place(_))));
    assert!(matches!(
        manager.isolation().unisolate(blocks(20, 1)),
        Err(IsolateError::NotIsolated(_))
    ));
    assert!(matches!(manager.isolation().claim(blocks(20, 1)), Err(IsolateError::NotIsolated(_))));
    check(&manager);
}

#[test]
fn frees_into_isolated_blocks_stay() {
    for pages in BOTH {
        let manager = machine(pages);
        let idle = manager.totals();
        let range = blocks(16, 4);
        // Four blocks: one in pieces, some of them in the CPU's cache; one that is allocated whole;
        // one of which a part was freed; and one that is free.
        let pieces: Vec<Pfn> = (0..504)
            .map(|offset| {
                manager.allocate_at(Pfn(16 * 512 + offset), Order::PAGE, MigrateType::Movable)
            })
            .map(|taken| taken.expect("free").start)
            .collect();
        let whole =
            manager.allocate_at(Pfn(17 * 512), Order::BLOCK, MigrateType::Movable).expect("free");
        let part =
            manager.allocate_at(Pfn(18 * 512), Order::BLOCK, MigrateType::Movable).expect("free");
        manager
            .give_back_to_zone(PfnRange::new(part.start.0 + 5, part.start.0 + 9))
            .expect("allocated");
        for &page in &pieces[..30] {
            manager.give_back_order(page, Order::PAGE).expect("allocated");
        }
        assert!(manager.caches().pages() >= 30);
        let isolated = manager.isolation().isolate(range).expect("it is not isolated yet");
        check(&manager);
        assert_eq!(manager.caches().pages(), 0);
        assert_eq!(isolated.in_use_pages, 474 + 512 + 508);
        assert_eq!(
            isolated.free_pages + isolated.descriptor_pages,
            4 * 512 - isolated.in_use_pages
        );
        for &page in &pieces[30..] {
            manager.give_back_order(page, Order::PAGE).expect("allocated");
        }
        assert_eq!(manager.caches().pages(), 0, "not into a cache");
        let all = manager.isolation().claim(range);
        assert!(
            matches!(all, Err(IsolateError::InUse(pages)) if pages.in_use_pages == 512 + 508),
            "{all:?}"
        );
        manager
            .give_back_to_zone(PfnRange::new(whole.start.0, whole.start.0 + 100))
            .expect("allocated");
        check(&manager);
        manager
            .give_back_to_zone(PfnRange::new(whole.start.0 + 100, whole.end.0))
            .expect("allocated");
        manager
            .give_back_to_zone(PfnRange::new(part.start.0, part.start.0 + 5))
            .expect("allocated");
        manager.give_back_to_zone(PfnRange::new(part.start.0 + 9, part.end.0)).expect("allocated");
        check(&manager);
        assert_eq!(manager.isolation().survey(range).expect("there").free_pages, 4 * 512);
        // No other request gets these pages, whatever it asks for.
        let outside = std::iter::from_fn(|| {
            manager.allocate(&Request { reserves: Reserves::All, ..Request::pages(1) }).ok()
        });
        let outside: Vec<PfnRange> = outside.collect();
        assert!(outside.iter().all(|taken| taken.intersection(frames(range)).is_empty()));
        check(&manager);
        let claimed = manager.isolation().claim(range).expect("all of it is free");
        assert_eq!(claimed, frames(range));
        check(&manager);
        assert_eq!(manager.totals().isolated_pages, 0);
        for taken in outside {
            manager.give_back_to_zone(taken).expect("allocated");
        }
        manager
            .give_back_to_zone(PfnRange::new(claimed.start.0 + 1, claimed.end.0))
            .expect("claimed");
        manager
            .give_back_to_zone(PfnRange::new(claimed.start.0, claimed.start.0 + 1))
            .expect("claimed");
        check(&manager);
        let back = manager.totals();
        assert_eq!(
            back.free_pages + back.descriptor_pages,
            idle.free_pages + idle.descriptor_pages
        );
        // Caches keep pages of these blocks again.
        let page =
            manager.allocate_at(Pfn(16 * 512), Order::PAGE, MigrateType::Movable).expect("free");
        manager.give_back_order(page.start, Order::PAGE).expect("allocated");
        assert_eq!(manager.caches().pages(), 1);
    }
}

#[test]
fn blocks_with_holes_and_reservations_are_counted() {
    for pages in BOTH {
        let machine = FakeMachine::builder().ram(mib(0, 63)).build();
        let manager =
            bring_up_with(machine, &[mib(40, 43)], &plain_with_pages(pages)).expect("bring-up");
        let before = (manager.totals(), picture(&manager));
        let isolated = manager.isolation().isolate(blocks(20, 12)).expect("nothing is isolated");
        check(&manager);
        let IsolatedPages {
            free_pages,
            in_use_pages,
            descriptor_pages,
            reserved_pages,
            absent_pages,
        } = isolated;
        assert_eq!((in_use_pages, absent_pages), (0, 256));
        assert!(reserved_pages >= 3 * 256);
        assert_eq!(free_pages + descriptor_pages + reserved_pages + absent_pages, 12 * 512);
        assert!(matches!(manager.isolation().claim(blocks(20, 12)), Err(IsolateError::InUse(_))));
        manager.isolation().unisolate(blocks(20, 12)).expect("isolated");
        check(&manager);
        assert_eq!((manager.totals(), picture(&manager)), before);
    }
}

#[test]
fn interrupt_handlers_do_not_wait_for_other_cpus() {
    let machine = FakeMachine::builder().ram(mib(0, 64)).cpus(2).build();
    let manager = bring_up_with(machine, &[], &Parameters::default()).expect("bring-up");
    assert_eq!(
        machine.interrupt(|| manager.isolation().isolate(blocks(20, 1))),
        Err(IsolateError::CannotWait)
    );
    manager.isolation().isolate(blocks(20, 1)).expect("free");
    machine.interrupt(|| manager.isolation().unisolate(blocks(20, 1))).expect("isolated");
    check(&manager);
}

#[test]
fn cpus_that_allocate_and_free_get_nothing_of_it() {
    for pages in BOTH {
        let machine = FakeMachine::builder().ram(mib(0, 64)).cpus(4).build();
        let manager = bring_up_with(machine, &[], &plain_with_pages(pages)).expect("bring-up");
        let range = blocks(16, 8);
        // The round in which the range is isolated, counted from 1.
        let (isolated, done) = (AtomicU64::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            for seed in 1..=3_u64 {
                let (manager, isolated, done) = (&manager, &isolated, &done);
                scope.spawn(move || {
                    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    let mut random = |limit: u64| {
                        state ^= state << 13;
                        state ^= state >> 7;
                        state ^= state << 17;
                        state % limit
                    };
                    let mut held: Vec<(Pfn, Order)> = Vec::new();
                    while !done.load(Ordering::Relaxed) {
                        if random(2) == 0 && held.len() < 900 {
                            let of = order(
                                [0, 0, 1, 3, 6, 9][usize::try_from(random(6)).expect("small")],
                            );
                            let round = isolated.load(Ordering::Acquire);
                            if let Ok(pfn) = manager.allocate_order(of, MigrateType::Movable) {
                                let unexpected = round != 0 && frames(range).contains(pfn);
                                // Allowed only if the range was put back meanwhile.
                                assert!(
                                    !unexpected || isolated.load(Ordering::Acquire) != round,
                                    "{pfn} is isolated"
                                );
                                held.push((pfn, of));
                            }
                        } else if !held.is_empty() {
                            let index = usize::try_from(random(held.len() as u64)).expect("small");
                            let (pfn, of) = held.swap_remove(index);
                            manager.give_back_order(pfn, of).expect("held");
                        }
                    }
                    for (pfn, of) in held {
                        manager.give_back_order(pfn, of).expect("held");
                    }
                });
            }
            for round in 0..25 {
                manager.isolation().isolate(range).expect("it is not isolated");
                isolated.store(round + 1, Ordering::Release);
                for _ in 0..200 {
                    thread::yield_now();
                }
                isolated.store(0, Ordering::Release);
                match manager.isolation().claim(range) {
                    Ok(claimed) => manager.give_back_to_zone(claimed).expect("claimed"),
                    Err(IsolateError::InUse(_)) => {
                        manager.isolation().unisolate(range).expect("isolated")
                    }
                    Err(error) => panic!("round {round}: {error}"),
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        manager.drain().expect("only good frames are cached");
        check(&manager);
        assert_eq!((manager.totals().allocated_pages, manager.totals().isolated_pages), (0, 0));
    }
}

#[derive(Clone, Debug)]
enum Step {
    Allocate { of: u8 },
    Cached { of: u8 },
    At { page: u64, of: u8 },
    Free { slot: usize, first: u64, pages: u64 },
    FreeCached { slot: usize },
    Isolate { range: BlockRange },
    PutBack { range: BlockRange },
    PutBackSome { slot: usize },
    Claim { slot: usize },
    Survey { range: BlockRange },
}

fn step() -> impl Strategy<Value = Step> {
    let range = || (1_u32..34, 1_u32..9).prop_map(|(start, count)| blocks(start, count));
    let slot = || 0_usize..256;
    prop_oneof![
        6 => (0_u8..=12).prop_map(|of| Step::Allocate { of }),
        3 => prop::sample::select(vec![0_u8, 1, 2, 3, 9]).prop_map(|of| Step::Cached { of }),
        2 => (512_u64..16_384, 0_u8..=11)
            .prop_map(|(page, of)| Step::At { page: page >> of << of, of }),
        6 => (slot(), any::<u64>(), 0_u32..13).prop_map(|(slot, first, size)| Step::Free {
            slot,
            first,
            pages: 1 << size,
        }),
        3 => slot().prop_map(|slot| Step::FreeCached { slot }),
        4 => range().prop_map(|range| Step::Isolate { range }),
        1 => range().prop_map(|range| Step::PutBack { range }),
        2 => slot().prop_map(|slot| Step::PutBackSome { slot }),
        2 => slot().prop_map(|slot| Step::Claim { slot }),
        2 => range().prop_map(|range| Step::Survey { range }),
    ]
}

/// A model of all memory of a machine, built by allocating all of it.
fn learn(manager: &Fake) -> BlockModel {
    let mut model = BlockModel::new();
    for zone in manager.zones() {
        model.add_zone(zone.id().kind.name(), NodeId::ZERO, zone.span());
    }
    let mut pages = vec![Pfn(0); 20_000];
    let taken = manager
        .allocate_bulk(&Request { reserves: Reserves::All, ..Request::pages(1) }, &mut pages);
    pages.truncate(taken.expect("there is memory"));
    for frame in pages.iter().chain(&descriptor_frames_of(manager)) {
        model.add_free(PfnRange::new(frame.0, frame.0 + 1));
    }
    for page in pages {
        manager.give_back_to_zone(PfnRange::new(page.0, page.0 + 1)).expect("allocated");
    }
    model
}

fn follow(steps: &[Step], pages: Pages) {
    let manager = machine(pages);
    let mut model = learn(&manager);
    // With descriptors a block has fewer free pages than the model thinks.
    let exact = |of: u8| pages == Pages::None || of >= 9;
    let mut held: Vec<PfnRange> = Vec::new();
    let mut isolated: Vec<BlockRange> = Vec::new();
    for step in steps {
        match *step {
            Step::Allocate { of } => {
                let got = manager
                    .allocate(&Request { reserves: Reserves::All, ..Request::new(order(of)) })
                    .ok();
                if got.is_some() || exact(of) {
                    model.allocated(&Wanted::new(order(of)), got.map(|range| range.start));
                }
                held.extend(got);
            }
            Step::Cached { of } => {
                if let Ok(pfn) = manager.allocate_order(order(of), MigrateType::Movable) {
                    model.allocated(&Wanted::new(order(of)), Some(pfn));
                    held.push(PfnRange::new(pfn.0, pfn.0 + (1 << of)));
                }
            }
            Step::At { page, of } => {
                manager.drain().expect("only good frames are cached");
                let range = PfnRange::new(page, page + (1 << of));
                let got = manager.allocate_at(range.start, order(of), MigrateType::Movable).ok();
                if got.is_some() || exact(of) {
                    model.allocated_at(range, got.is_some());
                }
                held.extend(got);
            }
            Step::Free { slot, first, pages } if !held.is_empty() => {
                let range = held.swap_remove(slot % held.len());
                let start = range.start.0 + first % range.pages();
                let piece = PfnRange::new(start, (start + pages).min(range.end.0));
                model.freed(piece, manager.give_back_to_zone(piece).is_ok());
                let rest = [
                    PfnRange { start: range.start, end: piece.start },
                    PfnRange { start: piece.end, end: range.end },
                ];
                held.extend(rest.into_iter().filter(|rest| !rest.is_empty()));
            }
            Step::FreeCached { slot } if !held.is_empty() => {
                let range = held.swap_remove(slot % held.len());
                let of = Order::for_pages(range.pages()).filter(|of| of.pages() == range.pages());
                match of.filter(|&of| range.start.is_aligned(of)) {
                    Some(of) => manager.give_back_order(range.start, of).expect("held"),
                    None => manager.give_back_to_zone(range).expect("held"),
                }
                model.freed(range, true);
            }
            Step::Isolate { range } => {
                let done = manager.isolation().isolate(range).is_ok();
                model.isolated(frames(range), done);
                if done {
                    isolated.push(range);
                }
            }
            Step::PutBack { range } => {
                let done = manager.isolation().unisolate(range).is_ok();
                model.unisolated(frames(range), done);
                if done {
                    let all = isolated.drain(..).flat_map(|other| {
                        (other.start.0..other.end.0).map(|block| blocks(block, 1))
                    });
                    let left: Vec<BlockRange> = all
                        .filter(|block| !(range.start <= block.start && block.start < range.end))
                        .collect();
                    isolated = left;
                }
            }
            Step::PutBackSome { slot } if !isolated.is_empty() => {
                let range = isolated.swap_remove(slot % isolated.len());
                model.unisolated(frames(range), manager.isolation().unisolate(range).is_ok());
            }
            Step::Claim { slot } if !isolated.is_empty() => {
                let index = slot % isolated.len();
                let range = isolated[index];
                let claimed = manager.isolation().claim(range);
                model.claimed(frames(range), claimed.is_ok());
                if let Ok(claimed) = claimed {
                    isolated.swap_remove(index);
                    held.push(claimed);
                }
            }
            Step::Survey { range } => {
                manager.drain().expect("only good frames are cached");
                let survey = manager.isolation().survey(range).ok();
                let survey = survey
                    .map(|pages| (pages.free_pages + pages.descriptor_pages, pages.in_use_pages));
                assert_eq!(survey, model.survey(frames(range)), "{range:?}");
            }
            _ => {}
        }
        let (totals, counts) = (manager.totals(), model.total());
        assert_eq!(totals.allocated_pages - manager.caches().pages(), counts.allocated);
        if pages == Pages::None {
            assert_eq!(
                (totals.isolated_pages, totals.free_pages + manager.caches().pages()),
                (counts.isolated, counts.free)
            );
        }
    }
    check(&manager);
    for range in isolated {
        manager.isolation().unisolate(range).expect("isolated");
    }
    for range in held {
        manager.give_back_to_zone(range).expect("held");
    }
    manager.drain().expect("only good frames are cached");
    check(&manager);
    let totals = manager.totals();
    assert_eq!(totals.free_pages + totals.descriptor_pages, totals.managed_pages);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, ..ProptestConfig::default() })]

    #[test]
    fn isolation_follows_the_model(
        steps in prop::collection::vec(step(), 0..120),
        inside in any::<bool>(),
    ) {
        follow(&steps, if inside { Pages::Inside } else { Pages::None });
    }
}

#[test]
fn what_others_put_back_at_once_does_not_end_the_isolation_of_the_rest() {
    let machine = FakeMachine::builder().ram(mib(0, 128)).cpus(2).build();
    let manager = bring_up_with(machine, &[], &plain_with_pages(Pages::None)).expect("bring-up");
    let (kept, moving) = (blocks(40, 1), blocks(8, 8));
    let of = order(3);
    let used: Vec<Pfn> = (0..64)
        .map(|run| {
            let start = Pfn(frames(kept).start.0 + run * 8);
            manager.allocate_at(start, of, MigrateType::Movable).expect("free").start
        })
        .collect();
    manager.isolation().isolate(kept).expect("it can be");
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let _ = manager.isolation().unisolate(moving);
            }
        });
        for _ in 0..3000 {
            let _ = manager.isolation().isolate(moving);
        }
        over.store(true, Ordering::Relaxed);
    });
    for start in used {
        manager.give_back_order(start, of).expect("allocated");
    }
    let mut got = Vec::new();
    while let Ok(start) = manager.allocate_order(of, MigrateType::Movable) {
        assert!(!frames(kept).contains(start), "pfn {start} of an isolated block");
        got.push(start);
    }
    got.into_iter().for_each(|start| manager.give_back_order(start, of).expect("allocated"));
    check(&manager);
}

/// A long range is claimed some blocks at a time, and the error counts the whole range.
#[test]
fn what_is_in_use_is_told_of_all_of_a_long_range() {
    let machine = FakeMachine::builder().ram(gib(4, 6)).build();
    let manager = bring_up_with(machine, &[], &plain_with_pages(Pages::None)).expect("bring-up");
    let range = BlockRange::new(2048, 2048 + 512);
    let held = [0, 1, 2, 3].map(|slice| {
        let at = BlockNumber(2048 + slice * 128 + 5).start();
        manager.allocate_at(at, Order::PAGE, MigrateType::Movable).expect("free")
    });
    let found = manager.isolation().isolate(range).expect("there");
    assert_eq!(found.in_use_pages, 4);
    assert_eq!(manager.isolation().claim(range), Err(IsolateError::InUse(found)));
    manager.isolation().unisolate(range).expect("isolated");
    held.into_iter().for_each(|frame| manager.give_back(frame).expect("ours"));
    check(&manager);
}
