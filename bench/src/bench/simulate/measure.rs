//! The inputs of the simulation, measured on this host: the time of calls that a CPU's cache
//! serves, which calls it does not serve and how long these take, and how much longer they take if
//! another CPU had the lock before.
//!
//! A call went to its zone if the zone's number of free pages has changed afterwards. Interrupts
//! are off whenever a zone's lock is held, so the times of holds are those without interrupts
//! ([`Watched`]); the rest of such a call runs without the lock.
//!
//! Orders of memory: the turn is passed on with Release and Acquire; the flag of who ended first is
//! Relaxed, as nothing is read because of it.

use crate::bench::alloc::crew::{self, Member};
use crate::bench::alloc::measure::Stopwatch;
use crate::bench::subject::{Ours, Subject};
use crate::bench::traffic::control::Control;
use crate::bench::traffic::mixed;
use crate::bench::traffic::trace::{ALL_SIZES, Length, Mix, Step, Trace};
use crate::bench::watched::{Watched, use_wall_clock, watch};
use framewright::Manager;
use framewright::units::{Order, Pfn};
use framewright::zone::MigrateType;
use framewright_cli::error::Error;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

/// Requests for single pages only.
const SINGLE: Mix = [(100, 0..=0), (0, 1..=3), (0, 4..=8), (0, 9..=9)];

/// Which requests are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pattern {
    Pages,
    Mixed,
}

impl Pattern {
    pub const ALL: [Self; 2] = [Self::Pages, Self::Mixed];

    /// The pattern's name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pages => super::PAGES,
            Self::Mixed => super::MIXED,
        }
    }

    /// The mix of requests, and the largest burst: for single pages so large that no cache can
    /// serve it, as small bursts of them would never get to a zone.
    const fn requests(self) -> (&'static Mix, usize) {
        match self {
            Self::Pages => (&SINGLE, 1 << 12),
            Self::Mixed => (&ALL_SIZES, mixed::MOST_IN_BURST),
        }
    }
}

/// How much is measured.
#[derive(Clone, Copy)]
pub struct Scale {
    pub length: Length,
    pub memory_bytes: u64,
    /// The pages that each thread holds.
    pub pages: u64,
}

/// A call that went to its zone.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Slow {
    /// The calls since the previous slow one.
    pub calls_before: u32,
    /// The time of the whole call.
    pub call_ns: f64,
    /// The time with the lock held.
    pub ns: f64,
    /// The pages that came or went.
    pub pages: u64,
    pub is_drain: bool,
}

/// The measurements of a pattern.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Costs {
    /// The time of a call that the cache serves, and that of the harness besides.
    pub cached_ns: f64,
    pub harness_ns: f64,
    /// The calls that went to their zone, in order.
    pub slow: Vec<Slow>,
    /// How much longer such a call takes if another CPU made the last one.
    pub transfer_ns: Option<f64>,
    /// The time of a call in one thread, and in each of two at once, harness included.
    pub real_ns: [Option<f64>; 2],
}

impl Costs {
    /// How long a call that went to its zone holds the lock on average.
    pub fn hold_ns(&self) -> f64 {
        mean(self.slow.iter().map(|slow| slow.ns))
    }

    /// The number of calls for each one that went to its zone.
    pub fn calls_per_hold(&self) -> f64 {
        mean(self.slow.iter().map(|slow| f64::from(slow.calls_before + 1)))
    }

    /// The line that fits best through the times of refills or drains over their pages: the time
    /// for no pages, and the time that each page adds.
    pub fn by_pages(&self, is_drain: bool) -> (f64, f64) {
        let of = || self.slow.iter().filter(|slow| slow.is_drain == is_drain);
        let (pages, ns) = (mean(of().map(|slow| slow.pages as f64)), mean(of().map(|s| s.ns)));
        let apart = |slow: &Slow| (slow.pages as f64 - pages, slow.ns - ns);
        let squares: f64 = of().map(|slow| apart(slow).0.powi(2)).sum();
        let products: f64 = of().map(|slow| apart(slow).0 * apart(slow).1).sum();
        let each = if squares > 0.0 { products / squares } else { 0.0 };
        (ns - each * pages, each)
    }
}

