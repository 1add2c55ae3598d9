//! What reports cost those who allocate: page faults in the manner of will-it-scale, with and
//! without reports, by turns.

use super::Scale;
use super::hosted::flush;
use crate::bench::common::median;
use crate::bench::host;
use crate::bench::random::Random;
use crate::bench::statistics::{Interval, bootstrap, deviation};
use framewright::Manager;
use framewright::units::{Order, PAGE_SIZE};
use framewright_cli::error::Error;
use framewright_cli::hosted::{Session, Silent, with_reports};
use framewright_hosted::{Advice, HostedPlatform, Machine};
use framewright_workload::{Pile, PileError};
use serde_json::{Value, json};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// What each CPU allocates before it frees all of it.
const WORKING_SET_BYTES: u64 = 128 << 20;

/// What is compared; the first is what the others are compared with. The second is the same once
/// more: what differs there is the benchmark's own error.
const CONFIGS: [Config; 5] = [
    Config { name: "off", advice: None, line: "" },
    Config { name: "off, again", advice: None, line: "" },
    Config { name: "on", advice: Some(Advice::DontNeed), line: "" },
    Config {
        name: "on+shuffle",
        advice: Some(Advice::DontNeed),
        line: " page_alloc.shuffle=1 page_alloc.shuffle_seed=1",
    },
    Config { name: "madv_free", advice: Some(Advice::Free), line: "" },
];

struct Config {
    name: &'static str,
    advice: Option<Advice>,
    line: &'static str,
}

/// What a page fault brings.
#[derive(Clone, Copy)]
enum Workload {
    /// 2 MiB.
    PageFault1,
    /// 4 KiB.
    PageFault2,
}

impl Workload {
    const fn name(self) -> &'static str {
        match self {
            Self::PageFault1 => "page_fault1",
            Self::PageFault2 => "page_fault2",
        }
    }

    const fn order(self) -> Order {
        match self {
            Self::PageFault1 => Order::BLOCK,
            Self::PageFault2 => Order::PAGE,
        }
    }
}

/// All rows.
///
/// # Errors
/// A machine that this process cannot stand in for, or too little memory in it.
pub fn rows(scale: Scale) -> Result<Vec<Value>, Error> {
    let all = u32::try_from(host::cpus()?.len()).unwrap_or(1);
    let machine = Machine::synthetic(scale.memory_bytes, 1, all)
        .map_err(|error| Error::Failed(error.to_string()))?;
    let lines = CONFIGS.map(|config| format!("memmap_init=on-demand{}", config.line));
    let mut session = Session::open(&machine, &lines[0])?;
    let mut rows = Vec::new();
    let cpus: &[u32] = if all == 1 { &[1] } else { &[1, all] };
    for workload in [Workload::PageFault1, Workload::PageFault2] {
        for &cpus in cpus {
            crate::progress::step(&format_args!("reporting: {}, {cpus} CPUs", workload.name()))?;
            let mut runs: [Vec<Run>; CONFIGS.len()] = std::array::from_fn(|_| Vec::new());
            // What comes before the first round is not measured: memory is touched for the first
            // time.
            (_, session) = run(session, &lines, 0, Load { workload, cpus, time: Duration::ZERO })?;
            let mut random = Random::new(1);
            for at in (0..scale.rounds).flat_map(|_| turns(&mut random)) {
                let run_of;
                (run_of, session) =
                    run(session, &lines, at, Load { workload, cpus, time: scale.run })?;
                runs[at].push(run_of);
            }
            let rows_of = CONFIGS
                .iter()
                .zip(&runs)
                .map(|(config, of)| row(config.name, workload, cpus, of, &runs[0]));
            rows.extend(rows_of);
        }
    }
    Ok(rows)
}

/// In which order configurations take turns in a round: forwards and then backwards, so that what
/// drifts evenly meets all alike, and in each round another order, so that none always comes behind
/// the same one, which leaves caches and memory as it does.
fn turns(random: &mut Random) -> impl Iterator<Item = usize> + use<> {
    let mut order: [usize; CONFIGS.len()] = std::array::from_fn(|at| at);
    random.shuffle(&mut order);
    order.into_iter().chain(order.into_iter().rev())
}

