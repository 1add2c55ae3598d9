//! What a worker knows about time, and what it derives from that: how long the remaining work
//! takes, how many helpers it is worth, how large the next chunk may be. These are pure functions
//! of clock readings; the crate documentation describes the model.

/// After the first three readings, the clock is read at most once for this much work. A reading
/// costs 10 to 30 ns, and as much again because the processor cannot overlap the units before it
/// with those after it.
const WORK_PER_READING_NS: u64 = 1_200;
/// Less work than this says nothing about the remaining work, because the readings themselves would
/// be a good part of it.
const TRUSTED_NS: u64 = 1_000;
/// A job with this much work left asks for helpers even if they seldom come. Asking costs the
/// caller at most 3 us, about a thousandth of this.
const LARGE_NS: u64 = 2_000_000;
/// While the caller is alone, its next chunk has at most this many times the units already done.
const GROWTH: u64 = 31;
/// While the caller is alone, its chunks should take no longer than this, so that it soon notices
/// when a helper becomes free.
const LONGEST_ALONE_NS: u64 = 1_000_000;
/// The first chunk of a job of unknown cost is a thread's equal share divided by this number. This
/// limits what can be lost because the caller does that chunk alone.
const FIRST_PART: u64 = 16;
/// The first chunk has no more units than this, because a sixteenth of a large job would take
/// milliseconds without helpers. The limit costs one more reading of the clock.
const FIRST_UNITS: u64 = 16;
/// A thread's equal share of the remaining units makes at least this many chunks.
const CHUNKS_PER_SHARE: u64 = 8;
/// A worker's first chunk is a full chunk divided by this number.
const FIRST_SHARE: u64 = 8;
/// While helpers take part, a chunk should take at least this long, because its claim and its clock
/// reading cost 30 to 100 ns. Workers finish within about this time of each other.
const LEAST_TOGETHER_NS: u64 = 1_000;
/// A slow worker's chunk takes at most the time that the remaining work will take, divided by this
/// number.
const CHUNKS_PER_REST: u32 = 4;

/// What earlier jobs taught counts as much as this much work of the job itself. That is enough to
/// begin with chunks of half this length, and little enough to be outweighed soon.
pub(super) const KNOWN_NS: u64 = 4_000;

/// A summary of a worker's clock readings. Times are in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    last_ns: u64,
    readings: u64,
    /// Units done and the time they took, including what was known before the job.
    units: u64,
    elapsed_ns: u64,
    known: (u64, u64),
    /// Units of the last chunk and the time it took.
    chunk_units: u64,
    chunk_ns: u64,
}

impl Pace {
    pub(super) const fn start(now_ns: u64) -> Self {
        Self::known(now_ns, (0, 0))
    }

    /// Begins with what earlier jobs taught: `units` took `ns`.
    pub(super) const fn known(now_ns: u64, (units, ns): (u64, u64)) -> Self {
        Self {
            last_ns: now_ns,
            readings: 1,
            units,
            elapsed_ns: ns,
            known: (units, ns),
            chunk_units: units,
            chunk_ns: ns,
        }
    }

    /// Records that a chunk of `units` ended just now. If the clock runs backwards, it is taken to
    /// stand still.
    #[inline]
    pub(super) fn lap(&mut self, now_ns: u64, units: u64) {
        self.chunk_ns = now_ns.saturating_sub(self.last_ns);
        self.last_ns = self.last_ns.max(now_ns);
        self.readings += 1;
        self.chunk_units = units;
        self.units = self.units.saturating_add(units);
        self.elapsed_ns = self.elapsed_ns.saturating_add(self.chunk_ns);
    }

    /// Leaves out the time since the last reading, which was not spent on units.
    pub(super) fn skip(&mut self, now_ns: u64) {
        self.last_ns = self.last_ns.max(now_ns);
    }

    /// Units that were timed in this job, and the time they took.
    pub(super) const fn timed(&self) -> (u64, u64) {
        (self.units - self.known.0, self.elapsed_ns - self.known.1)
    }

