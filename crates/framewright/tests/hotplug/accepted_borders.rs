//! What is right behind memory in use is accepted, whoever has the block before it at the moment.

use crate::add::add;
use crate::common::{Fake, bring_up_with, check, mib, parameters, settled};
use framewright::firmware::MemoryKind;
use framewright::manager::ReleaseError;
use framewright::units::{PAGES_PER_BLOCK, PfnRange, PhysRange};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::Grade;
use framewright_testkit::{FakeAccept, FakeMachine};

#[test]
fn memory_added_behind_an_isolated_block_is_accepted() {
    let builder = FakeMachine::builder().ram(mib(0, 256)).spare(mib(256, 512)).accepts();
    let machine = builder.build();
    let manager = bring_up_with(machine, &[], &parameters("")).expect("bring-up");
    let last = BlockRange { start: BlockNumber(127), end: BlockNumber(128) };
    manager.isolation().isolate(last).expect("nobody has it");
    add(&manager, mib(256, 512), 0, Grade::Any).expect("added");
    manager.isolation().unisolate(last).expect("isolated");
    check(&manager);
    assert_eq!(machine.accept().calls(), [PfnRange::new(128 * 512, 129 * 512)]);
}

/// A machine with memory that is not accepted from 256 MiB on, and `reserved` before it.
fn reserving(reserved: PhysRange) -> (Fake, &'static FakeAccept) {
    let (accepted, rest) = (mib(0, 256), mib(256, 512));
    let builder = FakeMachine::builder().ram(accepted).memory(rest, MemoryKind::Unaccepted);
    let machine = builder.accepts().build();
    let manager = bring_up_with(machine, &[reserved], &parameters("")).expect("bring-up");
    (manager, machine.accept())
}

#[test]
fn what_lies_behind_released_memory_is_accepted() {
    let behind = PfnRange::new(256 << 8, 258 << 8);
    for adopted in [false, true] {
        let reserved = mib(252, 256);
        let (manager, device) = reserving(reserved);
        assert!(!device.is_accepted(behind.start), "nobody needs it");
        let frames = reserved.whole_frames();
        if adopted {
            manager.hotplug().adopt(frames).expect("reserved");
        } else {
            // SAFETY: nobody uses it.
            unsafe { manager.hotplug().release(frames) }.expect("reserved");
        }
        assert!(device.is_accepted(behind.start));
        check(&manager);
    }
}

#[test]
fn memory_is_not_released_before_memory_that_cannot_be_accepted() {
    let reserved = mib(252, 256);
    let (manager, device) = reserving(reserved);
    let before = settled(&manager);
    let behind = PfnRange::new(256 << 8, 258 << 8);
    device.fail_at(behind.start);
    let frames = reserved.whole_frames();
    // SAFETY: nobody uses it.
    let released = unsafe { manager.hotplug().release(frames) };
    assert_eq!(released, Err(ReleaseError::Unaccepted(behind.start)));
    check(&manager);
    let after = settled(&manager);
    assert_eq!((after.managed_pages, after.free_pages), (before.managed_pages, before.free_pages));
    // All but the last block can be had.
    let all_but_one = PfnRange::new(frames.start.0, frames.end.0 - PAGES_PER_BLOCK);
    // SAFETY: nobody uses it.
    unsafe { manager.hotplug().release(all_but_one) }.expect("reserved");
    check(&manager);
}
