//! Free page reporting in normal operation: everything is reported once, at the chosen pace, and
//! allocations do not notice.

use crate::common::reporting_rig::{BASE, MS, Rig, SECOND, machine, usual, weightless};
use crate::common::{bring_up_with, check, mib, parameters};
use framewright::Request;
use framewright::reporting::{Content, Pace, Phase};
use framewright::units::{Order, Pfn, PfnRange};
use framewright::zone::MigrateType;
use framewright_testkit::reporting::{Answer, FakeHost, JUNK, Traits};
use framewright_testkit::{FakeMachine, Owner};

#[test]
fn all_that_is_free_is_reported_once_and_then_nothing_happens() {
    for line in ["", "page_reporting.pace=fixed"] {
        let mut rig = Rig::new(machine(512, 1), line, usual());
        let before = rig.manager.totals();
        rig.settle();
        assert_eq!(rig.manager.totals(), before, "reporting takes nothing");
        assert_eq!(rig.unreported_pages(), 0);
        let counters = rig.manager.reporting_counters();
        assert_eq!(counters.reported_pages, rig.host.discarded_pages());
        assert_eq!(counters.reported_pages, rig.reported_pages());
        // All free memory except for what lies in blocks that are in pieces.
        assert!(
            before.free_pages - counters.reported_pages < 4 * 512,
            "{counters:?} of {before:?}"
        );
        rig.settle();
        let later = rig.manager.reporting_counters();
        assert_eq!((later.calls, later.errors, rig.host.reported_twice()), (counters.calls, 0, 0));
        assert_eq!(rig.reporter().phase(), Phase::Idle);
    }
}

#[test]
fn a_pass_at_the_fixed_pace_reports_a_sixteenth_and_two_calls_every_two_seconds() {
    let mut rig = Rig::new(machine(8192, 1), "page_reporting.pace=fixed", weightless());
    let share_pages = (rig.free_pages() / 512).div_ceil(16 * 32) * 32 * 512 + 2 * 32 * 512;
    let mut last = 0;
    let mut passes = 0;
    while rig.unreported_pages() != 0 {
        rig.run(500 * MS);
        let counters = rig.manager.reporting_counters();
        assert!(counters.passes <= passes + 1, "two passes in half a second");
        if counters.passes != passes {
            assert!(counters.reported_pages - last <= share_pages, "pass {passes}");
            (last, passes) = (counters.reported_pages, counters.passes);
        }
        assert!(passes <= 17, "all is reported in about sixteen passes");
    }
    assert!(passes >= 12, "{passes} passes");
}

/// Looks are rare while nothing happens, so memory may be found long after it became free, or just
/// then.
#[test]
fn a_pass_at_the_fixed_pace_begins_the_delay_after_memory_became_free() {
    for step in 0..20 {
        let mut rig = Rig::new(machine(512, 1), "page_reporting.pace=fixed", weightless());
        let block = rig.take(10);
        rig.run(60 * SECOND + step * 100 * MS);
        assert_eq!(rig.unreported_pages(), 0);
        rig.free(block);
        rig.run(2 * SECOND - MS);
        assert_ne!(rig.unreported_pages(), 0, "{step}");
        rig.run(600 * MS);
        assert_eq!(rig.unreported_pages(), 0, "{step}");
    }
}

#[test]
fn two_gibibytes_that_became_free_go_back_within_the_promised_time() {
    for (pace, promise) in [(Pace::Adaptive, 3 * SECOND), (Pace::Fixed, 18 * SECOND)] {
        let mut rig = Rig::new(machine(4096, 1), "", weightless());
        rig.manager.reporting().set_pace(pace);
        // A host that takes a millisecond and a half per call.
        rig.host.answer(Answer::After(2));
        rig.settle();
        let dirty: Vec<PfnRange> = (0..1024).map(|_| rig.take(9)).collect();
        rig.run(10 * SECOND);
        assert_eq!(rig.unreported_pages(), 0);
        dirty.into_iter().for_each(|block| rig.free(block));
        rig.run(promise);
        assert!(
            rig.unreported_pages() <= 1024 * 512 / 20,
            "{pace:?}: {} left",
            rig.unreported_pages()
        );
        assert_eq!(rig.host.reported_twice(), 0);
    }
}

