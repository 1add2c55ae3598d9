//! Random histories of all operations together, against a model: the driver, memory, and a host
//! that is slow, changes its mind and is reset.

use crate::common::{Driver, Memory, WithMemory as _, as_told, nothing_is_left, start};
use framewright_balloon::Token;
use framewright_testkit::balloon::{Answers, FakeBalloon, Lie, Offer};
use proptest::prelude::*;
use std::collections::BTreeMap;

const FRAMES: usize = 6000;

#[derive(Clone, Debug)]
enum Step {
    Target(u32),
    Work(u8),
    Report(u8),
    Poll,
    Answer(u8),
    AnswerReport(u8),
    Slow(bool),
    Fragment(bool),
    Relieve(u16),
    AskStatistics,
    Lie(Lie),
    SlowReset(u8),
    Reset,
    Stop,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let lies = prop_oneof![
        Just(Lie::OtherDescriptor),
        Just(Lie::NoDescriptor),
        (2i16..100).prop_map(Lie::Ahead),
        Just(Lie::Ahead(-2)),
        Just(Lie::Wrote(u32::MAX)),
    ];
    let step = prop_oneof![
        4 => (0u32..8000).prop_map(Step::Target),
        8 => (1u8..12).prop_map(Step::Work),
        6 => (1u8..33).prop_map(Step::Report),
        6 => Just(Step::Poll),
        4 => (1u8..4).prop_map(Step::Answer),
        4 => (0u8..4).prop_map(Step::AnswerReport),
        2 => any::<bool>().prop_map(Step::Slow),
        1 => any::<bool>().prop_map(Step::Fragment),
        1 => (0u16..3000).prop_map(Step::Relieve),
        1 => Just(Step::AskStatistics),
        1 => lies.prop_map(Step::Lie),
        1 => (0u8..5).prop_map(Step::SlowReset),
        1 => Just(Step::Reset),
        1 => Just(Step::Stop),
    ];
    prop::collection::vec(step, 1..80)
}

/// The model's state.
struct Model {
    host: FakeBalloon,
    memory: Memory,
    /// The reports in flight and their ranges.
    reports: BTreeMap<Token, Vec<(u64, u32)>>,
    /// The reports that came back, as the host lists them.
    answered: Vec<Vec<(u64, u32)>>,
    next_block: u64,
    /// Reports that a reset ended: the host may have answered, but the driver was not told.
    cut_off: bool,
    /// Whether the host may name a report in flight when it means another, which the driver cannot
    /// detect.
    misnames: bool,
}

impl Model {
    fn report(&mut self, balloon: &mut Driver, count: u8) {
        let ranges: Vec<(u64, u32)> =
            (0..u64::from(count)).map(|n| ((self.next_block + n) << 21, 2 << 20)).collect();
        self.next_block += u64::from(count);
        let room = balloon.reports_in_flight();
        // SAFETY: these ranges are numbers; no memory is behind them.
        match unsafe { balloon.submit(&ranges) } {
            Ok(token) => {
                assert!(self.reports.insert(token, ranges).is_none(), "a token comes twice")
            }
            Err(_) => assert_eq!(balloon.reports_in_flight(), room),
        }
    }

    fn poll(&mut self, balloon: &mut Driver) {
        while let Ok(Some(completion)) = balloon.poll() {
            let ranges = self.reports.remove(&completion.token).expect("it was on its way");
            self.answered.push(ranges);
        }
    }

    fn reset(&mut self, balloon: &mut Driver) {
        while !balloon.try_reset().expect("the device is as before") {
            assert_eq!(
                balloon.reports_in_flight(),
                self.reports.len(),
                "nothing comes back before the reset is complete"
            );
        }
        self.reports.clear();
        self.cut_off = true;
    }

    fn check(&self, balloon: &Driver) {
        assert_eq!(self.memory.free.len() + self.memory.taken.len(), FRAMES);
        if balloon.fault().is_none() {
            assert_eq!(balloon.reports_in_flight(), self.reports.len());
            assert!(self.host.is_running());
        }
        let reports = self.host.reports();
        assert!(self.cut_off || self.answered.len() <= reports.len());
        assert!(
            self.misnames || self.answered.iter().all(|ranges| reports.contains(ranges)),
            "an answer that the host did not give"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(300)
    })]

    #[test]
    fn nothing_is_lost_and_nothing_comes_back_too_early(
        steps in steps(),
        features in 0u64..64,
        reporting_size in prop_oneof![Just(32u32), Just(128)],
    ) {
        let host = FakeBalloon::offering(Offer { reporting_size, ..Offer::with(features) });
        let mut balloon = start(&host).expect("a device that is well");
        let mut model = Model {
            host: host.clone(),
            memory: Memory::of(0..FRAMES as u64),
            reports: BTreeMap::new(),
            answered: Vec::new(),
            next_block: 1,
            cut_off: false,
            misnames: false,
        };
        for step in steps {
            match step {
                Step::Target(pages) => host.set_target(pages),
                Step::Work(times) => {
                    for _ in 0..times {
                        let _ = balloon.work_with(&mut model.memory, &mut |tag| Some(tag as u64));
                    }
                }
                Step::Report(count) => model.report(&mut balloon, count),
                Step::Poll => model.poll(&mut balloon),
                Step::Answer(count) => {
                    host.answer(count.into());
                }
                Step::AnswerReport(number) => {
                    let _ = host.answer_report(number.into());
                }
                Step::Slow(slow) => {
                    host.set_answers(if slow { Answers::OnDemand } else { Answers::AtOnce })
                }
                Step::Fragment(on) => model.memory.no_large = on,
                Step::Relieve(pages) => {
                    balloon.relieve(pages.into());
                }
                Step::AskStatistics => {
                    let _ = host.ask_for_statistics();
                }
                Step::Lie(lie) => {
                    model.misnames |= matches!(lie, Lie::OtherDescriptor);
                    host.lie(lie);
                }
                Step::SlowReset(looks) => host.set_reset_looks(Some(looks.into())),
                Step::Reset => model.reset(&mut balloon),
                Step::Stop => {
                    while !balloon.stop_with(&mut model.memory) {}
                    prop_assert!(model.memory.taken.is_empty());
                    model.reports.clear();
                    model.reset(&mut balloon);
                }
            }
            model.check(&balloon);
        }
        // Lies that are still to be told, and the consequences of those already told.
        host.stop_lying();
        model.reset(&mut balloon);
        host.set_answers(Answers::AtOnce);
        while host.answer(1) > 0 {}
        model.memory.no_large = false;
        host.set_target(1000);
        crate::common::settle(&mut balloon, &mut model.memory);
        prop_assert_eq!(model.memory.taken.len(), 1000);
        // Frames that only the host counts were in the balloon when it was stopped; a reset means
        // that they are the guest's.
        prop_assert!(as_told(&model.memory.taken).is_subset(&host.balloon()));
        while !balloon.stop_with(&mut model.memory) {}
        prop_assert_eq!(model.memory.free.len(), FRAMES);
        drop(balloon);
        nothing_is_left();
    }
}
