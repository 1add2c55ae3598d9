//! Reports: what goes to the device, what comes back, and what happens when the device lies, is
//! silent, or is reset.

use crate::common::{Driver, Memory, WithMemory as _, nothing_is_left, start};
use framewright_balloon::{BadAnswer, DeviceFault, Settings, StartError, SubmitError, Token};
use framewright_testkit::balloon::{Answers, FakeBalloon, Lie, Offer};

const MIB: u32 = 1 << 20;

fn submit(balloon: &mut Driver, ranges: &[(u64, u32)]) -> Result<Token, SubmitError> {
    // SAFETY: these ranges are numbers; no memory is behind them.
    unsafe { balloon.submit(ranges) }
}

/// Returns `count` ranges of 2 MiB from `block` on.
fn blocks(block: u64, count: u64) -> Vec<(u64, u32)> {
    (block..block + count).map(|block| (block << 21, 2 * MIB)).collect()
}

fn on_demand() -> (FakeBalloon, Driver) {
    let host = FakeBalloon::offering(Offer { reporting_size: 128, ..Offer::USUAL });
    let balloon = start(&host).expect("a device that is well");
    host.set_answers(Answers::OnDemand);
    (host, balloon)
}

#[test]
fn ranges_arrive_as_they_are() {
    let host = FakeBalloon::new();
    let mut balloon = start(&host).expect("a device that is well");
    // The first page, a block of 1 GiB beyond 16 TiB, the longest range possible, and the end of
    // the address space.
    let ranges = [(0, 4096), (1 << 45, 1 << 30), (1 << 51, !4095), (!0x1fff, 4096)];
    let token = submit(&mut balloon, &ranges).expect("room");
    assert_eq!(balloon.reports_in_flight(), 1);
    let completion = balloon.poll().expect("a device that is well").expect("an answer");
    assert_eq!((completion.token, completion.result), (token, Ok(())));
    assert_eq!(host.reports(), [ranges.to_vec()]);
    assert_eq!(balloon.poll(), Ok(None));
    assert_eq!(balloon.reports_in_flight(), 0);
}

#[test]
fn what_is_no_report_is_refused() {
    let host = FakeBalloon::new();
    let mut balloon = start(&host).expect("a device that is well");
    let good = (0x20_0000, 0x1000);
    assert_eq!(submit(&mut balloon, &[]), Err(SubmitError::BadCount { count: 0 }));
    assert_eq!(submit(&mut balloon, &blocks(1, 33)), Err(SubmitError::BadCount { count: 33 }));
    for bad in [(0x20_0000, 0), (0x20_0800, 0x1000), (0x20_0000, 0x800), (u64::MAX - 0xfff, 0x1000)]
    {
        assert_eq!(
            submit(&mut balloon, &[good, bad]),
            Err(SubmitError::BadRange { index: 1 }),
            "{bad:x?}"
        );
    }
    assert_eq!((balloon.reports_in_flight(), host.notifications()), (0, 0));
    let host = FakeBalloon::offering(Offer::with(0b11));
    let mut balloon = start(&host).expect("a device that is well");
    assert_eq!(submit(&mut balloon, &[good]), Err(SubmitError::NotSupported));
    assert_eq!(balloon.poll(), Ok(None));
}

#[test]
fn answers_may_come_in_any_order() {
    let (host, mut balloon) = on_demand();
    let tokens: Vec<Token> =
        (0..4).map(|n| submit(&mut balloon, &blocks(100 * n, 32)).expect("room")).collect();
    assert_eq!(submit(&mut balloon, &blocks(1, 1)), Err(SubmitError::Busy));
    assert_eq!(balloon.poll(), Ok(None));
    assert!(host.answer_report(2) && host.answer_report(0));
    let mut answered = || balloon.poll().expect("well").map(|completion| completion.token);
    assert_eq!([answered(), answered(), answered()], [Some(tokens[2]), Some(tokens[0]), None]);
    // The free room is in two places.
    let ranges = blocks(1000, 32);
    let late = submit(&mut balloon, &ranges).expect("room");
    assert!(host.answer_report(2));
    assert_eq!(balloon.poll().expect("well").map(|completion| completion.token), Some(late));
    assert_eq!(host.reports().last(), Some(&ranges));
    assert_eq!(balloon.reports_in_flight(), 2);
}

#[test]
fn a_long_time_wears_nothing_out() {
    let host = FakeBalloon::new();
    let mut balloon = start(&host).expect("a device that is well");
    // Often enough for a ring's index to wrap.
    for round in 0..70_000 {
        let count = 1 + round % 32;
        let token = submit(&mut balloon, &blocks(round, count)).expect("room");
        assert_eq!(balloon.poll().expect("well").map(|completion| completion.token), Some(token));
    }
    assert_eq!(host.reports().len(), 70_000);
}

#[test]
fn a_device_that_does_not_want_to_be_notified_is_not() {
    let host = FakeBalloon::new();
    let mut balloon = start(&host).expect("a device that is well");
    host.set_no_notify(true);
    submit(&mut balloon, &blocks(1, 1)).expect("room");
    assert_eq!((host.notifications(), balloon.poll()), (0, Ok(None)));
    host.set_no_notify(false);
    submit(&mut balloon, &blocks(2, 1)).expect("room");
    assert_eq!((host.notifications(), host.reports().len()), (1, 2));
}