#[test]
fn what_comes_and_goes_is_left_alone() {
    let mut rig = Rig::new(machine(1024, 1), "", weightless());
    rig.settle();
    let calls = rig.manager.reporting_counters().calls;
    // 100 MiB are in use most of the time and free in between, for a minute.
    for _ in 0..1200 {
        let held: Vec<PfnRange> = (0..50).map(|_| rig.take(9)).collect();
        rig.run(40 * MS);
        held.into_iter().for_each(|block| rig.free(block));
        rig.run(10 * MS);
    }
    let counters = rig.manager.reporting_counters();
    assert!(
        counters.calls - calls <= 4,
        "{} calls for memory that is in use",
        counters.calls - calls
    );
    assert_eq!(counters.reused_early_pages, 0);
    rig.run(SECOND);
    assert_eq!(rig.unreported_pages(), 0, "once it stays free it is reported");
}

#[test]
fn marks_survive_split_and_merge() {
    let mut rig = Rig::new(machine(2048, 1), "", weightless());
    rig.settle();
    rig.host.take_submissions();
    // A GiB is taken apart for one block and becomes whole again.
    for _ in 0..3 {
        let block = rig.take(9);
        rig.settle();
        assert!(
            rig.host.take_submissions().is_empty(),
            "the halves are as reported as the whole was"
        );
        rig.free(block);
        assert_eq!(rig.unreported_pages(), 512);
        rig.settle();
        let submissions = rig.host.take_submissions();
        assert_eq!(submissions, [vec![block.to_phys()]], "only what somebody had");
    }
    // Two neighbours that were freed at different times.
    let large = rig.take(12);
    let (first, rest) = (crate::common::part(large, 0, 3), crate::common::part(large, 3, 5));
    rig.free(first);
    rig.settle();
    rig.free(rest);
    rig.settle();
    let submitted: u64 =
        rig.host.take_submissions().iter().flatten().map(|range| range.size()).sum();
    assert_eq!((submitted, rig.host.reported_twice()), (8 << 21, 0));
}

#[test]
fn what_was_not_reported_is_handed_out_first() {
    let mut rig = Rig::new(machine(2048, 1), "", weightless());
    rig.settle();
    let held: Vec<PfnRange> = (0..600).map(|_| rig.take(9)).collect();
    let before = rig.manager.reporting_counters();
    assert_eq!((before.reused_pages, before.reused_early_pages), (600 * 512, 0));
    for block in held.iter().step_by(2) {
        rig.free(*block);
    }
    let mut again: Vec<PfnRange> = (0..300).map(|_| rig.take(9)).collect();
    again.sort_by_key(|block| block.start);
    let mut freed: Vec<PfnRange> = held.iter().step_by(2).copied().collect();
    freed.sort_by_key(|block| block.start);
    assert_eq!(again, freed, "exactly what was free and not reported");
    // Also by way of the CPUs' caches, which take several blocks at once.
    for block in held.iter().skip(1).step_by(2).chain(&again) {
        rig.free(*block);
    }
    let cached: Vec<Pfn> = (0..500)
        .map(|_| {
            rig.manager.allocate_order(Order::BLOCK, MigrateType::Movable).expect("there is memory")
        })
        .collect();
    assert_eq!(rig.manager.reporting_counters(), before, "not one reported page was needed");
    for block in cached {
        rig.manager.give_back_order(block, Order::BLOCK).expect("it is held");
    }
    check(rig.manager);
}

#[test]
fn caches_fill_themselves_with_what_was_not_reported() {
    let mut rig = Rig::new(machine(2048, 1), "", weightless());
    let pages = 64 * 512;
    for order in [0, 1, 3, 5, 9].map(|order| Order::new(order).expect("an order")) {
        let manager = rig.manager;
        let take = || {
            let runs = 0..pages / order.pages();
            runs.map(|_| {
                manager.allocate_order(order, MigrateType::Movable).expect("there is memory")
            })
            .collect()
        };
        let give = |held: Vec<Pfn>| {
            held.into_iter()
                .rev()
                .for_each(|start| manager.give_back_order(start, order).expect("it is held"));
        };
        // Everything is reported except for what is held, and what the cache has besides.
        let held: Vec<Pfn> = take();
        manager.reporting().flush();
        rig.settle();
        give(held);
        let before = manager.reporting_counters();
        for _ in 0..40 {
            give(take());
        }
        let after = manager.reporting_counters();
        assert_eq!(
            (after.reused_pages, after.reused_early_pages),
            (before.reused_pages, before.reused_early_pages),
            "{order:?}: what was in use is enough"
        );
        // One more request costs at most one more run of whole blocks.
        let held: Vec<Pfn> = take();
        manager.reporting().flush();
        rig.settle();
        let more = manager.allocate_order(order, MigrateType::Movable).expect("there is memory");
        let reused = manager.reporting_counters().reused_pages - after.reused_pages;
        assert!(reused <= 512, "{order:?}: {reused} pages for a request of {}", order.pages());
        give(held);
        give(vec![more]);
        manager.drain().expect("all of it was held");
        check(manager);
    }
}

