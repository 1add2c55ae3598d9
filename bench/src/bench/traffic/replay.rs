//! Replays traces on an allocator and on the control, with the clock read around whole bursts or
//! around each call.

use super::control::Control;
use super::ring::Ends;
use super::tails::{Call, Tails};
use super::trace::{Burst, Step, Trace};
use crate::bench::alloc::crew::Member;
use crate::bench::alloc::measure::{Effort, Sample, Stopwatch, repeat};
use crate::bench::subject::Subject;
use framewright::units::Order;
use std::time::Duration;

/// The runs that a thread holds; `None` for a request that was refused.
pub type Held = Vec<(Option<u64>, Order)>;

/// The number of requests, and of those that found no memory.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Requests {
    pub made: u64,
    pub refused: u64,
}

/// A thread that replays its trace on an allocator.
pub struct Player<'a, S> {
    pub subject: &'a S,
    pub trace: &'a Trace,
    pub ends: &'a Ends,
}

impl<S: Subject> Player<'_, S> {
    /// The nanoseconds of an operation (`get`) and of the harness (`put`), by repetition. The
    /// harness is measured with the trace on the control.
    pub fn throughput(
        &self,
        member: &Member<'_>,
        control: &Control,
        effort: Effort,
    ) -> (Vec<Sample>, Requests) {
        let stopwatch = Stopwatch::new();
        let limit = Player { subject: control, trace: self.trace, ends: self.ends };
        let (mut held, mut limit_held) = (self.fill(), limit.fill());
        let mut requests = Requests::default();
        let mut segments = self.trace.segments.iter();
        let samples = repeat(member, effort, || {
            let bursts = segments.next()?;
            let harness = limit.timed(bursts, &mut limit_held, &stopwatch).0;
            member.meet();
            let (all, of) = self.timed(bursts, &mut held, &stopwatch);
            member.meet();
            self.end_segment(member);
            requests.made += of.made;
            requests.refused += of.refused;
            let timed = bursts.iter().filter(|burst| burst.is_timed);
            let operations = timed.map(|burst| burst.steps.len()).sum::<usize>().max(1) as f64;
            let [all, harness] = [all, harness].map(|time| time.as_nanos() as f64 / operations);
            Some(Sample { get: (all - harness).max(0.0), put: Some(harness) })
        });
        self.end(member, held);
        (samples.unwrap_or_default(), requests)
    }

    /// Times each call.
    pub fn tails(&self, member: &Member<'_>, effort: Effort) -> Tails {
        let stopwatch = Stopwatch::new();
        let mut held = self.fill();
        let (mut tails, mut is_warm) = (Tails::new(), false);
        let mut segments = self.trace.segments.iter();
        repeat(member, effort, || {
            let bursts = segments.next()?;
            self.segment(bursts, &mut held, |burst, held| {
                self.play_each(burst, held, &stopwatch, &mut tails);
            });
            member.meet();
            self.end_segment(member);
            if !is_warm {
                tails = Tails::new();
                is_warm = true;
            }
            Some(Sample::default())
        });
        self.end(member, held);
        tails
    }

    fn fill(&self) -> Held {
        let mut held = Held::new();
        play(self.subject, &self.trace.fill, &mut held);
        held
    }

    /// Plays a segment. Returns the time of its timed bursts.
    fn timed(
        &self,
        bursts: &[Burst],
        held: &mut Held,
        stopwatch: &Stopwatch,
    ) -> (Duration, Requests) {
        let mut all = Duration::ZERO;
        let mut requests = Requests::default();
        self.segment(bursts, held, |burst, held| {
            let (took, of) = stopwatch.lap(|| play(self.subject, &burst.steps, held));
            if burst.is_timed {
                all += took;
                requests.made += of.made;
                requests.refused += of.refused;
            }
        });
        (all, requests)
    }

    /// Plays the bursts of a segment with `how`, and passes runs to the next thread between them.
    fn segment(&self, bursts: &[Burst], held: &mut Held, mut how: impl FnMut(&Burst, &mut Held)) {
        for burst in bursts {
            how(burst, held);
            if let Some(gives) = &burst.gives {
                let given = gives.iter().map(|&place| held.swap_remove(place as usize));
                self.ends.give(given.collect());
            }
            if burst.takes {
                held.extend(self.ends.take());
            }
        }
    }

    /// Plays a burst with the clock read around each call.
    fn play_each(&self, burst: &Burst, held: &mut Held, stopwatch: &Stopwatch, tails: &mut Tails) {
        for &step in &burst.steps {
            match step {
                Step::Get(order) => {
                    let (took, run) = stopwatch.lap(|| self.subject.get(order));
                    held.push((run, order));
                    if burst.is_timed {
                        tails.count(Call::Get, order, took);
                        if run.is_none() {
                            tails.count(Call::Refused, order, took);
                        }
                    }
                }
                Step::Put(place) => {
                    if let (Some(run), order) = held.swap_remove(place as usize) {
                        let (took, ()) = stopwatch.lap(|| self.subject.put(run, order));
                        if burst.is_timed {
                            tails.count(Call::Put, order, took);
                        }
                    }
                }
            }
        }
    }

    /// Runs after all threads have ended a segment.
    fn end_segment(&self, member: &Member<'_>) {
        if self.trace.starts_over && member.index == 0 {
            self.subject.drain();
        }
    }

    /// Frees everything that is held.
    fn end(&self, member: &Member<'_>, held: Held) {
        for (run, order) in held {
            run.into_iter().for_each(|run| self.subject.put(run, order));
        }
        member.meet();
        if member.index == 0 {
            self.subject.drain();
        }
    }
}

/// Plays steps.
#[inline(always)]
fn play<S: Subject>(subject: &S, steps: &[Step], held: &mut Held) -> Requests {
    let mut requests = Requests::default();
    for &step in steps {
        match step {
            Step::Get(order) => {
                let run = subject.get(order);
                requests.made += 1;
                requests.refused += u64::from(run.is_none());
                held.push((run, order));
            }
            Step::Put(place) => {
                if let (Some(run), order) = held.swap_remove(place as usize) {
                    subject.put(run, order);
                }
            }
        }
    }
    requests
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::subject::Buddy;

    #[test]
    fn refused_requests_are_counted_and_not_freed() {
        let block = Order::BLOCK;
        let steps = [Step::Get(block), Step::Get(block), Step::Put(0), Step::Put(0)];
        let one_block = Buddy::new(2 << 20);
        let mut held = Held::new();
        let requests = play(&one_block, &steps, &mut held);
        assert_eq!((requests, held.len()), (Requests { made: 2, refused: 1 }, 0));
        assert!(one_block.get(block).is_some(), "it was freed");
    }
}
