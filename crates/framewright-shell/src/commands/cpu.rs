//! `cpu`: stops CPUs and lets them go on.
//!
//! Orders of memory: Relaxed: a CPU may see late that it is time to end.

use super::arguments;
use crate::host::Host;
use crate::io::{Failed, Io};
use crate::shell::Shell;
use crate::size::Counted;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use framewright::manager::CpuError;
use framewright::procfs::write_cpu_list;
use framewright::{Platform, SpinLock};
use framewright_workload::{Failure, Held, Random, Shared, Tally, Worker};

/// The most runs that a worker holds, limited because they lie on its stack.
const RUNS: usize = 128;
/// The number of operations between two checks whether to stop.
const STEPS: u64 = 50;
/// The number of rounds between two drains.
const DRAIN_EVERY: u64 = 8;

/// What can go wrong in a storm.
enum Trouble {
    /// A CPU could not go offline or online.
    Cpu(CpuError),
    /// A CPU does not run again.
    Lost(u32),
    /// The cache of an offline CPU has pages in it.
    Kept { cpu: u32, pages: u64 },
    /// The traffic found something wrong.
    Traffic(Failure),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu(error) => error.fmt(f),
            Self::Lost(cpu) => write!(f, "CPU {cpu} does not run"),
            Self::Kept { cpu, pages } => {
                write!(f, "CPU {cpu} is offline and keeps {}", Counted(*pages, "page"))
            }
            Self::Traffic(failure) => failure.fmt(f),
        }
    }
}

pub(super) fn cpu<P: Platform, H: Host>(
    shell: &Shell<'_, P, H>,
    arguments: &[&str],
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    match arguments {
        [] => return show(shell, io),
        ["offline", number] => {
            let number = cpu_number(number, io)?;
            let pages =
                offline(shell, number).map_err(|trouble| io.fail(format_args!("{trouble}")))?;
            writeln!(io.out, "CPU {number} is offline; {} went back", Counted(pages, "page"))?;
        }
        ["online", number] => {
            let number = cpu_number(number, io)?;
            online(shell, number).map_err(|trouble| io.fail(format_args!("{trouble}")))?;
            writeln!(io.out, "CPU {number} is online")?;
        }
        ["storm", rounds] => return storm(shell, rounds, "1", io),
        ["storm", rounds, "seed", seed] => return storm(shell, rounds, seed, io),
        _ => {
            let usage = "expected offline N, online N or storm ROUNDS [seed N]";
            return Err(io.wrong(format_args!("{usage}")));
        }
    }
    Ok(())
}

fn cpu_number(text: &str, io: &mut Io<'_>) -> Result<u32, Failed> {
    let number = arguments::number("a CPU", text, io)?;
    Ok(u32::try_from(number).unwrap_or(u32::MAX))
}

fn show<P: Platform, H: Host>(shell: &Shell<'_, P, H>, io: &mut Io<'_>) -> Result<(), Failed> {
    let cpus = shell.manager.cpus();
    let all = 0..shell.manager.platform().cpus();
    for (name, is_online) in [("online", true), ("offline", false)] {
        let some = all.clone().filter(|&cpu| cpus.is_online(cpu) == is_online);
        if some.clone().next().is_some() {
            write!(io.out, "{name} ")?;
            write_cpu_list(io.out, some).map_err(|_| Failed::FAILURE)?;
        }
    }
    Ok(())
}

/// Takes a CPU offline and stops it. When this returns, the CPU has stopped or never ran.
fn offline<P: Platform, H: Host>(shell: &Shell<'_, P, H>, cpu: u32) -> Result<u64, Trouble> {
    // The manager comes first because it checks the CPU's number; either order would work.
    let pages = shell.manager.cpus().offline(cpu).map_err(Trouble::Cpu)?;
    shell.host.stop_cpu(cpu);
    Ok(pages)
}