/// What is done in a run.
#[derive(Clone, Copy)]
struct Load {
    workload: Workload,
    cpus: u32,
    time: Duration,
}

/// A run of a configuration. The machine is brought up anew for it, over the same memory and so
/// with the same frames for all: where the system's pages lie matters more than what is measured
/// here.
fn run<'a>(
    session: Session<'a>,
    lines: &'a [String],
    at: usize,
    load: Load,
) -> Result<(Run, Session<'a>), Error> {
    let pass = session.with_command_line(&lines[at]).bring_up(&mut Silent)?;
    let (manager, advice) = (pass.manager(), CONFIGS[at].advice);
    let run = with_reports(manager, advice, &|_| {}, || crew(manager, advice.is_some(), load))??;
    let early = manager.reporting_counters().reused_early_pages;
    if early != 0 {
        let name = CONFIGS[at].name;
        return Err(Error::Failed(format!(
            "{name}: {early} reported pages were handed out too early"
        )));
    }
    pass.verify()?;
    Ok((run, pass.end_dirty()?))
}

/// What one run came to.
#[derive(Clone, Copy)]
struct Run {
    /// Pages of 4 KiB.
    pages: u64,
    /// How long the slowest took, and what CPUs spent on this process, the reports among them: what
    /// neighbours take of the CPUs does not count.
    seconds: f64,
    cpu_seconds: f64,
    /// What was reported meanwhile.
    reported_bytes: u64,
    /// How often the system had to find a page for this process meanwhile: what is handed out again
    /// after it was reported shows there.
    host_faults: u64,
}

/// One run on so many CPUs. While they hold all that they will use, everything else is reported;
/// after another turn the clocks start.
fn crew(manager: &Manager<HostedPlatform>, reports: bool, load: Load) -> Result<Run, Error> {
    let hosts = host::cpus()?;
    let workload = load.workload;
    let everybody = load.cpus as usize + 1;
    let (held, over, start) =
        (Barrier::new(everybody), Barrier::new(everybody), Barrier::new(everybody));
    let counted =
        || (host::cpu_seconds(), manager.reporting_counters().reported_pages, host::page_faults());
    let one = |cpu: u32| -> Result<(u64, f64), Error> {
        let seated =
            hosts.get(cpu as usize % hosts.len()).map_or(Ok(()), |&host| host::stay_on(host));
        let seat =
            manager.platform().enter_cpu(cpu).map_err(|error| Error::Failed(error.to_string()));
        // Nobody waits for one who has failed.
        let mut pile = Pile::near(manager, workload.order()).clearing();
        let first = fill(&mut pile);
        held.wait();
        over.wait();
        let first = first.and_then(|_| pile.free_all());
        let second = turn(manager, workload);
        start.wait();
        seated?;
        let _seat = seat?;
        first.and(second).map_err(failed)?;
        let begun = Instant::now();
        let mut pages = 0;
        while begun.elapsed() < load.time {
            pages += turn(manager, workload).map_err(failed)?;
        }
        Ok((pages, begun.elapsed().as_secs_f64()))
    };
    manager.reporting().pause();
    let (before, parts, flushed) = std::thread::scope(|scope| {
        let one = &one;
        let crew: Vec<_> = (0..load.cpus).map(|cpu| scope.spawn(move || one(cpu))).collect();
        held.wait();
        let flushed = if reports { flush(manager) } else { Ok(()) };
        manager.reporting().resume();
        over.wait();
        start.wait();
        let before = counted();
        let parts = crew.into_iter().map(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err(Error::Failed("a thread of the workload panicked".into())))
        });
        (before, parts.collect::<Result<Vec<_>, _>>(), flushed)
    });
    let after = counted();
    // What was used stays with the process for the next run.
    manager.reporting().pause();
    flushed?;
    let parts = parts?;
    Ok(Run {
        pages: parts.iter().map(|part| part.0).sum(),
        seconds: parts.iter().map(|part| part.1).fold(0.0, f64::max),
        cpu_seconds: after.0 - before.0,
        reported_bytes: (after.1 - before.1) * PAGE_SIZE,
        host_faults: after.2.saturating_sub(before.2),
    })
}

