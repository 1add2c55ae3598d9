//! The start: features, numbers of queues, poison, and every fault that a device can have.

use crate::common::{Driver, nothing_is_left, start};
use framewright_balloon::{Features, FreeContent, QueueKind, Settings, StartError};
use framewright_testkit::balloon::{FakeBalloon, FakeHal, Numbering, Offer};
use std::mem::ManuallyDrop;
use virtio_drivers::transport::{DeviceType, Transport};

const REPORTING: u64 = 1 << 5;
const POISON: u64 = 1 << 4;
const HINT: u64 = 1 << 3;
const STATS: u64 = 1 << 1;

/// A second statement of the specification (virtio 1.2, 5.5.2 and 5.5.3): the features that are
/// accepted, and the number of the reporting queue.
fn expected(offered: u64, numbering: Numbering, content: FreeContent) -> (u64, Option<u16>) {
    let mut accepted = offered & (0b11_1111 | 1 << 32);
    match content {
        FreeContent::Any => accepted &= !POISON,
        _ if offered & POISON == 0 => accepted &= !REPORTING,
        _ => {}
    }
    let queue = match numbering {
        Numbering::Fixed => 4,
        Numbering::Compact => 2 + u16::from(offered & STATS != 0) + u16::from(offered & HINT != 0),
    };
    (accepted, (accepted & REPORTING != 0).then_some(queue))
}

#[test]
fn every_set_of_features_in_both_numberings() {
    for features in 0..64 {
        for numbering in [Numbering::Compact, Numbering::Fixed] {
            for content in [FreeContent::Any, FreeContent::Zero, FreeContent::Fill(0xaa)] {
                // Unknown feature bits, and those of rings that this driver does not use, are
                // offered, too.
                let offer =
                    Offer { numbering, ..Offer::with(features | 3 << 28 | 1 << 7 | 1 << 41) };
                let host = FakeBalloon::offering(offer);
                // Half of the offers are to a kernel that never asks for relief.
                let relieves = features & REPORTING != 0;
                let settings = Settings { free_content: content, relieves, ..Settings::default() };
                let mut balloon =
                    Driver::new(host.transport(), settings).expect("a device that is well");
                let (mut accepted, queue) = expected(offer.features, numbering, content);
                if !relieves {
                    accepted &= !Features::DEFLATE_ON_OOM.bits();
                }
                assert_eq!(host.accepted(), accepted, "{features:#b}, {content:?}");
                assert_eq!(balloon.features().bits(), accepted);
                assert_eq!(balloon.reporting_queue(), queue, "{features:#b}, {numbering:?}");
                assert_eq!(balloon.capacity(), if queue.is_some() { 32 } else { 0 });
                let poison = match content {
                    FreeContent::Fill(byte) if accepted & POISON != 0 => {
                        u32::from(byte) * 0x0101_0101
                    }
                    _ => 0,
                };
                assert_eq!(host.poison(), poison);
                assert!(host.is_running());
                drop(balloon);
                assert!(!host.is_running());
                nothing_is_left();
            }
        }
    }
}

#[test]
fn capacity_follows_settings_and_queue() {
    for (ranges, size, capacity) in [
        (32, 32, 32),
        (32, 128, 32),
        (100, 128, 100),
        (500, 1024, 128),
        (0, 32, 1),
        (32, 48, 32),
        (64, 48, 32),
        (32, 1, 1),
    ] {
        let host = FakeBalloon::offering(Offer { reporting_size: size, ..Offer::USUAL });
        let settings = Settings { report_ranges: ranges, ..Settings::default() };
        let balloon = Driver::new(host.transport(), settings).expect("a device that is well");
        assert_eq!(balloon.capacity(), capacity, "{ranges} ranges asked for, {size} descriptors");
    }
}

#[test]
fn devices_that_cannot_be_used_are_refused() {
    let refusal = |host: FakeBalloon| start(&host).map(|_| ()).expect_err("refused");
    assert_eq!(
        refusal(FakeBalloon::offering(Offer { features: REPORTING, ..Offer::USUAL })),
        StartError::Legacy
    );
    let host = FakeBalloon::new();
    host.refuse_features();
    let asked = Features::from_bits_truncate(Offer::USUAL.features & !POISON).bits();
    assert_eq!(refusal(host), StartError::FeaturesRefused { asked });
    let lacking = Offer { lacks_reporting_queue: true, ..Offer::USUAL };
    let missing = StartError::MissingQueue { kind: QueueKind::Reporting, queue: 3 };
    assert_eq!(refusal(FakeBalloon::offering(lacking)), missing);
    let host = FakeBalloon::new();
    host.set_reset_looks(None);
    assert_eq!(refusal(host.clone()), StartError::ResetPending);
    host.end_reset();
    assert!(start(&host).is_ok());
    let disguised = Driver::new(
        FakeBalloon::new().transport().disguised(DeviceType::Block),
        Settings::default(),
    );
    assert_eq!(disguised.map(|_| ()), Err(StartError::NotABalloon(DeviceType::Block)));
    let settings = Settings { free_content: FreeContent::Zero, ..Settings::default() };
    let short = FakeBalloon::offering(Offer { configuration_bytes: 8, ..Offer::USUAL });
    let refused = Driver::new(short.transport(), settings).map(|_| ());
    assert!(matches!(refused, Err(StartError::Configuration(_))), "{refused:?}");
    nothing_is_left();
}

#[test]
fn a_slow_reset_is_waited_for() {
    let host = FakeBalloon::new();
    host.set_reset_looks(Some(1000));
    let balloon = start(&host).expect("it comes in the end");
    assert!(host.is_running());
    drop(balloon);
    assert_eq!(host.resets(), 2);
    nothing_is_left();
}

#[test]
fn memory_is_given_back_when_there_is_too_little() {
    let offer = Offer::with(0b11_1111);
    let mut count = 0;
    loop {
        let host = FakeBalloon::offering(offer);
        FakeHal::fail_after(Some(count));
        let started = start(&host);
        FakeHal::fail_after(None);
        match started {
            Ok(_) => break,
            Err(error) => assert_eq!(error, StartError::OutOfMemory),
        }
        assert!(!host.is_running());
        nothing_is_left();
        count += 1;
    }
    // Five rings, the list of frames, the statistics.
    assert_eq!(count, 7);
}

#[test]
fn queues_stay_where_they_are_when_the_device_does_not_let_go() {
    let host = FakeBalloon::new();
    let balloon = start(&host).expect("a device that is well");
    let pages = FakeHal::pages();
    host.set_reset_looks(None);
    drop(balloon);
    assert_eq!(FakeHal::pages(), pages, "the device may still write to them");
    assert_eq!(FakeHal::violations(), [""; 0]);
}

#[test]
fn errors_say_what_is_wrong() {
    let text = StartError::MissingQueue { kind: QueueKind::Reporting, queue: 3 }.to_string();
    assert_eq!(
        text,
        "the virtio balloon offers free page reporting without a queue for it (number 3)"
    );
    // Transports are not dropped: that could wait for ever.
    let mut transport = ManuallyDrop::new(FakeBalloon::new().transport());
    assert_eq!(transport.max_queue_size(9), 0);
}