/// The first byte of a frame.
fn byte(rig: &Rig, pfn: Pfn) -> u64 {
    rig.manager.platform().load(pfn.address()) & 0xff
}

fn zeroed(rig: &Rig, order: u8) -> PfnRange {
    let order = Order::new(order).expect("an order");
    let taken = rig
        .manager
        .allocate(&Request { zeroed: true, ..Request::new(order) })
        .expect("there is memory");
    rig.host.handed_out(taken);
    taken
}

#[test]
fn memory_that_the_device_zeroed_is_not_cleared_again() {
    if crate::common::is_careful() {
        return;
    }
    // A device that breaks its promise shows where the manager relies on it.
    let mut rig = Rig::new(machine(256, 1), "", Traits { content: Content::Zero, ..usual() });
    rig.host.answer(Answer::After(0));
    rig.settle();
    for order in [9, 0, 3, 11] {
        let taken = zeroed(&rig, order);
        assert!((taken.start.0..taken.end.0).all(|pfn| byte(&rig, Pfn(pfn)) == 0), "order {order}");
        rig.free(taken);
    }
    let all = rig.take_all(9);
    for block in &all {
        for pfn in block.start.0..block.end.0 {
            // SAFETY: the test owns the block.
            unsafe { rig.manager.platform().store(Pfn(pfn).address(), u64::from(JUNK)) };
        }
    }
    all.into_iter().for_each(|block| rig.free(block));
    assert!(
        (0..8).all(|_| byte(&rig, zeroed(&rig, 9).start) == 0),
        "what was not reported is cleared"
    );
    rig.host.answer(Answer::Lies);
    rig.settle();
    assert_eq!(byte(&rig, zeroed(&rig, 9).start), u64::from(JUNK), "it was not cleared");
    // The rest of blocks that were in pieces before comes first.
    let mut pages = (0..1000).map(|_| zeroed(&rig, 0));
    let page = pages
        .find(|page| byte(&rig, page.start) != 0)
        .expect("nor was a page of a block that was whole");
    let other = zeroed(&rig, 0);
    assert_eq!(byte(&rig, other.start), u64::from(JUNK));
    rig.free(page);
    let after = zeroed(&rig, 0);
    assert_eq!((after, byte(&rig, after.start)), (page, 0), "the first free ends it");
    let next = zeroed(&rig, 0);
    assert_eq!(byte(&rig, next.start), 0, "for all of the block");
    check(rig.manager);
}

/// A balloon device that was told that free pages are zero leaves them zero or as they were; memory
/// that was never freed is not known to be zero.
#[test]
fn memory_that_the_device_kept_is_cleared() {
    if crate::common::is_careful() {
        return;
    }
    let mut rig = Rig::new(
        machine(256, 1),
        "init_on_free=1",
        Traits { content: Content::ZeroOrKept, ..usual() },
    );
    // The host acknowledges everything and writes nothing, because its memory is locked.
    rig.host.answer(Answer::Lies);
    rig.settle();
    for order in [9, 0, 3, 11] {
        let taken = zeroed(&rig, order);
        assert!((taken.start.0..taken.end.0).all(|pfn| byte(&rig, Pfn(pfn)) == 0), "order {order}");
        rig.free(taken);
    }
    check(rig.manager);
}

#[test]
fn an_acknowledgement_alone_proves_nothing() {
    if crate::common::is_careful() {
        return;
    }
    let mut rig = Rig::new(machine(256, 1), "", usual());
    rig.host.answer(Answer::Lies);
    let all = rig.take_all(9);
    for block in &all {
        // SAFETY: the test owns the block.
        unsafe { rig.manager.platform().store(block.start.address(), u64::from(JUNK)) };
    }
    all.into_iter().for_each(|block| rig.free(block));
    rig.settle();
    assert!((0..20).all(|_| byte(&rig, zeroed(&rig, 9).start) == 0));
}

