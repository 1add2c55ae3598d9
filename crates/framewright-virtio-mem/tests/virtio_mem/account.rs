//! The form of requests, and what the driver concludes about the amount of plugged memory.

use crate::common::{BLOCK, GIB, Memory, START, WithMemory as _, nothing_is_left, settle, start};
use framewright_testkit::virtio_mem::{Asked, FakeVirtioMem, Reply};
use framewright_virtio_mem::{DeviceFault, RingFault, Rule, StartError};

/// What the host says.
type Say<'a> = &'a dyn Fn(&FakeVirtioMem);

/// Returns the fault that follows if the device gives this reply instead of its answer.
fn fault_after(reply: Reply) -> DeviceFault {
    let host = FakeVirtioMem::new();
    let mut device = start(&host).expect("a device that is well");
    let mut memory = Memory::of(&host);
    host.set_requested(4 * BLOCK);
    settle(&mut device, &mut memory, 0);
    host.reply(reply);
    memory.is_honest = false;
    host.set_requested(8 * BLOCK);
    let fault = (0..3).find_map(|_| device.step(&mut memory, 0).err()).expect("a fault");
    assert!(memory.bytes() >= 4 * BLOCK, "memory in use stays in use");
    drop(device);
    nothing_is_left();
    fault
}

#[test]
fn requests_have_the_form_that_devices_expect() {
    let host = FakeVirtioMem::new();
    let mut device = start(&host).expect("a device that is well");
    host.set_requested(0x123 * BLOCK);
    settle(&mut device, &mut Memory::of(&host), 0);
    // The fake device checks 24 and 10 bytes, and reads address and blocks at 8 and 16.
    let asked = Asked { kind: 0, address: START, blocks: 0x123, verdict: 0 };
    assert_eq!(host.asked(), [asked]);
}

#[test]
fn answers_that_there_are_not_are_faults() {
    for answer in [4, 0x100, u16::MAX] {
        let fault = fault_after(Reply::Answer(answer));
        assert_eq!(fault, DeviceFault::UnknownAnswer { answer });
    }
    for written in [0, 1, 11, u32::MAX] {
        assert_eq!(fault_after(Reply::Wrote(written)), DeviceFault::Length { written });
    }
    let not_given = |descriptor| DeviceFault::Ring(RingFault::NotGiven { queue: 0, descriptor });
    assert_eq!(fault_after(Reply::OtherDescriptor), not_given(1));
    assert_eq!(fault_after(Reply::NoDescriptor), not_given(0x1_0000));
    for (reply, returned) in [(Reply::Twice, 2), (Reply::Ahead(6), 7), (Reply::Ahead(-2), 65535)] {
        let fault = RingFault::IndexOutOfStep { queue: 0, returned, given: 1 };
        assert_eq!(fault_after(reply), DeviceFault::Ring(fault));
    }
}

#[test]
fn a_device_that_counts_otherwise_is_broken() {
    // The device does what it says it refused, says it did what it did not, or does half of it.
    for (reply, plugged) in
        [(Reply::Claim(2), 8), (Reply::Answer(0), 4), (Reply::Claim(1), 8), (Reply::Half, 6)]
    {
        let fault = fault_after(reply);
        let DeviceFault::Rule(Rule::Count { plugged_bytes, acknowledged_bytes }) = fault else {
            panic!("{fault}")
        };
        assert_eq!(plugged_bytes, plugged * BLOCK);
        assert_ne!(plugged_bytes, acknowledged_bytes);
        assert!(fault.is_final());
    }
}

#[test]
fn rules_hold_at_all_times_and_what_breaks_one_is_broken_for_ever() {
    let rules: [(Say<'_>, Rule); 4] = [
        (
            &|host| host.say_usable(3 * GIB),
            Rule::Usable { usable_bytes: 3 * GIB, region_bytes: 2 * GIB },
        ),
        (
            &|host| host.say_usable(5 * BLOCK),
            Rule::Shrank { before_bytes: (256 << 20) + 4 * BLOCK, now_bytes: 5 * BLOCK },
        ),
        (
            &|host| host.say_requested(GIB),
            Rule::Requested { requested_bytes: GIB, usable_bytes: (256 << 20) + 4 * BLOCK },
        ),
        (&|host| host.say_plugged(1), Rule::Alignment { bytes: 1, block_bytes: BLOCK }),
    ];
    for (say, rule) in rules {
        let host = FakeVirtioMem::new();
        let mut device = start(&host).expect("a device that is well");
        let mut memory = Memory::of(&host);
        host.set_requested(4 * BLOCK);
        settle(&mut device, &mut memory, 0);
        say(&host);
        let fault = DeviceFault::Rule(rule);
        assert_eq!(device.step(&mut memory, 0), Err(fault));
        assert_eq!(device.reset(), Err(StartError::Broken(fault)));
        assert_eq!(device.fault(), Some(fault));
        assert!(!host.is_running());
        assert_eq!((memory.bytes(), host.asked().len()), (4 * BLOCK, 1));
    }
}

#[test]
fn the_usable_part_may_shrink_when_everything_was_unplugged() {
    let host = FakeVirtioMem::new();
    host.set_requested(GIB);
    host.leave_plugged(0..512);
    host.set_requested(4 * BLOCK);
    let mut device = start(&host).expect("a device that is well");
    let progress = settle(&mut device, &mut Memory::of(&host), 0);
    assert_eq!(progress.usable_bytes, (256 << 20) + 4 * BLOCK);
    assert!(progress.is_settled());
}
