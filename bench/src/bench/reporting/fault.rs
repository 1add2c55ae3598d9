//! The cost of reports for allocations: page faults in the manner of will-it-scale, with and
//! without reports, in turn.

use super::Scale;
use super::hosted::flush;
use crate::bench::common::{failed, synthetic};
use crate::bench::host;
use crate::bench::random::Random;
use crate::bench::statistics::{bootstrap, deviation};
use crate::rows::{Fault, Measured, Spread};
use framewright::Manager;
use framewright::units::{Order, PAGE_SIZE};
use framewright_cli::error::Error;
use framewright_cli::hosted::{Quiet, Session, Silent, with_reports};
use framewright_hosted::{Advice, HostedPlatform};
use framewright_workload::{Pile, PileError};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// What each CPU allocates before it frees everything.
const WORKING_SET_BYTES: u64 = 128 << 20;

/// The configurations; the others are compared with the first. The second repeats the first, so its
/// difference is the benchmark's own error.
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

/// What a page fault allocates.
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
/// Fails if a machine cannot be emulated by this process, or has too little memory.
pub fn rows(scale: Scale) -> Result<Vec<Fault>, Error> {
    let all = u32::try_from(host::cpus()?.len()).unwrap_or(1);
    let machine = synthetic(scale.memory_bytes, 1, all)?;
    let lines = CONFIGS.map(|config| format!("memmap_init=on-demand{}", config.line));
    let mut session = Session::open(&machine, &lines[0])?;
    let mut rows = Vec::new();
    let cpus: &[u32] = if all == 1 { &[1] } else { &[1, all] };
    for workload in [Workload::PageFault1, Workload::PageFault2] {
        for &cpus in cpus {
            crate::progress::step(&format_args!("reporting: {}, {cpus} CPUs", workload.name()))?;
            let mut runs: [Vec<Run>; CONFIGS.len()] = std::array::from_fn(|_| Vec::new());
            // The run before the first round is not measured, as it touches memory for the first
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

/// The order in which configurations run in a round: forwards and then backwards, so that an even
/// drift affects all alike; and in another order in each round, so that no configuration always
/// follows one other, which leaves caches and memory in its own way.
fn turns(random: &mut Random) -> impl Iterator<Item = usize> + use<> {
    let mut order: [usize; CONFIGS.len()] = std::array::from_fn(|at| at);
    random.shuffle(&mut order);
    order.into_iter().chain(order.into_iter().rev())
}

/// What a run does.
#[derive(Clone, Copy)]
struct Load {
    workload: Workload,
    cpus: u32,
    time: Duration,
}

/// Runs a configuration. The machine is brought up anew, over one piece of memory and so with equal
/// frames for all: the placement of the system's pages matters more than what is measured here.
fn run<'a>(
    session: Session<'a>,
    lines: &'a [String],
    at: usize,
    load: Load,
) -> Result<(Run, Session<'a>), Error> {
    let pass = session.with_command_line(&lines[at]).bring_up(&mut Silent)?;
    let (manager, advice) = (pass.manager(), CONFIGS[at].advice);
    let quiet = Quiet::default();
    let crew = || crew(manager, advice.is_some(), load);
    let run = with_reports(manager, advice, &|_| {}, &quiet, crew)??;
    let early = manager.reporting_counters().reused_early_pages;
    if early != 0 {
        let name = CONFIGS[at].name;
        return Err(failed(format!("{name}: {early} reported pages were handed out too early")));
    }
    pass.verify()?;
    Ok((run, pass.end_dirty()?))
}

/// The results of one run.
#[derive(Clone, Copy)]
struct Run {
    /// The number of 4 KiB pages.
    pages: u64,
    /// The time of the slowest CPU, and the time that all CPUs spent on this process, its reports
    /// included; CPU time that other processes take does not count.
    seconds: f64,
    cpu_seconds: f64,
    /// The bytes that were reported meanwhile.
    reported_bytes: u64,
    /// How often the system had to find a page for this process meanwhile, which happens when a
    /// reported page is allocated again.
    host_faults: u64,
}

/// Runs on this many CPUs. While they hold all memory that they will use, everything else is
/// reported; after one more turn the clocks start.
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
        let seat = manager.platform().enter_cpu(cpu).map_err(failed);
        // The others do not wait for a CPU that has failed.
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
            thread.join().unwrap_or_else(|_| Err(failed("a thread of the workload panicked")))
        });
        (before, parts.collect::<Result<Vec<_>, _>>(), flushed)
    });
    let after = counted();
    // The used memory stays with the process for the next run.
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

/// Allocates the working set, clears it and touches every page. Returns its number of pages.
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

/// Pages for each CPU second over several runs.
fn cpu_rate(runs: &[Run]) -> f64 {
    runs.iter().map(|run| run.pages as f64).sum::<f64>()
        / runs.iter().map(|run| run.cpu_seconds).sum::<f64>()
}

fn row(config: &str, workload: Workload, cpus: u32, runs: &[Run], off: &[Run]) -> Fault {
    let of = |of: &dyn Fn(&Run) -> f64| runs.iter().map(of).collect::<Vec<f64>>();
    let spread = |of: &dyn Fn(&Run) -> f64| Spread::of(runs.iter().map(of));
    // Both runs of a round together.
    let ratios: Vec<f64> = runs
        .chunks(2)
        .zip(off.chunks(2))
        .map(|(runs, off)| cpu_rate(runs) / cpu_rate(off))
        .collect();
    let extremes = Spread::of(ratios.iter().copied());
    let rate = |run: &Run| run.pages as f64 / run.seconds;
    let cpu_rate = |run: &Run| cpu_rate(&[*run]);
    Fault {
        on: "hosted".into(),
        workload: workload.name().into(),
        cpus: cpus.into(),
        config: config.into(),
        runs: (runs.len() as u64).into(),
        run_seconds: Measured(spread(&|run| run.seconds).middle),
        iterations_per_s: spread(&rate),
        deviation: Measured(deviation(&of(&rate))),
        iterations_per_cpu_s: spread(&cpu_rate),
        cpu_deviation: Measured(deviation(&of(&cpu_rate))),
        reported_mib_per_s: spread(&|run| (run.reported_bytes >> 20) as f64 / run.seconds),
        host_faults_per_s: spread(&|run| run.host_faults as f64 / run.seconds),
        against_off: bootstrap(&ratios),
        against_off_min: Measured(extremes.least),
        against_off_max: Measured(extremes.most),
        against_off_deviation: Measured(deviation(&ratios)),
    }
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
