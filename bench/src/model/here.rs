//! Measurements on this machine: machines brought up and pools resized, as in the benchmarks.

use super::predict::Maps;
use super::shape::Shape;
use crate::bench::common::failed;
use crate::bench::host::thread_cpu_seconds;
use crate::bench::hugepages::resize;
use crate::rows::Spread;
use framewright::hugetlb::PoolSize;
use framewright_cli::error::Error;
use framewright_cli::hosted::{Pass, Session, Silent};
use framewright_hosted::Machine;
use framewright_jobs::NoHelpers;
use std::time::{Duration, Instant};

/// How long to repeat short runs, so that some of them have the CPU to themselves.
const LONG_ENOUGH: Duration = Duration::from_millis(60);
/// How long to repeat runs whose untimed part takes most of the time.
const LONG_ENOUGH_AT_BRING_UP: Duration = Duration::from_millis(400);
/// How long to repeat runs in which the system takes memory back and supplies it.
const LONG_ENOUGH_WITH_MAPS: Duration = Duration::from_millis(200);
/// How long to repeat runs between which a whole vmemmap is backed and dirtied.
const LONG_ENOUGH_FOR_A_MAP: Duration = Duration::from_millis(800);
/// The most runs that are worthwhile.
const MOST_RUNS: usize = 10_000;

/// Whether there were enough runs.
fn is_enough(runs: usize, least: usize, started: Instant, long_enough: Duration) -> bool {
    runs > least && (started.elapsed() > long_enough || runs > MOST_RUNS)
}

/// The extremes of several runs, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// The least time.
    pub least: f64,
    /// The greatest time.
    pub most: f64,
}

impl Times {
    fn of(values: impl IntoIterator<Item = f64>) -> Result<Self, Error> {
        let Spread { least, most, .. } = Spread::of(values);
        let times = least.zip(most).map(|(least, most)| Self { least, most });
        times.ok_or_else(|| failed("nothing was measured"))
    }
}

/// Times bring-ups over memory that is backed and dirty, on demand and without descriptors. Also
/// returns the machine's shape.
///
/// # Errors
/// Fails if this process cannot emulate the machine.
pub fn bring_up(machine: &Machine, runs: usize) -> Result<(Times, Shape), Error> {
    let mut pass =
        Session::open(machine, "memmap_init=on-demand pages=none")?.bring_up(&mut Silent)?;
    let shape = Shape::brought_up(machine, pass.manager());
    let mut times = Vec::new();
    let started = Instant::now();
    while !is_enough(times.len(), runs, started, LONG_ENOUGH_AT_BRING_UP) {
        pass = pass.end_dirty()?.bring_up(&mut Silent)?;
        times.push(total_ms(&pass, "bring_up_us")?);
    }
    Ok((Times::of(times)?, shape))
}

/// Times bring-ups of all memory with a policy and this many threads, with tables and array backed
/// and dirty.
///
/// # Errors
/// The errors of [`bring_up`]; or there is no memory for the array.
pub fn all_memory(
    machine: &Machine,
    policy: &str,
    threads: u32,
    runs: usize,
) -> Result<Times, Error> {
    let line = format!("memmap_init={policy} memmap_init_threads={threads}");
    let mut session = with_array(Session::open(machine, &line)?)?;
    let mut times = Vec::new();
    // The first bring-up touches everything.
    session = session.bring_up(&mut Silent)?.end_dirty()?;
    let started = Instant::now();
    while !is_enough(times.len(), runs, started, LONG_ENOUGH_FOR_A_MAP) {
        let pass = session.bring_up(&mut Silent)?;
        times.push(total_ms(&pass, "all_memory_us")?);
        session = pass.end_dirty()?;
    }
    Times::of(times)
}

fn total_ms(pass: &Pass<'_>, name: &str) -> Result<f64, Error> {
    let us = pass.report["totals"][name].as_f64();
    us.map(|us| us / 1e3).ok_or_else(|| failed("the library did not say how long it took"))
}

