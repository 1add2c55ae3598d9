//! Free page reporting of free huge-page pool pages: they are reported once and handed out last,
//! and all rules of the pools still hold.

use crate::common::check;
use crate::common::reporting_rig::{MS, Rig, SECOND, machine, weightless};
use framewright::hugetlb::{NodeMask, PoolError, PoolSize};
use framewright::manager::{Budget, ObstacleKind, VacateError};
use framewright::memblock::NodeChoice;
use framewright::reporting::{Acknowledged, Pace};
use framewright::units::PfnRange;
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::Grade;
use framewright_testkit::PoolOwner;
use framewright_testkit::reporting::{Answer, Traits};
use proptest::collection::vec;
use proptest::prelude::*;

const TWO: PoolSize = PoolSize::TwoMib;
const GIB: PoolSize = PoolSize::OneGib;

/// A machine with `pages` pages in a pool; `None` in careful runs, in which devices rely on what
/// free memory holds.
fn rig(size_mib: u64, size: PoolSize, pages: u64, traits: Traits) -> Option<Rig> {
    if crate::common::is_careful() {
        return None;
    }
    let rig = Rig::new(machine(size_mib, 2), "page_reporting.pools=1", traits);
    resize(&rig, size, pages);
    Some(rig)
}

fn resize(rig: &Rig, size: PoolSize, pages: u64) {
    rig.manager
        .pool(size)
        .resize(pages, &framewright_jobs::NoHelpers)
        .expect("nobody else resizes");
}

fn allocate(rig: &Rig, size: PoolSize) -> PfnRange {
    let page = rig.manager.pool(size).allocate(NodeChoice::Any, false).expect("a page is free");
    rig.host.handed_out(page);
    page
}

fn free(rig: &Rig, size: PoolSize, page: PfnRange) {
    rig.manager.pool(size).give_back_page(page.start).expect("it is in use");
}

/// Uses so many pages, all of a pool, and lets a device that never answers have what it gets of
/// them.
fn used_and_out(rig: &mut Rig, size: PoolSize, pages: u64) -> Vec<PfnRange> {
    rig.settle();
    let held: Vec<PfnRange> = (0..pages).map(|_| allocate(rig, size)).collect();
    held.iter().for_each(|&page| free(rig, size, page));
    rig.host.answer(Answer::Never);
    rig.run(20 * SECOND);
    held
}

/// Lets a device that was silent answer again.
fn answers_again(rig: &mut Rig) {
    rig.reporter().reset();
    rig.host.answer(Answer::After(0));
    rig.settle();
    verify(rig);
}

fn told(rig: &Rig) -> u64 {
    rig.manager.reporting_counters().pool_pages
}

fn verify(rig: &Rig) {
    check(rig.manager);
    rig.manager.hugetlb().verify().unwrap_or_else(|fault| panic!("{fault}"));
}

#[test]
fn free_pages_of_pools_are_reported_once_where_that_is_wanted() {
    let Some(mut rig) = rig(1024, TWO, 100, weightless()) else { return };
    rig.manager.reporting().set_pools(false);
    rig.settle();
    assert_eq!(told(&rig), 0, "off is off");
    rig.manager.reporting().set_pools(true);
    for pace in [Pace::Adaptive, Pace::Fixed] {
        rig.manager.reporting().set_pace(pace);
        let before = told(&rig);
        rig.settle();
        rig.settle();
        verify(&rig);
        assert_eq!((told(&rig) - before, rig.host.reported_twice()), (100 * 512, 0), "{pace:?}");
        // All of the pages are allocated and freed.
        let held: Vec<PfnRange> = (0..100).map(|_| allocate(&rig, TWO)).collect();
        held.into_iter().for_each(|page| free(&rig, TWO, page));
    }
    assert_eq!(rig.manager.reporting_counters().reused_pages, 200 * 512);
    rig.reporter().close();
    rig.settle();
    assert_eq!(rig.manager.pool(TWO).counts().all.free, 100);
}

