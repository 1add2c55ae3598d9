//! Free page reporting with devices that refuse, fail, or answer late, in part or never, while
//! everything else goes on: nothing is lost, and nobody gets memory that the host may still
//! discard.

use crate::common::reporting_rig::{MS, Rig, SECOND, machine, usual, weightless};
use crate::common::{bring_up_with, check, parameters, part};
use framewright::reporting::{Acknowledged, Content, Event, Pace, Phase, RegisterError};
use framewright::units::{Order, PfnRange};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::{FreeError, IsolateError};
use framewright::zone::{MigrateType, State};
use framewright::{AllocateError, Request, Reserves};
use framewright_testkit::Owner;
use framewright_testkit::reporting::{Answer, FakeHost, Traits};

/// Polls until the device has something, and returns what it has.
fn submit(rig: &mut Rig) -> Vec<PfnRange> {
    rig.host.take_submissions();
    for _ in 0..1000 {
        let wait_ns = rig.poll().expect("not closed");
        if rig.reporter().out_pages() == 0 {
            rig.now_ns += wait_ns;
        } else if let Some(last) = rig.host.take_submissions().pop() {
            return last.into_iter().map(|range| range.whole_frames()).collect();
        }
    }
    panic!("nothing is submitted");
}

fn blocks(range: PfnRange) -> BlockRange {
    BlockRange {
        start: BlockNumber::containing(range.start),
        end: BlockNumber::containing(range.end),
    }
}

/// Claims an isolated range and frees it. Page owners do not know claims, so that careful runs only
/// unisolate it.
fn claim_and_free(rig: &Rig, isolated: PfnRange) {
    if crate::common::is_careful() {
        return rig.manager.isolation().unisolate(blocks(isolated)).expect("it is isolated");
    }
    let claimed = rig.manager.isolation().claim(blocks(isolated)).expect("all of it is free");
    rig.manager.give_back(claimed).expect("it is held");
}

#[test]
fn one_device_at_a_time() {
    let mut rig = Rig::new(machine(256, 1), "", usual());
    let refused = rig.manager.register_reporting(rig.host.device()).map(|_| ());
    let Err((error, device)) = refused else { panic!("two devices") };
    assert_eq!(error, RegisterError::Busy);
    drop(device);
    rig.settle();
    let calls = rig.manager.reporting_counters().calls;
    let reporter = rig.reporter.take().expect("registered");
    assert!(reporter.unregister().is_ok());
    assert!(!rig.manager.reporting().is_registered());
    // The next device goes on where this one stopped.
    let again = rig.manager.register_reporting(rig.host.device());
    rig.reporter = Some(again.map_err(|(error, _)| error).expect("the only device"));
    rig.settle();
    assert_eq!((rig.manager.reporting_counters().calls, rig.host.reported_twice()), (calls, 0));
    // A reporter that is dropped with nothing out frees its place.
    rig.reporter = None;
    assert!(!rig.manager.reporting().is_registered());
    check(rig.manager);
}

#[test]
fn patterns_in_free_memory_must_stay() {
    for (line, content, fits) in [
        ("page_poison=1", Content::Undefined, false),
        ("page_poison=1", Content::Zero, false),
        ("page_poison=1", Content::Poison, true),
        ("init_on_free=1", Content::Undefined, false),
        ("init_on_free=1", Content::Poison, false),
        ("init_on_free=1", Content::Zero, true),
        ("init_on_free=1", Content::ZeroOrKept, true),
    ] {
        if crate::common::is_careful() {
            return;
        }
        let machine = machine(256, 1);
        let manager = bring_up_with(machine, &[], &parameters(line)).expect("bring-up");
        let (_host, device) = FakeHost::new(machine, Traits { content, ..usual() });
        let registered = manager.register_reporting(device);
        assert_eq!(registered.is_ok(), fits, "{line} {content:?}");
        let error = registered.err().map(|(error, _)| error);
        assert!(fits || error == Some(RegisterError::Content));
        assert_eq!(
            manager.reporting().is_registered(),
            fits && error.is_some(),
            "refused or dropped"
        );
    }
}

