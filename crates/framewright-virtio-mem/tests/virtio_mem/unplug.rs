//! Unplugging memory.

use crate::common::{
    BLOCK, Driver, MIB, MS, Memory, PLUG, START, UNPLUG, Use, WithMemory as _, requests, settle,
    start,
};
use framewright_testkit::virtio_mem::{FakeVirtioMem, Reply};
use framewright_virtio_mem::{DeviceFault, Obstacle, RequestKind};

/// Returns a device with this many blocks plugged.
fn with_blocks(blocks: u64) -> (FakeVirtioMem, Driver, Memory) {
    let host = FakeVirtioMem::new();
    let mut device = start(&host).expect("a device that is well");
    let mut memory = Memory::of(&host);
    host.set_requested(blocks * BLOCK);
    assert!(settle(&mut device, &mut memory, 0).is_settled());
    (host, device, memory)
}

#[test]
fn free_memory_goes_in_as_many_requests_as_it_has_runs() {
    let (host, mut device, mut memory) = with_blocks(100);
    for unit in [10, 40, 41, 70] {
        memory.use_unit(unit, Use::Movable);
    }
    memory.can_move = false;
    host.set_requested(4 * BLOCK);
    assert!(settle(&mut device, &mut memory, 0).is_settled());
    let mut unplugged = requests(&host)[1..].to_vec();
    unplugged.sort_by_key(|&(_, address, _)| address);
    assert_eq!(
        unplugged,
        [
            (UNPLUG, START, 10),
            (UNPLUG, START + 11 * BLOCK, 29),
            (UNPLUG, START + 42 * BLOCK, 28),
            (UNPLUG, START + 71 * BLOCK, 29)
        ]
    );
}

#[test]
fn what_is_in_use_stays_and_is_named() {
    let (host, mut device, mut memory) = with_blocks(16);
    memory.use_all(Use::Movable);
    memory.can_move = false;
    host.set_requested(4 * BLOCK);
    let progress = settle(&mut device, &mut memory, 0);
    assert_eq!(progress.obstacle, Some(Obstacle::InUse { obstacles: 16 }));
    assert_eq!(progress.due_ns, Some(100 * MS));
    assert_eq!(requests(&host).len(), 1, "no request for memory that is in use");
    // Later, not at once; but at once when memory has changed.
    settle(&mut device, &mut memory, 50 * MS);
    assert_eq!(memory.removes, 1);
    let progress = settle(&mut device, &mut memory, 100 * MS);
    assert_eq!((memory.removes, progress.due_ns), (2, Some(300 * MS)));
    memory.can_move = true;
    device.memory_changed();
    assert!(settle(&mut device, &mut memory, 100 * MS).is_settled());
    assert_eq!((memory.bytes(), requests(&host).len()), (4 * BLOCK, 2));
}

#[test]
fn memory_that_the_device_does_not_take_is_in_use_again() {
    let (host, mut device, mut memory) = with_blocks(16);
    host.set_requested(4 * BLOCK);
    host.set_busy(true);
    let progress = settle(&mut device, &mut memory, 0);
    assert_eq!((progress.obstacle, progress.plugged_bytes), (Some(Obstacle::Busy), 16 * BLOCK));
    assert_eq!(memory.put_back, [(START + 4 * BLOCK, 12 * BLOCK)]);
    assert_eq!((memory.bytes(), memory.out.len()), (16 * BLOCK, 0));
    host.set_busy(false);
    assert!(settle(&mut device, &mut memory, progress.due_ns.expect("soon")).is_settled());
    assert_eq!(memory.bytes(), 4 * BLOCK);
}

#[test]
fn memory_that_nobody_takes_back_goes_later() {
    let (host, mut device, mut memory) = with_blocks(16);
    host.set_requested(4 * BLOCK);
    host.set_busy(true);
    memory.takes_back = false;
    let progress = settle(&mut device, &mut memory, 0);
    assert_eq!((progress.obstacle, progress.plugged_bytes), (Some(Obstacle::Busy), 16 * BLOCK));
    assert_eq!((memory.bytes(), memory.removes), (4 * BLOCK, 1));
    // This memory goes first, although the requested size has changed.
    host.set_requested(16 * BLOCK);
    host.set_busy(false);
    assert!(settle(&mut device, &mut memory, 0).is_settled());
    let run = START + 4 * BLOCK;
    assert_eq!(requests(&host)[1..], [(UNPLUG, run, 12), (UNPLUG, run, 12), (PLUG, run, 12)]);
    assert_eq!(memory.bytes(), 16 * BLOCK);
}

#[test]
fn a_wish_that_rises_while_nothing_can_be_removed_ends_the_wait() {
    let (host, mut device, mut memory) = with_blocks(16);
    memory.use_all(Use::Pinned);
    host.set_requested(0);
    assert!(settle(&mut device, &mut memory, 0).obstacle.is_some());
    host.set_requested(20 * BLOCK);
    assert!(settle(&mut device, &mut memory, 1).is_settled());
    assert_eq!(memory.bytes(), 20 * BLOCK);
}

#[test]
fn an_adopters_mistakes_never_reach_the_device() {
    for (start_bytes, size_bytes) in [
        // More than requested, not plugged, before and behind the region, no whole units, nothing.
        (START, 13 * BLOCK),
        (START + 12 * BLOCK, 5 * BLOCK),
        (START + 20 * BLOCK, BLOCK),
        (START - BLOCK, BLOCK),
        (START + 2048 * MIB, BLOCK),
        (START + 4096, BLOCK),
        (START, BLOCK + 4096),
        (START, 0),
        (u64::MAX - BLOCK + 1, BLOCK),
        (START, u64::MAX - BLOCK + 1),
    ] {
        let (host, mut device, mut memory) = with_blocks(16);
        memory.instead = Some((start_bytes, size_bytes));
        host.set_requested(4 * BLOCK);
        let progress = settle(&mut device, &mut memory, 0);
        assert_eq!(progress.obstacle, Some(Obstacle::BadRun { start_bytes, size_bytes }));
        assert_eq!(memory.put_back_instead, [(start_bytes, size_bytes)]);
        assert_eq!(requests(&host).len(), 1);
    }
}

#[test]
fn after_an_error_nobody_has_the_memory_that_was_to_go() {
    let (host, mut device, mut memory) = with_blocks(16);
    host.set_requested(4 * BLOCK);
    host.reply(Reply::Answer(3));
    device.step(&mut memory, 0).expect("it was sent");
    let fault = DeviceFault::Refused { request: RequestKind::Unplug };
    assert_eq!(device.step(&mut memory, 0), Err(fault));
    assert_eq!((memory.bytes(), memory.out.len()), (4 * BLOCK, 12));
    assert!(memory.put_back.is_empty());
}

#[test]
fn nack_is_no_answer_to_an_unplug() {
    let (host, mut device, mut memory) = with_blocks(16);
    host.set_requested(4 * BLOCK);
    host.reply(Reply::Answer(1));
    device.step(&mut memory, 0).expect("it was sent");
    let fault = DeviceFault::Unexpected { request: RequestKind::Unplug, answer: 1 };
    assert_eq!(device.step(&mut memory, 0), Err(fault));
    assert_eq!(fault.to_string(), "virtio-mem: answer 1 to UNPLUG is not possible");
}
