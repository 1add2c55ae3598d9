//! Rounds of a case, in each of which every engine has its turn.
//!
//! The CPU time that a machine gives a process changes from one second to the next by more than the
//! difference between engines. So engines are compared within a round, in random order, and the
//! result is the median of the rounds' ratios with its interval, and not the ratio of medians.

use super::cases::{Case, Load, chain};
use super::engines::{Engine, Pools};
use crate::bench::random::Random;
use crate::bench::statistics::bootstrap;
use crate::rows::{Interval, Jobs, Spread};
use framewright_jobs::UnitCost;
use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

/// How often to repeat.
#[derive(Clone, Copy)]
pub struct Effort {
    /// The number of timed rounds.
    pub rounds: usize,
    /// The time after which a case ends early, once it has a few rounds.
    pub enough: Duration,
}

/// Even a slow case has this many rounds.
const LEAST_ROUNDS: usize = 4;
/// A case with a longer job has no round to warm up.
const LONG_NS: u64 = 100_000_000;
/// The least length of a sample; short jobs are done many times for it.
const SAMPLE_NS: u64 = 200_000;
/// By then, the threads of the previous engine have gone to sleep.
const PAUSE: Duration = Duration::from_micros(300);
/// Longer jobs are not measured from inside rayon, as the place of the call makes no difference for
/// them.
const SHORT_NS: u64 = 100_000;
/// If all CPUs are free, longer jobs are only measured with the costs that earlier jobs taught, as
/// a first chunk makes no difference for them.
const TAUGHT_NS: u64 = 2_000_000;

/// How many thousandths of a step take a nanosecond here: the least of several readings.
fn steps_per_us() -> u64 {
    const STEPS: u64 = 100_000;
    let reading = |seed: u64| {
        let start = Instant::now();
        black_box(chain(black_box(seed), STEPS));
        start.elapsed().as_nanos()
    };
    let least = (0..20).map(reading).min().unwrap_or(1).max(1);
    u64::try_from(u128::from(STEPS) * 1000 / least).unwrap_or(1000)
}

/// The samples of one engine, one for each round, and the most threads that took part.
#[derive(Clone, Default)]
struct Samples {
    seconds: Vec<f64>,
    threads: usize,
}

/// Measures one case: a row for each engine.
pub fn rows(case: &Case, pools: &Pools, memory: &[u64], effort: Effort) -> Vec<Jobs> {
    let load = Load::new(case, memory, steps_per_us());
    let longest_ns = |engine: &Engine| match engine {
        Engine::RayonInside => SHORT_NS,
        Engine::OursNew if !case.busy => TAUGHT_NS,
        _ => u64::MAX,
    };
    let engines: Vec<Engine> =
        Engine::ALL.into_iter().filter(|engine| case.nanoseconds() <= longest_ns(engine)).collect();
    let cost = UnitCost::new();
    let most_passes = (SAMPLE_NS / case.nanoseconds().max(100)).max(1);
    let mut samples: Vec<Samples> = vec![Samples::default(); engines.len()];
    let expected = load.range(0..case.units);
    let mut order: Vec<usize> = (0..engines.len()).collect();
    let mut random = Random::new(case.units ^ case.unit_ns);
    let start = Instant::now();
    let first = i64::from(case.nanoseconds() > LONG_NS);
    for round in first.. {
        let rounds = usize::try_from(round - 1).unwrap_or(0);
        if rounds >= effort.rounds || rounds >= LEAST_ROUNDS && start.elapsed() > effort.enough {
            break;
        }
        random.shuffle(&mut order);
        for &index in &order {
            thread::sleep(PAUSE);
            let (seconds, threads) = pools.with(engines[index], case, load, &cost, |job| {
                // For short jobs the engine stays awake, as in a program that runs one job after
                // the other.
                let mut threads = 0;
                let mut passes = most_passes;
                if passes > 1 {
                    threads = job().threads;
                    let start = Instant::now();
                    job();
                    let one_ns =
                        u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX).max(1);
                    passes = passes.min(SAMPLE_NS / one_ns).max(1);
                }
                let start = Instant::now();
                for _ in 0..passes {
                    let done = black_box(job());
                    threads = threads.max(done.threads);
                    assert_eq!(done.sum, expected, "{case:?}: not all of it was done");
                }
                (start.elapsed().as_secs_f64() / passes as f64, threads)
            });
            // Round 0 warms up.
            if round > 0 {
                samples[index].seconds.push(seconds);
            }
            samples[index].threads = samples[index].threads.max(threads);
        }
    }
    let of = |engine: Engine| {
        engines.iter().position(|&other| other == engine).map(|index| &samples[index].seconds[..])
    };
    let (serial, ours) =
        (of(Engine::Serial).unwrap_or_default(), of(Engine::Ours).unwrap_or_default());
    engines
        .iter()
        .zip(&samples)
        .filter_map(|(engine, samples)| row(case, *engine, samples, [serial, ours]))
        .collect()
}

fn row(
    case: &Case,
    engine: Engine,
    samples: &Samples,
    [serial, ours]: [&[f64]; 2],
) -> Option<Jobs> {
    let seconds = Spread::of(samples.seconds.iter().copied());
    seconds.middle?;
    let ratio = |others: &[f64]| -> Interval {
        let pairs = samples.seconds.iter().zip(others);
        bootstrap(&pairs.map(|(own, other)| own / other).collect::<Vec<_>>())
    };
    Some(Jobs {
        case: case.name.clone(),
        engine: engine.name().into(),
        units: case.units,
        unit_ns: case.unit_ns,
        threads: (samples.threads as u64).into(),
        repetitions: (samples.seconds.len() as u64).into(),
        seconds,
        serial_ratio: ratio(serial),
        framewright_ratio: ratio(ours),
    })
}
