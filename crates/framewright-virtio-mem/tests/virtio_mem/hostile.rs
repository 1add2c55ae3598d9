//! A host that writes anything, at any time, wherever it can: to every byte of memory that devices
//! reach, and to its own configuration. The model checks that memory is in use only once, that only
//! removed memory comes back, and that nothing panics.

use crate::common::{BLOCK, GIB, Memory, START, Use, WithMemory as _, nothing_is_left, start};
use framewright_testkit::virtio_mem::{FakeHal, FakeVirtioMem};
use framewright_virtio_mem::Progress;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Overwrite(u64),
    /// An answer to any request, right or wrong.
    Forge(u32, u32, u16, u16),
    /// An answer that a pending request is done, and a configuration that agrees with it.
    Grant,
    /// A configuration that keeps all the rules.
    Sound(u64),
    Requested(u64),
    Usable(u64),
    Plugged(u64),
    Unsteady(bool),
    Announce,
    Work(u8),
    Wait(u16),
    Use(u8, bool),
    AskForReset,
    Reset,
    Stop,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let size = prop_oneof![
        4 => (0..1025u64).prop_map(|blocks| blocks * BLOCK),
        1 => any::<u64>(),
    ];
    let forged = (
        prop_oneof![8 => Just(0u32), 1 => any::<u32>()],
        prop_oneof![8 => Just(10u32), 1 => any::<u32>()],
        prop_oneof![16 => Just(0u16), 8 => 0u16..4, 1 => any::<u16>()],
        prop_oneof![8 => 0u16..3, 1 => any::<u16>()],
    );
    let step = prop_oneof![
        2 => any::<u64>().prop_map(Step::Overwrite),
        1 => forged.prop_map(|(id, bytes, answer, state)| Step::Forge(id, bytes, answer, state)),
        32 => Just(Step::Grant),
        16 => (0..1025u64).prop_map(|blocks| Step::Sound(blocks * BLOCK)),
        1 => size.clone().prop_map(Step::Requested),
        1 => size.clone().prop_map(Step::Usable),
        1 => size.prop_map(Step::Plugged),
        1 => any::<bool>().prop_map(Step::Unsteady),
        2 => Just(Step::Announce),
        24 => (1u8..4).prop_map(Step::Work),
        2 => any::<u16>().prop_map(Step::Wait),
        2 => (any::<u8>(), any::<bool>()).prop_map(|(unit, pin)| Step::Use(unit, pin)),
        1 => Just(Step::AskForReset),
        4 => Just(Step::Reset),
        1 => Just(Step::Stop),
    ];
    prop::collection::vec(step, 1..100)
}

/// Numbers that are more often plausible answers and used-ring entries than chance would give.
fn noise(seed: u64) -> impl FnMut() -> u16 {
    let mut state = seed | 1;
    move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let word = u16::try_from(state >> 48).unwrap_or(0);
        if seed & 2 == 0 { word & 3 } else { word }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(400)
    })]

    #[test]
    fn no_host_can_do_harm(steps in steps(), plugged in 0u64..4) {
        let host = FakeVirtioMem::new();
        host.leave_plugged(0..plugged);
        host.set_requested(GIB);
        let mut device = start(&host).expect("a device that is well");
        let mut memory = Memory::of(&host);
        // The test starts with honest work, so that there is memory to lose.
        for _ in 0..4 {
            device.step(&mut memory, 0).expect("a device that is well");
        }
        prop_assert_eq!(memory.bytes(), GIB);
        memory.is_honest = false;
        host.turn_hostile();
        let (mut now_ns, mut asked, mut promised) = (0, None::<Progress>, None);
        for step in steps {
            match step {
                Step::Overwrite(seed) => host.overwrite(&mut noise(seed)),
                Step::Forge(id, written, answer, state) => host.forge(id, written, answer, state),
                Step::Grant => {
                    if let Some(progress) = asked.take() {
                        host.forge(0, 10, 0, 0);
                        host.say_plugged(progress.requested_bytes);
                        promised = Some(progress.requested_bytes);
                    }
                }
                Step::Sound(bytes) => {
                    host.say_usable(2 * GIB);
                    host.say_requested(bytes);
                    host.say_plugged(promised.unwrap_or(device.plugged_bytes()));
                }
                Step::Requested(bytes) => host.say_requested(bytes),
                Step::Usable(bytes) => host.say_usable(bytes),
                Step::Plugged(bytes) => host.say_plugged(bytes),
                Step::Unsteady(on) => host.set_unsteady(on),
                Step::Announce => host.announce(),
                Step::Work(times) => {
                    for _ in 0..times {
                        let progress = device.step(&mut memory, now_ns);
                        promised = None;
                        asked = progress.ok().filter(|progress| progress.waiting);
                    }
                }
                Step::Wait(ms) => now_ns += u64::from(ms) * 1_000_000,
                Step::Use(unit, pin) => {
                    let count = memory.units.len();
                    if count > 0 {
                        let what = if pin { Use::Pinned } else { Use::Movable };
                        memory.use_unit(usize::from(unit) % count, what);
                    }
                }
                Step::AskForReset => host.ask_for_reset(),
                Step::Reset => {
                    let _ = device.try_reset();
                }
                Step::Stop => {
                    device.stop();
                }
            }
            // Whatever the host says, memory lies inside the region and is counted once.
            prop_assert!(memory.units.keys().all(|unit| (START..START + 2 * GIB).contains(unit)));
            prop_assert!(memory.units.keys().all(|unit| !memory.out.contains(unit)));
            prop_assert!(memory.bytes() <= device.plugged_bytes());
            prop_assert!(device.plugged_bytes() <= 2 * GIB);
        }
        prop_assert_eq!(FakeHal::violations(), [""; 0]);
        drop(device);
        nothing_is_left();
    }
}