/// Lets a CPU go on, with a cache of its own.
fn online<P: Platform, H: Host>(shell: &Shell<'_, P, H>, cpu: u32) -> Result<(), Trouble> {
    let cpus = shell.manager.cpus();
    let cpu_count = shell.manager.platform().cpus();
    if cpu < cpu_count && !cpus.is_online(cpu) && !shell.host.start_cpu(cpu) {
        return Err(Trouble::Lost(cpu));
    }
    cpus.online(cpu).map(|_| ()).map_err(Trouble::Cpu)
}

/// Runs traffic on all CPUs but this one, while one CPU after the other stops and goes on.
fn storm<P: Platform, H: Host>(
    shell: &Shell<'_, P, H>,
    rounds: &str,
    seed: &str,
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    let rounds = arguments::number("rounds", rounds, io)?;
    let seed = arguments::number("seed", seed, io)?;
    let (manager, platform) = (shell.manager, shell.manager.platform());
    if manager.cpus().count() == 1 {
        return Err(io.fail(format_args!("no other CPU is online")));
    }
    let shared = shell.undisturbed(|| Shared::new(manager));
    let is_over = AtomicBool::new(false);
    let results = SpinLock::new((Tally::default(), None::<Failure>));
    let traffic = |cpu: u32| {
        let mut room = [Held::NOTHING; RUNS];
        let mut worker =
            Worker::new(manager, &shared, &mut room, seed.wrapping_add(u64::from(cpu)));
        let done = loop {
            match worker.run(STEPS) {
                Err(failure) => break Err(failure),
                // A CPU that has to stop does so in this call.
                Ok(()) if shell.host.is_interrupted() || is_over.load(Ordering::Relaxed) => {
                    break worker.finish();
                }
                Ok(()) => {}
            }
        };
        results.with(platform, |(tally, failed)| match done {
            Ok(done) => *tally += done,
            Err(failure) => *failed = failed.or(Some(failure)),
        });
    };
    let (mut done, mut trouble) = (0, None);
    shell.host.beside(&traffic, &mut || {
        let mut random = Random::new(seed);
        while done < rounds && trouble.is_none() && !shell.host.is_interrupted() {
            match one_round(shell, &mut random, done) {
                Ok(true) => done += 1,
                Ok(false) => {}
                Err(found) => trouble = Some(found),
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let (tally, failure) = results.with(platform, |results| *results);
    let trouble = trouble.or(failure.map(Trouble::Traffic));
    let settle = || shell.undisturbed(|| shared.settle(manager)).err().map(Trouble::Traffic);
    let trouble = trouble.or_else(settle);
    if let Some(trouble) = trouble {
        return Err(io.fail(format_args!("after {done} rounds: {trouble}")));
    }
    writeln!(io.out, "{}; {tally}, every page accounted for", Counted(done, "round"))?;
    if done < rounds { Err(io.interrupted()) } else { Ok(()) }
}

/// Stops a random CPU and lets it go on. Returns false if this CPU cannot be stopped.
fn one_round<P: Platform, H: Host>(
    shell: &Shell<'_, P, H>,
    random: &mut Random,
    round: u64,
) -> Result<bool, Trouble> {
    let manager = shell.manager;
    let cpu = u32::try_from(random.below(manager.platform().cpus().into())).unwrap_or(0);
    match offline(shell, cpu) {
        Ok(_) => {}
        Err(Trouble::Cpu(CpuError::Calling(_) | CpuError::Offline(_))) => return Ok(false),
        Err(trouble) => return Err(trouble),
    }
    let kept = || manager.caches().cpu(cpu).map_or(0, |cache| cache.pages);
    let mut pages = kept();
    if round.is_multiple_of(DRAIN_EVERY) {
        // Drain the caches meanwhile; nothing waits for the result.
        let _ = manager.drain();
    }
    pages += kept();
    online(shell, cpu)?;
    if pages == 0 { Ok(true) } else { Err(Trouble::Kept { cpu, pages }) }
}