    /// Whether enough work was seen to estimate the rest.
    pub(super) const fn is_trusted(&self) -> bool {
        self.elapsed_ns >= TRUSTED_NS
    }

    /// The most helpers that `rest` units are worth: every thread's share of the rest must take at
    /// least twice as long as a helper takes to start. The cost of a unit is the mean of all units
    /// so far, with those of the last chunk counted twice.
    pub(super) fn worthwhile_helpers(&self, rest: u64, start_cost_ns: u64) -> u64 {
        self.rest_ns(rest) / start_cost_ns.saturating_mul(2).max(1)
    }

    /// Whether the remaining work is worth asking for helpers even if they seldom come.
    pub(super) fn is_large(&self, rest: u64) -> bool {
        self.rest_ns(rest) >= LARGE_NS
    }

    /// How long one thread would take for the rest; 0 while too little was seen.
    fn rest_ns(&self, rest: u64) -> u64 {
        if !self.is_trusted() {
            return 0;
        }
        let ns = self.elapsed_ns.saturating_add(self.chunk_ns);
        let units = self.units.saturating_add(self.chunk_units).max(1);
        ns.saturating_mul(rest) / units
    }

    /// The number of units in the next chunk of a caller that is alone, in a job of `size` units
    /// for which up to `threads` threads are available. Chunks grow so that readings stay few, but
    /// not so fast that an unexpectedly expensive stretch takes far longer than everything before
    /// it.
    #[inline]
    pub(super) fn next_alone(&self, size: u64, threads: u32) -> u64 {
        if self.units == 0 {
            // Rounded up, so that with two threads the second chunk, 31 times as large, covers all
            // the rest.
            return size.div_ceil(u64::from(threads.max(1)) * FIRST_PART).min(FIRST_UNITS);
        }
        let budget =
            WORK_PER_READING_NS.saturating_mul(self.readings + 1).saturating_sub(self.elapsed_ns);
        let goal_ns = budget.max(self.elapsed_ns / 2).min(LONGEST_ALONE_NS);
        let by_time = goal_ns.saturating_mul(self.units) / self.elapsed_ns.max(1);
        by_time.min(self.units.saturating_mul(GROWTH))
    }

    /// The number of units in a chunk while helpers take part: `share`, but enough to be worth a
    /// claim, and no more than `limit`. "Enough" is computed from this worker's last chunk or from
    /// all its chunks, whichever had the more expensive units, because the last chunk may have been
    /// a hole. The limit falls with the rest, but never takes a chunk below an eighth of "enough".
    pub(super) fn next_together(&self, share: u64, limit: u64) -> u64 {
        let all = u128::from(self.units) * u128::from(LEAST_TOGETHER_NS)
            / u128::from(self.elapsed_ns.max(1));
        let enough =
            self.units_within(LEAST_TOGETHER_NS).min(u64::try_from(all).unwrap_or(u64::MAX));
        share.max(enough).min(limit.max(enough / 8))
    }

    /// How many units this worker does in `ns` at the speed of its last chunk; 0 before its first
    /// chunk, `u64::MAX` if `ns` is `u64::MAX`.
    pub(super) fn units_within(&self, ns: u64) -> u64 {
        if ns == u64::MAX {
            return u64::MAX;
        }
        let units =
            u128::from(self.chunk_units) * u128::from(ns) / u128::from(self.chunk_ns.max(1));
        u64::try_from(units).unwrap_or(u64::MAX)
    }

