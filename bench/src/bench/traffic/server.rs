//! The pattern `server`: runs with random lifetimes, most of them short and some long, as in
//! Larson's benchmark, and threads that hand some of their runs to the next thread.
//!
//! At any age, the chance that a run lives twice as long is a half: Pareto's law with exponent 1,
//! whose tail is heavy.

use super::trace::{Burst, Id, Length, Mix, Recorder, Trace, draw};
use crate::bench::random::Random;
use framewright::units::Order;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Small orders: slabs, stacks and page tables.
const SMALL: Mix = [(70, 0..=0), (15, 1..=1), (10, 2..=2), (5, 3..=3)];
/// The number of requests in a burst.
const IN_BURST: usize = 256;
/// One of this many runs is handed over.
const HANDED_OVER: usize = 8;
/// The shortest lifetime, in requests of a thread.
const SHORTEST: u64 = 512;

/// Records all threads, each of which first allocates about `pages` pages and keeps them.
pub fn record(threads: usize, pages: u64, length: Length) -> Vec<Trace> {
    let longest = 2 * length.operations as u64;
    let mut servers: Vec<Server> =
        (0..threads as u64).map(|seed| Server::new(seed, pages, longest)).collect();
    let mut now = longest;
    // Each request comes with a free.
    let bursts = length.operations.div_ceil(2 * IN_BURST);
    for _ in 0..length.segments {
        servers.iter_mut().for_each(|server| server.trace.segments.push(Vec::new()));
        for _ in 0..bursts {
            for server in &mut servers {
                (now..).take(IN_BURST).for_each(|now| server.request(now, threads > 1));
            }
            now += IN_BURST as u64;
            let passed: Vec<_> = servers.iter_mut().map(Server::end).collect();
            for (index, runs) in passed.into_iter().enumerate() {
                servers[(index + 1) % threads].take(now, &runs);
            }
        }
    }
    servers.into_iter().map(|server| server.trace).collect()
}

/// A run that is handed over, and when it is freed.
type Handed = (Order, u64);

/// A thread.
struct Server {
    random: Random,
    recorder: Recorder,
    trace: Trace,
    /// The times at which runs are freed, the next one on top.
    ends: BinaryHeap<Reverse<(u64, Id)>>,
    /// The runs that the next thread gets, and when they are freed.
    leaving: Vec<(Id, u64)>,
    /// The longest lifetime of a run, in requests.
    longest: u64,
}

impl Server {
    /// Makes a thread that has already worked for the longest lifetime, so that it holds as many
    /// runs as it ever will.
    fn new(seed: u64, pages: u64, longest: u64) -> Self {
        let mut this = Self {
            random: Random::new(seed),
            recorder: Recorder::default(),
            trace: Trace::default(),
            ends: BinaryHeap::new(),
            leaving: Vec::new(),
            longest,
        };
        this.recorder.fill(&mut this.random, pages);
        (0..longest).for_each(|now| this.request(now, false));
        this.trace.fill = this.recorder.end();
        this
    }

    /// Records a request, and the frees that are due.
    fn request(&mut self, now: u64, hands_over: bool) {
        let id = self.recorder.get(draw(&mut self.random, &SMALL));
        let end = now + self.life();
        if hands_over && self.random.below(HANDED_OVER) == 0 {
            self.leaving.push((id, end));
        } else {
            self.ends.push(Reverse((end, id)));
        }
        while let Some(&Reverse((end, id))) = self.ends.peek()
            && end <= now
        {
            self.ends.pop();
            self.recorder.put(id);
        }
    }

    /// Draws the lifetime of a run.
    fn life(&mut self) -> u64 {
        let mut least = SHORTEST;
        while 2 * least < self.longest && self.random.below(2) == 0 {
            least *= 2;
        }
        let above = self.random.below(usize::try_from(least).unwrap_or(usize::MAX));
        (least + above as u64).min(self.longest)
    }

    /// Ends a burst. Returns the runs that are handed over.
    fn end(&mut self) -> Vec<Handed> {
        let leaving = std::mem::take(&mut self.leaving);
        let (gives, runs) = leaving
            .into_iter()
            .map(|(id, end)| {
                let (place, order) = self.recorder.give(id);
                (place, (order, end))
            })
            .unzip();
        let burst = Burst { gives: Some(gives), takes: true, ..Burst::timed(self.recorder.end()) };
        if let Some(segment) = self.trace.segments.last_mut() {
            segment.push(burst);
        }
        runs
    }

    /// Takes over the runs that another thread handed over.
    fn take(&mut self, now: u64, runs: &[Handed]) {
        for &(order, end) in runs {
            let id = self.recorder.take(order);
            self.ends.push(Reverse((end.max(now), id)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::trace::{Step, check};
    use super::*;

    #[test]
    fn a_server_holds_about_as_much_all_the_time() {
        for threads in [1, 3] {
            let traces = record(threads, 1000, check::SHORT);
            let again = record(threads, 1000, check::SHORT);
            assert_eq!(traces, again);
            let held = check::follow(&traces);
            let counts: Vec<usize> = held.iter().flatten().map(Vec::len).collect();
            assert!(counts.iter().all(|&count| (1000..5000).contains(&count)), "{counts:?}");
            for trace in &traces {
                let gets = check::timed(trace).filter(|step| matches!(step, Step::Get(_))).count();
                assert_eq!(gets, 4 << 12);
                let given = trace.segments.iter().flatten().flat_map(|burst| &burst.gives);
                let given: usize = given.map(Vec::len).sum();
                let expected = if threads == 1 { 0..1 } else { 1800..2300 };
                assert!(expected.contains(&given), "{given}");
            }
        }
    }

    #[test]
    fn half_of_those_that_live_so_long_live_twice_as_long() {
        let mut server = Server::new(1, 0, 1 << 14);
        let lives: Vec<u64> = (0..10_000).map(|_| server.life()).collect();
        for least in [512, 1024, 2048] {
            let of = |least: u64| lives.iter().filter(|&&life| life >= least).count();
            let percent = of(2 * least) * 100 / of(least);
            assert!((45..55).contains(&percent), "{least}: {percent} %");
        }
        assert!(lives.iter().all(|life| (SHORTEST..=1 << 14).contains(life)));
    }
}
