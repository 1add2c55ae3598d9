//! `framewright-bench scaling`: boot and initialisation by threads, as a share of a node's CPUs, in
//! the layout of the tables with which Linux's parallel initialisation was published.

use super::common::{failed, synthetic};
use super::host;
use super::init::threads_of;
use super::section::{Column, Section, Table, shown, table};
use super::statistics::deviation;
use crate::progress;
use crate::rows::{Measured, Rows, Scaling, Spread};
use framewright_cli::args::{Accel, Target, Where};
use framewright_cli::error::Error;
use framewright_cli::hosted::{Lines, Session};
use framewright_cli::qemu::attempts::Attempts;
use framewright_cli::qemu::command::Accelerator;
use framewright_cli::qemu::protocol::Transcript;
use framewright_cli::qemu::run::Watch;
use serde_json::Value;

/// The clock has a resolution of a microsecond, so no time counts as less.
const LEAST_MS: f64 = 0.001;
/// Describes the timing, for readers of the numbers.
const TIMED: &str = "\
boot: from the beginning of intake to the last page of what the row is about, by the library's \
clock; init: that work alone. deferred: memmap_init=deferred with memmap_init_threads=, the \
slowest node's job; 0 threads: there are no helpers at all. Pools: half of the memory in pages of \
that size at boot with hugetlb_free_vmemmap=on and hugepage_alloc_threads=; with one thread no job \
is made, so there is no row for 0. speed-up: by how much less than the first row; deviation: of \
the runs, as a share of their mean. Threads are 12, 25, 37, 50, 75 and 100 % of a node's CPUs, \
each number once";

/// Shares of a node's CPUs.
const PERCENT: [usize; 7] = [0, 12, 25, 37, 50, 75, 100];

/// How much is measured.
#[derive(Clone, Copy)]
struct Scale {
    memory_bytes: u64,
    repetitions: usize,
}

const FULL: Scale = Scale { memory_bytes: 32 << 30, repetitions: 9 };
const QUICK: Scale = Scale { memory_bytes: 8 << 30, repetitions: 5 };
const GUEST: Scale = Scale { memory_bytes: 8 << 30, repetitions: 5 };
const QUICK_GUEST: Scale = Scale { memory_bytes: 2 << 30, repetitions: 2 };

/// How long a guest's boot may take.
const PATIENCE_SECONDS: u64 = 120;

/// What is initialised.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Deferred,
    TwoMib,
    OneGib,
}

impl What {
    const ALL: [Self; 3] = [Self::Deferred, Self::TwoMib, Self::OneGib];

    const fn name(self) -> &'static str {
        match self {
            Self::Deferred => "deferred",
            Self::TwoMib => "pool 2 MiB",
            Self::OneGib => "pool 1 GiB",
        }
    }

    fn parameters(self, memory_bytes: u64, threads: usize) -> String {
        let pool = |size: &str, pages: u64| {
            format!(
                "memmap_init=deferred hugetlb_free_vmemmap=on hugepagesz={size} hugepages={pages} \
                 hugepage_alloc_threads={threads}"
            )
        };
        match self {
            Self::Deferred => {
                format!("memmap_init=deferred memmap_init_threads={}", threads.max(1))
            }
            Self::TwoMib => pool("2M", memory_bytes >> 22),
            Self::OneGib => pool("1G", memory_bytes >> 31),
        }
    }
}

/// The times of one boot, in milliseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Sample {
    boot_ms: f64,
    init_ms: f64,
}

/// Measures everything.
///
/// # Errors
/// Fails if a machine cannot be started, or did not do its task.
pub fn section(on: Where, quick: bool) -> Result<Section, Error> {
    let cpus = host::cpus()?.len();
    let scale = match (on, quick) {
        (Where::Hosted, false) => FULL,
        (Where::Hosted, true) => QUICK,
        (Where::Qemu, false) => GUEST,
        (Where::Qemu, true) => QUICK_GUEST,
    };
    let mut rows = Vec::new();
    // If KVM does not work, it is tried only once.
    let mut accel = Accel::Auto;
    for what in What::ALL {
        let mut threads = threads_of(cpus, &PERCENT);
        if what == What::Deferred && on == Where::Hosted {
            threads.insert(0, 0);
        }
        let mut first = None;
        for threads in threads {
            progress::step(&format_args!("scaling: {}, {threads} threads", what.name()))?;
            let samples = match on {
                Where::Hosted => hosted(what, threads, cpus, scale)?,
                Where::Qemu => guest(what, threads, cpus, scale, &mut accel)?,
            };
            let place = if on == Where::Qemu { "qemu" } else { "hosted" };
            let row = row(what, threads, cpus, &samples, &mut first);
            rows.push(Scaling { on: place.into(), managed_gib: scale.memory_bytes >> 30, ..row });
        }
    }
    let timed = format!("{} GiB on one node, {cpus} CPUs; {TIMED}", scale.memory_bytes >> 30);
    Ok(Section::of(scale.repetitions, timed, &rows))
}

