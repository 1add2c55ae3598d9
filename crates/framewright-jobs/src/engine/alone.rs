//! The beginning of an adaptive job: its caller alone, before anything is made that others could see.
//!
//! Most jobs that turn out to be small end here. What they pay on top of their units is a reading of the clock before the first chunk and one after it.

use super::pace::Pace;
use super::track::{Rule, Track};
use crate::helpers::{Crew, Helpers};
use crate::job::Job;
use crate::sync::atomic::AtomicBool;
use crate::token::Tally;
use crate::worker::Worker;
use core::ops::Range;

/// What the caller did before helpers became worth calling.
pub(super) struct Begun {
    pub(super) pace: Pace,
    pub(super) tally: Tally,
    pub(super) asks: Asks,
}

/// Whether a job asks for helpers that it is worth, once that was found out.
#[derive(Clone, Copy, Default)]
pub(super) struct Asks(Option<bool>);

impl Job<'_> {
    /// Whether nobody looks at the job while it runs, and its size alone does not say how many threads it is worth.
    pub(super) fn can_begin_alone(&self) -> bool {
        self.min_chunk.is_none() && self.cancel.is_none() && self.done.is_none() && self.statistics.is_empty()
    }

    /// Works from `track`, which nobody else knows, until all is done or helpers are worth calling, which the result says.
    ///
    /// # Errors
    /// That of a chunk, and its range. All before it has succeeded, nothing behind it has begun.
    #[inline]
    pub(super) fn begin_alone<H, F, E>(
        &self,
        helpers: &H,
        crew: Crew<'_>,
        chunk: &F,
        track: &Track,
        now_ns: u64,
    ) -> Result<(Begun, bool), (E, Range<u64>)>
    where
        H: Helpers + ?Sized,
        F: Fn(Range<u64>, &Worker<'_>) -> Result<(), E>,
    {
        let stop = AtomicBool::new(false);
        let node = || helpers.current_node();
        let worker = Worker { index: 0, node: &node, stop: &stop, cancel: None };
        let threads = self.possible_threads(crew);
        let size = track.end - track.start;
        let mut begun = Begun { pace: Pace::start(now_ns), tally: Tally::default(), asks: Asks::default() };
        loop {
            let units = |_| begun.pace.next_alone(size, threads).max(self.align);
            let Some(range) = track.claim_units(self.align, false, units) else { return Ok((begun, true)) };
            let units = range.end - range.start;
            begun.tally.chunks += 1;
            chunk(range.clone(), &worker).map_err(|error| (error, range))?;
            begun.tally.units += units;
            let rest = track.rest(Rule::Guided);
            if rest == 0 {
                return Ok((begun, true));
            }
            if let Some(now) = helpers.now_ns() {
                begun.pace.lap(now, units);
            }
            if self.worthwhile_helpers(helpers, crew, &begun.pace, rest, &mut begun.asks) != 0 {
                return Ok((begun, false));
            }
        }
    }

    /// How many threads there could be at most, before anybody was asked.
    pub(super) fn possible_threads(&self, crew: Crew<'_>) -> u32 {
        u32::try_from(crew.posts.len()).unwrap_or(u32::MAX).saturating_add(1).min(self.max_threads)
    }

    /// How many helpers `rest` units are worth: one for each share of them, and not more than there are chunks. None for a job that is not large, where helpers were asked for in vain lately.
    pub(super) fn worthwhile_helpers<H: Helpers + ?Sized>(
        &self,
        helpers: &H,
        crew: Crew<'_>,
        pace: &Pace,
        rest: u64,
        asks: &mut Asks,
    ) -> u32 {
        let start_cost = start_cost_ns(helpers, crew);
        let worth = pace.worthwhile_helpers(rest, start_cost).min(rest / self.align);
        if worth == 0 {
            return 0;
        }
        if pace.is_large(rest) {
            asks.0 = Some(true);
        }
        if !*asks.0.get_or_insert_with(|| crew.desk.should_ask()) {
            return 0;
        }
        u32::try_from(worth).unwrap_or(u32::MAX).min(self.max_threads - 1)
    }
}

/// What a helper costs before it does its first unit.
pub(super) fn start_cost_ns<H: Helpers + ?Sized>(helpers: &H, crew: Crew<'_>) -> u64 {
    helpers.start_cost_ns().unwrap_or_else(|| crew.desk.start_cost_ns())
}
