//! Ways to run a load: [`Engine`].

use super::cases::{Case, Kind, Load};
use crate::bench::common::failed;
use framewright_cli::error::Error;
use framewright_hosted::HostedHelpers;
use framewright_jobs::{Job, UnitCost};
use rayon::prelude::*;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// What runs the job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Engine {
    /// A plain loop.
    Serial,
    /// [`framewright_jobs`] with the helpers of the process, by a caller that remembers the cost of
    /// its units from job to job, as the others keep their threads.
    Ours,
    /// [`framewright_jobs`], by a caller that remembers nothing from job to job.
    OursNew,
    /// rayon, called from a thread of the program.
    Rayon,
    /// rayon, called from one of its own threads.
    RayonInside,
    /// Threads that are started and ended for each job.
    Scoped,
}

impl Engine {
    /// All engines.
    pub const ALL: [Self; 6] =
        [Self::Serial, Self::Ours, Self::OursNew, Self::Rayon, Self::RayonInside, Self::Scoped];

    /// The engine's name in rows.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Serial => "serial",
            Self::Ours => "framewright",
            Self::OursNew => "framewright-new",
            Self::Rayon => "rayon",
            Self::RayonInside => "rayon-inside",
            Self::Scoped => "scoped",
        }
    }
}

/// What engines keep from job to job.
pub struct Pools {
    rayon: rayon::ThreadPool,
    /// The result of each worker of one of our jobs.
    sums: Vec<Sum>,
    threads: usize,
}

/// A worker's own sum, on its own cache line, so that no other worker writes to that line.
#[derive(Default)]
#[repr(align(128))]
struct Sum(AtomicU64);

impl Sum {
    fn add(&self, value: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(value), Ordering::Relaxed);
    }

    /// Takes the sum and resets it for the next job.
    fn take(&self) -> u64 {
        let sum = self.0.load(Ordering::Relaxed);
        // Leave the cache line of an idle worker where it is.
        if sum != 0 {
            self.0.store(0, Ordering::Relaxed);
        }
        sum
    }
}

/// The result of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// The computed sum, which is equal for all engines.
    pub sum: u64,
    /// The threads that took part, or could.
    pub threads: usize,
}

impl Pools {
    /// Starts as many threads for each engine as there are CPUs.
    ///
    /// # Errors
    /// Fails if threads cannot be started.
    pub fn new(threads: usize) -> Result<Self, Error> {
        let rayon = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let rayon = rayon.map_err(|error| failed(format!("rayon has no threads: {error}")))?;
        Ok(Self { rayon, sums: (0..threads).map(|_| Sum::default()).collect(), threads })
    }

    /// Calls `passes` with a function that runs the load once, in the engine's surroundings. `cost`
    /// is what our engine remembers.
    pub fn with<T: Send>(
        &self,
        engine: Engine,
        case: &Case,
        load: Load<'_>,
        cost: &UnitCost,
        passes: impl FnOnce(&dyn Fn() -> Done) -> T + Send,
    ) -> T {
        let units = case.units;
        match engine {
            Engine::Serial => passes(&|| Done { sum: load.range(0..black_box(units)), threads: 1 }),
            Engine::Ours | Engine::OursNew if case.kind == Kind::Empty => passes(&|| {
                self.ours(Job::new(0..black_box(units)).min_chunk(1).max_threads(2), &load)
            }),
            Engine::Ours => {
                passes(&|| self.ours(Job::new(0..black_box(units)).learning_in(cost), &load))
            }
            Engine::OursNew => passes(&|| self.ours(Job::new(0..black_box(units)), &load)),
            Engine::Rayon => passes(&|| self.rayon.install(|| self.rayon_job(case, load))),
            Engine::RayonInside => self.rayon.install(|| passes(&|| self.rayon_job(case, load))),
            Engine::Scoped => passes(&|| self.scoped(units, load)),
        }
    }

    fn rayon_job(&self, case: &Case, load: Load<'_>) -> Done {
        let sum = if case.kind == Kind::Empty {
            let (one, other) = rayon::join(|| load.step(0, 0), || load.step(0, 1));
            one + other
        } else {
            let units = (0..black_box(case.units)).into_par_iter();
            units.fold(|| 0, |sum, unit| load.step(sum, unit)).reduce(|| 0, u64::wrapping_add)
        };
        Done { sum, threads: self.threads }
    }

    fn scoped(&self, units: u64, load: Load<'_>) -> Done {
        let threads = self.threads as u64;
        let share = |index: u64| load.range(units * index / threads..units * (index + 1) / threads);
        let sum = thread::scope(|scope| {
            let others: Vec<_> =
                (1..threads).map(|index| scope.spawn(move || share(index))).collect();
            let own = share(0);
            others
                .into_iter()
                .fold(own, |sum, other| sum.wrapping_add(other.join().expect("no panic")))
        });
        Done { sum, threads: self.threads }
    }

    /// Inlined at each place that makes a job, as in real programs.
    #[inline(always)]
    fn ours(&self, job: Job<'_>, load: &Load<'_>) -> Done {
        let result = job.run(HostedHelpers::shared(), |chunk, worker| {
            let sum = self.sums.get(worker.index() as usize).ok_or(NoRoom)?;
            sum.add(load.range(chunk));
            Ok::<_, NoRoom>(())
        });
        let threads = result.map_or(0, |summary| summary.threads as usize);
        Done { sum: self.sums.iter().fold(0, |all, sum| all.wrapping_add(sum.take())), threads }
    }
}

/// There are more workers than CPUs.
struct NoRoom;