fn with_array(session: Session<'_>) -> Result<Session<'_>, Error> {
    if session.has_page_array() {
        return Ok(session);
    }
    Err(Error::Failed("this host has too little memory for the vmemmap".into()))
}

/// A machine whose pools are resized.
pub struct Pool<'a>(Pass<'a>);

impl<'a> Pool<'a> {
    /// Brings the machine up, with or without a vmemmap.
    ///
    /// # Errors
    /// The errors of [`bring_up`].
    pub fn open(machine: &'a Machine, has_array: bool) -> Result<Self, Error> {
        let session = if has_array {
            with_array(Session::open(machine, "memmap_init=eager")?)?
        } else {
            Session::open(machine, "memmap_init=on-demand pages=none")?
        };
        Ok(Self(session.bring_up(&mut Silent)?))
    }

    /// Fills and empties a pool several times, after one run to warm up, with helpers if there is
    /// more than one thread.
    ///
    /// # Errors
    /// Fails if a pool did not get its pages.
    pub fn resize(
        &self,
        size: PoolSize,
        pages: u64,
        maps: Maps,
        threads: u32,
        runs: usize,
    ) -> Result<(Times, Times), Error> {
        let manager = self.0.manager();
        let to = |target: u64| {
            // Work that is long enough for the thread's CPU clock is timed with that clock, which
            // other load does not affect. Reading it takes as long as some hundred pages take to
            // leave the pool.
            let by_cpu = threads == 1 && (maps == Maps::Eager || maps == Maps::Lazy && target != 0);
            let (started, cpu_seconds) =
                (Instant::now(), if by_cpu { thread_cpu_seconds() } else { 0.0 });
            let resized = resize(manager, (size, pages), target, threads);
            let elapsed = if by_cpu {
                thread_cpu_seconds() - cpu_seconds
            } else {
                started.elapsed().as_secs_f64()
            };
            resized.map(|()| elapsed * 1e3)
        };
        let set = || {
            manager.hugetlb().set_optimize_vmemmap(maps != Maps::Kept);
            manager.hugetlb().set_eager_restore(maps == Maps::Eager);
        };
        let (mut fills, mut empties) = (Vec::new(), Vec::new());
        let long_enough = if maps == Maps::Kept { LONG_ENOUGH } else { LONG_ENOUGH_WITH_MAPS };
        self.make_whole()?;
        let (mut run, started) = (0, Instant::now());
        while !is_enough(run, runs, started, long_enough) {
            set();
            let (fill, empty) = (to(pages)?, to(0)?);
            // The first run warms up.
            if run > 0 {
                fills.push(fill);
                empties.push(empty);
            }
            run += 1;
            if maps == Maps::Lazy {
                // Not timed: restore all maps for the next run, which may get any pages of the
                // zone.
                self.make_whole()?;
            }
        }
        if maps == Maps::Lazy {
            // A microsecond right after milliseconds in the system would measure the system's
            // traces in the caches. So emptying is timed with pages that had no map before, which
            // need no system call.
            empties.clear();
            set();
            let (mut run, started) = (0, Instant::now());
            while !is_enough(run, runs, started, LONG_ENOUGH) {
                to(pages)?;
                empties.push(to(0)?);
                run += 1;
            }
        }
        self.make_whole()?;
        Ok((Times::of(fills)?, Times::of(empties)?))
    }

    /// Restores the state in which each row begins: pools are empty, and every page has its map.
    /// All memory goes through a pool that restores maps.
    fn make_whole(&self) -> Result<(), Error> {
        let manager = self.0.manager();
        manager.hugetlb().set_optimize_vmemmap(false);
        manager.hugetlb().set_eager_restore(true);
        let pool = manager.pool(PoolSize::TwoMib);
        let failed = |error| Error::Failed(format!("the pool that restores maps: {error}"));
        pool.resize(manager.totals().free_pages / PoolSize::TwoMib.frames(), &NoHelpers)
            .map_err(failed)?;
        pool.resize(0, &NoHelpers).map_err(failed)?;
        manager.hugetlb().set_eager_restore(false);
        Ok(())
    }
}
