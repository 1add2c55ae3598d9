//! Traces: the operations of each thread, recorded before anything is measured, so that all
//! allocators do equal work.

use crate::bench::random::Random;
use framewright::units::Order;
use std::ops::RangeInclusive;

/// An operation: the order of a request, or the index of the held run to free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    Get(Order),
    /// The last held run moves to the freed one's index.
    Put(u32),
}

/// Steps without a pause, and the runs that are passed between threads after them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Burst {
    pub steps: Vec<Step>,
    /// False for steps that only prepare the next ones.
    pub is_timed: bool,
    /// The indices of the runs that the next thread gets, removed as by [`Step::Put`].
    pub gives: Option<Vec<u32>>,
    /// Whether the thread then waits for runs of the previous thread.
    pub takes: bool,
}

impl Burst {
    /// Timed steps, with nothing passed between threads.
    pub fn timed(steps: Vec<Step>) -> Self {
        Self { steps, is_timed: true, gives: None, takes: false }
    }
}

/// The operations of one thread.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Trace {
    /// Steps at the beginning, which are not timed.
    pub fill: Vec<Step>,
    /// One list of bursts for each repetition. All runs that are given in it are also taken in it.
    pub segments: Vec<Vec<Burst>>,
    /// Whether each repetition begins with free memory and empty caches.
    pub starts_over: bool,
}

/// How much is recorded.
#[derive(Clone, Copy)]
pub struct Length {
    /// The number of segments; the first warms up.
    pub segments: usize,
    /// The approximate number of operations in a segment.
    pub operations: usize,
}

/// Shares of requests in percent, and their orders.
pub type Mix = [(usize, RangeInclusive<u8>); 4];

/// Requests of all sizes.
pub const ALL_SIZES: Mix = [(70, 0..=0), (10, 1..=3), (10, 4..=8), (10, 9..=9)];

/// Draws an order from a mix.
pub fn draw(random: &mut Random, mix: &Mix) -> Order {
    let mut chance = random.below(100);
    for (percent, orders) in mix {
        if chance < *percent {
            let span = usize::from(orders.end() - orders.start()) + 1;
            let above = u8::try_from(random.below(span)).unwrap_or(0);
            return Order::new(orders.start() + above).unwrap_or(Order::PAGE);
        }
        chance -= percent;
    }
    Order::PAGE
}

/// The number of a run that a recorded thread got.
pub type Id = usize;

/// Records the steps of one thread and keeps track of what it holds.
#[derive(Default)]
pub struct Recorder {
    steps: Vec<Step>,
    held: Vec<(Id, Order)>,
    /// The index in `held` of each run, or its last one.
    places: Vec<usize>,
    pages: u64,
}

impl Recorder {
    /// The number of pages that are held.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Records a request.
    pub fn get(&mut self, order: Order) -> Id {
        self.steps.push(Step::Get(order));
        self.take(order)
    }

    /// Records taking a run that another thread gave.
    pub fn take(&mut self, order: Order) -> Id {
        let id = self.places.len();
        self.places.push(self.held.len());
        self.held.push((id, order));
        self.pages += order.pages();
        id
    }

    /// Records a free.
    pub fn put(&mut self, id: Id) {
        let (place, _) = self.give(id);
        self.steps.push(Step::Put(place));
    }

    /// Records giving a run to another thread. Returns the run's index and order.
    pub fn give(&mut self, id: Id) -> (u32, Order) {
        let place = self.places[id];
        let (_, order) = self.held.swap_remove(place);
        if let Some(&(moved, _)) = self.held.get(place) {
            self.places[moved] = place;
        }
        self.pages -= order.pages();
        (u32::try_from(place).unwrap_or(u32::MAX), order)
    }

    /// A random run that is held; there must be one.
    pub fn any(&self, random: &mut Random) -> Id {
        self.held[random.below(self.held.len())].0
    }

    /// The number of runs that are held.
    pub fn runs(&self) -> usize {
        self.held.len()
    }

    /// The run at the last index.
    pub fn last(&self) -> Option<Id> {
        self.held.last().map(|&(id, _)| id)
    }