#[test]
fn poisoned_memory_is_not_damaged_by_reports() {
    let content = Content::Poison;
    let line = if crate::common::is_careful() { "" } else { "page_poison=1" };
    let mut rig = Rig::new(machine(256, 1), line, Traits { content, ..usual() });
    let all = rig.take_all(9);
    all.into_iter().for_each(|block| rig.free(block));
    for answer in [Answer::After(1), Answer::Fails(1), Answer::Partly(Acknowledged(5), 0)] {
        rig.host.plan([answer]);
        rig.settle();
        let all = rig.take_all(9);
        assert!(rig.manager.debug().damage().is_none(), "{answer:?}");
        all.into_iter().for_each(|block| rig.free(block));
    }
}

#[test]
fn errors_are_waited_out_longer_each_time_and_end() {
    for answer in
        [Answer::Refuses, Answer::Fails(0), Answer::Fails(3), Answer::Partly(Acknowledged::NONE, 1)]
    {
        let mut rig = Rig::new(machine(256, 1), "", usual());
        let before = rig.manager.totals();
        rig.host.answer(answer);
        let (mut times, mut errors) = (Vec::new(), 0);
        while errors < 7 {
            rig.run(50 * MS);
            let now = rig.manager.reporting_counters().errors;
            if now != errors {
                assert_eq!(now, errors + 1);
                assert_eq!(rig.manager.totals(), before, "{answer:?}: all is back at once");
                (errors, times) = (now, [times, vec![rig.now_ns]].concat());
            }
        }
        let waits: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(
            waits.windows(2).all(|pair| pair[1] > pair[0] || pair[1] > 59 * SECOND),
            "{answer:?}: {waits:?}"
        );
        assert!(matches!(rig.events()[..], [Event::Failing { .. }]), "one line for many errors");
        rig.host.answer(Answer::After(0));
        rig.settle();
        assert_eq!(rig.unreported_pages(), 0, "{answer:?}");
        assert_eq!(rig.events(), [Event::Recovered], "{answer:?}");
        assert_eq!(rig.manager.totals(), before);
    }
}

#[test]
fn a_device_without_room_is_asked_again_soon() {
    let mut rig = Rig::new(machine(256, 1), "", usual());
    rig.host.plan([Answer::IsBusy; 5]);
    rig.run(2 * SECOND);
    let counters = rig.manager.reporting_counters();
    assert_eq!((counters.busy, counters.errors, rig.unreported_pages()), (5, 0, 0));
    check(rig.manager);
}

#[test]
fn what_is_not_acknowledged_is_reported_later_and_is_not_in_the_way() {
    let mut rig = Rig::new(machine(512, 1), "", usual());
    // Many small pieces: every second block is in use.
    let mut held = rig.take_all(9);
    held.sort_by_key(|block| block.start);
    let (free, kept): (Vec<_>, Vec<_>) =
        held.iter().enumerate().partition(|(number, _)| number % 2 == 0);
    free.iter().for_each(|(_, block)| rig.free(**block));
    rig.host.answer(Answer::After(1));
    let mut submission = submit(&mut rig);
    let mut before = rig.manager.reporting_counters();
    while submission.len() < 4 {
        // Blocks that were never in pieces are reported first.
        before = rig.manager.reporting_counters();
        before.reported_ranges += submission.len() as u64;
        rig.host.plan([Answer::Partly(Acknowledged(0b1010), 1)]);
        rig.now_ns += MS;
        submission = submit(&mut rig);
    }
    rig.now_ns += MS;
    rig.poll();
    for (number, range) in submission.iter().enumerate() {
        assert_eq!(rig.host.has_discarded(*range), number == 1 || number == 3);
    }
    let counters = rig.manager.reporting_counters();
    assert_eq!(counters.reported_ranges - before.reported_ranges, 2);
    assert_eq!(counters.refused_ranges, submission.len() as u64 - 2);
    check(rig.manager);
    rig.settle();
    assert_eq!((rig.unreported_pages(), rig.host.reported_twice()), (0, 0));
    kept.iter().for_each(|(_, block)| rig.free(**block));
    rig.settle();
    assert_eq!((rig.unreported_pages(), rig.host.reported_twice()), (0, 0));
}

#[test]
fn a_device_is_silent_after_the_timeout_that_is_set() {
    let mut rig = Rig::new(machine(256, 1), "", usual());
    rig.manager.reporting().set_timeout_ms(500);
    rig.host.plan([Answer::Never]);
    submit(&mut rig);
    for (wait, is_silent) in [(499, false), (2, true)] {
        rig.now_ns += wait * MS;
        rig.poll();
        assert_eq!(rig.reporter().is_silent(), is_silent);
    }
}