#[test]
fn pages_that_were_not_reported_are_handed_out_first() {
    let Some(mut rig) = rig(1024, TWO, 64, weightless()) else { return };
    rig.settle();
    let held: Vec<PfnRange> = (0..10).map(|_| allocate(&rig, TWO)).collect();
    held.iter().for_each(|&page| free(&rig, TWO, page));
    let mut again: Vec<PfnRange> = (0..10).map(|_| allocate(&rig, TWO)).collect();
    again.sort_by_key(|page| page.start);
    let mut first = held;
    first.sort_by_key(|page| page.start);
    assert_eq!(again, first);
    assert_eq!(
        rig.manager.reporting_counters().reused_pages,
        10 * 512,
        "the second time none was needed"
    );
}

#[test]
fn promised_isolated_and_bad_pages_stay() {
    let Some(mut rig) = rig(1024, TWO, 16, weightless()) else { return };
    let pool = rig.manager.pool(TWO);
    let held: Vec<PfnRange> = (0..16).map(|_| allocate(&rig, TWO)).collect();
    let block = BlockNumber::containing(held[0].start).0;
    rig.manager.isolation().isolate(BlockRange::new(block, block + 1)).expect("it can be isolated");
    assert!(pool.poison(held[1].start).is_ok());
    held[..6].iter().for_each(|&page| free(&rig, TWO, page));
    // Four of the six pages can be used, and one free unreported page is kept for each reservation;
    // the isolated page is the first.
    pool.reserve(3, NodeMask::ALL).expect("they can be promised");
    rig.settle();
    assert_eq!(told(&rig), 2 * 512);
    assert!(!rig.host.has_discarded(held[0]) && !rig.host.has_discarded(held[1]));
    let passes = rig.manager.reporting_counters().passes;
    rig.settle();
    assert!(
        rig.manager.reporting_counters().passes <= passes + 1,
        "what cannot be reported causes no passes"
    );
    verify(&rig);
}

#[test]
fn a_gigantic_page_goes_out_in_parts() {
    let Some(mut rig) = rig(4096, GIB, 2, weightless()) else { return };
    // The third call for the first page fails.
    rig.manager.reporting().pause();
    rig.run(SECOND);
    rig.host.take_submissions();
    rig.manager.reporting().flush();
    rig.settle();
    assert_eq!(told(&rig), 2 << 18);
    let parts = rig.host.take_submissions();
    let large: Vec<u64> = parts.iter().flatten().map(|range| range.size() >> 20).collect();
    assert!(large.len() >= 32 && large.iter().all(|&mib| mib <= 64));
    let page = allocate(&rig, GIB);
    free(&rig, GIB, page);
    rig.host.plan([Answer::After(0), Answer::After(0), Answer::Fails(0)]);
    rig.manager.reporting().resume();
    rig.settle();
    assert!(rig.host.has_discarded(page), "it was tried again");
    assert_eq!(rig.manager.reporting_counters().errors, 1);
    verify(&rig);
}

#[test]
fn a_page_that_is_out_is_nobodys() {
    let Some(mut rig) = rig(1024, TWO, 8, weightless()) else { return };
    let held = used_and_out(&mut rig, TWO, 8);
    let pool = rig.manager.pool(TWO);
    assert!(rig.reporter().is_silent());
    let out = rig.host.out_pages();
    assert_eq!((out, pool.counts().all.free), (4 * 512, 4), "half of them");
    verify(&rig);
    for page in &held {
        assert!(pool.give_back_page(page.start).is_err() && pool.commit(page.start).is_err());
    }
    // The remaining pages can be allocated, and a resize takes those that are there.
    let rest: Vec<PfnRange> = (0..4).map(|_| allocate(&rig, TWO)).collect();
    assert!(matches!(pool.allocate(NodeChoice::Any, false), Err(PoolError::NoPage(_))));
    rest.iter().for_each(|&page| free(&rig, TWO, page));
    resize(&rig, TWO, 2);
    assert_eq!(
        pool.counts().all.surplus,
        2,
        "pages that are out leave the pool when they come back"
    );
    let bad = held.iter().find(|page| !rest.contains(page)).expect("one that is out");
    assert!(pool.poison(bad.start).is_ok());
    answers_again(&mut rig);
    let counts = pool.counts();
    assert_eq!(
        (counts.all.surplus, counts.all.nr, counts.target),
        (0, counts.target, counts.target)
    );
    assert_eq!(rig.host.out_pages(), 0);
}