    /// The number of steps since the steps were last taken.
    pub fn steps(&self) -> usize {
        self.steps.len()
    }

    /// Takes the steps since they were last taken.
    pub fn end(&mut self) -> Vec<Step> {
        std::mem::take(&mut self.steps)
    }

    /// Records requests of all sizes until `pages` pages are held.
    pub fn fill(&mut self, random: &mut Random, pages: u64) {
        while self.pages < pages {
            self.get(draw(random, &ALL_SIZES));
        }
    }
}

/// Helpers that tests of patterns share.
#[cfg(test)]
pub mod check {
    use super::{Burst, Length, Step, Trace};
    use framewright::units::Order;
    use std::collections::VecDeque;

    /// A short trace.
    pub const SHORT: Length = Length { segments: 4, operations: 1 << 13 };

    /// Follows the threads of a trace, as many bursts at a time as are ready. Returns the orders
    /// that each thread holds after each segment.
    pub fn follow(traces: &[Trace]) -> Vec<Vec<Vec<Order>>> {
        let mut held: Vec<Vec<Order>> = traces.iter().map(|trace| play(&trace.fill)).collect();
        (0..traces[0].segments.len())
            .map(|segment| {
                let threads = traces.iter().map(|trace| trace.segments[segment].as_slice());
                pass_on(&threads.collect::<Vec<_>>(), &mut held);
                held.clone()
            })
            .collect()
    }

    fn play(steps: &[Step]) -> Vec<Order> {
        let mut held = Vec::new();
        go_on(steps, &mut held);
        held
    }

    fn go_on(steps: &[Step], held: &mut Vec<Order>) {
        for step in steps {
            match *step {
                Step::Get(order) => held.push(order),
                Step::Put(place) => drop(held.swap_remove(place as usize)),
            }
        }
    }

    /// Follows one segment of all threads. It ends, as no thread waits for runs that never come.
    fn pass_on(threads: &[&[Burst]], held: &mut [Vec<Order>]) {
        let mut mail: Vec<VecDeque<Vec<Order>>> = vec![VecDeque::new(); threads.len()];
        // The next burst of each thread, and whether the thread still waits for runs of the
        // previous one.
        let mut next = vec![(0, false); threads.len()];
        while next.iter().zip(threads).any(|((burst, _), bursts)| *burst < bursts.len()) {
            let before = next.clone();
            for (index, bursts) in threads.iter().enumerate() {
                while let Some(burst) = bursts.get(next[index].0) {
                    if !next[index].1 {
                        go_on(&burst.steps, &mut held[index]);
                        if let Some(gives) = &burst.gives {
                            let given =
                                gives.iter().map(|&at| held[index].swap_remove(at as usize));
                            mail[(index + 1) % threads.len()].push_back(given.collect());
                        }
                    }
                    let taken = if burst.takes { mail[index].pop_front() } else { Some(vec![]) };
                    next[index].1 = taken.is_none();
                    let Some(taken) = taken else { break };
                    held[index].extend(taken);
                    next[index].0 += 1;
                }
            }
            assert_ne!(before, next, "all wait");
        }
        assert!(mail.iter().all(VecDeque::is_empty), "what was given is taken");
    }

    /// The timed steps of a trace.
    pub fn timed(trace: &Trace) -> impl Iterator<Item = Step> {
        let bursts = trace.segments.iter().flatten().filter(|burst| burst.is_timed);
        bursts.flat_map(|burst| burst.steps.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_follow_runs_that_move() {
        let mut recorder = Recorder::default();
        let ids: Vec<Id> = (0..4).map(|_| recorder.get(Order::PAGE)).collect();
        recorder.put(ids[0]);
        assert_eq!(recorder.give(ids[3]), (0, Order::PAGE));
        recorder.put(ids[2]);
        let expected = [Step::Put(0), Step::Put(0)];
        assert_eq!(recorder.end()[4..], expected);
        assert_eq!((recorder.runs(), recorder.pages(), recorder.last()), (1, 1, Some(ids[1])));
    }
}
