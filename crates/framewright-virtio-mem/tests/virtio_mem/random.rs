//! Random histories against a model: requested sizes, answers, refusals, memory in use, resets. At
//! every moment memory in use is plugged, and no request names a block in the wrong state; once all
//! is quiet the plugged size is the requested size.

use crate::common::{
    BLOCK, Driver, Memory, Use, WithMemory as _, nothing, nothing_is_left, requests, settle,
};
use framewright_testkit::virtio_mem::{Answers, FakeVirtioMem, Offer, Reply};
use framewright_virtio_mem::{Obstacle, Settings};
use proptest::prelude::*;

/// The number of blocks in the region.
const BLOCKS: u64 = 300;

#[derive(Clone, Debug)]
enum Step {
    Wish(u64),
    Work(u8),
    Answer,
    Slow(bool),
    Busy(bool),
    BusyOnce,
    NackOnce,
    Lose,
    Room(u64),
    Use(u16, u8),
    Mover(bool),
    TakeBack(bool),
    MemoryChanged,
    ConfigChanged,
    Wait(u32),
    Reset,
    Stop,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0..=BLOCKS).prop_map(Step::Wish),
        12 => (1u8..6).prop_map(Step::Work),
        6 => Just(Step::Answer),
        2 => any::<bool>().prop_map(Step::Slow),
        1 => any::<bool>().prop_map(Step::Busy),
        2 => Just(Step::BusyOnce),
        1 => Just(Step::NackOnce),
        1 => Just(Step::Lose),
        2 => (0..BLOCKS).prop_map(Step::Room),
        8 => (any::<u16>(), 0u8..3).prop_map(|(unit, what)| Step::Use(unit, what)),
        1 => any::<bool>().prop_map(Step::Mover),
        1 => any::<bool>().prop_map(Step::TakeBack),
        2 => Just(Step::MemoryChanged),
        2 => Just(Step::ConfigChanged),
        4 => (0u32..20_000).prop_map(Step::Wait),
        1 => Just(Step::Reset),
        1 => Just(Step::Stop),
    ];
    prop::collection::vec(step, 1..100)
}

struct Model {
    host: FakeVirtioMem,
    memory: Memory,
    now_ns: u64,
}

impl Model {
    fn check(&self, device: &Driver) {
        self.memory.check();
        // Besides memory in use, only memory that is being added or removed is plugged.
        assert!(self.memory.bytes() <= device.plugged_bytes());
        assert!(self.host.asked().iter().all(|asked| asked.verdict != 3), "a wrong request");
        assert_eq!(device.fault(), None);
    }

    fn run(&mut self, device: &mut Driver, step: &Step) {
        let Self { host, memory, now_ns } = self;
        match *step {
            Step::Wish(blocks) => host.set_requested(blocks * BLOCK),
            Step::Work(times) => {
                for _ in 0..times {
                    let progress = device.step(memory, *now_ns).expect("a device that is well");
                    assert_eq!(progress.plugged_bytes, device.plugged_bytes());
                }
            }
            Step::Answer => {
                host.answer();
            }
            Step::Slow(slow) => {
                host.set_answers(if slow { Answers::OnDemand } else { Answers::AtOnce });
            }
            Step::Busy(on) => host.set_busy(on),
            Step::BusyOnce => host.reply(Reply::Answer(2)),
            Step::NackOnce => host.reply(Reply::NackPlug),
            Step::Lose => host.reply(Reply::Lose),
            Step::Room(blocks) => memory.room_bytes = blocks * BLOCK,
            Step::Use(unit, what) => {
                let count = memory.units.len();
                if count > 0 {
                    let what = [Use::Free, Use::Movable, Use::Pinned][usize::from(what)];
                    memory.use_unit(usize::from(unit) % count, what);
                }
            }
            Step::Mover(on) => memory.can_move = on,
            Step::TakeBack(on) => memory.takes_back = on,
            Step::MemoryChanged => device.memory_changed(),
            Step::ConfigChanged => device.config_changed(),
            Step::Wait(ms) => *now_ns += u64::from(ms) * 1_000_000,
            Step::Reset => device.reset().expect("a device that is well"),
            Step::Stop => {
                assert!(device.stop());
                device.reset().expect("a device that is well");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(400)
    })]

    #[test]
    fn memory_in_use_is_plugged_and_wishes_are_followed(
        steps in steps(),
        left in 0u64..20,
        queue_size in prop_oneof![Just(2u32), Just(128)],
        wish in 0..=BLOCKS,
    ) {
        let offer = Offer { region_bytes: BLOCKS * BLOCK, queue_size, ..Offer::USUAL };
        let host = FakeVirtioMem::offering(offer);
        host.set_requested(left * BLOCK);
        host.leave_plugged(0..left);
        let mut device = Driver::new(host.transport(), Settings::default(), &mut nothing)
            .expect("a device that is well");
        let mut model = Model { host: host.clone(), memory: Memory::of(&host), now_ns: 0 };
        for step in &steps {
            model.run(&mut device, step);
            model.check(&device);
        }
        // A quiet phase: the device answers and the adopter accepts.
        let Model { mut memory, now_ns, .. } = model;
        host.stop_replying();
        host.set_busy(false);
        host.set_answers(Answers::AtOnce);
        device.reset().expect("a device that is well");
        memory.room_bytes = u64::MAX;
        memory.can_move = true;
        let pinned = memory.units.values().filter(|&&what| what == Use::Pinned).count() as u64;
        host.set_requested(wish * BLOCK);
        let progress = settle(&mut device, &mut memory, now_ns);
        prop_assert_eq!(host.plugged_bytes(), wish.max(pinned) * BLOCK);
        prop_assert_eq!((memory.bytes(), progress.plugged_bytes), {
            (host.plugged_bytes(), host.plugged_bytes())
        });
        let obstacle = (pinned > wish).then_some(Obstacle::InUse { obstacles: pinned });
        prop_assert_eq!(progress.obstacle, obstacle);
        // All memory becomes free: one request for each run.
        memory.use_all(Use::Free);
        let mut runs = 0;
        let mut end = 0;
        for &unit in memory.units.keys() {
            runs += usize::from(unit != end);
            end = unit + BLOCK;
        }
        let before = requests(&host).len();
        host.set_requested(0);
        prop_assert!(settle(&mut device, &mut memory, now_ns).is_settled());
        prop_assert_eq!(requests(&host).len() - before, runs);
        prop_assert_eq!((host.plugged_bytes(), memory.bytes()), (0, 0));
        prop_assert!(host.asked().iter().all(|asked| asked.verdict != 3), "a wrong request");
        drop(device);
        nothing_is_left();
    }
}