/// A request finds the only page that is free, and the last of several.
#[test]
fn one_page_always_stays() {
    for (size, pages, out) in [(GIB, 1, 0), (TWO, 1, 0), (TWO, 2, 1), (TWO, 3, 1)] {
        let Some(mut rig) = rig(4096, size, pages, weightless()) else { return };
        used_and_out(&mut rig, size, pages);
        let pool = rig.manager.pool(size);
        assert_eq!(pool.counts().all.free, pages - out, "{size:?}, {pages}");
        pool.reserve(1, NodeMask::ALL).expect("one is free");
        verify(&rig);
        answers_again(&mut rig);
    }
}

/// A block that is out gets a grade where it is, and has it when it comes back.
#[test]
fn what_is_out_can_be_graded() {
    let Some(mut rig) = rig(256, TWO, 0, weightless()) else { return };
    rig.settle();
    let held: Vec<PfnRange> = rig.take_all(9);
    let blocks: Vec<u32> =
        held.iter().map(|block| BlockNumber::containing(block.start).0).collect();
    held.into_iter().for_each(|block| rig.free(block));
    rig.host.answer(Answer::Never);
    rig.run(20 * SECOND);
    let out = rig.host.out_pages();
    assert_ne!(out, 0);
    let moving = rig.manager.moving();
    for block in blocks {
        let set = moving.set_grade(BlockRange::new(block, block + 1), Grade::MovableOnly);
        assert!(set.is_ok(), "{block}: {set:?}");
        assert_eq!(moving.grade_of(BlockNumber(block).start()), Some(Grade::MovableOnly));
    }
    assert_eq!(rig.host.out_pages(), out);
    verify(&rig);
    answers_again(&mut rig);
}

/// What the hypervisor has comes back, unlike what is in use.
#[test]
fn a_page_that_is_out_is_no_lasting_obstacle() {
    let Some(mut rig) = rig(1024, TWO, 2, weightless()) else { return };
    let held = used_and_out(&mut rig, TWO, 2);
    let pool = rig.manager.pool(TWO);
    let rest = allocate(&rig, TWO);
    let kind = |page: PfnRange| {
        let first = BlockNumber::containing(page.start).0;
        let block = BlockRange::new(first, first + 1);
        let vacated = rig.manager.moving().vacate(block, Budget::UNLIMITED);
        match vacated {
            Err(VacateError::Obstacles { obstacles, .. }) => obstacles.first.kind,
            other => panic!("{other:?}"),
        }
    };
    let kinds: Vec<ObstacleKind> = held.iter().map(|&page| kind(page)).collect();
    for (&page, kind) in held.iter().zip(kinds) {
        let expected = if page == rest { ObstacleKind::Pool } else { ObstacleKind::Reporting };
        assert_eq!(kind, expected);
    }
    pool.give_back_page(rest.start).expect("it is in use");
    rig.reporter().reset();
    verify(&rig);
}

#[test]
fn marks_go_with_pages_from_zones_to_pools_and_back() {
    for (size, pages) in [(TWO, 600), (GIB, 2)] {
        let Some(mut rig) = rig(4096, size, 0, weightless()) else { return };
        rig.manager.reporting().set_pools(false);
        rig.settle();
        let before = rig.manager.reporting_counters();
        // The memory is not used in between.
        for switch in [false, true, false] {
            resize(&rig, size, pages);
            rig.manager.reporting().set_pools(switch);
            rig.settle();
            verify(&rig);
            resize(&rig, size, 0);
            rig.settle();
            verify(&rig);
            assert_eq!(rig.unreported_pages(), 0);
        }
        let after = rig.manager.reporting_counters();
        assert_eq!(
            (after.reported_pages, after.reused_pages),
            (before.reported_pages, 0),
            "{size:?}"
        );
        // Memory that was in use is reported once more, in the pool or after it has left the pool,
        // and nothing else is.
        resize(&rig, size, pages);
        let used = allocate(&rig, size);
        assert_eq!(rig.manager.reporting_counters().reused_pages, size.frames());
        free(&rig, size, used);
        resize(&rig, size, 0);
        rig.settle();
        let last = rig.manager.reporting_counters();
        assert_eq!(last.reported_pages - after.reported_pages, size.frames(), "{size:?}");
        assert_eq!((last.reused_early_pages, rig.host.reported_twice()), (0, 0));
        verify(&rig);
    }
}

