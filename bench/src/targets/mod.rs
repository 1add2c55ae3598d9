//! The requirements on the manager: every ratio and limit that it must reach, and how each is
//! computed from rows of results (docs/usage.md, docs/performance.md).
//!
//! `framewright report` shows them first; benchmarks of everything and comparisons can end with
//! [`mod@table`].

/// Defines targets: area, command, name, what is measured, the limit, what it is compared with, and
/// the measurements in rows; optionally also the limit in rows, if it was measured beside ours.
macro_rules! targets {
    ($name:ident: $(
        $area:ident, $command:expr, $id:literal, $what:literal,
        $sign:tt $wanted:literal $unit:literal, $against:expr, $measure:expr
        $(, limit $limit:expr)?;
    )*) => {
        pub const $name: &[$crate::targets::Target] = &[$($crate::targets::Target {
            id: $id,
            area: $crate::targets::Area::$area,
            what: $what,
            comparison: targets!(@ $sign),
            wanted: $wanted,
            unit: $unit,
            against: $against,
            measure: $measure,
            command: $command,
            limit: targets!(@ limit $($limit)?),
        }),*];
    };
    (@ >=) => { $crate::targets::Comparison::AtLeast };
    (@ <=) => { $crate::targets::Comparison::AtMost };
    (@ limit) => { None };
    (@ limit $limit:expr) => { Some($limit) };
}
pub mod alloc;
pub mod contig;
pub mod guest;
pub mod hotplug;
pub mod hugepages;
pub mod init;
pub mod jobs;
pub mod program;
pub mod reporting;
mod sample;
pub mod simulate;
mod table;
pub mod traffic;

pub use guest::linux_seconds;
pub use sample::{Sample, page_size, words};
pub use table::table;

use crate::rows::{Rows, Size};

/// Computes measurements from rows of results.
type Measure = fn(&Rows) -> Vec<Sample>;

/// The areas of targets, in the order in which they are shown.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Area {
    Allocation,
    Moving,
    Jobs,
    BringUp,
    Map,
    Guest,
    Pools,
    Reporting,
    Program,
}

impl Area {
    /// The area's name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allocation => "Allocation",
            Self::Moving => "Memory that moves",
            Self::Jobs => "Jobs",
            Self::BringUp => "Bring-up (on-demand)",
            Self::Map => "The memory map",
            Self::Guest => "The guest beside Linux",
            Self::Pools => "Huge-page pools",
            Self::Reporting => "Page reporting",
            Self::Program => "Program and model",
        }
    }
}

/// One requirement.
pub struct Target {
    /// The target's name for programs; unique.
    pub id: &'static str,
    /// The target's area.
    pub area: Area,
    /// What is measured.
    pub what: &'static str,
    /// Whether high or low values are good.
    pub comparison: Comparison,
    /// The limit.
    pub wanted: f64,
    /// The unit of limit and measurement; a ratio has `x`.
    pub unit: &'static str,
    /// What the measurement is compared with, or where the limit comes from.
    pub against: &'static str,
    /// The measurements in rows of results. The worst of them counts.
    pub measure: Measure,
    /// The command that makes such rows.
    pub command: &'static str,
    /// The limit in rows of results, if it was measured beside ours: it then takes the place of
    /// `wanted`.
    pub limit: Option<fn(&Rows) -> Option<f64>>,
}

/// Whether high or low values are good.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Comparison {
    /// The limit and all values above are good.
    AtLeast,
    /// The limit and all values below are good.
    AtMost,
}

impl Comparison {
    /// The comparison as a sign.
    pub const fn sign(self) -> &'static str {
        match self {
            Self::AtLeast => "\u{2265}",
            Self::AtMost => "\u{2264}",
        }
    }

    fn holds(self, measured: f64, wanted: f64) -> bool {
        match self {
            Self::AtLeast => measured >= wanted,
            Self::AtMost => measured <= wanted,
        }
    }

    /// How good a measurement is relative to the limit: 1 is the limit itself, 2 is twice as good.
    /// `None` if one of the numbers is zero.
    fn margin(self, measured: f64, wanted: f64) -> Option<f64> {
        let (good, bad) = match self {
            Self::AtLeast => (measured, wanted),
            Self::AtMost => (wanted, measured),
        };
        (good > 0.0 && bad > 0.0).then(|| good / bad)
    }
}

