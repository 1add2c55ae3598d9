//! The pattern `mixed`: requests of all sizes in bursts, then frees of random runs until memory is
//! as full as before.

use super::trace::{ALL_SIZES, Burst, Length, Mix, Recorder, Trace, draw};
use crate::bench::random::Random;

/// The most requests of a burst.
pub const MOST_IN_BURST: usize = 256;

/// Records the trace of a thread that holds about `pages` pages.
pub fn record(seed: u64, pages: u64, length: Length) -> Trace {
    record_of((&ALL_SIZES, MOST_IN_BURST), seed, pages, length)
}

/// Works like [`record`], with another mix and at most this many requests in a burst.
pub fn record_of(
    (mix, most_in_burst): (&Mix, usize),
    seed: u64,
    pages: u64,
    length: Length,
) -> Trace {
    let mut random = Random::new(seed);
    let mut recorder = Recorder::default();
    while recorder.pages() < pages {
        recorder.get(draw(&mut random, mix));
    }
    let fill = recorder.end();
    let segments = (0..length.segments).map(|_| {
        while recorder.steps() < length.operations {
            for _ in 0..=random.below(most_in_burst) {
                recorder.get(draw(&mut random, mix));
            }
            while recorder.pages() > pages {
                let run = recorder.any(&mut random);
                recorder.put(run);
            }
        }
        vec![Burst::timed(recorder.end())]
    });
    Trace { segments: segments.collect(), fill, starts_over: false }
}

#[cfg(test)]
mod tests {
    use super::super::trace::{Step, check};
    use super::*;

    #[test]
    fn a_trace_is_the_mix_and_keeps_memory_as_full_as_it_was() {
        let trace = record(1, 50_000, check::SHORT);
        assert_eq!(trace, record(1, 50_000, check::SHORT));
        let mut of_order = [0_u64; 10];
        for step in check::timed(&trace) {
            if let Step::Get(order) = step {
                of_order[usize::from(order.get())] += 1;
            }
        }
        for threads in check::follow(std::slice::from_ref(&trace)) {
            let used: u64 = threads[0].iter().map(|order| order.pages()).sum();
            assert!((50_000 - 512..50_000 + 512).contains(&used), "{used} pages");
        }
        let asked: u64 = of_order.iter().sum();
        let percent = |orders: std::ops::RangeInclusive<usize>| {
            of_order[orders].iter().sum::<u64>() * 100 / asked
        };
        assert!((67..73).contains(&percent(0..=0)), "{of_order:?}");
        assert!((8..12).contains(&percent(1..=3)) && (8..12).contains(&percent(4..=8)));
        assert!((8..12).contains(&percent(9..=9)), "{of_order:?}");
    }
}
