//! The pattern `boot`: a kernel that boots. It requests many small unmovable runs and few large
//! ones, frees hardly any, and at its end frees some runs that only the boot needed.

use super::trace::{Burst, Length, Mix, Recorder, Trace, draw};
use crate::bench::random::Random;

/// Slabs and page tables, stacks, buffers of drivers, hash tables.
const EARLY: Mix = [(86, 0..=0), (11, 1..=3), (2, 4..=8), (1, 9..=9)];
/// One of this many requests is followed by a free.
const SELDOM: usize = 32;
/// One of this many runs is freed at the end.
const NOT_KEPT: usize = 8;

/// Records a boot for each segment, on one CPU, as the others come up later.
pub fn record(length: Length) -> Trace {
    let mut random = Random::new(0);
    let segments = (0..length.segments).map(|_| {
        let mut recorder = Recorder::default();
        let requests = length.operations * NOT_KEPT / (NOT_KEPT + 1);
        while recorder.steps() < requests {
            recorder.get(draw(&mut random, &EARLY));
            if random.below(SELDOM) == 0 {
                let run = recorder.any(&mut random);
                recorder.put(run);
            }
        }
        for _ in 0..recorder.runs() / NOT_KEPT {
            let run = recorder.any(&mut random);
            recorder.put(run);
        }
        let boot = Burst::timed(recorder.end());
        while let Some(run) = recorder.last() {
            recorder.put(run);
        }
        vec![boot, Burst { is_timed: false, ..Burst::timed(recorder.end()) }]
    });
    Trace { segments: segments.collect(), fill: Vec::new(), starts_over: true }
}

#[cfg(test)]
mod tests {
    use super::super::trace::{Step, check};
    use super::*;

    #[test]
    fn a_boot_keeps_most_and_its_end_leaves_nothing() {
        let trace = record(check::SHORT);
        assert!(check::follow(std::slice::from_ref(&trace)).iter().all(|held| held[0].is_empty()));
        let gets = check::timed(&trace).filter(|step| matches!(step, Step::Get(_))).count();
        let puts = check::timed(&trace).count() - gets;
        assert!((5..9).contains(&(gets / puts)), "{gets} {puts}");
    }
}