/// Boots in this process: the first boot makes tables and array backed and dirty, the others count.
fn hosted(what: What, threads: usize, cpus: usize, scale: Scale) -> Result<Vec<Sample>, Error> {
    let cpus = u32::try_from(cpus).unwrap_or(1);
    let machine = synthetic(scale.memory_bytes, 1, cpus)?;
    let line = what.parameters(scale.memory_bytes, threads);
    let mut session = Session::open(&machine, &line)?;
    if !session.has_page_array() {
        return Err(failed("this host has too little memory for the vmemmap"));
    }
    let mut samples = Vec::new();
    for repetition in 0..=scale.repetitions {
        let mut log = Lines::new();
        let pass = if threads == 0 {
            session.bring_up_alone(&mut log)?
        } else {
            session.bring_up(&mut log)?
        };
        let sample = sample(what, &pass.report, log.into_lines().iter().map(String::as_str));
        if repetition > 0 {
            let why = || failed("the library did not say how long it took");
            samples.push(sample.ok_or_else(why)?);
        } else {
            pass.verify()?;
        }
        session = pass.end_dirty()?;
    }
    Ok(samples)
}

/// Boots of the reference guest, whose memory QEMU preallocates.
fn guest(
    what: What,
    threads: usize,
    cpus: usize,
    scale: Scale,
    accel: &mut Accel,
) -> Result<Vec<Sample>, Error> {
    let mut samples = Vec::new();
    for _ in 0..scale.repetitions {
        progress::step(&format_args!("scaling: guest, {}, {threads} threads", what.name()))?;
        let target = Target {
            accel: Some(*accel),
            cpus: Some(u32::try_from(cpus).unwrap_or(1)),
            qemu: vec!["-mem-prealloc".to_owned()],
            parameters: vec![what.parameters(scale.memory_bytes, threads)],
            ..Target::on_qemu(scale.memory_bytes, PATIENCE_SECONDS)
        };
        let attempts = Attempts::prepare(&target)?;
        let (used, ended) = attempts.run("report=json", false, &mut Nobody)?;
        *accel = if used == Accelerator::Kvm { Accel::Kvm } else { Accel::Tcg };
        attempts.check(&ended, false)?;
        let Transcript { report: Some(Ok(report)), log, .. } = &ended.transcript else {
            return Err(failed("the guest ended without a report"));
        };
        let log: Vec<_> = log.lines().collect();
        let sample = sample(what, report, log.iter().map(AsRef::as_ref));
        samples.push(sample.ok_or_else(|| failed("the guest did not say how long it took"))?);
    }
    Ok(samples)
}

/// Reads the times in a boot's report.
fn sample<'a>(
    what: What,
    report: &Value,
    mut log: impl Iterator<Item = &'a str>,
) -> Option<Sample> {
    let all_memory_ms = report["totals"]["all_memory_us"].as_f64()? / 1e3;
    if what == What::Deferred {
        let nodes =
            report["deferred"].as_array()?.iter().filter_map(|node| node["elapsed_ms"].as_f64());
        return Some(Sample { boot_ms: all_memory_ms, init_ms: nodes.reduce(f64::max)? });
    }
    let init_ms = log.find_map(|line| {
        let (_, rest) = line.split_once("HugeTLB: allocation took ")?;
        rest.split_once("ms")?.0.parse::<f64>().ok()
    })?;
    Some(Sample { boot_ms: all_memory_ms + init_ms, init_ms })
}

/// Makes a row. `first` is the time of the first row of its table.
fn row(
    what: What,
    threads: usize,
    cpus: usize,
    samples: &[Sample],
    first: &mut Option<(f64, f64)>,
) -> Scaling {
    let boots: Vec<f64> = samples.iter().map(|sample| sample.boot_ms).collect();
    let inits: Vec<f64> = samples.iter().map(|sample| sample.init_ms).collect();
    let middle = |values: &[f64]| Spread::of(values.iter().copied()).middle.unwrap_or(f64::NAN);
    let (first_boot, first_init) = *first.get_or_insert((middle(&boots), middle(&inits)));
    let ratio = |first: f64, values: &[f64]| {
        Spread::of(values.iter().map(|value| first.max(LEAST_MS) / value.max(LEAST_MS)))
    };
    Scaling {
        what: what.name().into(),
        threads: threads as u64,
        cpus_percent: Measured(Some(threads as f64 / cpus.max(1) as f64 * 100.0)),
        boot_ms: Spread::of(boots.iter().copied()),
        boot_deviation_percent: Measured(deviation_percent(&boots)),
        boot_speedup_ratio: ratio(first_boot, &boots),
        init_ms: Spread::of(inits.iter().copied()),
        init_deviation_percent: Measured(deviation_percent(&inits)),
        speedup_ratio: ratio(first_init, &inits),
        on: String::new(),
        managed_gib: 0,
    }
}

