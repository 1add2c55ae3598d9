//! Plugging memory.

use crate::common::{
    BLOCK, Driver, GIB, MIB, MS, Memory, PLUG, START, UNPLUG, Use, WithMemory as _, nothing,
    nothing_is_left, requests, settle, start,
};
use framewright_testkit::virtio_mem::{Answers, FakeHal, FakeVirtioMem, Offer, Reply};
use framewright_virtio_mem::{
    DeviceFault, Obstacle, PluggableMemory, Removal, RequestKind, Settings,
};

fn well(host: &FakeVirtioMem) -> (Driver, Memory) {
    (start(host).expect("a device that is well"), Memory::of(host))
}

#[test]
fn a_whole_wish_is_one_request() {
    let host = FakeVirtioMem::new();
    let (mut device, mut memory) = well(&host);
    host.set_requested(2 * GIB);
    let progress = settle(&mut device, &mut memory, 0);
    assert_eq!(requests(&host), [(PLUG, START, 1024)]);
    assert_eq!((progress.plugged_bytes, progress.requested_bytes), (2 * GIB, 2 * GIB));
    assert_eq!((progress.usable_bytes, progress.due_ns), (2 * GIB, None));
    assert_eq!(memory.added, [(START, 2 * GIB)]);
}

#[test]
fn wishes_are_followed_up_and_down() {
    let host = FakeVirtioMem::new();
    let (mut device, mut memory) = well(&host);
    host.set_requested(320 * MIB);
    assert!(settle(&mut device, &mut memory, 0).is_settled());
    host.set_requested(200 * MIB);
    assert!(settle(&mut device, &mut memory, 0).is_settled());
    assert_eq!(requests(&host), [(PLUG, START, 160), (UNPLUG, START + 200 * MIB, 60)]);
    host.set_requested(0);
    assert!(settle(&mut device, &mut memory, 0).is_settled());
    assert_eq!(requests(&host)[2..], [(UNPLUG, START, 100)]);
    assert_eq!((memory.bytes(), device.plugged_bytes(), host.plugged_bytes()), (0, 0, 0));
    drop(device);
    nothing_is_left();
}

#[test]
fn nothing_is_sent_for_nothing() {
    let host = FakeVirtioMem::new();
    let (mut device, mut memory) = well(&host);
    for _ in 0..5 {
        host.announce();
        device.config_changed();
        device.memory_changed();
        let progress = device.step(&mut memory, 0).expect("a device that is well");
        assert!(progress.is_settled() && !progress.changed && progress.due_ns.is_none());
    }
    assert!(requests(&host).is_empty());
    host.set_requested(BLOCK);
    settle(&mut device, &mut memory, 0);
    host.announce();
    settle(&mut device, &mut memory, 0);
    assert_eq!(requests(&host).len(), 1);
}

#[test]
fn a_step_says_whether_something_changed() {
    let host = FakeVirtioMem::new();
    host.set_answers(Answers::OnDemand);
    let (mut device, mut memory) = well(&host);
    host.set_requested(BLOCK);
    for _ in 0..3 {
        let progress = device.step(&mut memory, 7).expect("a device that is well");
        assert!(progress.waiting && !progress.changed && progress.obstacle.is_none());
        assert_eq!((progress.plugged_bytes, progress.due_ns), (0, Some(7 + 50_000)));
    }
    assert!(host.answer());
    let progress = device.step(&mut memory, 8).expect("a device that is well");
    assert!(progress.changed && progress.is_settled() && progress.plugged_bytes == BLOCK);
    assert!(!device.step(&mut memory, 9).expect("a device that is well").changed);
}

#[test]
fn long_runs_are_as_long_as_requests_can_name() {
    // 300 GiB by 2 MiB: 153600 blocks.
    let offer = Offer { address: 1 << 40, region_bytes: 300 * GIB, ..Offer::USUAL };
    let host = FakeVirtioMem::offering(offer);
    let (mut device, mut memory) = well(&host);
    memory.is_honest = false; // it takes its time to look
    host.set_requested(300 * GIB);
    settle(&mut device, &mut memory, 0);
    let most = u64::from(u16::MAX) * BLOCK;
    assert_eq!(
        requests(&host),
        [
            (PLUG, 1 << 40, u16::MAX),
            (PLUG, (1 << 40) + most, u16::MAX),
            (PLUG, (1 << 40) + 2 * most, 22_530)
        ]
    );
    assert_eq!(device.plugged_bytes(), 300 * GIB);
}

