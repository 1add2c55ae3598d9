//! Resets: the outcome of the request that a reset has cut off.

use crate::common::{
    BLOCK, Driver, Memory, PLUG, START, STATE, UNPLUG, WithMemory as _, nothing_is_left, requests,
    settle, start,
};
use framewright_testkit::virtio_mem::{Answers, FakeVirtioMem, Offer, Reply};
use framewright_virtio_mem::{DeviceFault, RequestKind, StartError};

fn well() -> (FakeVirtioMem, Driver, Memory) {
    let host = FakeVirtioMem::new();
    let device = start(&host).expect("a device that is well");
    let memory = Memory::of(&host);
    (host, device, memory)
}

/// Returns a device whose reset cut off a request, after the driver asked for the state of its
/// blocks.
fn cut_off() -> (FakeVirtioMem, Driver, Memory) {
    let (host, mut device, mut memory) = well();
    host.set_requested(8 * BLOCK);
    host.set_answers(Answers::OnDemand);
    device.step(&mut memory, 0).expect("a device that is well");
    device.reset().expect("a device that is well");
    device.step(&mut memory, 0).expect("a device that is well");
    (host, device, memory)
}

#[test]
fn memory_stays_over_a_reset() {
    let (host, mut device, mut memory) = well();
    host.set_requested(8 * BLOCK);
    settle(&mut device, &mut memory, 0);
    device.reset().expect("a device that is well");
    assert!(settle(&mut device, &mut memory, 0).is_settled());
    assert_eq!((memory.bytes(), requests(&host).len()), (8 * BLOCK, 1));
    host.set_requested(0);
    assert!(settle(&mut device, &mut memory, 0).is_settled());
    assert_eq!(host.plugged_bytes(), 0);
}

#[test]
fn the_device_is_asked_what_came_of_a_plug() {
    for was_done in [true, false] {
        let (host, mut device, mut memory) = well();
        host.set_requested(8 * BLOCK);
        if was_done {
            host.reply(Reply::Lose);
        } else {
            host.set_answers(Answers::OnDemand);
        }
        device.step(&mut memory, 0).expect("a device that is well");
        assert_eq!((memory.bytes(), device.plugged_bytes()), (0, 0));
        host.set_answers(Answers::AtOnce);
        device.reset().expect("a device that is well");
        assert!(settle(&mut device, &mut memory, 0).is_settled());
        assert_eq!(memory.bytes(), 8 * BLOCK);
        let again = if was_done { 1 } else { 2 };
        assert_eq!(
            requests(&host)[..2],
            [[(PLUG, START, 8), (STATE, START, 8)], [(STATE, START, 8), (PLUG, START, 8)]]
                [again - 1]
        );
        assert_eq!(requests(&host).len(), 2);
    }
}

#[test]
fn the_device_is_asked_what_came_of_an_unplug() {
    for was_done in [true, false] {
        let (host, mut device, mut memory) = well();
        host.set_requested(8 * BLOCK);
        settle(&mut device, &mut memory, 0);
        host.set_requested(2 * BLOCK);
        if was_done {
            host.reply(Reply::Lose);
        } else {
            host.set_answers(Answers::OnDemand);
        }
        device.step(&mut memory, 0).expect("a device that is well");
        assert_eq!((memory.bytes(), memory.out.len()), (2 * BLOCK, 6));
        host.set_answers(Answers::AtOnce);
        // The requested size rises meanwhile, so that the memory that comes back is wanted.
        host.set_requested(8 * BLOCK);
        device.reset().expect("a device that is well");
        assert!(settle(&mut device, &mut memory, 0).is_settled());
        assert_eq!(memory.bytes(), 8 * BLOCK);
        let last = *requests(&host).last().expect("requests");
        let run = (START + 2 * BLOCK, 6 * BLOCK);
        if was_done {
            assert_eq!((last, memory.put_back.len()), ((PLUG, run.0, 6), 0));
        } else {
            assert_eq!((last, &memory.put_back[..]), ((STATE, run.0, 6), &[run][..]));
        }
    }
}

#[test]
fn the_device_is_asked_what_came_of_what_nobody_wanted() {
    for was_done in [true, false] {
        let (host, mut device, mut memory) = well();
        memory.room_bytes = 0;
        host.set_requested(8 * BLOCK);
        device.step(&mut memory, 0).expect("a device that is well");
        if was_done {
            host.reply(Reply::Lose);
        } else {
            host.set_answers(Answers::OnDemand);
        }
        device.step(&mut memory, 0).expect("a device that is well");
        host.set_answers(Answers::AtOnce);
        device.reset().expect("a device that is well");
        // The query is sent and cut off again.
        host.set_answers(Answers::OnDemand);
        device.step(&mut memory, 0).expect("a device that is well");
        host.set_answers(Answers::AtOnce);
        device.reset().expect("a device that is well");
        memory.room_bytes = u64::MAX;
        device.memory_changed();
        assert!(settle(&mut device, &mut memory, 0).is_settled());
        assert_eq!((memory.bytes(), host.plugged_bytes()), (8 * BLOCK, 8 * BLOCK));
        let unplugs = requests(&host).iter().filter(|&&(kind, ..)| kind == UNPLUG).count();
        assert_eq!(unplugs, 1);
    }
}