/// Whether a target is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It is reached.
    Met,
    /// It is missed.
    Short,
    /// No row measures it.
    NotMeasured,
}

impl Verdict {
    /// The verdict in words.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Short => "missed",
            Self::NotMeasured => "not measured",
        }
    }
}

/// Where a measured limit comes from.
const MEASURED: &str = "Linux, measured in these files";

/// The result of a target.
pub struct Outcome {
    /// The target.
    pub target: &'static Target,
    /// The limit that counts.
    pub wanted: f64,
    /// What the measurement is compared with, or where the limit comes from.
    pub against: &'static str,
    /// The worst measurement.
    pub worst: Option<Sample>,
    /// How many measurements there are.
    pub samples: usize,
    /// How many of them keep the limit.
    pub kept: usize,
    /// Whether the target is reached.
    pub verdict: Verdict,
}

impl Outcome {
    /// See [`Comparison::margin`].
    pub fn margin(&self) -> Option<f64> {
        let worst = self.worst.as_ref()?;
        self.target.comparison.margin(worst.value, self.wanted)
    }
}

/// Judges a target by rows of results.
pub fn outcome(target: &'static Target, rows: &Rows) -> Outcome {
    let mut samples = (target.measure)(rows);
    let is_whole = !samples.iter().any(|sample| sample.value.is_nan());
    samples.retain(|sample| sample.value.is_finite());
    let measured = target.limit.and_then(|limit| limit(rows));
    let (wanted, against) =
        measured.map_or((target.wanted, target.against), |wanted| (wanted, MEASURED));
    let holds = |sample: &Sample| target.comparison.holds(sample.value, wanted);
    let (count, kept) = (samples.len(), samples.iter().filter(|sample| holds(sample)).count());
    let worst = samples.into_iter().reduce(|worst, sample| {
        if target.comparison.holds(sample.value, worst.value) { worst } else { sample }
    });
    let verdict = match count {
        0 => Verdict::NotMeasured,
        _ if kept == count && !is_whole => Verdict::NotMeasured,
        _ if kept == count => Verdict::Met,
        _ => Verdict::Short,
    };
    Outcome { target, wanted, against, worst, samples: count, kept, verdict }
}

/// The amount of dirtied and freed memory, in MiB, for targets of 2 GiB.
const JUDGED_MIB: f64 = 2048.0;

/// Whether a row is about 2 GiB of dirtied memory: targets only judge rows of their own size.
pub fn is_two_gib(dirtied_mib: Option<&Size>) -> bool {
    dirtied_mib.map(Size::get) == Some(JUDGED_MIB)
}

/// Units of times and sizes, each with how many of it make the next one.
const SCALES: [&[(&str, f64)]; 2] = [
    &[("ns", 1e3), ("\u{b5}s", 1e3), ("ms", 1e3), ("s", f64::INFINITY)],
    &[("KiB", 1024.0), ("MiB", 1024.0), ("GiB", f64::INFINITY)],
];

/// A number in the unit that people would choose: 39.7 us rather than 0.0397 ms.
fn fitting(value: f64, unit: &str) -> (f64, &str) {
    let place = |scale: &&[(&str, f64)]| scale.iter().position(|(name, _)| *name == unit);
    let Some((scale, mut at)) = SCALES.into_iter().find_map(|scale| Some((scale, place(&scale)?)))
    else {
        return (value, unit);
    };
    let mut value = value;
    while value.abs() >= scale[at].1 {
        value /= scale[at].1;
        at += 1;
    }
    while value != 0.0 && value.abs() < 1.0 && at > 0 {
        at -= 1;
        value *= scale[at].1;
    }
    (value, scale[at].0)
}