#[test]
fn memory_comes_by_the_adopters_grain() {
    // Blocks of 1 MiB; the region begins and ends inside a grain.
    let offer =
        Offer { block_bytes: MIB, address: START + MIB, region_bytes: 16 * MIB, ..Offer::USUAL };
    let host = FakeVirtioMem::offering(offer);
    let (mut device, mut memory) = well(&host);
    assert_eq!(device.unit_bytes(), 2 * MIB);
    host.set_requested(5 * MIB);
    let progress = settle(&mut device, &mut memory, 0);
    assert_eq!((progress.plugged_bytes, progress.obstacle), (4 * MIB, None));
    host.set_requested(16 * MIB);
    let progress = settle(&mut device, &mut memory, 0);
    assert_eq!((progress.plugged_bytes, progress.obstacle), (14 * MIB, None));
    host.set_requested(3 * MIB);
    settle(&mut device, &mut memory, 0);
    assert_eq!(
        requests(&host),
        [(PLUG, START + 2 * MIB, 4), (PLUG, START + 6 * MIB, 10), (UNPLUG, START + 4 * MIB, 12)]
    );
    // Blocks larger than the grain.
    let host = FakeVirtioMem::offering(Offer { block_bytes: 8 * MIB, ..Offer::USUAL });
    let mut device = start(&host).expect("a device that is well");
    let mut memory = Memory::by(&host, 8 * MIB);
    host.set_requested(64 * MIB);
    settle(&mut device, &mut memory, 0);
    assert_eq!(requests(&host), [(PLUG, START, 8)]);
}

#[test]
fn holes_are_filled_lowest_first_unless_a_longer_one_takes_all() {
    let host = FakeVirtioMem::new();
    let (mut device, mut memory) = well(&host);
    host.set_requested(40 * MIB);
    settle(&mut device, &mut memory, 0);
    // Units 2, 3 and 7 to 10 are unplugged.
    memory.use_all(Use::Pinned);
    for unit in [2, 3, 7, 8, 9, 10] {
        memory.use_unit(unit, Use::Free);
    }
    host.set_requested(28 * MIB);
    settle(&mut device, &mut memory, 0);
    assert_eq!(requests(&host)[1..], [(UNPLUG, START + 14 * MIB, 4), (UNPLUG, START + 4 * MIB, 2)]);
    for (requested, expected) in [
        // Three units: the first hole with room for all of them.
        (34 * MIB, (PLUG, START + 14 * MIB, 3)),
        (36 * MIB, (PLUG, START + 4 * MIB, 1)),
        // 100 units: after all holes.
        (236 * MIB, (PLUG, START + 40 * MIB, 100)),
    ] {
        host.set_requested(requested);
        settle(&mut device, &mut memory, 0);
        assert_eq!(requests(&host).last(), Some(&expected));
    }
}

#[test]
fn busy_is_tried_again_later_and_later() {
    let host = FakeVirtioMem::new();
    let settings = Settings { retry_least_ms: 10, retry_most_ms: 50, ..Settings::default() };
    let mut device =
        Driver::new(host.transport(), settings, &mut nothing).expect("a device that is well");
    let mut memory = Memory::of(&host);
    host.set_busy(true);
    host.set_requested(BLOCK);
    let mut now_ns = 1000;
    for (tries, wait_ms) in (1..).zip([10, 20, 40, 50, 50]) {
        let progress = settle(&mut device, &mut memory, now_ns);
        assert_eq!(progress.obstacle, Some(Obstacle::Busy));
        assert_eq!(progress.due_ns, Some(now_ns + wait_ms * MS));
        // Not a moment earlier.
        settle(&mut device, &mut memory, now_ns + wait_ms * MS - 1);
        assert_eq!(requests(&host).len(), tries);
        assert_eq!(device.plugged_bytes(), 0);
        now_ns += wait_ms * MS;
    }
    // At once when something has happened; then the shortest wait again.
    for event in [
        (|_, host| host.announce()) as fn(&mut Driver, &FakeVirtioMem),
        |device, _| device.config_changed(),
        |device, _| device.memory_changed(),
        |_, host| host.set_requested(2 * BLOCK),
    ] {
        let before = requests(&host).len();
        event(&mut device, &host);
        let progress = settle(&mut device, &mut memory, now_ns - 1);
        assert_eq!(requests(&host).len(), before + 1);
        assert_eq!(progress.due_ns, Some(now_ns - 1 + 10 * MS));
    }
    host.set_busy(false);
    settle(&mut device, &mut memory, now_ns + 10 * MS);
    assert_eq!((memory.bytes(), device.counters().busy), (2 * BLOCK, 9));
}