#[test]
fn a_run_that_was_reported_in_part_is_divided() {
    let Some(mut rig) = rig(1024, TWO, 0, weightless()) else { return };
    rig.manager.reporting().set_pools(false);
    rig.settle();
    // Every third block was in use, and merges with its neighbours.
    let held: Vec<PfnRange> = rig.take_all(9);
    rig.manager.reporting().pause();
    let (used, free): (Vec<_>, Vec<_>) =
        held.into_iter().enumerate().partition(|(number, _)| number % 3 == 0);
    free.into_iter().for_each(|(_, block)| rig.free(block));
    rig.manager.reporting().flush();
    rig.settle();
    let (before, used_pages) = (rig.manager.reporting_counters(), used.len() as u64 * 512);
    used.into_iter().for_each(|(_, block)| rig.free(block));
    let all = rig.free_pages() / 512 - 16;
    resize(&rig, TWO, all);
    verify(&rig);
    resize(&rig, TWO, 0);
    verify(&rig);
    assert_eq!(rig.unreported_pages(), used_pages, "as many as before");
    rig.manager.reporting().resume();
    rig.settle();
    let after = rig.manager.reporting_counters();
    assert_eq!(after.reported_pages - before.reported_pages, used_pages);
    assert_eq!((after.reused_pages - before.reused_pages, rig.host.reported_twice()), (0, 0));
}

#[test]
fn what_a_pool_reported_is_not_reported_again_by_its_zone_or_a_smaller_pool() {
    let Some(mut rig) = rig(4096, GIB, 2, weightless()) else { return };
    rig.settle();
    let before = rig.manager.reporting_counters();
    rig.manager.pool(GIB).demote(1).expect("one is free");
    rig.settle();
    verify(&rig);
    assert_eq!(rig.manager.pool(TWO).counts().all.free, 512);
    resize(&rig, TWO, 0);
    resize(&rig, GIB, 0);
    rig.settle();
    verify(&rig);
    let after = rig.manager.reporting_counters();
    assert_eq!(
        (after.reported_pages, after.reused_pages),
        (before.reported_pages, before.reused_pages)
    );
    assert_eq!((rig.host.reported_twice(), rig.unreported_pages()), (0, 0));
}

#[derive(Clone, Debug)]
enum Step {
    Allocate(bool),
    Free(usize),
    Reserve(u64),
    Unreserve(u64),
    Resize(u64),
    Overcommit(u64),
    Poll(u64),
    Answers(Vec<Answer>),
    Reset,
    Flush,
    Poison(u64),
    Isolate(u64),
    Unisolate,
    Switch(bool),
    Pace(Pace),
}

