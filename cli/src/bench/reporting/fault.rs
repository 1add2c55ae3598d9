//! What reports cost those who allocate: page faults in the manner of will-it-scale, with and without reports, by turns.

use super::Scale;
use crate::bench::common::{Spread, median};
use crate::bench::host;
use crate::error::Error;
use crate::hosted::{Pass, Session, Silent, with_reports};
use framewright::block::MigrateType;
use framewright::units::{Order, PAGE_SIZE, PfnRange};
use framewright::{Manager, Platform, Request};
use framewright_hosted::{Advice, HostedPlatform, Machine};
use serde_json::{Value, json};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// What each CPU allocates before it frees all of it.
const WORKING_SET_BYTES: u64 = 128 << 20;

/// What is compared; the first is what the others are compared with.
const CONFIGS: [Config; 4] = [
    Config { name: "off", advice: None, line: "" },
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
}

/// All rows.
///
/// # Errors
/// A machine that this process cannot stand in for, or too little memory in it.
pub fn rows(scale: Scale) -> Result<Vec<Value>, Error> {
    let all = u32::try_from(host::cpus()?.len()).unwrap_or(1);
    let machine = Machine::synthetic(scale.memory_bytes, 1, all).map_err(|error| Error::Failed(error.to_string()))?;
    let lines = CONFIGS.map(|config| format!("memmap_init=on-demand{}", config.line));
    let passes = lines.iter().map(|line| Session::open(&machine, line)?.bring_up(&mut Silent));
    let passes = passes.collect::<Result<Vec<Pass<'_>>, _>>()?;
    let mut rows = Vec::new();
    let cpus: &[u32] = if all == 1 { &[1] } else { &[1, all] };
    for workload in [Workload::PageFault1, Workload::PageFault2] {
        for &cpus in cpus {
            crate::progress::step(&format_args!("reporting: {}, {cpus} CPUs", workload.name()))?;
            let all = by_turns(&passes, scale, workload, cpus)?;
            let rows_of = CONFIGS.iter().zip(&all).map(|(config, of)| row(config.name, workload, cpus, of, &all[0]));
            rows.extend(rows_of);
        }
    }
    for (pass, config) in passes.iter().zip(&CONFIGS) {
        pass.verify()?;
        let early = pass.manager().reporting_counters().reused_early_pages;
        if early != 0 {
            let name = config.name;
            return Err(Error::Failed(format!("{name}: {early} reported pages were handed out too early")));
        }
    }
    Ok(rows)
}

/// What one run came to.
struct Run {
    /// Pages of 4 KiB a second over all CPUs.
    rate: f64,
    /// Pages of 4 KiB for each second that CPUs spent on this process, the reports among them: what neighbours take of the CPUs does not count.
    cpu_rate: f64,
    /// What was reported meanwhile.
    reported_mib_per_s: f64,
}

/// The runs of each configuration, one a round. The order changes from round to round, and the first round counts for nothing: memory is touched for the first time.
fn by_turns(passes: &[Pass<'_>], scale: Scale, workload: Workload, cpus: u32) -> Result<Vec<Vec<Run>>, Error> {
    let mut runs: Vec<Vec<Run>> = passes.iter().map(|_| Vec::new()).collect();
    for round in 0..=scale.runs {
        for turn in 0..passes.len() {
            let at = (round + turn) % passes.len();
            let (manager, advice) = (passes[at].manager(), CONFIGS[at].advice);
            let run = with_reports(manager, advice, &|_| {}, || crew(manager, workload, cpus, scale.run))??;
            if round != 0 {
                runs[at].push(run);
            }
        }
    }
    Ok(runs)
}

/// One run on so many CPUs.
fn crew(manager: &Manager<HostedPlatform>, workload: Workload, cpus: u32, time: Duration) -> Result<Run, Error> {
    let hosts = host::cpus()?;
    let start = Barrier::new(cpus as usize);
    let counted = || (host::cpu_seconds(), manager.reporting_counters().reported_pages);
    let one = |cpu: u32| -> Result<Part, Error> {
        let seated = hosts.get(cpu as usize % hosts.len()).map_or(Ok(()), |&host| host::stay_on(host));
        let seat = manager.platform().enter_cpu(cpu).map_err(|error| Error::Failed(error.to_string()));
        // What was free before is reported meanwhile, and memory is touched again.
        let warmed = run_for(manager, workload, time / 2);
        // Nobody waits for one who has failed.
        start.wait();
        let before = counted();
        seated?;
        let _seat = seat?;
        warmed?;
        let (pages, seconds) = run_for(manager, workload, time)?;
        Ok(Part { pages, seconds, before })
    };
    let parts = std::thread::scope(|scope| {
        let one = &one;
        let crew: Vec<_> = (0..cpus).map(|cpu| scope.spawn(move || one(cpu))).collect();
        let parts = crew.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| Err(Error::Failed("a thread of the workload panicked".into())))
        });
        parts.collect::<Result<Vec<_>, _>>()
    })?;
    let (cpu_seconds, reported) = counted();
    let (cpu_before, reported_before) = parts.first().map_or((0.0, 0), |part| part.before);
    let pages: f64 = parts.iter().map(|part| part.pages as f64).sum();
    let seconds = parts.iter().map(|part| part.seconds).fold(0.0, f64::max);
    Ok(Run {
        rate: parts.iter().map(|part| part.pages as f64 / part.seconds).sum(),
        cpu_rate: pages / (cpu_seconds - cpu_before),
        reported_mib_per_s: (((reported - reported_before) * PAGE_SIZE) >> 20) as f64 / seconds,
    })
}