#[test]
fn three_times_busy_then_done_are_four_requests() {
    let host = FakeVirtioMem::new();
    let (mut device, mut memory) = well(&host);
    host.set_requested(BLOCK);
    for _ in 0..3 {
        host.reply(Reply::Answer(2));
    }
    let mut now_ns = 0;
    for _ in 0..3 {
        let progress = settle(&mut device, &mut memory, now_ns);
        assert_eq!((progress.plugged_bytes, memory.bytes()), (0, 0));
        now_ns = progress.due_ns.expect("another try");
    }
    assert!(settle(&mut device, &mut memory, now_ns).is_settled());
    assert_eq!(requests(&host), vec![(PLUG, START, 1); 4]);
}

#[test]
fn nack_is_tried_again_once_for_each_change() {
    let host = FakeVirtioMem::new();
    let (mut device, mut memory) = well(&host);
    host.set_requested(4 * BLOCK);
    for tries in 1..4 {
        host.reply(Reply::Answer(1));
        for hour in 0..10 {
            let progress = settle(&mut device, &mut memory, hour * 3_600_000 * MS);
            assert_eq!((progress.obstacle, progress.due_ns), (Some(Obstacle::Nack), None));
            assert_eq!(requests(&host).len(), tries);
        }
        host.announce();
    }
    assert!(settle(&mut device, &mut memory, 0).is_settled());
    assert_eq!((requests(&host).len(), device.counters().nack), (4, 3));
}

#[test]
fn a_wish_that_falls_while_memory_is_plugged_is_refused_and_then_followed() {
    let host = FakeVirtioMem::new();
    host.set_answers(Answers::OnDemand);
    let (mut device, mut memory) = well(&host);
    host.set_requested(GIB);
    device.step(&mut memory, 0).expect("a device that is well");
    host.set_requested(2 * BLOCK);
    host.set_answers(Answers::AtOnce);
    assert!(host.answer());
    assert!(settle(&mut device, &mut memory, 0).is_settled());
    assert_eq!(requests(&host), [(PLUG, START, 512), (PLUG, START, 2)]);
    assert_eq!(host.asked()[0].verdict, 1);
}

#[test]
fn a_wish_that_falls_after_memory_was_plugged_shrinks_it() {
    let offer = Offer { address: 1 << 40, region_bytes: 300 * GIB, ..Offer::USUAL };
    let host = FakeVirtioMem::offering(offer);
    host.set_answers(Answers::OnDemand);
    let (mut device, mut memory) = well(&host);
    memory.is_honest = false;
    host.set_requested(300 * GIB);
    device.step(&mut memory, 0).expect("a device that is well");
    assert!(host.answer());
    // The device has done it, but the driver does not know yet.
    host.set_requested(GIB);
    host.set_answers(Answers::AtOnce);
    assert!(settle(&mut device, &mut memory, 0).is_settled());
    assert_eq!(requests(&host), [(PLUG, 1 << 40, 65535), (UNPLUG, (1 << 40) + GIB, 65535 - 512)]);
}

#[test]
fn error_breaks_the_device_and_memory_stays() {
    let host = FakeVirtioMem::new();
    let (mut device, mut memory) = well(&host);
    host.set_requested(8 * BLOCK);
    settle(&mut device, &mut memory, 0);
    host.set_requested(16 * BLOCK);
    host.reply(Reply::Answer(3));
    let fault = DeviceFault::Refused { request: RequestKind::Plug };
    device.step(&mut memory, 0).expect("it was sent");
    for _ in 0..3 {
        assert_eq!(device.step(&mut memory, 0), Err(fault));
    }
    assert_eq!(fault.to_string(), "virtio-mem: the device answers ERROR to PLUG");
    assert_eq!((memory.bytes(), memory.out.len()), (8 * BLOCK, 0));
    assert_eq!((device.fault(), requests(&host).len()), (Some(fault), 2));
}