fn steps() -> impl Strategy<Value = Step> {
    let answer = prop_oneof![
        4 => (0..3_u32).prop_map(Answer::After),
        2 => (any::<u32>(), 0..3_u32)
            .prop_map(|(told, polls)| Answer::Partly(Acknowledged(told), polls)),
        1 => (0..2_u32).prop_map(Answer::Fails),
        1 => Just(Answer::Refuses),
        1 => Just(Answer::IsBusy),
        1 => Just(Answer::Never),
    ];
    prop_oneof![
        6 => any::<bool>().prop_map(Step::Allocate),
        6 => any::<usize>().prop_map(Step::Free),
        2 => (1..4_u64).prop_map(Step::Reserve),
        2 => (1..4_u64).prop_map(Step::Unreserve),
        2 => (0..40_u64).prop_map(Step::Resize),
        1 => (0..6_u64).prop_map(Step::Overcommit),
        10 => (0..3000_u64).prop_map(Step::Poll),
        2 => vec(answer, 1..4).prop_map(Step::Answers),
        1 => Just(Step::Reset),
        1 => Just(Step::Flush),
        1 => any::<u64>().prop_map(Step::Poison),
        1 => any::<u64>().prop_map(Step::Isolate),
        1 => Just(Step::Unisolate),
        1 => any::<bool>().prop_map(Step::Switch),
        1 => prop_oneof![Just(Pace::Adaptive), Just(Pace::Fixed)].prop_map(Step::Pace),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// The fake host fails the test if it has a page that is handed out, or is told of a page twice
    /// at once; the books are recounted after each step.
    #[test]
    fn users_resizes_and_reports_do_not_see_one_another(steps in vec(steps(), 1..120)) {
        let Some(mut rig) = rig(256, TWO, 24, weightless()) else { return Ok(()) };
        let (mut held, mut promised, mut bad, mut isolated) = (Vec::new(), 0_u64, 0_u64, None);
        for step in steps {
            let pool = rig.manager.pool(TWO);
            match step {
                Step::Allocate(reserved) => {
                    let before = pool.counts();
                    match pool.allocate(NodeChoice::Any, reserved) {
                        Ok(page) => {
                            rig.host.handed_out(page);
                            promised -= u64::from(reserved);
                            held.push((page, reserved));
                        }
                        // Reservations are kept, whatever the hypervisor has, unless pages are bad
                        // or isolated.
                        Err(error) => prop_assert!(
                            !reserved || promised == 0 || bad != 0 || isolated.is_some(),
                            "{error} \
                                of {before:?}"
                        ),
                    }
                }
                Step::Free(which) if !held.is_empty() => {
                    let (page, reserved): (PfnRange, bool) = held.swap_remove(which % held.len());
                    pool.give_back_page(page.start).expect("it is in use");
                    promised += u64::from(reserved);
                }
                Step::Reserve(pages) => {
                    promised += if pool.reserve(pages, NodeMask::ALL).is_ok() { pages } else { 0 }
                }
                Step::Unreserve(pages) => {
                    if pool.unreserve(pages).is_ok() {
                        promised -= pages;
                    }
                }
                Step::Resize(pages) => drop(pool.resize(pages, &framewright_jobs::NoHelpers)),
                Step::Overcommit(pages) => pool.set_overcommit(pages).expect("2 MiB"),
                Step::Poll(ms) => rig.run(ms * MS),
                Step::Answers(answers) => rig.host.plan(answers),
                Step::Reset => rig.reporter().reset(),
                Step::Flush => rig.manager.reporting().flush(),
                Step::Poison(which) if bad < 3 => {
                    let frame = crate::common::reporting_rig::BASE * 256 + which % (256 * 256);
                    bad += u64::from(pool.poison(framewright::units::Pfn(frame)).is_ok());
                }
                Step::Isolate(which) if isolated.is_none() => {
                    let block = u32::try_from(crate::common::reporting_rig::BASE / 2 + which % 128)
                        .expect("small");
                    let range = BlockRange::new(block, block + 1);
                    isolated = rig.manager.isolation().isolate(range).is_ok().then_some(range);
                }
                Step::Unisolate => {
                    if let Some(range) = isolated.take() {
                        rig.manager.isolation().unisolate(range).expect("it is isolated");
                    }
                }
                Step::Switch(on) => rig.manager.reporting().set_pools(on),
                Step::Pace(pace) => rig.manager.reporting().set_pace(pace),
                Step::Free(_) | Step::Poison(_) | Step::Isolate(_) => {}
            }
            rig.manager.hugetlb().verify().unwrap_or_else(|fault| panic!("{fault}"));
            let counts = rig.manager.pool(TWO).counts();
            // A reservation is lost only with a bad page.
            prop_assert!(
                counts.reserved <= promised && promised - counts.reserved <= bad,
                "{counts:?} of {promised}"
            );
            promised = counts.reserved;
        }
        // Lets all answers happen that are still planned.
        for _ in 0..20 {
            rig.reporter().reset();
            rig.settle();
        }
        prop_assert_eq!(rig.host.out_pages(), 0);
        verify(&rig);
    }
}

#[test]
fn a_pause_ends_a_gigantic_page_after_the_part_that_is_out() {
    let Some(mut rig) = rig(4096, GIB, 1, weightless()) else { return };
    rig.host.answer(Answer::After(4));
    rig.run(2 * SECOND);
    rig.host.take_submissions();
    rig.manager.reporting().pause();
    rig.run(60 * SECOND);
    let after = rig.host.take_submissions().len();
    assert!(after <= 1, "{after} parts went out while it was paused");
    rig.host.answer(Answer::After(0));
    rig.manager.reporting().resume();
    rig.settle();
    verify(&rig);
}