#[test]
fn runs_of_split_blocks_are_reported_where_the_order_is_small() {
    for order in [0, 3, 6, 8] {
        let line = format!("page_reporting.page_reporting_order={order}");
        let mut rig = Rig::new(machine(256, 1), &line, usual());
        // Every second run of one block is in use, and all of the block was in use once.
        let block = rig.take(9);
        let size = 1 << order;
        for start in (block.start.0..block.end.0).step_by(2 * size) {
            rig.free(PfnRange::new(start, start + size as u64));
        }
        rig.settle();
        for start in (block.start.0..block.end.0).step_by(2 * size) {
            let run = PfnRange::new(start, start + size as u64);
            assert!(rig.host.has_discarded(run), "{order:?}: {run:?}");
        }
        // The rest is in pieces: less than a run here and there.
        let idle = rig.free_pages() - rig.host.discarded_pages();
        assert!(idle <= 64 * size as u64, "{order:?}: {idle} pages are not reported");
        rig.host.take_submissions();
        let calls = rig.manager.reporting_counters().calls;
        rig.settle();
        assert_eq!(rig.manager.reporting_counters().calls, calls, "swept blocks are left alone");
        // Any free ends that.
        let first = rig.take(order);
        rig.free(first);
        rig.settle();
        assert!(rig.host.has_discarded(first));
    }
}

#[test]
fn every_order_and_capacity_reports_what_it_can() {
    for (order, capacity) in
        [(9, 1), (9, 0), (9, 7), (10, 2), (13, 32), (18, 1), (18, 32), (0, 1), (4, 3)]
    {
        let line = format!("page_reporting.page_reporting_order={order}");
        let mut rig = Rig::new(machine(3072, 1), &line, Traits { capacity, ..weightless() });
        assert_eq!(rig.reporter().order().get(), order);
        let largest = rig.manager.views().next().expect("a zone").free_blocks();
        rig.manager.reporting().set_pace(Pace::Adaptive);
        rig.run(600 * SECOND);
        check(rig.manager);
        let blocks = (0..=9_usize).filter(|&slot| slot + 9 >= usize::from(order));
        let free: u64 = blocks.map(|slot| u64::from(largest[slot]) << (slot + 9)).sum();
        assert!(rig.host.discarded_pages() >= free, "order {order}, capacity {capacity}");
        assert_eq!(rig.host.reported_twice(), 0, "order {order}, capacity {capacity}");
    }
}

#[test]
fn the_device_names_an_order_and_the_parameter_takes_precedence() {
    let ten = Order::new(10);
    let mut rig = Rig::new(machine(512, 1), "", Traits { order: ten, ..weightless() });
    assert_eq!(rig.reporter().order(), ten.expect("an order"));
    let mut rig = Rig::new(
        machine(512, 1),
        "page_reporting.page_reporting_order=12",
        Traits { order: ten, ..weightless() },
    );
    assert_eq!(rig.reporter().order().get(), 12);
    rig.settle();
    let blocks = rig.manager.zones()[0].unreported_pages();
    assert!(blocks != 0, "smaller ones are not worth a report");
    // The order can also be set at run time.
    rig.manager.reporting().set_order(Order::BLOCK);
    rig.manager.reporting().flush();
    rig.settle();
    assert_eq!((rig.unreported_pages(), rig.host.reported_twice()), (0, 0));
}

#[test]
fn flush_pause_and_resume() {
    let mut rig = Rig::new(machine(1024, 1), "page_reporting.pace=fixed", weightless());
    rig.manager.reporting().pause();
    assert!(rig.manager.reporting().is_paused());
    rig.run(60 * SECOND);
    assert_eq!(rig.manager.reporting_counters().calls, 0);
    rig.manager.reporting().flush();
    // A flush has no budget and no delay, and even a pause does not stop it.
    for _ in 0..100 {
        rig.poll();
    }
    let counters = rig.manager.reporting_counters();
    assert_eq!((rig.unreported_pages(), counters.flushes), (0, 1));
    let block = rig.take(9);
    rig.free(block);
    rig.run(60 * SECOND);
    assert_eq!(rig.manager.reporting_counters().calls, counters.calls);
    rig.manager.reporting().resume();
    rig.settle();
    assert_eq!((rig.unreported_pages(), rig.host.reported_twice()), (0, 0));
}

