//! The pattern `producer/consumer`: one CPU allocates and another frees, like a network card's
//! interrupt and the program that reads.

use super::trace::{Burst, Length, Mix, Recorder, Trace, draw};
use crate::bench::random::Random;
use framewright::units::Order;

/// The number of runs that pass at once.
const IN_BURST: usize = 256;
/// Requests for single pages only.
pub const PAGES: Mix = [(100, 0..=0), (0, 1..=3), (0, 4..=8), (0, 9..=9)];

/// Records both threads, each of which first allocates about `pages` pages and keeps them.
pub fn record(mix: &Mix, pages: u64, length: Length) -> Vec<Trace> {
    let [mut producer, mut consumer] = [0, 1].map(|seed| Side::new(seed, pages));
    let mut random = Random::new(2);
    let bursts = length.operations.div_ceil(IN_BURST);
    for _ in 0..length.segments {
        let mut allocating = Vec::with_capacity(bursts);
        // The consumer begins with a wait.
        let wait = Burst { takes: true, ..Burst::timed(Vec::new()) };
        let mut freeing = vec![wait];
        for burst in 1..=bursts {
            let orders: Vec<_> = (0..IN_BURST).map(|_| draw(&mut random, mix)).collect();
            allocating.push(producer.allocate(&orders));
            // Runs are given in reverse, so that they are freed in the order in which they were
            // allocated.
            let takes = burst < bursts;
            freeing.push(Burst { takes, ..consumer.free(&orders) });
        }
        producer.trace.segments.push(allocating);
        consumer.trace.segments.push(freeing);
    }
    vec![producer.trace, consumer.trace]
}

/// One of the two threads.
struct Side {
    recorder: Recorder,
    trace: Trace,
}

impl Side {
    fn new(seed: u64, pages: u64) -> Self {
        let mut recorder = Recorder::default();
        recorder.fill(&mut Random::new(seed), pages);
        let fill = recorder.end();
        Self { recorder, trace: Trace { fill, ..Trace::default() } }
    }

    /// Allocates runs and gives all of them away at once, the last one first.
    fn allocate(&mut self, orders: &[Order]) -> Burst {
        let ids: Vec<_> = orders.iter().map(|&order| self.recorder.get(order)).collect();
        let gives = ids.iter().rev().map(|&id| self.recorder.give(id).0).collect();
        Burst { gives: Some(gives), ..Burst::timed(self.recorder.end()) }
    }

    /// Frees the runs that the other side gave.
    fn free(&mut self, orders: &[Order]) -> Burst {
        let ids: Vec<_> = orders.iter().rev().map(|&order| self.recorder.take(order)).collect();
        ids.iter().rev().for_each(|&id| self.recorder.put(id));
        Burst::timed(self.recorder.end())
    }
}

#[cfg(test)]
mod tests {
    use super::super::trace::{ALL_SIZES, Step, check};
    use super::*;

    #[test]
    fn one_allocates_and_the_other_frees() {
        for mix in [&PAGES, &ALL_SIZES] {
            let traces = record(mix, 1000, check::SHORT);
            assert!(check::timed(&traces[0]).all(|step| matches!(step, Step::Get(_))));
            assert!(check::timed(&traces[1]).all(|step| matches!(step, Step::Put(_))));
            let counts = traces.iter().map(|trace| check::timed(trace).count());
            assert!(counts.eq([4 << 13; 2]));
            let kept = traces.iter().map(|trace| trace.fill.len());
            let kept: Vec<usize> = kept.collect();
            for held in check::follow(&traces) {
                assert!(held.iter().map(Vec::len).eq(kept.iter().copied()));
            }
        }
    }
}