#[test]
fn a_silent_device_keeps_what_it_has_until_it_answers() {
    let mut rig = Rig::new(machine(256, 1), "", usual());
    let before = rig.manager.totals();
    rig.host.plan([Answer::Never]);
    rig.run(100 * SECOND);
    let out_pages = rig.reporter().out_pages();
    assert!(rig.reporter().is_silent() && out_pages != 0 && out_pages <= 32 * 512);
    assert_eq!(rig.events(), [Event::Silent { pages: out_pages }]);
    let counters = rig.manager.reporting_counters();
    assert_eq!((counters.calls, counters.timeouts), (1, 1));
    let totals = rig.manager.totals();
    assert_eq!(
        (totals.reporting_pages, totals.free_pages + out_pages),
        (out_pages, before.free_pages)
    );
    assert_eq!(totals.allocated_pages, before.allocated_pages);
    check(rig.manager);
    // All other memory can be allocated, and a request that finds none gets an ordinary error.
    let all = rig.take_all(9);
    let small = rig.take_all(0);
    assert_eq!(
        rig.manager.allocate(&Request::new(Order::BLOCK)),
        Err(AllocateError::OutOfMemory { order: Order::BLOCK })
    );
    assert!(
        rig.manager
            .allocate(&Request {
                reserves: Reserves::All,
                ..Request::new(Order::new(14).expect("an order"))
            })
            .is_err()
    );
    all.into_iter().chain(small).for_each(|range| rig.free(range));
    rig.host.answer_now();
    rig.run(SECOND);
    assert!(!rig.reporter().is_silent());
    assert!(rig.events().contains(&Event::Answered));
    rig.settle();
    crate::common::settled(rig.manager);
    assert_eq!(rig.manager.totals(), before);
}

#[test]
fn a_reset_brings_back_what_a_silent_device_has() {
    let mut rig = Rig::new(machine(256, 1), "", usual());
    let before = rig.manager.totals();
    rig.host.plan([Answer::Never]);
    rig.host.reset_takes(5);
    rig.run(20 * SECOND);
    rig.events();
    rig.reporter().reset();
    for _ in 0..5 {
        assert!(rig.poll().is_some());
        assert!(rig.manager.totals().reporting_pages != 0, "not before it is done");
        rig.now_ns += MS;
    }
    rig.poll();
    assert_eq!(rig.events(), [Event::Reset]);
    assert_eq!((rig.host.resets(), rig.manager.reporting_counters().resets), (1, 1));
    rig.settle();
    assert_eq!((rig.manager.totals(), rig.unreported_pages()), (before, 0));
}

#[test]
fn a_reset_during_a_pass_or_between_passes() {
    for answer in [Answer::After(3), Answer::Never] {
        let mut rig = Rig::new(machine(256, 1), "", usual());
        rig.host.answer(answer);
        submit(&mut rig);
        rig.reporter().reset();
        rig.poll();
        rig.host.answer(Answer::After(0));
        rig.settle();
        rig.reporter().reset();
        rig.settle();
        assert_eq!((rig.unreported_pages(), rig.host.resets()), (0, 2));
    }
}

#[test]
fn no_place_is_left_while_memory_is_out() {
    let mut rig = Rig::new(machine(256, 1), "", usual());
    rig.host.plan([Answer::Never]);
    submit(&mut rig);
    rig.reporter().close();
    let reporter = rig.reporter.take().expect("registered");
    let Err(reporter) = reporter.unregister() else { panic!("the device has memory") };
    rig.reporter = Some(reporter);
    assert!(rig.poll().is_some(), "closed, but not done");
    rig.host.answer_now();
    rig.run(SECOND);
    assert_eq!(rig.poll(), None);
    assert_eq!(rig.host.out_pages(), 0);
    assert!(rig.reporter.take().expect("registered").unregister().is_ok());
    check(rig.manager);

    // A reporter that is dropped with memory out keeps its place and the memory for ever.
    let mut rig = Rig::new(machine(256, 1), "", usual());
    rig.host.plan([Answer::Never]);
    submit(&mut rig);
    rig.reporter = None;
    let again = rig.manager.register_reporting(rig.host.device()).map(|_| ());
    assert!(matches!(again, Err((RegisterError::Busy, _))));
    assert!(rig.manager.totals().reporting_pages != 0);
    rig.take_all(9);
    check(rig.manager);
}