#[test]
fn what_the_adopter_does_not_take_goes_back_and_is_not_asked_for_again() {
    let host = FakeVirtioMem::new();
    let (mut device, mut memory) = well(&host);
    memory.room_bytes = 3 * BLOCK + 4096;
    host.set_requested(8 * BLOCK);
    for hour in 0..3 {
        let progress = settle(&mut device, &mut memory, hour * 3_600_000 * MS);
        assert_eq!((progress.obstacle, progress.due_ns), (Some(Obstacle::Unwanted), None));
        assert_eq!(progress.plugged_bytes, 3 * BLOCK);
    }
    assert_eq!(requests(&host), [(PLUG, START, 8), (UNPLUG, START + 3 * BLOCK, 5)]);
    // Until something happens.
    memory.room_bytes = u64::MAX;
    device.memory_changed();
    assert!(settle(&mut device, &mut memory, 0).is_settled());
    assert_eq!(requests(&host)[2..], [(PLUG, START + 3 * BLOCK, 5)]);
    assert_eq!(memory.bytes(), 8 * BLOCK);
}

/// An adopter that refuses memory at first and says nothing more than how much it takes.
struct Reluctant {
    refusals: u32,
    added: Vec<(u64, u64)>,
}

// SAFETY: these addresses are numbers.
unsafe impl PluggableMemory for Reluctant {
    unsafe fn add(&mut self, start: u64, size: u64) -> u64 {
        self.added.push((start, size));
        let is_refused = self.refusals != 0;
        self.refusals -= u32::from(is_refused);
        if is_refused { 0 } else { size }
    }

    fn remove(&mut self, _most: u64, _unit: u64) -> Removal {
        Removal::Nothing { obstacles: 0 }
    }

    unsafe fn put_back(&mut self, _start: u64, _size: u64) -> bool {
        false
    }
}

#[test]
fn what_the_adopter_may_take_later_is_tried_again_later_and_later() {
    let host = FakeVirtioMem::new();
    let settings = Settings { retry_least_ms: 10, retry_most_ms: 50, ..Settings::default() };
    let mut device =
        Driver::new(host.transport(), settings, &mut nothing).expect("a device that is well");
    let mut memory = Reluctant { refusals: 5, added: Vec::new() };
    let work = |device: &mut Driver, memory: &mut Reluctant, now_ns| {
        for _ in 0..10 {
            // SAFETY: these addresses are numbers.
            unsafe { device.work(memory, now_ns) }.expect("a device that is well");
        }
        // SAFETY: these addresses are numbers.
        unsafe { device.work(memory, now_ns) }.expect("a device that is well")
    };
    host.set_requested(8 * BLOCK);
    let mut now_ns = 1000;
    for (tries, wait_ms) in (1..).zip([10, 20, 40, 50, 50]) {
        let progress = work(&mut device, &mut memory, now_ns);
        assert_eq!((progress.obstacle, progress.plugged_bytes), (Some(Obstacle::Unwanted), 0));
        assert_eq!(progress.due_ns, Some(now_ns + wait_ms * MS));
        // Not a moment earlier.
        work(&mut device, &mut memory, now_ns + wait_ms * MS - 1);
        assert_eq!(memory.added.len(), tries);
        now_ns += wait_ms * MS;
    }
    let progress = work(&mut device, &mut memory, now_ns);
    assert!(progress.is_settled() && progress.plugged_bytes == 8 * BLOCK, "{progress:?}");
    assert_eq!(memory.added, [(START, 8 * BLOCK); 6]);
    // After a success the shortest wait comes first again.
    memory.refusals = 1;
    host.set_requested(16 * BLOCK);
    assert_eq!(work(&mut device, &mut memory, now_ns).due_ns, Some(now_ns + 10 * MS));
    assert!(work(&mut device, &mut memory, now_ns + 10 * MS).is_settled());
}