fn mean(numbers: impl Iterator<Item = f64>) -> f64 {
    let (count, sum) = numbers.fold((0_u32, 0.0), |(count, sum), one| (count + 1, sum + one));
    if count == 0 { 0.0 } else { sum / f64::from(count) }
}

/// The mean of whole calls without the longest 1 %, in which the host did something else.
fn trimmed(slow: &[Slow]) -> f64 {
    let mut times: Vec<f64> = slow.iter().map(|slow| slow.call_ns).collect();
    times.sort_unstable_by(f64::total_cmp);
    mean(times[..times.len() - times.len() / 100].iter().copied())
}

/// Measures a pattern.
///
/// # Errors
/// Fails if a machine cannot be emulated by this process.
pub fn measure(pattern: Pattern, cpus: usize, scale: Scale) -> Result<Costs, Error> {
    let record = |seed| mixed::record_of(pattern.requests(), seed, scale.pages, scale.length);
    let traces = [record(0), record(1)];
    let fresh = |threads: usize, how: &(dyn Fn(&Member<'_>, &Ours<'_>) -> Part + Sync)| {
        Ours::with(scale.memory_bytes, 2, |ours| {
            crew::run(ours, threads, |member| how(member, ours))
        })
    };
    let timed = |member: &Member<'_>, ours: &Ours<'_>| {
        let mut player = Player::new(*ours, &traces[member.index]);
        player.whole_segments(member)
    };
    let mut costs = Costs::default();
    let one = fresh(1, &timed)?;
    let best = |parts: &[Part]| {
        let segments = parts.iter().map(|part| part.segments.len()).min().unwrap_or(0);
        let of = |at: usize| mean(parts.iter().map(|part| part.segments[at]));
        (0..segments).map(of).reduce(f64::min)
    };
    costs.real_ns[0] = best(&one);
    let control = Control::new(1);
    let harness = crew::run(&control, 1, |member| {
        Player::new(ControlSubject(&control), &traces[0]).whole_segments(member)
    })?;
    costs.harness_ns = best(&harness).unwrap_or(0.0);
    let each = fresh(1, &|_, ours| Player::new(*ours, &traces[0]).each_call())?;
    let each: Vec<Slow> = each.into_iter().flat_map(|part| part.slow).collect();
    costs.slow = watched(&traces[0], scale.memory_bytes)?;
    let calls: f64 = each.iter().map(|slow| f64::from(slow.calls_before + 1)).sum();
    let slow_ns: f64 = each.iter().map(|slow| slow.call_ns).sum();
    let all_ns = (costs.real_ns[0].unwrap_or(0.0) - costs.harness_ns) * calls;
    // The slow calls are among the calls that were timed together.
    costs.cached_ns = ((all_ns - slow_ns) / (calls - each.len() as f64).max(1.0)).max(0.5);
    if cpus > 1 {
        costs.real_ns[1] = best(&fresh(2, &timed)?);
        let turn = (AtomicUsize::new(0), AtomicBool::new(false));
        let by_turns = fresh(2, &|member, ours| {
            Player::new(*ours, &traces[member.index]).by_turns(member, &turn)
        })?;
        let by_turns: Vec<Slow> = by_turns.into_iter().flat_map(|part| part.slow).collect();
        costs.transfer_ns = Some((trimmed(&by_turns) - trimmed(&each)).max(0.0));
    }
    Ok(costs)
}