#[test]
fn a_zone_with_little_memory_is_left_alone() {
    for delay in ["2000", "0"] {
        for pace in [Pace::Fixed, Pace::Adaptive] {
            let mut rig = Rig::new(
                machine(256, 1),
                &format!("page_reporting.page_reporting_delay_ms={delay}"),
                weightless(),
            );
            rig.manager.reporting().set_pace(pace);
            let all = rig.take_all(9);
            let low = rig.manager.zones()[0].watermarks().low_pages;
            // As much as may be out of so small a zone, which is a quarter of it, but not quite
            // enough to stay above the low watermark.
            let mut freed = 0;
            while rig.free_pages() + 512 <= low + 31 * 512 {
                rig.free(all[freed]);
                freed += 1;
            }
            let calls = rig.manager.reporting_counters().calls;
            rig.run(3 * SECOND);
            assert_eq!(rig.manager.reporting_counters().calls, calls);
            assert!(rig.manager.reporting_counters().skipped > 0);
            // Another pass begins when something changes.
            assert_eq!(rig.reporter().phase(), Phase::Idle);
            let passes = rig.manager.reporting_counters().passes;
            rig.run(10 * SECOND);
            assert_eq!(rig.manager.reporting_counters().passes, passes);
            rig.free(all[freed]);
            rig.free(all[freed + 1]);
            rig.settle();
            assert_eq!(rig.unreported_pages(), 0);
        }
    }
}

#[test]
fn memory_runs_out_during_a_pass() {
    let mut rig = Rig::new(machine(256, 1), "", usual());
    rig.host.answer(Answer::After(2));
    submit(&mut rig);
    let mut held = rig.take_all(9);
    let out_pages = rig.reporter().out_pages();
    assert!(rig.try_take(9).is_none());
    // The device answers, and the memory it had can be allocated; nothing more is submitted.
    rig.run(10 * MS);
    assert_eq!(rig.reporter().out_pages(), 0);
    let more = rig.take_all(9);
    assert!(more.len() as u64 * 512 + 4096 >= out_pages, "{} blocks", more.len());
    rig.run(5 * SECOND);
    assert_eq!(rig.reporter().out_pages(), 0, "there is nothing to spare");
    held.extend(more);
    held.into_iter().for_each(|block| rig.free(block));
    rig.settle();
    assert_eq!(rig.unreported_pages(), 0);
}

#[test]
fn who_frees_what_is_with_the_device_is_found_out() {
    for order in [9, 4] {
        let line = format!("page_reporting.page_reporting_order={order}");
        let mut rig = Rig::new(machine(256, 1), &line, usual());
        let block = rig.take(9);
        rig.settle();
        let (out, rest) = if order == 9 {
            (block, None)
        } else {
            (
                PfnRange::new(block.start.0, block.start.0 + 16),
                Some(PfnRange::new(block.start.0 + 16, block.end.0)),
            )
        };
        rig.free(out);
        rig.host.plan([Answer::Never]);
        let submission = submit(&mut rig);
        assert!(submission.contains(&out), "{submission:?}");
        let before = rig.manager.totals();
        for wrong in [
            out,
            PfnRange::new(out.start.0, out.start.0 + 1),
            PfnRange::new(out.start.0 + 3, out.start.0 + 9),
        ] {
            // Without debug assertions a cache may take the run, and checks it when it goes on to
            // its zone.
            let found = if cfg!(debug_assertions) {
                rig.manager.give_back(wrong)
            } else {
                rig.manager.give_back_to_zone(wrong)
            };
            assert!(
                matches!(found, Err(FreeError::NotAllocated { .. } | FreeError::WrongSize { .. })),
                "{wrong:?}: {found:?}"
            );
            let found = rig.manager.give_back_order(wrong.start, Order::PAGE);
            let found = found.and_then(|()| rig.manager.drain().map(drop));
            assert!(matches!(found, Err(FreeError::NotAllocated { .. })), "{wrong:?}: {found:?}");
        }
        assert!(rig.manager.allocate_at(out.start, Order::PAGE, MigrateType::Movable).is_err());
        if let Some(rest) = rest {
            // The rest of the block belongs to its owner, who may free it in any pieces.
            for start in (rest.start.0..rest.end.0).step_by(8) {
                rig.free(PfnRange::new(start, start + 8));
            }
            assert_eq!(rig.manager.totals().free_pages, before.free_pages + rest.pages());
        }
        check(rig.manager);
        rig.host.answer_now();
        rig.settle();
        assert_eq!(rig.manager.totals().reporting_pages, 0);
    }
}

