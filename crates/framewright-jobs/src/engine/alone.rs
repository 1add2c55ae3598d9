//! The beginning of an adaptive job: its caller alone, before anything is made that others could
//! see.
//!
//! Most jobs that turn out to be small end here. What they pay on top of their units is a reading
//! of the clock before the first chunk and one after it.

use super::pace::{KNOWN_NS, Pace};
use super::track::border;
use super::whole::as_only_worker;
use crate::helpers::{Crew, Helpers};
use crate::job::Job;
use crate::worker::Worker;
use core::ops::Range;

/// What the caller did before helpers became worth calling, or without them.
pub(super) struct Begun {
    pub(super) pace: Pace,
    pub(super) chunks: u64,
    /// One past the last unit that is done.
    pub(super) at: u64,
    pub(super) asks: Asks,
}

/// Whether a job asks for helpers that it is worth, once that was found out.
#[derive(Clone, Copy, Default)]
pub(super) struct Asks(Option<bool>);

impl Job<'_> {
    /// Whether nobody looks at the job while it runs, and its size alone does not say how many
    /// threads it is worth.
    #[inline]
    pub(super) fn can_begin_alone(&self) -> bool {
        self.min_chunk.is_none()
            && self.cancel.is_none()
            && self.done.is_none()
            && self.statistics.is_empty()
    }

    /// Works on `range`, of which nobody else knows, until all is done or helpers are worth
    /// calling.
    ///
    /// # Errors
    /// That of a chunk, and its range. All before it has succeeded, nothing behind it has begun.
    #[inline(always)]
    pub(super) fn begin_alone<H, F, E>(
        &self,
        helpers: &H,
        crew: Crew<'_>,
        chunk: &F,
        range: &Range<u64>,
        now_ns: u64,
    ) -> Result<Begun, (E, Range<u64>)>
    where
        H: Helpers + ?Sized,
        F: Fn(Range<u64>, &Worker<'_>) -> Result<(), E>,
    {
        let threads = self.possible_threads(crew);
        let size = range.end - range.start;
        let pace = self.first_pace(size, now_ns);
        let mut begun = Begun { pace, chunks: 0, at: range.start, asks: Asks::default() };
        // A job that is thought to be worth no helper is looked at in the middle, and costs no
        // second look at its end.
        let half = self.unit_cost().filter(|cost| cost.is_for_one(size)).map(|_| size.div_ceil(2));
        loop {
            if self.worthwhile_helpers(
                helpers,
                crew,
                &begun.pace,
                range.end - begun.at,
                &mut begun.asks,
            ) != 0
            {
                return Ok(begun);
            }
            let wanted =
                half.unwrap_or_else(|| begun.pace.next_alone(size, threads)).max(self.align);
            let next = begun.at..border(begun.at, wanted, self.align, range.end);
            let units = next.end - next.start;
            (begun.at, begun.chunks) = (next.end, begun.chunks + 1);
            as_only_worker(helpers, None, |worker| chunk(next.clone(), worker))
                .map_err(|error| (error, next))?;
            let is_done = begun.at == range.end;
            if (!is_done || self.must_look_again(&begun.pace, size))
                && let Some(now) = helpers.now_ns()
            {
                begun.pace.lap(now, units);
            }
            if is_done {
                self.learn(helpers, crew, &begun.pace);
                return Ok(begun);
            }
        }
    }

    /// Whether less than half of a job that is to teach something was timed.
    fn must_look_again(&self, pace: &Pace, size: u64) -> bool {
        self.unit_cost().is_some() && pace.timed().0 < size / 2
    }

    /// What the caller knows about time when it begins. Where that is that no helper pays it
    /// forgets it, and believes what it sees alone.
    pub(super) fn first_pace(&self, size: u64, now_ns: u64) -> Pace {
        let known = self
            .unit_cost()
            .filter(|cost| !cost.is_for_one(size))
            .and_then(|cost| cost.sample(KNOWN_NS));
        Pace::known(now_ns, known.unwrap_or_default())
    }

    /// The job was done, all of it, and this is what its caller saw.
    pub(super) fn learn<H: Helpers + ?Sized>(&self, helpers: &H, crew: Crew<'_>, pace: &Pace) {
        if let Some(cost) = self.unit_cost() {
            let (units, ns) = pace.timed();
            cost.learn(units, ns, start_cost_ns(helpers, crew));
        }
    }

    /// How many threads there could be at most, before anybody was asked.
    pub(super) fn possible_threads(&self, crew: Crew<'_>) -> u32 {
        u32::try_from(crew.posts.len()).unwrap_or(u32::MAX).saturating_add(1).min(self.max_threads)
    }

    /// How many helpers `rest` units are worth: one for each share of them, and not more than there
    /// are chunks. None for a job that is not large, where helpers were asked for in vain lately.
    #[inline]
    pub(super) fn worthwhile_helpers<H: Helpers + ?Sized>(
        &self,
        helpers: &H,
        crew: Crew<'_>,
        pace: &Pace,
        rest: u64,
        asks: &mut Asks,
    ) -> u32 {
        if pace.is_trusted() {
            self.worthwhile_when_trusted(helpers, crew, *pace, rest, asks)
        } else {
            0
        }
    }

    fn worthwhile_when_trusted<H: Helpers + ?Sized>(
        &self,
        helpers: &H,
        crew: Crew<'_>,
        pace: Pace,
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
