//! Repetitions of a case by all engines in turn.

use super::cases::{Case, Load, chain};
use super::engines::{Engine, Pools};
use crate::bench::common::median;
use serde_json::{Value, json};
use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

/// How often to repeat.
#[derive(Clone, Copy)]
pub struct Effort {
    /// Timed repetitions of each engine.
    pub repetitions: usize,
    /// The time after which a case ends early, once it has a few.
    pub enough: Duration,
}

/// Even a slow case has this many.
const LEAST_REPETITIONS: usize = 3;
/// A sample is at least so long, by doing short jobs many times.
const SAMPLE_NS: u64 = 200_000;
/// Threads of the engine before have gone to sleep by then.
const PAUSE: Duration = Duration::from_micros(300);
/// Jobs above this are not measured from inside rayon: where they are called from makes no difference.
const SHORT_NS: u64 = 100_000;

/// Thousandths of a step that take a nanosecond here: the least of some readings.
fn steps_per_us() -> u64 {
    const STEPS: u64 = 100_000;
    let reading = |seed: u64| {
        let start = Instant::now();
        black_box(chain(seed, STEPS));
        start.elapsed().as_nanos()
    };
    let least = (0..20).map(reading).min().unwrap_or(1).max(1);
    u64::try_from(u128::from(STEPS) * 1000 / least).unwrap_or(1000)
}

/// Measures one case: a row for each engine.
pub fn rows(case: &Case, pools: &Pools, memory: &[u64], effort: Effort) -> Vec<Value> {
    let load = Load::new(case, memory, steps_per_us());
    let engines: Vec<Engine> = Engine::ALL
        .into_iter()
        .filter(|&engine| engine != Engine::RayonInside || case.nanoseconds() <= SHORT_NS)
        .collect();
    let passes = (SAMPLE_NS / case.nanoseconds().max(100)).max(1);
    let mut samples: Vec<(Vec<f64>, usize)> = vec![Default::default(); engines.len()];
    let expected = load.range(0..case.units);
    let start = Instant::now();
    for repetition in 0..=effort.repetitions {
        if repetition > LEAST_REPETITIONS && start.elapsed() > effort.enough {
            break;
        }
        for turn in 0..engines.len() {
            let index = (turn + repetition) % engines.len();
            thread::sleep(PAUSE);
            let (seconds, threads) = pools.with(engines[index], case, load, |job| {
                // Short jobs: the engine awake, as in a program that has one after the other.
                let mut threads = if passes > 1 { job().threads } else { 0 };
                let start = Instant::now();
                for _ in 0..passes {
                    let done = black_box(job());
                    threads = threads.max(done.threads);
                    assert_eq!(done.sum, expected, "{case:?}: not all of it was done");
                }
                (start.elapsed().as_secs_f64() / passes as f64, threads)
            });
            // The first warms up.
            if repetition > 0 {
                samples[index].0.push(seconds);
            }
            samples[index].1 = samples[index].1.max(threads);
        }
    }
    engines
        .iter()
        .zip(samples)
        .filter_map(|(engine, (samples, threads))| row(case, *engine, samples, threads))
        .collect()
}

fn row(case: &Case, engine: Engine, mut samples: Vec<f64>, threads: usize) -> Option<Value> {
    samples.sort_by(f64::total_cmp);
    Some(json!({
        "bench": "jobs",
        "case": case.name,
        "engine": engine.name(),
        "units": case.units,
        "unit_ns": case.unit_ns,
        "threads": threads,
        "repetitions": samples.len(),
        "seconds": median(&samples)?,
        "seconds_min": samples.first()?,
        "seconds_max": samples.last()?,
    }))
}