    /// How many units this worker does in a quarter of the time that `rest` will take, if all
    /// workers keep their speed since `called_ns`, in which time they claimed `claimed` units.
    /// `u64::MAX` if that is unknown.
    pub(super) fn limit(&self, rest: u64, claimed: u64, called_ns: u64) -> u64 {
        let elapsed = self.last_ns.saturating_sub(called_ns);
        if self.chunk_units == 0 || claimed == 0 || elapsed == 0 {
            return u64::MAX;
        }
        // This worker's part of the total speed, in 65536ths.
        let own = u128::from(self.chunk_units) * u128::from(elapsed);
        let all = u128::from(claimed) * u128::from(self.chunk_ns.max(1));
        let part =
            own.checked_mul(1 << 16).map_or_else(|| own / (all >> 16).max(1), |own| own / all);
        let part = u64::try_from(part).unwrap_or(u64::MAX).min(1 << 16);
        let units = (u128::from(rest) * u128::from(part)) >> 16;
        u64::try_from(units).unwrap_or(u64::MAX) / u64::from(CHUNKS_PER_REST)
    }
}

/// The number of units in a chunk when `rest` units are left for `sharers` threads and this
/// worker's last chunk had `last` units (0 if this is its first). A worker's chunks begin small and
/// double, because it may be a slow worker.
pub(super) fn share(rest: u64, sharers: u32, last: u64) -> u64 {
    let share = rest / (u64::from(sharers.max(1)) * CHUNKS_PER_SHARE);
    let most = if last == 0 { share / FIRST_SHARE } else { last.saturating_mul(2) };
    share.min(most)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// Runs a job of `size` units the way a caller without helpers does. Unit `u` takes
    /// `unit_ns(u)`, and a reading of the clock takes `reading_ns`. Returns the number of clock
    /// readings and the most helpers that were ever found worthwhile.
    fn simulate(size: u64, reading_ns: u64, unit_ns: impl Fn(u64) -> u64) -> (u64, u64) {
        let mut now = reading_ns;
        let mut pace = Pace::start(now);
        let (mut at, mut readings, mut helpers) = (0, 1, 0);
        loop {
            let units = pace.next_alone(size, 8).clamp(1, size - at);
            now += (at..at + units).map(&unit_ns).sum::<u64>();
            at += units;
            if at == size {
                return (readings, helpers);
            }
            now += reading_ns;
            readings += 1;
            pace.lap(now, units);
            helpers = helpers.max(pace.worthwhile_helpers(size - at, 10_000));
        }
    }

    #[test]
    fn a_small_job_reads_the_clock_seldom_and_calls_nobody() {
        for (size, ns) in
            [(1_000, 1), (64, 100), (5_000, 1), (10_000, 1), (100, 150), (19_000, 1), (2, 5_000)]
        {
            let (readings, helpers) = simulate(size, 20, |_| ns);
            assert_eq!(helpers, 0, "{size} units of {ns} ns");
            let total = size * ns;
            assert!(readings * 20 <= (total / 20).max(100), "{readings} readings for {total} ns");
        }
    }

    #[test]
    fn a_large_job_calls_helpers_wherever_its_work_lies() {
        // Three shapes: all units alike; nothing in the first half; one unit unlike all the others.
        assert!(simulate(1 << 20, 20, |_| 100).1 > 1000);
        assert!(simulate(1 << 16, 20, |unit| if unit < 1 << 15 { 1 } else { 10_000 }).1 > 100);
        assert!(simulate(1 << 10, 20, |unit| if unit == 0 { 10_000 } else { 100_000 }).1 > 1000);
    }

    #[test]
    fn a_slow_worker_is_limited_and_others_are_not() {
        // Four workers for 1 ms; this one claimed a hundredth of all claimed units in a chunk that
        // took half of that time.
        let mut slow = Pace::start(0);
        slow.lap(500_000, 0);
        slow.lap(1_000_000, 1_000);
        // 1000 of 100000 units in half the time: a fiftieth of the total speed, rounded down a
        // little.
        let limit = slow.limit(400_000, 100_000, 0);
        assert!((1_990..=2_000).contains(&limit), "{limit}");
        let mut fast = Pace::start(0);
        fast.lap(1_000_000, 100_000);
        assert_eq!(fast.limit(400_000, 100_000, 0), 100_000);
        assert_eq!(Pace::start(5).limit(400_000, 100_000, 0), u64::MAX);
    }

    #[test]
    fn a_chunk_is_no_longer_than_it_may_be() {
        let mut pace = Pace::start(0);
        assert_eq!(pace.units_within(1_000_000), 0);
        assert_eq!(pace.units_within(u64::MAX), u64::MAX);
        pace.lap(2_000, 4);
        assert_eq!(pace.units_within(1_000_000), 2_000);
        pace.lap(1_002_000, 1);
        assert_eq!(pace.units_within(1_000_000), 1);
        assert_eq!(pace.units_within(999_999), 0);
        pace.lap(1_002_000, u64::MAX);
        assert_eq!(pace.units_within(1_000_000), u64::MAX);
    }

    /// Lets workers of the given slowness do `size` units as `Shared::claim_together` does; returns
    /// the time when the last worker ends. Without a `clock` their chunks have no limit.
    fn race(slowness: &[u64], size: u64, clock: bool, unit_ns: impl Fn(u64) -> u64) -> u64 {
        let mut workers: Vec<(u64, Pace)> = slowness.iter().map(|_| (0, Pace::start(0))).collect();
        let sharers = u32::try_from(slowness.len()).expect("few");
        let mut at = 0;
        while at < size {
            let next = (0..workers.len())
                .min_by_key(|&index| workers[index].0)
                .expect("there are workers");
            let (now, pace) = &mut workers[next];
            let rest = size - at;
            let share = share(rest, sharers, pace.chunk_units);
            let units =
                if clock { pace.next_together(share, pace.limit(rest, at, 0)) } else { share }
                    .max(1);
            *now += (at..at + units).map(&unit_ns).sum::<u64>() * slowness[next] + 50;
            pace.lap(*now, units);
            at += units;
        }
        workers.iter().map(|worker| worker.0).max().unwrap_or(0)
    }

    #[test]
    fn uneven_work_ends_together() {
        const SIZE: u64 = 1 << 14;
        let even = |_: u64| 1000;
        let heavy = |unit: u64| if unit == SIZE / 2 { 1_000_000 } else { 1000 };
        let holes = |unit: u64| if (unit / 1000).is_multiple_of(2) { 1 } else { 1000 };
        let dear_end = |unit: u64| if unit > SIZE * 3 / 4 { 4000 } else { 1000 };
        let cases: [(&str, &dyn Fn(u64) -> u64); 4] =
            [("even", &even), ("one heavy", &heavy), ("holes", &holes), ("dear end", &dear_end)];
        for (name, unit_ns) in cases {
            let total: u64 = (0..SIZE).map(unit_ns).sum();
            for (slowness, least_worth, clock) in [
                (&[1; 8], 8000, false),
                (&[1; 8], 8000, true),
                (&[1, 1, 1, 1, 1, 1, 1, 10], 7100, true),
            ] {
                // The time if all workers work to the very end; `least_worth` is their total speed
                // in thousandths.
                let ideal = total * 1000 / least_worth;
                let end = race(slowness, SIZE, clock, unit_ns);
                assert!(
                    end < ideal + ideal / 8,
                    "{name}, {slowness:?}: {end} ns instead of {ideal}"
                );
            }
        }
    }

    #[test]
    fn no_number_is_too_large() {
        let mut pace = Pace::start(0);
        pace.lap(u64::MAX, u64::MAX);
        pace.lap(1, u64::MAX);
        assert!(pace.limit(u64::MAX, u64::MAX, 0) <= u64::MAX / 4);
        let _ = pace.worthwhile_helpers(u64::MAX, u64::MAX);
        let _ = pace.worthwhile_helpers(u64::MAX, 0);
        let _ = pace.next_alone(u64::MAX, u32::MAX);
        assert_eq!(share(u64::MAX, u32::MAX, 0), u64::MAX / (u64::from(u32::MAX) * 64));
        assert_eq!(share(u64::MAX, 1, u64::MAX), u64::MAX / 8);
        assert_eq!(share(7, 0, 1), 0);
    }
}
