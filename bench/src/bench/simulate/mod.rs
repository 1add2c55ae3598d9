//! `framewright-bench simulate`: what more CPUs would do than this host has.
//!
//! One and two threads measure (`measure`) the time of a call that a cache serves, how often and
//! how long a zone's lock is held, and the cost when the lock changes hands. A simulation
//! (`engine`) replays these with 1 to 256 CPUs on one node, whose zone has one lock, or as many
//! parts as the rule says, or shares nothing. Two simulated CPUs on one lock are compared with two
//! threads.

mod engine;
mod measure;
mod table;

use super::alloc::line;
use super::host;
use super::section::Section;
use super::subject::Ours;
use super::traffic::trace::Length;
use crate::progress;
use crate::rows::{Measured, Simulate};
use engine::{Model, Turn};
use framewright_cli::error::Error;
use measure::{Costs, Pattern, Scale, measure, relax_ns};
use serde_json::json;
pub use table::tables;

/// The name in results of requests for single pages.
pub const PAGES: &str = "order 0";
/// The name in results of requests of all sizes.
pub const MIXED: &str = "mixed";
/// The layout with as many parts as a zone has.
pub const BY_RULE: &str = "parts by the rule";
const ONE_LOCK: &str = "one lock";
const QUARTER: &str = "one for 4 CPUs";
const COUNTER: &str = "parts, one counter";
/// The layout with that many parts, in which not all frees go to the home part.
pub const FOREIGN: &str = "parts, 1 free in 4 away";
const NOTHING: &str = "nothing shared";
/// Real threads, and the simulation of exactly these.
const REAL: &str = "real threads";
const OF_REAL: &str = "one lock, as real";

/// Describes the timing, for readers of the numbers.
const TIMED: &str = "\
a simulation of CPUs on one node with 4 GiB for each: every CPU does what one thread did here \
that held 2 GiB of 8, call after call: all sizes in bursts as those of `traffic`, single pages in \
bursts of up to 4096, as small ones never leave the cache; a call that its cache cannot serve \
holds the lock of its part for as long as that call had interrupts off here, and longer by what \
it took longer when another CPU had made the last such call. Waits are those of the library's \
lock. Parts by the rule: one up to 2 CPUs, then one a CPU, 256 at most. One counter: every hold \
also writes a line that all CPUs have in common. Away: one drain in four goes to another part \
than the CPU's own. Real threads count the harness, as the simulation of them does; all others do \
without. Not simulated: caches and memory that CPUs share, remote nodes, parts that run empty";

/// The numbers of CPUs that are simulated.
const CPUS: [usize; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];

const FULL: Scale = Scale {
    length: Length { segments: 16, operations: 1 << 15 },
    memory_bytes: 8 << 30,
    pages: 1 << 19,
};
const QUICK: Scale = Scale {
    length: Length { segments: 5, operations: 1 << 14 },
    memory_bytes: 8 << 30,
    pages: 1 << 19,
};

/// How much time is simulated, in nanoseconds.
const SIMULATED: [f64; 2] = [2e6, 1e7];

/// How many parts the highest zone has on a node with this many CPUs and 4 GiB for each, as the
/// library chooses them.
fn parts(cpus: usize) -> Result<usize, Error> {
    let gib = 4 * cpus as u64 + 4;
    Ours::with(gib << 30, u32::try_from(cpus).unwrap_or(u32::MAX), |ours| {
        Ok(ours.manager().views().last().map_or(1, |zone| zone.parts().len()))
    })
}

/// Measures and simulates.
///
/// # Errors
/// Fails if a machine cannot be emulated by this process.
pub fn section(quick: bool) -> Result<Section, Error> {
    let scale = if quick { QUICK } else { FULL };
    let ns = SIMULATED[usize::from(!quick)];
    let cpus = host::cpus()?.len();
    let line_ns = line::nanoseconds()?;
    let relax_ns = relax_ns();
    let machines: Vec<(usize, usize)> =
        CPUS.into_iter().map(|cpus| Ok((cpus, parts(cpus)?))).collect::<Result<_, Error>>()?;
    let mut rows = Vec::new();
    let mut section = Section::of(scale.length.segments - 1, TIMED, &rows);
    for pattern in Pattern::ALL {
        progress::step(&format_args!("simulate: {}", pattern.name()))?;
        let costs = measure(pattern, cpus, scale)?;
        let lines = Lines { relax_ns, line_ns };
        section.further.insert(pattern.name().into(), json!(words(&costs, lines)));
        rows.extend(simulate(pattern, &costs, lines, &machines, ns));
    }
    if line_ns.is_none() {
        let why = "several CPUs, as the cost of a lock changing hands cannot be measured, and \
                   real threads: the host has 1 CPU";
        section.left_out.push(why.into());
    }
    section.rows = crate::rows::to_json(&rows);
    Ok(section)
}