#[test]
fn an_answer_that_says_nonsense_gives_the_memory_back_with_an_error() {
    let (host, mut balloon) = on_demand();
    submit(&mut balloon, &blocks(1, 2)).expect("room");
    // A length of up to the room available is no lie, although the device should write nothing.
    for (written, result) in [
        (4 * MIB, Ok(())),
        (4 * MIB + 1, Err(BadAnswer { written: 4 * MIB + 1 })),
        (u32::MAX, Err(BadAnswer { written: u32::MAX })),
    ] {
        host.lie(Lie::Wrote(written));
        assert_eq!(host.answer(1), 1);
        let completion = balloon.poll().expect("the queue is in order").expect("an answer");
        assert_eq!(completion.result, result);
        assert_eq!(balloon.fault(), None);
        submit(&mut balloon, &blocks(1, 2)).expect("room");
    }
}

#[test]
fn a_queue_out_of_order_is_dead_until_a_reset() {
    for lie in [
        Lie::OtherDescriptor,
        Lie::NoDescriptor,
        Lie::Ahead(1),
        Lie::Ahead(7),
        Lie::Ahead(-2),
        Lie::Ahead(i16::MIN),
        Lie::Twice,
    ] {
        let (host, mut balloon) = on_demand();
        for n in 0..2 {
            submit(&mut balloon, &blocks(10 * n, 4)).expect("room");
        }
        host.lie(lie);
        assert_eq!(host.answer(1), 1);
        let fault = loop {
            match balloon.poll() {
                // The answer before the lie in the ring cannot be told from a real one.
                Ok(Some(_)) if matches!(lie, Lie::Twice | Lie::Ahead(1)) => {}
                Err(fault) => break fault,
                other => panic!("{lie:?}: {other:?}"),
            }
        };
        assert_eq!(balloon.fault(), Some(fault), "{lie:?}");
        assert!(!fault.to_string().is_empty());
        assert_eq!(balloon.poll(), Err(fault));
        assert_eq!(submit(&mut balloon, &blocks(50, 1)), Err(SubmitError::Fault(fault)));
        assert_eq!(balloon.work_with(&mut Memory::default(), &mut |_| None), Err(fault));
        assert!(
            balloon.reports_in_flight() > 0,
            "{lie:?}: what was not answered stays with the device"
        );
        balloon.reset().expect("it starts again");
        assert_eq!((balloon.fault(), balloon.reports_in_flight()), (None, 0));
        host.set_answers(Answers::AtOnce);
        let token = submit(&mut balloon, &blocks(60, 32)).expect("room");
        assert_eq!(balloon.poll().expect("well").map(|completion| completion.token), Some(token));
    }
}

#[test]
fn what_is_in_flight_stays_there_until_the_reset_is_complete() {
    let (host, mut balloon) = on_demand();
    let old = submit(&mut balloon, &blocks(1, 32)).expect("room");
    host.set_reset_looks(None);
    for _ in 0..3 {
        assert_eq!(balloon.try_reset(), Ok(false));
        assert_eq!(balloon.reports_in_flight(), 1);
        assert_eq!(balloon.poll(), Err(DeviceFault::Resetting));
        assert_eq!(
            submit(&mut balloon, &blocks(1, 1)),
            Err(SubmitError::Fault(DeviceFault::Resetting))
        );
    }
    host.end_reset();
    assert_eq!(balloon.try_reset(), Ok(true));
    assert_eq!((balloon.reports_in_flight(), balloon.poll()), (0, Ok(None)));
    assert!(host.is_running());
    let new = submit(&mut balloon, &blocks(1, 32)).expect("room");
    assert_ne!(old, new);
    drop(balloon);
    nothing_is_left();
}

#[test]
fn a_device_that_comes_back_as_another_is_not_started() {
    let smaller = Offer { reporting_size: 16, ..Offer::USUAL };
    for (offer, error) in [
        (Offer::with(0b10), StartError::Changed),
        (smaller, StartError::Changed),
        (Offer { features: 0, ..Offer::USUAL }, StartError::Legacy),
    ] {
        let (host, mut balloon) = on_demand();
        submit(&mut balloon, &blocks(1, 32)).expect("room");
        host.set_offer(offer);
        assert_eq!(balloon.reset(), Err(error));
        assert_eq!(balloon.reports_in_flight(), 0, "the reset itself is complete");
        assert_eq!(balloon.fault(), Some(DeviceFault::Stopped));
        assert_eq!(
            submit(&mut balloon, &blocks(1, 1)),
            Err(SubmitError::Fault(DeviceFault::Stopped))
        );
        // The device may offer something sensible again.
        host.set_offer(Offer { reporting_size: 128, ..Offer::USUAL });
        assert_eq!(balloon.reset(), Ok(()));
        assert!(submit(&mut balloon, &blocks(1, 32)).is_ok());
    }
}

#[test]
fn a_request_to_be_reset_is_seen_at_work() {
    let (host, mut balloon) = on_demand();
    host.ask_for_reset();
    assert_eq!(
        balloon.work_with(&mut Memory::default(), &mut |_| None),
        Err(DeviceFault::NeedsReset)
    );
    assert_eq!(balloon.poll(), Err(DeviceFault::NeedsReset));
    assert_eq!(balloon.reset(), Ok(()));
    assert!(balloon.work_with(&mut Memory::default(), &mut |_| None).is_ok());
    assert_eq!(Settings::default().report_ranges, 32);
}