#[test]
fn an_adopter_that_took_a_part_is_asked_for_the_rest() {
    let host = FakeVirtioMem::new();
    let (mut device, mut memory) = well(&host);
    (memory.room_bytes, memory.may_take_more) = (3 * BLOCK, true);
    host.set_requested(8 * BLOCK);
    let progress = settle(&mut device, &mut memory, 0);
    assert_eq!((progress.obstacle, progress.due_ns), (Some(Obstacle::Unwanted), Some(100 * MS)));
    memory.room_bytes = u64::MAX;
    assert!(settle(&mut device, &mut memory, 100 * MS).is_settled());
    assert_eq!(memory.added[1..], [(START + 3 * BLOCK, 5 * BLOCK)]);
}

/// As a device may whose `plugged_size` is in its configuration, too.
#[test]
fn a_device_that_announces_what_was_plugged_is_not_asked_in_a_circle() {
    for is_unsteady in [false, true] {
        let host = FakeVirtioMem::new();
        let (mut device, _) = well(&host);
        let mut memory = Reluctant { refusals: u32::MAX, added: Vec::new() };
        host.set_requested(8 * BLOCK);
        let mut work = |memory: &mut Reluctant, now_ns| {
            for step in 0..100 {
                // SAFETY: these addresses are numbers.
                let progress = unsafe { device.work(memory, now_ns) }.expect("well");
                if progress.changed {
                    host.announce();
                    device.config_changed();
                }
                // Not before all of the memory is given back.
                let is_idle = !progress.waiting && progress.plugged_bytes == 0;
                host.set_unsteady(is_unsteady && is_idle && step % 2 == 1);
                if is_unsteady && is_idle {
                    host.announce();
                }
            }
            host.set_unsteady(false);
            // SAFETY: these addresses are numbers.
            unsafe { device.work(memory, now_ns) }.expect("well").due_ns
        };
        assert_eq!(work(&mut memory, 0), Some(100 * MS));
        assert_eq!(memory.added.len(), 1);
        // The waits double as if the device had said nothing.
        assert_eq!(work(&mut memory, 100 * MS), Some(300 * MS));
        assert_eq!(memory.added.len(), 2);
        // A new requested size starts anew.
        host.set_requested(4 * BLOCK);
        assert_eq!(work(&mut memory, 101 * MS), Some(201 * MS));
        assert_eq!(memory.added.len(), 3);
    }
}

#[test]
fn what_the_adopter_did_not_take_goes_before_anything_else() {
    let host = FakeVirtioMem::new();
    let (mut device, mut memory) = well(&host);
    memory.room_bytes = 0;
    host.set_requested(8 * BLOCK);
    device.step(&mut memory, 0).expect("a device that is well");
    host.set_busy(true);
    let progress = settle(&mut device, &mut memory, 0);
    assert_eq!((progress.obstacle, progress.plugged_bytes), (Some(Obstacle::Busy), 8 * BLOCK));
    host.set_requested(16 * BLOCK);
    memory.room_bytes = u64::MAX;
    host.set_busy(false);
    assert!(settle(&mut device, &mut memory, 0).is_settled());
    assert_eq!(requests(&host)[2..], [(UNPLUG, START, 8), (PLUG, START, 16)]);
    assert_eq!(memory.bytes(), 16 * BLOCK);
}

#[test]
fn a_full_region_is_said() {
    let host = FakeVirtioMem::new();
    let (mut device, mut memory) = well(&host);
    host.set_requested(8 * BLOCK);
    // Less memory is usable than the specification requires.
    host.say_usable(6 * BLOCK);
    host.say_requested(6 * BLOCK);
    settle(&mut device, &mut memory, 0);
    assert_eq!(requests(&host), [(PLUG, START, 6)]);
    // All usable memory is plugged; the missing part lies beyond a grain.
    let offer = Offer { block_bytes: MIB, address: START + MIB, ..Offer::USUAL };
    let host = FakeVirtioMem::offering(offer);
    let (mut device, mut memory) = well(&host);
    host.set_requested(4 * MIB);
    host.say_usable(4 * MIB);
    let progress = settle(&mut device, &mut memory, 0);
    assert_eq!((progress.plugged_bytes, progress.obstacle), (2 * MIB, Some(Obstacle::NoSpace)));
    host.say_usable(5 * MIB);
    assert!(settle(&mut device, &mut memory, 0).is_settled());
}