/// The costs of the host, whatever is allocated.
#[derive(Clone, Copy)]
struct Lines {
    relax_ns: f64,
    /// The time for moving a line, if there are CPUs to move it between.
    line_ns: Option<f64>,
}

/// Describes the measurements in words.
fn words(costs: &Costs, lines: Lines) -> String {
    let [(refill, refill_page), (drain, drain_page)] =
        [false, true].map(|is_drain| costs.by_pages(is_drain));
    let transfer = costs.transfer_ns.zip(lines.line_ns).map_or_else(String::new, |(ns, line_ns)| {
        let moved = if line_ns > 0.0 { ns / line_ns } else { 0.0 };
        format!(
            ", {ns:.0} ns longer after another CPU, which are {moved:.1} lines of {line_ns:.0} ns"
        )
    });
    format!(
        "a call out of the cache {:.1} ns, one call in {:.1} holds the lock, {:.0} ns on average \
         (refill {refill:.0} ns and {refill_page:.1} each page, drain {drain:.0} and \
         {drain_page:.1}){transfer}; a turn of waiting {:.0} ns",
        costs.cached_ns,
        costs.calls_per_hold(),
        costs.hold_ns(),
        lines.relax_ns,
    )
}

/// The turns of a CPU, with the given extra time for each call.
fn turns(costs: &Costs, besides_ns: f64) -> Vec<Turn> {
    let turn = |slow: &measure::Slow| Turn {
        calls: slow.calls_before + 1,
        think_ns: f64::from(slow.calls_before) * (costs.cached_ns + besides_ns)
            + besides_ns
            + (slow.call_ns - slow.ns).max(0.0),
        hold_ns: slow.ns,
        is_drain: slow.is_drain,
    };
    costs.slow.iter().map(turn).collect()
}

