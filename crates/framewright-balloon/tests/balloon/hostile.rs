//! A host that writes anything, at any time, wherever it can: to every byte of memory that devices
//! reach, and to its own configuration. The model checks that every frame that is given back was in
//! the balloon, and that every report that comes back was in flight.

use crate::common::{Driver, Memory, WithMemory as _, nothing_is_left, start};
use framewright_balloon::Token;
use framewright_testkit::balloon::{FakeBalloon, Offer};
use proptest::prelude::*;
use std::collections::BTreeSet;

const FRAMES: u64 = 6000;

#[derive(Clone, Debug)]
enum Step {
    Overwrite(u64),
    Target(u32),
    Work(u8),
    Relieve(u16),
    Report(u8),
    Poll,
    Fragment(bool),
    AskForReset,
    SlowReset(u8),
    Reset,
    Stop,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let target = prop_oneof![0u32..8000, Just(0u32), Just(u32::MAX)];
    let step = prop_oneof![
        8 => any::<u64>().prop_map(Step::Overwrite),
        4 => target.prop_map(Step::Target),
        8 => (1u8..12).prop_map(Step::Work),
        1 => (0u16..3000).prop_map(Step::Relieve),
        3 => (1u8..33).prop_map(Step::Report),
        3 => Just(Step::Poll),
        1 => any::<bool>().prop_map(Step::Fragment),
        1 => Just(Step::AskForReset),
        1 => (0u8..5).prop_map(Step::SlowReset),
        4 => Just(Step::Reset),
        1 => Just(Step::Stop),
    ];
    prop::collection::vec(step, 1..80)
}

/// Random numbers as a hostile host would choose them: most may get past a check, some are
/// arbitrary.
fn random(seed: u64) -> impl FnMut() -> u16 {
    let mut state = seed | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let [low, high, choice, ..] = state.to_le_bytes();
        match choice % 8 {
            0 => u16::from_le_bytes([low, high]),
            1 => u16::from(low % 8),
            2..5 => u16::from(low % 2),
            _ => 0,
        }
    }
}

fn reset(balloon: &mut Driver, reports: &mut BTreeSet<Token>) {
    while !balloon.try_reset().expect("it offers what it did") {}
    reports.clear();
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(300)
    })]

    #[test]
    fn only_what_was_in_the_balloon_comes_out(steps in steps(), features in 0u64..64) {
        let host = FakeBalloon::offering(Offer::with(features));
        let mut balloon = start(&host).expect("a device that is well");
        host.turn_hostile();
        // `give_back` of this memory fails for a frame that was not taken.
        let mut memory = Memory::of(0..FRAMES);
        let mut reports = BTreeSet::new();
        let mut next_block = 1;
        for step in steps {
            match step {
                Step::Overwrite(seed) => host.overwrite(&mut random(seed)),
                Step::Target(pages) => host.set_target(pages),
                Step::Work(times) => {
                    for turn in 0..times {
                        host.overwrite(&mut random(u64::from(turn) << 32 | next_block));
                        let _ = balloon.work_with(&mut memory, &mut |tag| Some(tag as u64));
                    }
                }
                Step::Relieve(pages) => {
                    balloon.relieve(pages.into());
                }
                Step::Report(count) => {
                    let block = |number: u64| ((next_block + number) << 21, 2 << 20);
                    let ranges: Vec<_> = (0..u64::from(count)).map(block).collect();
                    next_block += u64::from(count);
                    // SAFETY: these ranges are numbers; no memory is behind them.
                    if let Ok(token) = unsafe { balloon.submit(&ranges) } {
                        prop_assert!(reports.insert(token));
                    }
                }
                Step::Poll => {
                    while let Ok(Some(completion)) = balloon.poll() {
                        prop_assert!(
                            reports.remove(&completion.token),
                            "a report that was not on its way"
                        );
                    }
                }
                Step::Fragment(on) => memory.no_large = on,
                Step::AskForReset => host.ask_for_reset(),
                Step::SlowReset(looks) => host.set_reset_looks(Some(looks.into())),
                Step::Reset => reset(&mut balloon, &mut reports),
                Step::Stop => {
                    while !balloon.stop_with(&mut memory) {}
                    prop_assert!(memory.taken.is_empty());
                    reset(&mut balloon, &mut reports);
                }
            }
            prop_assert_eq!(
                memory.free.len() + memory.taken.len(),
                usize::try_from(FRAMES).expect("few")
            );
            if balloon.fault().is_none() {
                prop_assert_eq!(balloon.reports_in_flight(), reports.len());
            }
        }
        // Whatever the host did, all frames of the balloon come back, once.
        host.set_reset_looks(Some(0));
        while !balloon.stop_with(&mut memory) {}
        prop_assert!(memory.taken.is_empty());
        prop_assert_eq!(memory.free.len(), usize::try_from(FRAMES).expect("few"));
        drop(balloon);
        nothing_is_left();
    }
}