/// The calls of one thread that went to the zone of a watched machine.
fn watched(trace: &Trace, memory_bytes: u64) -> Result<Vec<Slow>, Error> {
    let manager = Watched::bring_up(memory_bytes)?;
    std::thread::scope(|scope| {
        let measured = scope.spawn(|| {
            let _seat = manager.platform().enter()?;
            Ok(Player::new(&manager, trace).each_call().slow)
        });
        measured.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The time of a turn of a busy wait.
pub fn relax_ns() -> f64 {
    const TURNS: u32 = 4096;
    let once = || {
        let start = Instant::now();
        (0..TURNS).for_each(|_| std::hint::spin_loop());
        start.elapsed().as_nanos() as f64 / f64::from(TURNS)
    };
    (0..8).map(|_| once()).fold(f64::INFINITY, f64::min)
}

/// The results of a thread.
#[derive(Default)]
struct Part {
    /// The nanoseconds of a call, for each segment but the first.
    segments: Vec<f64>,
    slow: Vec<Slow>,
}

/// The control, an array that is used as a stack and has no zone.
struct ControlSubject<'a>(&'a Control);

/// What a trace is played on.
trait Place: Copy {
    fn get(self, order: Order) -> Option<u64>;
    fn put(self, pfn: u64, order: Order);
    /// The free pages of all zones.
    fn free_pages(self) -> u64;
}

impl Place for Ours<'_> {
    #[inline]
    fn get(self, order: Order) -> Option<u64> {
        Subject::get(&self, order)
    }

    #[inline]
    fn put(self, pfn: u64, order: Order) {
        Subject::put(&self, pfn, order);
    }

    fn free_pages(self) -> u64 {
        self.manager().zones().iter().map(framewright::zone::Zone::free_pages).sum()
    }
}

impl Place for &Manager<Watched> {
    #[inline]
    fn get(self, order: Order) -> Option<u64> {
        self.allocate_order(order, MigrateType::Movable).ok().map(|start| start.0)
    }

    #[inline]
    fn put(self, pfn: u64, order: Order) {
        // SAFETY: a trace frees what it got, once (invariant 42).
        let freed = unsafe { self.free_order(Pfn(pfn), order) };
        debug_assert!(freed.is_ok(), "{freed:?}");
    }

    fn free_pages(self) -> u64 {
        self.zones().iter().map(framewright::zone::Zone::free_pages).sum()
    }
}

impl Clone for ControlSubject<'_> {
    fn clone(&self) -> Self {
        *self
    }
}

impl Copy for ControlSubject<'_> {}

impl Place for ControlSubject<'_> {
    #[inline]
    fn get(self, order: Order) -> Option<u64> {
        self.0.get(order)
    }

    #[inline]
    fn put(self, pfn: u64, order: Order) {
        self.0.put(pfn, order);
    }

    fn free_pages(self) -> u64 {
        0
    }
}

/// A thread that plays its trace.
struct Player<'a, P> {
    place: P,
    trace: &'a Trace,
    held: Vec<(Option<u64>, Order)>,
    calls: u32,
}

impl<'a, P: Place> Player<'a, P> {
    /// Fills memory with the beginning of the trace.
    fn new(place: P, trace: &'a Trace) -> Self {
        let mut new = Self { place, trace, held: Vec::new(), calls: 0 };
        trace.fill.iter().for_each(|&step| new.play(step));
        new
    }