/// The standard deviation of a sample, as a percentage of its mean.
fn deviation_percent(values: &[f64]) -> Option<f64> {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    deviation(values).map(|deviation| deviation / mean * 100.0)
}

const COLUMNS: [Column<Scaling>; 8] = [
    (">% of CPUs", |row| shown(row.cpus_percent.get(), |percent| format!("{percent:.0}%"))),
    (">(thr)", |row| format!("({:>3})", row.threads)),
    (">speedup", |row| less(row.boot_speedup_ratio)),
    (">boot_ms", |row| time(row.boot_ms)),
    (">(stdev)", |row| stdev(row.boot_ms, &row.boot_deviation_percent)),
    (">speedup", |row| less(row.speedup_ratio)),
    (">init_ms", |row| time(row.init_ms)),
    (">(stdev)", |row| stdev(row.init_ms, &row.init_deviation_percent)),
];

/// Tables for people: one for each thing that is initialised.
pub fn tables(rows: &Rows) -> Vec<Table> {
    let alike = rows.scaling.chunk_by(|one, next| one.what == next.what);
    let table = |rows: &[Scaling]| {
        Some(Table { title: Some(rows.first()?.what.clone()), ..table(&COLUMNS, rows)? })
    };
    alike.filter_map(table).collect()
}

/// How much less the time is than in the first row.
fn less(ratio: Spread) -> String {
    match ratio.middle {
        Some(ratio) if (ratio - 1.0).abs() > 1e-9 => format!("{:.1}%", (1.0 - 1.0 / ratio) * 100.0),
        _ => "--".to_owned(),
    }
}

fn time(ms: Spread) -> String {
    shown(ms.middle, |ms| format!("{ms:.3}"))
}

fn stdev(ms: Spread, percent: &Measured<f64>) -> String {
    shown(ms.middle.zip(percent.get()), |(ms, percent)| format!("({:.3})", ms * percent / 100.0))
}

/// Ignores what the guest says.
struct Nobody;

impl Watch for Nobody {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::{repeated, to_json};
    use framewright_cli::output::Style;
    use serde_json::json;

    #[test]
    fn boots_say_how_long_they_took() {
        let report = json!({ "totals": { "all_memory_us": 2500.0 }, "deferred": [{
            "elapsed_ms": 1.5 }, { "elapsed_ms": 2.0 }] });
        let log =
            ["[    0.01] HugeTLB: allocation took 3.250ms with hugepage_allocation_threads=2", "x"];
        let of = |what| sample(what, &report, log.into_iter());
        assert_eq!(of(What::Deferred), Some(Sample { boot_ms: 2.5, init_ms: 2.0 }));
        assert_eq!(of(What::TwoMib), Some(Sample { boot_ms: 5.75, init_ms: 3.25 }));
        assert_eq!(sample(What::OneGib, &report, std::iter::empty()), None);
        assert_eq!(sample(What::Deferred, &json!({}), std::iter::empty()), None);
    }

    #[test]
    fn rows_are_relative_to_the_first() {
        let samples =
            |ms: f64| [ms, ms * 1.1, ms * 0.9].map(|ms| Sample { boot_ms: ms * 2.0, init_ms: ms });
        let mut first = None;
        let rows = [(0, 10.0), (1, 10.0), (2, 4.0)]
            .map(|(threads, ms)| row(What::Deferred, threads, 2, &samples(ms), &mut first));
        assert_eq!(
            (rows[2].speedup_ratio.middle, rows[2].cpus_percent.get()),
            (Some(2.5), Some(100.0))
        );
        assert!(
            rows[2]
                .init_deviation_percent
                .get()
                .is_some_and(|percent| (percent - 10.0).abs() < 1e-9)
        );
        let tables = tables(&Rows { scaling: rows.into(), ..Rows::default() });
        let lines = tables[0].grid.render(Style::PLAIN);
        let last: Vec<&str> = lines[3].split_whitespace().collect();
        assert_eq!(
            last,
            ["100%", "(", "2)", "60.0%", "8.000", "(0.800)", "60.0%", "4.000", "(0.400)"]
        );
        assert!(tables.len() == 1 && lines[1].contains("--"));
    }

    #[test]
    fn a_quick_run_does_not_take_the_place_of_a_full_one() {
        let row = |scale: Scale| Scaling {
            managed_gib: scale.memory_bytes >> 30,
            ..row(What::Deferred, 1, 2, &[Sample { boot_ms: 2.0, init_ms: 1.0 }], &mut None)
        };
        assert_eq!(repeated(&to_json(&[row(FULL), row(QUICK)])), None);
        assert!(repeated(&to_json(&[row(QUICK), row(QUICK)])).is_some());
    }

    #[test]
    fn one_run_has_no_deviation() {
        assert_eq!((deviation_percent(&[3.0]), deviation_percent(&[])), (None, None));
    }
}
