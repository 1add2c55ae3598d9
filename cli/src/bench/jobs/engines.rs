//! Ways to do a load: [`Engine`].

use super::cases::{Case, Kind, Load};
use crate::error::Error;
use framewright_hosted::HostedHelpers;
use framewright_jobs::Job;
use rayon::prelude::*;
use std::convert::Infallible;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// Who does it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Engine {
    /// A loop.
    Serial,
    /// [`framewright_jobs`] with the helpers of the process.
    Ours,
    /// rayon, from a thread of the program.
    Rayon,
    /// rayon, from one of its own threads.
    RayonInside,
    /// Threads that are started and ended.
    Scoped,
}

impl Engine {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Serial, Self::Ours, Self::Rayon, Self::RayonInside, Self::Scoped];

    /// What rows call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Serial => "serial",
            Self::Ours => "framewright",
            Self::Rayon => "rayon",
            Self::RayonInside => "rayon-inside",
            Self::Scoped => "scoped",
        }
    }
}

/// What engines keep from job to job.
pub struct Pools {
    rayon: rayon::ThreadPool,
    threads: usize,
}

/// What a job came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// The same for all engines.
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
        let rayon = rayon.map_err(|error| Error::Failed(format!("rayon has no threads: {error}")))?;
        Ok(Self { rayon, threads })
    }

    /// Calls `passes` with what does the load once, in the engine's surroundings.
    pub fn with<T: Send>(
        &self,
        engine: Engine,
        case: &Case,
        load: Load<'_>,
        passes: impl FnOnce(&dyn Fn() -> Done) -> T + Send,
    ) -> T {
        let units = case.units;
        match engine {
            Engine::Serial => passes(&|| Done { sum: load.range(0..black_box(units)), threads: 1 }),
            Engine::Ours => passes(&|| ours(case, load)),
            Engine::Rayon => passes(&|| self.rayon.install(|| self.rayon_job(case, load))),
            Engine::RayonInside => self.rayon.install(|| passes(&|| self.rayon_job(case, load))),
            Engine::Scoped => passes(&|| self.scoped(units, load)),
        }
    }

    fn rayon_job(&self, case: &Case, load: Load<'_>) -> Done {
        let sum = if case.kind == Kind::Empty {
            let (one, other) = rayon::join(|| load.unit(0), || load.unit(1));
            one + other
        } else {
            (0..black_box(case.units)).into_par_iter().map(|unit| load.unit(unit)).reduce(|| 0, u64::wrapping_add)
        };
        Done { sum, threads: self.threads }
    }

    fn scoped(&self, units: u64, load: Load<'_>) -> Done {
        let threads = self.threads as u64;
        let share = |index: u64| load.range(units * index / threads..units * (index + 1) / threads);
        let sum = thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|index| scope.spawn(move || share(index))).collect();
            let own = share(0);
            others.into_iter().fold(own, |sum, other| sum.wrapping_add(other.join().expect("no panic")))
        });
        Done { sum, threads: self.threads }
    }
}

fn ours(case: &Case, load: Load<'_>) -> Done {
    let sum = AtomicU64::new(0);
    let job = Job::new(0..black_box(case.units));
    let job = if case.kind == Kind::Empty { job.min_chunk(1).max_threads(2) } else { job };
    let result = job.run(HostedHelpers::shared(), |chunk, _worker| {
        sum.fetch_add(load.range(chunk), Ordering::Relaxed);
        Ok::<_, Infallible>(())
    });
    let threads = result.map_or(0, |summary| summary.threads as usize);
    Done { sum: sum.into_inner(), threads }
}