#[test]
fn without_memory_for_the_account_nothing_is_plugged() {
    let host = FakeVirtioMem::new();
    let (mut device, mut memory) = well(&host);
    host.set_requested(8 * BLOCK);
    FakeHal::fail_after(Some(0));
    let progress = settle(&mut device, &mut memory, 0);
    assert_eq!(progress.obstacle, Some(Obstacle::NoMemory));
    assert!(requests(&host).is_empty());
    FakeHal::fail_after(None);
    assert!(settle(&mut device, &mut memory, progress.due_ns.expect("soon")).is_settled());
    drop(device);
    nothing_is_left();
}

#[test]
fn silence_is_told_and_changes_nothing() {
    let host = FakeVirtioMem::new();
    host.set_answers(Answers::OnDemand);
    let settings = Settings { answer_ms: 30, ..Settings::default() };
    let mut device =
        Driver::new(host.transport(), settings, &mut nothing).expect("a device that is well");
    let mut memory = Memory::of(&host);
    host.set_requested(8 * BLOCK);
    let silent = Some(Obstacle::Silent);
    // The device is called silent on time, and an answer after that is still looked for.
    for (now_ms, obstacle, due_ms) in [
        (0, None, None),
        (29, None, Some(30)),
        (30, silent, Some(40)),
        (9999, silent, Some(10_009)),
    ] {
        let progress = device.step(&mut memory, now_ms * MS).expect("a device that is well");
        assert_eq!((progress.obstacle, progress.waiting), (obstacle, true));
        assert!(due_ms.is_none_or(|due_ms| progress.due_ns == Some(due_ms * MS)), "{progress:?}");
        assert_eq!((progress.plugged_bytes, memory.bytes()), (0, 0));
    }
    assert!(host.answer());
    let progress = device.step(&mut memory, 10_000 * MS).expect("a device that is well");
    assert!(progress.is_settled() && progress.plugged_bytes == 8 * BLOCK);
}

/// Answers raise no interrupt, so whoever calls when it is due must see them soon.
#[test]
fn answers_are_looked_for_at_growing_intervals() {
    let host = FakeVirtioMem::new();
    host.set_answers(Answers::OnDemand);
    let (mut device, mut memory) = well(&host);
    host.set_requested(BLOCK);
    let (mut now_ns, mut waits) = (3, Vec::new());
    for _ in 0..12 {
        let progress = device.step(&mut memory, now_ns).expect("a device that is well");
        let due_ns = progress.due_ns.expect("it waits");
        waits.push((due_ns - now_ns) / 1000);
        now_ns = due_ns;
    }
    assert_eq!(waits, [50, 50, 100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000, 10_000]);
    // The next request is looked for from the shortest interval on.
    assert!(host.answer());
    host.set_requested(2 * BLOCK);
    let progress = device.step(&mut memory, now_ns).expect("a device that is well");
    assert!(progress.changed && progress.waiting && progress.plugged_bytes == BLOCK);
    assert_eq!(progress.due_ns, Some(now_ns + 50_000));
}

#[test]
fn changes_are_seen_without_interrupts_and_generations() {
    let host = FakeVirtioMem::new();
    host.be_quiet();
    let (mut device, mut memory) = well(&host);
    for blocks in [5, 3, 9] {
        host.set_requested(blocks * BLOCK);
        assert_eq!(settle(&mut device, &mut memory, 0).plugged_bytes, blocks * BLOCK);
    }
}

#[test]
fn a_configuration_that_never_stands_still_is_waited_for() {
    let host = FakeVirtioMem::new();
    let (mut device, mut memory) = well(&host);
    host.set_unsteady(true);
    host.set_requested(BLOCK);
    let progress = settle(&mut device, &mut memory, 0);
    assert_eq!((progress.obstacle, progress.due_ns), (Some(Obstacle::Unsteady), Some(100 * MS)));
    host.set_unsteady(false);
    assert!(settle(&mut device, &mut memory, 0).is_settled());
    assert_eq!(memory.bytes(), BLOCK);
}