fn failed(error: PileError) -> Error {
    Error::Failed(error.to_string())
}

/// Allocates the working set, clears it and touches every page; how many pages it has.
fn fill(pile: &mut Pile<'_, HostedPlatform>) -> Result<u64, PileError> {
    let pages = WORKING_SET_BYTES / PAGE_SIZE;
    while pile.runs() < pages / pile.pages_of_run() {
        pile.add()?;
    }
    Ok(pages)
}

/// Fills the working set ([`fill`]) and frees it.
fn turn(manager: &Manager<HostedPlatform>, workload: Workload) -> Result<u64, PileError> {
    let mut pile = Pile::near(manager, workload.order()).clearing();
    let pages = fill(&mut pile)?;
    pile.free_all()?;
    Ok(pages)
}

/// Pages for each CPU second over some runs.
fn cpu_rate(runs: &[Run]) -> f64 {
    runs.iter().map(|run| run.pages as f64).sum::<f64>()
        / runs.iter().map(|run| run.cpu_seconds).sum::<f64>()
}

fn row(config: &str, workload: Workload, cpus: u32, runs: &[Run], off: &[Run]) -> Value {
    let sorted = |of: &dyn Fn(&Run) -> f64| {
        let mut values: Vec<f64> = runs.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    // Of the two runs of a round together.
    let ratios: Vec<f64> = runs
        .chunks(2)
        .zip(off.chunks(2))
        .map(|(runs, off)| cpu_rate(runs) / cpu_rate(off))
        .collect();
    let Interval { middle, low, high } = bootstrap(&ratios);
    let extreme = |of: fn(f64, f64) -> f64| ratios.iter().copied().reduce(of);
    let rates = sorted(&|run| run.pages as f64 / run.seconds);
    let cpu_rates = sorted(&|run| cpu_rate(&[*run]));
    let reported = sorted(&|run| (run.reported_bytes >> 20) as f64 / run.seconds);
    let faults = sorted(&|run| run.host_faults as f64 / run.seconds);
    json!({
        "bench": "fault", "on": "hosted", "workload": workload.name(), "cpus": cpus,
        "config": config,
        "runs": runs.len(), "run_seconds": median(&sorted(&|run| run.seconds)),
        "iterations_per_s": median(&rates), "iterations_per_s_min": rates.first(),
        "iterations_per_s_max": rates.last(),
        "deviation": deviation(&rates),
        "iterations_per_cpu_s": median(&cpu_rates), "iterations_per_cpu_s_min": cpu_rates.first(),
        "iterations_per_cpu_s_max": cpu_rates.last(), "cpu_deviation": deviation(&cpu_rates),
        "reported_mib_per_s": median(&reported), "reported_mib_per_s_min": reported.first(),
        "reported_mib_per_s_max": reported.last(),
        "host_faults_per_s": median(&faults), "host_faults_per_s_min": faults.first(),
        "host_faults_per_s_max": faults.last(),
        "against_off": middle, "against_off_low": low, "against_off_high": high,
        "against_off_min": extreme(f64::min), "against_off_max": extreme(f64::max),
        "against_off_deviation": deviation(&ratios),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_fair() {
        let mut random = Random::new(1);
        for _ in 0..5 {
            let order: Vec<usize> = turns(&mut random).collect();
            let backwards: Vec<usize> = order.iter().rev().copied().collect();
            assert_eq!(order, backwards, "what drifts evenly meets all alike");
            assert!(
                (0..CONFIGS.len()).all(|at| order.iter().filter(|&&turn| turn == at).count() == 2)
            );
        }
        let firsts: Vec<_> = (0..50).filter_map(|_| turns(&mut random).next()).collect();
        assert!((0..CONFIGS.len()).all(|at| firsts.contains(&at)));
    }
}
