//! Ways to do a load: [`Engine`].

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
    /// A loop.
    Serial,
    /// [`framewright_jobs`] with the helpers of the process, by a caller that keeps what its units
    /// cost from job to job, as others keep their threads.
    Ours,
    /// [`framewright_jobs`], by a caller that keeps nothing from job to job.
    OursNew,
    /// rayon, from a thread of the program.
    Rayon,
    /// rayon, from one of its own threads.
    RayonInside,
    /// Threads that are started and ended.
    Scoped,
}

impl Engine {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Serial, Self::Ours, Self::OursNew, Self::Rayon, Self::RayonInside, Self::Scoped];

    /// What rows call it.
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
    /// What each worker of a job of ours came to.
    sums: Vec<Sum>,
    threads: usize,
}

/// A worker's own, on a line of its own: nobody else writes it meanwhile.
#[derive(Default)]
#[repr(align(128))]
struct Sum(AtomicU64);

impl Sum {
    fn add(&self, value: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(value), Ordering::Relaxed);
    }

    /// For the next job it is nothing again.
    fn take(&self) -> u64 {
        let sum = self.0.load(Ordering::Relaxed);
        // The line of a worker that did nothing stays where it is.
        if sum != 0 {
            self.0.store(0, Ordering::Relaxed);
        }
        sum
    }
}

/// What a job came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// What was computed: equal for all engines.
    pub sum: u64,
    /// That took part, or could.
    pub threads: usize,
}

impl Pools {
    /// As many threads as there are CPUs for each engine.
    ///
    /// # Errors
    /// They cannot be started.
    pub fn new(threads: usize) -> Result<Self, Error> {
        let rayon = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let rayon = rayon.map_err(|error| failed(format!("rayon has no threads: {error}")))?;
        Ok(Self { rayon, sums: (0..threads).map(|_| Sum::default()).collect(), threads })
    }

    /// Calls `passes` with what does the load once, in the engine's surroundings. `cost` is what
    /// ours keeps.
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

    /// At each place where a job is made, as programs have it.
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