/// Simulates all layouts on nodes with this many CPUs, whose zone has this many parts by the rule.
fn simulate(
    pattern: Pattern,
    costs: &Costs,
    lines: Lines,
    machines: &[(usize, usize)],
    ns: f64,
) -> Vec<Simulate> {
    let (bare, with_harness) = (turns(costs, 0.0), turns(costs, costs.harness_ns));
    let model = |cpus, parts| Model {
        cpus,
        parts,
        turns: &bare,
        relax_ns: lines.relax_ns,
        line_ns: lines.line_ns.unwrap_or(0.0),
        transfer_ns: costs.transfer_ns.unwrap_or(0.0),
        foreign_permille: 0,
        common_counter: false,
    };
    let row = |layout: &str, model: Model<'_>, one: f64| {
        let outcome = engine::run(model, ns);
        Simulate {
            pattern: pattern.name().into(),
            layout: layout.into(),
            cpus: model.cpus as u64,
            parts: model.parts as u64,
            calls_per_us: Measured(Some(outcome.calls_per_ns * 1e3)),
            speedup_ratio: Measured(Some(outcome.calls_per_ns / one)),
            waiting_percent: Measured(Some(outcome.waiting * 100.0)),
            busiest_percent: Measured(Some(outcome.busiest * 100.0)),
            ..Simulate::default()
        }
    };
    let one = engine::run(model(1, 1), ns).calls_per_ns;
    let mut rows = Vec::new();
    // Where nothing says what it costs when a lock changes hands, several CPUs would have it free.
    let is_known = lines.line_ns.is_some() && costs.transfer_ns.is_some();
    for &(cpus, parts) in machines.iter().filter(|&&(cpus, _)| cpus == 1 || is_known) {
        let by_rule = model(cpus, parts);
        rows.push(row(ONE_LOCK, model(cpus, 1), one));
        rows.push(row(QUARTER, model(cpus, cpus.div_ceil(4)), one));
        rows.push(row(BY_RULE, by_rule, one));
        rows.push(row(COUNTER, Model { common_counter: true, ..by_rule }, one));
        rows.push(row(FOREIGN, Model { foreign_permille: 250, ..by_rule }, one));
        rows.push(row(NOTHING, model(cpus, 0), one));
    }
    let as_real = |cpus| Model { turns: &with_harness, ..model(cpus, 1) };
    let one = engine::run(as_real(1), ns).calls_per_ns;
    for (cpus, real_ns) in (1..).zip(costs.real_ns) {
        let Some(real) = real_ns.map(|ns| cpus as f64 / ns) else { continue };
        let simulated = row(OF_REAL, as_real(cpus), one);
        let over = simulated.calls_per_us.get().map(|calls| calls / real / 1e3);
        rows.push(Simulate {
            layout: REAL.into(),
            cpus: cpus as u64,
            parts: 1,
            pattern: pattern.name().into(),
            calls_per_us: Measured(Some(real * 1e3)),
            speedup_ratio: Measured(costs.real_ns[0].map(|one| real * one)),
            ..Simulate::default()
        });
        rows.push(Simulate { over_real_ratio: Measured(over), ..simulated });
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::measure::Slow;
    use super::*;

    #[test]
    fn parts_follow_the_rule() {
        let all = [1, 2, 3, 8, 33, 256].map(|cpus| parts(cpus).expect("such a machine"));
        assert_eq!(all, [1, 1, 3, 8, 33, 256]);
    }

    #[test]
    fn rows_are_of_all_layouts_and_compared_with_what_was_real() {
        let slow =
            Slow { calls_before: 99, call_ns: 1000.0, ns: 1000.0, pages: 64, is_drain: false };
        let costs = Costs {
            cached_ns: 10.0,
            slow: vec![slow],
            transfer_ns: Some(500.0),
            real_ns: [Some(19.9), Some(19.9)],
            ..Costs::default()
        };
        let lines = Lines { relax_ns: 40.0, line_ns: Some(50.0) };
        let machines = CPUS.map(|cpus| (cpus, cpus));
        let rows = simulate(Pattern::Pages, &costs, lines, &machines, 1e6);
        assert_eq!(rows.len(), CPUS.len() * 6 + 4);
        let of = |layout: &str, cpus: u64| {
            let row = rows.iter().find(|row| row.layout == layout && row.cpus == cpus);
            row.and_then(|row| row.speedup_ratio.get()).expect("there is such a row")
        };
        assert!((of(NOTHING, 256) - 256.0).abs() < 1.0 && of(ONE_LOCK, 256) < 3.0);
        // Four CPUs have more work than their part's lock can do: 64 locks do a slow call and a
        // transfer at a time, against one CPU's 99 calls and a slow one.
        let most = 64.0 * (99.0 * 10.0 + 1000.0) / (1000.0 + 500.0);
        let quarter = of(QUARTER, 256);
        assert!((0.9 * most..=1.01 * most).contains(&quarter), "{quarter}");
        assert!((of(BY_RULE, 256) - 256.0).abs() < 1.0);
        assert!((of(REAL, 2) - 2.0).abs() < 1e-9);
        let over: Vec<f64> = rows.iter().filter_map(|row| row.over_real_ratio.get()).collect();
        assert!((over[0] - 1.0).abs() < 0.01 && over[1] < 1.0, "{over:?}");
        assert!(words(&costs, lines).contains("which are 10.0 lines of 50 ns"));
        // On a host with one CPU nothing says what several would do.
        let costs = Costs { transfer_ns: None, real_ns: [Some(19.9), None], ..costs };
        let lines = Lines { line_ns: None, ..lines };
        let rows = simulate(Pattern::Pages, &costs, lines, &machines, 1e6);
        assert!(rows.len() == 6 + 2 && rows.iter().all(|row| row.cpus == 1), "{rows:?}");
        assert!(!words(&costs, lines).contains("another CPU"));
    }
}