/// What one CPU did, and what was counted before: CPU time and reports.
struct Part {
    pages: u64,
    seconds: f64,
    before: (f64, u64),
}

/// Turn after turn; pages, and seconds.
fn run_for(manager: &Manager<HostedPlatform>, workload: Workload, time: Duration) -> Result<(u64, f64), Error> {
    let begun = Instant::now();
    let mut pages = 0;
    while begun.elapsed() < time {
        pages += turn(manager, workload)?;
    }
    Ok((pages, begun.elapsed().as_secs_f64()))
}

/// Allocates the working set, touches every page, frees it; how many pages it has.
fn turn(manager: &Manager<HostedPlatform>, workload: Workload) -> Result<u64, Error> {
    let fail = |error: &dyn std::fmt::Display| Error::Failed(error.to_string());
    let platform = manager.platform();
    let pages = WORKING_SET_BYTES / PAGE_SIZE;
    match workload {
        Workload::PageFault1 => {
            let request = Request { zeroed: true, migrate_type: MigrateType::Movable, ..Request::new(Order::BLOCK) };
            let blocks = (0..pages / Order::BLOCK.pages()).map(|_| {
                let range = manager.allocate(&request).map_err(|error| fail(&error))?;
                for address in (range.to_phys().start..range.to_phys().end).step_by(4096) {
                    // SAFETY: the frames were allocated just now, and nobody else has them.
                    unsafe { platform.direct(address).cast::<u64>().write_volatile(address) };
                }
                Ok(range)
            });
            let blocks = blocks.collect::<Result<Vec<PfnRange>, Error>>()?;
            blocks.into_iter().try_for_each(|range| manager.free(range).map_err(|error| fail(&error)))?;
        }
        Workload::PageFault2 => {
            let frames = (0..pages).map(|_| {
                let frame = manager.allocate_order(Order::PAGE, MigrateType::Movable).map_err(|error| fail(&error))?;
                // SAFETY: as above.
                unsafe { platform.direct(frame.address()).write_bytes(0, 4096) };
                Ok(frame)
            });
            let frames = frames.collect::<Result<Vec<_>, Error>>()?;
            frames
                .into_iter()
                .try_for_each(|frame| manager.free_order(frame, Order::PAGE).map_err(|error| fail(&error)))?;
        }
    }
    Ok(pages)
}

fn row(config: &str, workload: Workload, cpus: u32, runs: &[Run], off: &[Run]) -> Value {
    let sorted = |values: Vec<f64>| {
        let mut values = values;
        values.sort_by(f64::total_cmp);
        values
    };
    let ratios = sorted(runs.iter().zip(off).map(|(run, off)| run.cpu_rate / off.cpu_rate).collect());
    let rates = sorted(runs.iter().map(|run| run.rate).collect());
    let cpu_rates = sorted(runs.iter().map(|run| run.cpu_rate).collect());
    let reported = sorted(runs.iter().map(|run| run.reported_mib_per_s).collect());
    let (low, high) = interval(&ratios);
    let mut row = json!({
        "bench": "fault", "on": "hosted", "workload": workload.name(), "cpus": cpus, "config": config,
        "iterations_per_s": median(&rates), "deviation": deviation(&rates),
        "iterations_per_cpu_s": median(&cpu_rates), "cpu_deviation": deviation(&cpu_rates),
        "reported_mib_per_s": median(&reported),
        "against_off": median(&ratios), "against_off_low": low, "against_off_high": high,
    });
    for (name, values) in
        [("iterations_per_s", &rates), ("iterations_per_cpu_s", &cpu_rates), ("reported_mib_per_s", &reported)]
    {
        Spread::of(values.iter().copied()).put(&mut row, name);
    }
    row
}

/// The standard deviation of a sample.
fn deviation(values: &[f64]) -> Option<f64> {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
    (values.len() > 1).then(|| (squares / (count - 1.0)).sqrt())
}

/// The 95 % confidence interval of the middle of sorted values, from their order alone.
fn interval(sorted: &[f64]) -> (Option<f64>, Option<f64>) {
    let count = sorted.len();
    // Half of them less 0.98 roots of their number, in thousandths.
    let outside = (count * 500).saturating_sub((count * 960_400).isqrt()) / 1000;
    // The interval has one value more on each side than the half that it must not leave.
    let low = outside.min(count.saturating_sub(1) / 2);
    (sorted.get(low).copied(), sorted.iter().rev().nth(low).copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_hold_the_middle() {
        let values: Vec<f64> = (0..15).map(f64::from).collect();
        assert_eq!(interval(&values), (Some(3.0), Some(11.0)));
        assert_eq!(interval(&values[..3]), (Some(0.0), Some(2.0)));
        assert_eq!(interval(&[]), (None, None));
        assert_eq!(deviation(&[1.0, 3.0]), Some(2f64.sqrt()));
        assert_eq!(deviation(&[1.0]), None);
    }
}