/// A number as people read it, with its unit.
pub fn shown(value: f64, unit: &str) -> String {
    let (value, unit) = fitting(value, unit);
    let magnitude = value.abs();
    let number = match magnitude {
        0.0 => "0".to_owned(),
        _ if magnitude >= 100.0 || magnitude.fract() == 0.0 && magnitude >= 1.0 => {
            format!("{value:.0}")
        }
        _ if magnitude >= 10.0 => format!("{value:.1}"),
        _ if magnitude >= 0.1 => format!("{value:.2}"),
        _ if magnitude >= 0.001 => format!("{value:.4}"),
        _ => format!("{value:.1e}"),
    };
    match unit {
        "" => number,
        "x" => format!("{number}\u{d7}"),
        _ => format!("{number} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::{evaluate, targets as all};
    use serde_json::{Value, json};
    use std::collections::BTreeSet;

    #[test]
    fn every_target_is_named_once() {
        let ids: Vec<_> = all().iter().map(|target| target.id).collect();
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
        assert!(
            ids.len() > 30
                && all().iter().all(|target| target.wanted >= 0.0 && !target.what.is_empty())
        );
    }

    #[test]
    fn without_rows_nothing_is_measured() {
        assert!(
            evaluate(&Rows::default())
                .iter()
                .all(|outcome| outcome.verdict == Verdict::NotMeasured)
        );
        // Rows without the fields that they should have.
        let odd: Vec<Value> = [
            "alloc",
            "traffic",
            "simulate",
            "tail",
            "init",
            "jobs",
            "hugepages",
            "reporting",
            "fault",
            "compare",
            "model",
            "run",
            "bring-up",
        ]
        .map(|bench| json!({ "bench": bench, "alloc_ns": "x", "threads": [], "seconds": null }))
        .into();
        assert!(
            evaluate(&Rows::of(&odd)).iter().all(|outcome| outcome.verdict == Verdict::NotMeasured)
        );
    }

    #[test]
    fn the_worst_counts() {
        let row = |managed: u64, pattern: &str, ns: f64| {
            json!({ "bench": "alloc", "allocator": "framewright", "managed_gib": managed,
                "order": 0, "pattern": pattern, "threads": 1, "alloc_ns": ns })
        };
        let outcome = |ns: [f64; 2]| {
            let of = |managed, ns| [row(managed, "pair", 10.0), row(managed, "request pair", ns)];
            let rows = [of(8, ns[0]), of(64, ns[1])].concat();
            evaluate(&Rows::of(&rows))
                .into_iter()
                .find(|outcome| outcome.target.id == "any-request")
                .expect("a target")
        };
        let met = outcome([11.0, 12.5]);
        assert_eq!((met.verdict, met.samples, met.kept), (Verdict::Met, 2, 2));
        let short = outcome([20.0, 10.0]);
        let worst = short.worst.as_ref().map(|sample| sample.value);
        assert_eq!((short.verdict, short.kept, worst), (Verdict::Short, 1, Some(2.0)));
        assert!(
            short.margin().is_some_and(|margin| margin < 1.0)
                && met.margin().is_some_and(|margin| margin > 1.0)
        );
    }

    #[test]
    fn numbers_have_as_many_digits_as_count() {
        let all =
            [0.0, 40.0, 2.5, 12.34, 123.4, 0.52, 0.0042, 0.00001].map(|value| shown(value, ""));
        assert_eq!(all, ["0", "40", "2.50", "12.3", "123", "0.52", "0.0042", "1.0e-5"]);
        assert_eq!((shown(1.5, "x"), shown(6.0, "ns")), ("1.50\u{d7}".into(), "6 ns".into()));
        let units = [
            (0.0397, "ms"),
            (0.5, "s"),
            (1.0, "ms"),
            (0.0, "ms"),
            (1234.0, "ns"),
            (180.0, "s"),
            (0.5, "ns"),
        ];
        let all = units.map(|(value, unit)| shown(value, unit));
        assert_eq!(
            all,
            ["39.7 \u{b5}s", "500 ms", "1 ms", "0 ms", "1.23 \u{b5}s", "180 s", "0.50 ns"]
        );
        assert_eq!(
            (shown(16384.0, "KiB"), shown(32.0, "KiB"), shown(40.0, "MiB")),
            ("16 MiB".into(), "32 KiB".into(), "40 MiB".into())
        );
    }
}