#[test]
fn half_a_request_breaks_the_device() {
    let (host, mut device, mut memory) = cut_off();
    host.reply(Reply::State(2));
    assert!(host.answer());
    let fault = DeviceFault::Partial { start_bytes: START };
    assert_eq!(device.step(&mut memory, 0), Err(fault));
    assert_eq!(device.reset(), Err(StartError::Broken(fault)));
}

#[test]
fn states_that_there_are_not_are_faults() {
    let (host, mut device, mut memory) = cut_off();
    // A complete answer without a state.
    host.reply(Reply::Wrote(8));
    assert!(host.answer());
    assert_eq!(device.step(&mut memory, 0), Err(DeviceFault::Length { written: 8 }));
    device.reset().expect("a device that may be reset");
    device.step(&mut memory, 0).expect("a device that is well");
    host.reply(Reply::State(3));
    assert!(host.answer());
    assert_eq!(device.step(&mut memory, 0), Err(DeviceFault::UnknownAnswer { answer: 3 }));
    device.reset().expect("a device that may be reset");
    host.set_answers(Answers::AtOnce);
    assert!(settle(&mut device, &mut memory, 0).is_settled());
    assert_eq!(memory.bytes(), 8 * BLOCK);
}

#[test]
fn a_reset_that_takes_long_is_polled() {
    let (host, mut device, mut memory) = well();
    host.set_requested(8 * BLOCK);
    settle(&mut device, &mut memory, 0);
    host.set_reset_looks(Some(3));
    let mut polls = 0;
    while !device.try_reset().expect("a device that is well") {
        assert_eq!(device.step(&mut memory, 0), Err(DeviceFault::Resetting));
        polls += 1;
    }
    assert_eq!(polls, 3);
    assert!(settle(&mut device, &mut memory, 0).is_settled());
}

#[test]
fn a_device_can_ask_for_its_reset() {
    let (host, mut device, mut memory) = well();
    host.set_requested(8 * BLOCK);
    settle(&mut device, &mut memory, 0);
    host.ask_for_reset();
    assert_eq!(device.step(&mut memory, 0), Err(DeviceFault::NeedsReset));
    device.reset().expect("a device that is well");
    assert!(settle(&mut device, &mut memory, 0).is_settled());
}

#[test]
fn stopped_means_that_memory_stays_and_nothing_is_asked() {
    let (host, mut device, mut memory) = well();
    host.set_requested(8 * BLOCK);
    settle(&mut device, &mut memory, 0);
    assert!(device.stop() && device.stop());
    assert!(!host.is_running());
    host.set_requested(0);
    assert_eq!(device.step(&mut memory, 0), Err(DeviceFault::Stopped));
    assert_eq!((memory.bytes(), host.plugged_bytes()), (8 * BLOCK, 8 * BLOCK));
    device.reset().expect("a device that is well");
    assert!(settle(&mut device, &mut memory, 0).is_settled());
    assert_eq!(memory.bytes(), 0);
    drop(device);
    nothing_is_left();
}

#[test]
fn a_device_that_is_another_after_a_reset_is_not_used() {
    let changes: [&dyn Fn(&FakeVirtioMem); 3] = [
        &|host| host.set_features(Offer::USUAL.features & !0b10),
        &|host| host.say_block(2 * BLOCK),
        &|host| host.say_region(4 << 30),
    ];
    for change in changes {
        let (host, mut device, _) = well();
        change(&host);
        assert_eq!(device.reset(), Err(StartError::Changed));
        assert!(!host.is_running());
        assert_eq!(device.fault(), Some(DeviceFault::Stopped));
        drop(device);
        nothing_is_left();
    }
}

#[test]
fn an_error_is_for_ever() {
    let (host, mut device, mut memory) = well();
    host.set_requested(8 * BLOCK);
    host.reply(Reply::Answer(3));
    device.step(&mut memory, 0).expect("it was sent");
    let fault = DeviceFault::Refused { request: RequestKind::Plug };
    assert_eq!(device.step(&mut memory, 0), Err(fault));
    let text = "not restarted after a fault: virtio-mem: the device answers ERROR to PLUG";
    for _ in 0..2 {
        assert_eq!(device.reset().expect_err("for ever").to_string(), text);
    }
    assert!(device.stop());
}