#[test]
fn blocks_that_are_isolated_while_they_are_out_stay_isolated() {
    let mut rig = Rig::new(machine(256, 1), "", usual());
    rig.host.plan([Answer::Never]);
    let submission = submit(&mut rig);
    let large = submission.iter().copied().max_by_key(|range| range.pages()).expect("not empty");
    assert!(large.pages() >= 8 * 512, "{submission:?}");
    // The middle of the memory that is out.
    let middle = part(large, 3, 2);
    let survey =
        rig.manager.isolation().isolate(blocks(middle)).expect("nothing speaks against it");
    assert_eq!(survey.in_use_pages, 1024, "the device has them");
    assert!(matches!(rig.manager.isolation().claim(blocks(middle)), Err(IsolateError::InUse(_))));
    // One of these blocks is isolated only for a while.
    rig.manager.isolation().unisolate(blocks(part(large, 4, 1))).expect("it is isolated");
    check(rig.manager);
    rig.host.answer_now();
    rig.settle();
    let isolated = part(large, 3, 1);
    let state = rig.manager.block_state(BlockNumber::containing(isolated.start)).expect("a block");
    assert!(state.is(State::Isolated));
    assert_eq!(rig.manager.totals().isolated_pages, 512);
    assert!(rig.take_all(9).iter().all(|block| block.intersection(isolated).is_empty()));
    claim_and_free(&rig, isolated);
    check(rig.manager);
}

#[test]
fn a_split_block_that_is_isolated_while_runs_of_it_are_out() {
    let mut rig = Rig::new(machine(256, 1), "page_reporting.page_reporting_order=4", usual());
    let block = rig.take(9);
    rig.settle();
    rig.free(PfnRange::new(block.start.0, block.start.0 + 64));
    rig.host.plan([Answer::Never]);
    submit(&mut rig);
    rig.manager.isolation().isolate(blocks(block)).expect("nothing speaks against it");
    rig.free(PfnRange::new(block.start.0 + 64, block.end.0));
    check(rig.manager);
    rig.host.answer_now();
    rig.settle();
    assert_eq!(rig.manager.totals().isolated_pages, 512);
    claim_and_free(&rig, block);
    check(rig.manager);
}

#[test]
fn requests_may_come_at_every_step_of_a_pass() {
    // A request and a free between any two polls, for every order and answer.
    for answer in [
        Answer::After(1),
        Answer::Fails(1),
        Answer::Partly(Acknowledged(0x5555_5555), 1),
        Answer::IsBusy,
    ] {
        for order in [0, 4, 9, 11, 14] {
            let mut rig =
                Rig::new(machine(160, 1), "page_reporting.page_reporting_delay_ms=1", usual());
            rig.host.answer(answer);
            let mut held = Vec::new();
            for step in 0..300 {
                rig.now_ns += MS / 3;
                rig.poll();
                if step % 3 != 0 {
                    held.extend(rig.try_take(order));
                } else if let Some(range) = held.pop() {
                    rig.free(range);
                }
            }
            check(rig.manager);
            held.into_iter().for_each(|range| rig.free(range));
            rig.host.answer(Answer::After(0));
            rig.settle();
            assert_eq!((rig.unreported_pages(), rig.host.out_pages()), (0, 0));
        }
    }
}

#[test]
fn frames_at_the_end_of_a_submission_are_whole_and_inside_memory() {
    // Zones that do not begin or end with a large block.
    let machine = framewright_testkit::FakeMachine::builder()
        .ram(crate::common::mib(4096 + 2, 4096 + 2 + 322))
        .ram(crate::common::mib(5000, 5777))
        .build();
    let mut rig = Rig::new(machine, "", usual());
    rig.settle();
    assert_eq!((rig.unreported_pages(), rig.host.reported_twice()), (0, 0));
    for range in rig.host.take_submissions().into_iter().flatten() {
        assert!(range.start.is_multiple_of(2 << 20) && range.size().is_multiple_of(2 << 20));
        assert!(machine.is_usable(range.start) && machine.is_usable(range.end - 8), "{range:?}");
    }
}