    fn steps(&self) -> impl Iterator<Item = Step> + use<'a, P> {
        let bursts = self.trace.segments.iter().flatten();
        bursts.flat_map(|burst| burst.steps.iter().copied())
    }

    #[inline]
    fn play(&mut self, step: Step) {
        match step {
            Step::Get(order) => self.held.push((self.place.get(order), order)),
            Step::Put(at) => {
                if let (Some(run), order) = self.held.swap_remove(at as usize) {
                    self.place.put(run, order);
                }
            }
        }
    }

    /// Frees everything.
    fn end(&mut self) {
        for (run, order) in std::mem::take(&mut self.held) {
            run.into_iter().for_each(|run| self.place.put(run, order));
        }
    }

    /// Times all threads at once, segment by segment.
    fn whole_segments(&mut self, member: &Member<'_>) -> Part {
        let stopwatch = Stopwatch::new();
        let mut part = Part::default();
        for bursts in &self.trace.segments {
            member.meet();
            let steps: usize = bursts.iter().map(|burst| burst.steps.len()).sum();
            let ns = stopwatch.time(|| {
                for burst in bursts {
                    burst.steps.iter().for_each(|&step| self.play(step));
                }
            });
            part.segments.push(ns / steps.max(1) as f64);
        }
        part.segments.drain(..1.min(part.segments.len()));
        member.meet();
        self.end();
        part
    }

    /// Plays until a call goes to its zone; returns `None` after the last step.
    fn next_slow(
        &mut self,
        steps: &mut impl Iterator<Item = Step>,
        stopwatch: &Stopwatch,
    ) -> Option<Slow> {
        loop {
            let step = steps.next()?;
            let before = self.place.free_pages();
            let (call_ns, took) = watch(|| stopwatch.time(|| self.play(step)));
            let after = self.place.free_pages();
            if before != after {
                let calls_before = std::mem::take(&mut self.calls);
                let (pages, is_drain) = (before.abs_diff(after), after > before);
                let ns = took.held * 1e9;
                return Some(Slow { calls_before, call_ns, ns, pages, is_drain });
            }
            self.calls += 1;
        }
    }

    /// Times each call separately.
    fn each_call(&mut self) -> Part {
        use_wall_clock();
        let stopwatch = Stopwatch::new();
        let mut steps = self.steps();
        let mut slow: Vec<Slow> =
            std::iter::from_fn(|| self.next_slow(&mut steps, &stopwatch)).collect();
        self.end();
        // The first calls fill an empty cache, and during the longest ones the host had taken the
        // CPU away.
        slow.drain(..slow.len() / 10);
        let most = trimmed(&slow) * 50.0;
        slow.retain(|slow| slow.call_ns < most);
        Part { slow, ..Part::default() }
    }

    /// Lets two threads take turns, each until one of its calls goes to the zone.
    fn by_turns(&mut self, member: &Member<'_>, turn: &(AtomicUsize, AtomicBool)) -> Part {
        use_wall_clock();
        let stopwatch = Stopwatch::new();
        let (whose, is_over) = turn;
        let mut steps = self.steps();
        let mut slow = Vec::new();
        member.meet();
        loop {
            while whose.load(Ordering::Acquire) != member.index && !is_over.load(Ordering::Relaxed)
            {
                std::hint::spin_loop();
            }
            if is_over.load(Ordering::Relaxed) {
                break;
            }
            match self.next_slow(&mut steps, &stopwatch) {
                Some(one) => slow.push(one),
                None => is_over.store(true, Ordering::Relaxed),
            }
            whose.store(1 - member.index, Ordering::Release);
        }
        member.meet();
        self.end();
        slow.drain(..slow.len() / 10);
        Part { slow, ..Part::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_are_a_line_over_pages() {
        let slow =
            |pages: u64, ns, is_drain| Slow { calls_before: 9, call_ns: ns, ns, pages, is_drain };
        let slow = vec![slow(64, 228.0, false), slow(128, 356.0, false), slow(1, 70.0, true)];
        let costs = Costs { slow, ..Costs::default() };
        let (none, each) = costs.by_pages(false);
        assert!((none - 100.0).abs() < 1e-9 && (each - 2.0).abs() < 1e-9, "{none} {each}");
        assert_eq!((costs.by_pages(true), costs.calls_per_hold()), ((70.0, 0.0), 10.0));
        assert_eq!(Costs::default().by_pages(true), (0.0, 0.0));
    }

    #[test]
    fn everything_is_measured() {
        let length = Length { segments: 3, operations: 1 << 12 };
        let scale = Scale { length, memory_bytes: 1 << 30, pages: 20_000 };
        for pattern in Pattern::ALL {
            let costs = measure(pattern, 2, scale).expect("a small machine");
            assert!(costs.slow.iter().all(|slow| slow.pages > 0 && slow.ns > 0.0));
            assert!(costs.slow.iter().any(|slow| slow.is_drain));
            assert!(costs.hold_ns() > 0.0 && costs.cached_ns > 0.0 && costs.transfer_ns.is_some());
            assert!(costs.real_ns.iter().all(|ns| ns.is_some_and(|ns| ns > 0.0)), "{costs:?}");
        }
    }
}