#[test]
fn without_a_delay_pass_follows_pass() {
    for pace in [Pace::Fixed, Pace::Adaptive] {
        let mut rig = Rig::new(machine(2048, 1), "", weightless());
        rig.manager.reporting().set_delay_ms(0);
        rig.manager.reporting().set_pace(pace);
        rig.run(SECOND);
        assert_eq!(rig.unreported_pages(), 0, "{pace:?}");
        // With nothing to do, the reporter does not spin.
        assert!(rig.poll().is_some_and(|wait| wait >= MS), "{pace:?}");
    }
}

#[test]
fn counters_have_names() {
    let mut rig = Rig::new(machine(512, 1), "", weightless());
    rig.settle();
    let named = rig.manager.reporting_counters().named();
    let of = |wanted: &str| named.iter().find(|(name, _)| *name == wanted).map(|(_, value)| *value);
    assert_eq!(of("page_reporting_bytes"), of("page_reporting_pages").map(|pages| pages * 4096));
    assert!(of("page_reporting_calls").is_some_and(|calls| calls > 0));
    assert!(
        named
            .iter()
            .enumerate()
            .all(|(place, (name, _))| !named[..place].iter().any(|(other, _)| other == name))
    );
}

#[test]
fn small_zones_are_reported_too_and_then_it_is_quiet() {
    if crate::common::is_careful() {
        return;
    }
    // A zone below 16 MiB, a zone of 48 MiB, and a large zone.
    let machine =
        FakeMachine::builder().ram(mib(1, 16)).ram(mib(16, 64)).ram(mib(BASE, BASE + 512)).build();
    for pace in [Pace::Adaptive, Pace::Fixed] {
        let manager = bring_up_with(machine, &[], &parameters("")).expect("bring-up");
        manager.reporting().set_pace(pace);
        let (_, device) = FakeHost::new(machine, weightless());
        let mut reporter = manager
            .register_reporting(device)
            .map_err(|(error, _)| error)
            .expect("the only device");
        let mut polls = |from_s: u64, to_s: u64| {
            let (mut now_ns, mut polls) = (from_s * SECOND, 0);
            while now_ns < to_s * SECOND {
                now_ns = reporter.poll(now_ns).expect("open").max(now_ns);
                polls += 1;
            }
            polls
        };
        polls(5, 100);
        for zone in manager.zones() {
            assert_eq!(zone.unreported_pages(), 0, "{pace:?} {}", zone.id());
        }
        let passes = manager.reporting_counters().passes;
        let polls = polls(100, 200);
        assert_eq!(manager.reporting_counters().passes, passes, "nothing to do");
        assert!(polls <= 300, "{polls} polls in 100 idle seconds");
    }
}

/// Blocks that were zero were then used in runs of each size, and one run came back before the
/// others.
#[test]
fn a_block_that_comes_back_in_runs_is_not_zero_any_more() {
    if crate::common::is_careful() {
        return;
    }
    for order in 4..9 {
        let of = Order::new(order).expect("an order");
        let mut rig = Rig::new(machine(256, 1), "", Traits { content: Content::Zero, ..usual() });
        rig.host.answer(Answer::After(0));
        rig.settle();
        let manager = rig.manager;
        let get = || {
            let start = manager.allocate_order(of, MigrateType::Movable).expect("there is memory");
            rig.host.handed_out(PfnRange { start, end: start.add(of.pages()) });
            for pfn in start.0..start.0 + of.pages() {
                // SAFETY: the test owns the run.
                unsafe { manager.platform().store(Pfn(pfn).address(), u64::from(JUNK)) };
            }
            start
        };
        let put = |start| manager.give_back_order(start, of).expect("allocated");
        let mut runs: Vec<Pfn> = (0..8 * 512 / of.pages()).map(|_| get()).collect();
        runs.sort();
        let (some, mut rest): (Vec<Pfn>, Vec<Pfn>) =
            runs.into_iter().partition(|start| start.is_aligned(Order::BLOCK));
        some.iter().for_each(|&start| put(start));
        manager.drain().expect("only good frames");
        rest.extend(some.iter().map(|_| get()));
        rest.sort();
        for block in rest.chunks(512 >> order) {
            block.iter().for_each(|&start| put(start));
            manager.drain().expect("only good frames");
        }
        check(manager);
        for _ in 0..16 {
            let taken = zeroed(&rig, 9);
            assert!((taken.start.0..taken.end.0).all(|pfn| byte(&rig, Pfn(pfn)) == 0), "{order}");
        }
    }
}
