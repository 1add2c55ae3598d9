//! Random traffic for any length of time, on machines of all shapes in turn: `cargo xtask soak
//! SECONDS [--seed N] [--threads N]`.
//!
//! It prints a line for each machine. A failure ends it and prints the seed. The order of several
//! threads differs from run to run, so a seed repeats the choices, not the failure; with `--threads
//! 1` it repeats both.

use framewright_testkit::{Shape, Traffic, shapes};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

/// Pages, or runs of them, that traffic on a machine must at least get and give back.
const LEAST: u64 = 100;

/// The arguments.
struct Options {
    seconds: u64,
    seed: u64,
    threads: Option<u32>,
}

impl Options {
    fn read(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let clock = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let mut options = Self {
            seconds: 0,
            seed: clock.map_or(1, |time| u64::from(time.subsec_nanos())),
            threads: None,
        };
        let mut seconds = None;
        while let Some(word) = words.next() {
            let mut number = |name: &str| {
                let value = words.next().and_then(|value| value.parse().ok());
                value.ok_or(format!("{name} needs a number"))
            };
            match word.as_str() {
                "--seed" => options.seed = number("--seed")?,
                "--threads" => {
                    let threads = number("--threads")?;
                    options.threads = Some(
                        u32::try_from(threads)
                            .ok()
                            .filter(|threads| (1..=256).contains(threads))
                            .ok_or("--threads takes 1 to 256")?,
                    );
                }
                word => {
                    seconds =
                        Some(word.parse().map_err(|_| format!("not a number of seconds: {word}"))?)
                }
            }
        }
        options.seconds = seconds.ok_or("how many seconds?")?;
        Ok(options)
    }
}

fn main() -> ExitCode {
    let options = match Options::read(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(wrong) => {
            eprintln!("{wrong}\nusage: cargo xtask soak SECONDS [--seed N] [--threads N]");
            return ExitCode::from(2);
        }
    };
    println!("seed {}", options.seed);
    let host_cpus = std::thread::available_parallelism()
        .map_or(2, |cpus| u32::try_from(cpus.get()).unwrap_or(2));
    // As many threads as the host has CPUs, so that they run at once; and more, so that they are
    // preempted anywhere.
    let counts = options
        .threads
        .map_or(vec![host_cpus.clamp(2, 64), host_cpus.min(20) * 3 + 2], |threads| vec![threads]);
    let runs: Vec<(Shape, u32)> = shapes()
        .into_iter()
        .flat_map(|shape| counts.iter().map(move |&threads| (shape.clone(), threads)))
        .collect();
    if runs.is_empty() {
        println!("FAILED: there is no machine to run on");
        return ExitCode::FAILURE;
    }
    let time = Duration::from_secs(options.seconds) / u32::try_from(runs.len()).unwrap_or(1);
    for (number, (shape, threads)) in (0..).zip(runs) {
        let name = shape.name;
        if let Err(failure) = soak(shape, threads, options.seed.wrapping_add(number), time) {
            println!("{name}, {threads} threads: FAILED: {failure}");
            println!("seed {}", options.seed);
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Stresses one machine and returns the result.
fn soak(shape: Shape, threads: u32, seed: u64, time: Duration) -> Result<(), String> {
    let name = shape.name;
    let manager = shape.bring_up(threads);
    let free = manager.totals().free_pages;
    let started = Instant::now();
    let traffic = Traffic { threads, seed, held: 700, operations: 2000 };
    let (tally, counts) = traffic.run(&manager, &|_| started.elapsed() < time)?;
    if counts.free_pages != free {
        return Err(format!("{} of {free} pages came back", counts.free_pages));
    }
    // A manager that refuses everything loses nothing, and shows nothing.
    if tally.allocations < LEAST || tally.frees < LEAST {
        return Err(format!("too little was done to tell: {tally}"));
    }
    let seconds = started.elapsed().as_secs_f64();
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "for people to read"
    )]
    let rate = (tally.operations as f64 / seconds) as u64;
    println!("{name}, {threads} threads: all {free} pages back after {tally}; {rate} operations/s");
    // SAFETY: the manager is not used any more, and nothing is held.
    unsafe { manager.platform().retire() };
    Ok(())
}
