//! Free page reporting: how soon the host gets freed memory back from both, measured on the host.

use super::common;
use crate::bench::common::failed;
use crate::bench::reporting::{Sample, watched};
use crate::compare::lab::{BALLOON_MODULE, Heard, Lab, Shape, Words};
use crate::compare::linux;
use crate::compare::plan::Plan;
use crate::compare::rows::{Demand, Row, Unit};
use crate::rows::{Course, Row as _, Size, Times};
use framewright_cli::error::Error;
use serde_json::Value;
use std::time::{Duration, Instant};

const MEMORY_GIB: u64 = 4;
/// The most points of a series.
const MOST_POINTS: usize = 300;
/// How long our guest may take at its own pace until 95 % are back, and how much it may leave above
/// the amount before.
const DEMANDED_SECONDS: f64 = 3.0;
const DEMANDED_LEFT_MIB: f64 = 40.0;
/// The paces of our guest, and the requirement on each.
const PACES: [(&str, Demand); 2] =
    [(ADAPTIVE, Demand::AtMost(Unit::Seconds, DEMANDED_SECONDS)), ("fixed", Demand::Ratio(1.0))];
/// The pace that only our guest has, and how long it is watched.
const ADAPTIVE: &str = "adaptive";
const ADAPTIVE_SECONDS: u64 = 8;
/// How long Linux, and ours at Linux's pace, are watched until it is known how long they take.
const PATIENCE_SECONDS: u64 = 30;
const REPETITIONS: usize = 5;
const BUDGET_SECONDS: u64 = 330;
/// The share of the freed memory that counts as all of it.
const MOST: f64 = 0.95;

const READY: &str = "mark ready";
const FREED: &str = "mark freed";
const OVER: &str = "mark over";
const DRIVER: &str = "/sys/bus/virtio/drivers/virtio_balloon";

/// Watches Linux and each pace of ours, in turn.
///
/// # Errors
/// Fails if a machine did not do its task.
pub fn run(lab: &Lab, plan: &Plan) -> Result<Vec<Value>, Error> {
    let shape = plan.shape(MEMORY_GIB, 1, true);
    let mib = shape.memory_bytes >> 21;
    let mut patience = PATIENCE_SECONDS;
    let mut series = Vec::new();
    let mut no_driver = false;
    let mut paces = PACES.map(|(pace, demand)| OfPace::new(pace, demand, mib));
    let mut repetitions = plan.repetitions(REPETITIONS, BUDGET_SECONDS);
    while let Some(repetition) = repetitions.another() {
        let theirs = observed(&shape, || lab.linux(&shape, "", &linux_script(mib, patience)))?;
        no_driver |= !linux::exists(&theirs.heard, DRIVER);
        plan.tell(&format!(
            "pages reported by Linux, {}: {}",
            repetitions.shown(),
            theirs.shown(mib)
        ));
        if repetition == 1 {
            series.push(theirs.series("linux", "fixed", mib));
        }
        let mut longest = theirs.seconds_until(MOST, mib);
        for of in &mut paces {
            let words = format!("page_reporting.pace={}", of.pace);
            let seconds = if of.pace == ADAPTIVE { ADAPTIVE_SECONDS } else { patience };
            let ours = observed(&shape, || {
                lab.ours(&shape, &words, Words::Commands(&commands(mib, seconds)))
            })?;
            plan.tell(&format!("pages reported by ours, {}: {}", of.pace, ours.shown(mib)));
            if repetition == 1 {
                series.push(ours.series("framewright", of.pace, mib));
            }
            longest = longest.zip(ours.seconds_until(MOST, mib)).map(|(one, other)| one.max(other));
            of.add(&theirs, &ours, mib);
        }
        patience = next_patience(longest);
    }
    let common = common(lab, &shape);
    let mut rows = Vec::new();
    for mut row in paces.into_iter().flat_map(|of| [of.half, of.most, of.left]) {
        if no_driver {
            row.skipped = Some("this kernel has no balloon driver at hand".into());
        }
        rows.push(row.value(&common));
    }
    rows.append(&mut series);
    Ok(rows)
}

/// How long both are watched after a run in which the slower one took `longest` seconds: half as
/// long again, so that five runs fit.
fn next_patience(longest: Option<f64>) -> u64 {
    let Some(longest) = longest else { return PATIENCE_SECONDS };
    let seconds =
        Duration::try_from_secs_f64(longest * 1.5).map_or(PATIENCE_SECONDS, |time| time.as_secs());
    (seconds + 3).clamp(ADAPTIVE_SECONDS, PATIENCE_SECONDS)
}

/// The rows of one pace of ours.
struct OfPace {
    pace: &'static str,
    half: Row,
    most: Row,
    left: Row,
}

impl OfPace {
    fn new(pace: &'static str, demand: Demand, mib: u64) -> Self {
        let row = |what: &str, unit| {
            Row::new(what, unit).with(|row| {
                row.pace = Some(pace.into());
                row.dirtied_mib = Some(Size(mib.into()));
            })
        };
        Self {
            pace,
            half: row("freed memory: half back with the host", Unit::Seconds),
            most: row("freed memory: 95 % back", Unit::Seconds).demanding(demand),
            left: row("freed memory: left with the guest", Unit::Mebibytes)
                .demanding(Demand::AtMost(Unit::Mebibytes, DEMANDED_LEFT_MIB)),
        }
    }

    /// Adds the observations of one repetition.
    fn add(&mut self, theirs: &Observed, ours: &Observed, mib: u64) {
        self.half.add_reached(theirs.seconds_until(0.5, mib), ours.seconds_until(0.5, mib));
        self.most.add_reached(theirs.seconds_until(MOST, mib), ours.seconds_until(MOST, mib));
        self.left.add(theirs.left_mib(), ours.left_mib());
    }
}

/// The script for Linux's program. Linux reports two seconds after memory became free, as long as
/// more becomes free.
fn linux_script(mib: u64, seconds: u64) -> String {
    format!(
        "load {BALLOON_MODULE}\nexists {DRIVER}\nsleep 3\n{READY}\nsleep 1\ndirty {mib} \
         1\n{FREED}\nsleep {seconds}\n{OVER}\n"
    )
}

/// The commands for the guest's shell. It flushes twice, because the first flush may come in the
/// middle of a pass.
fn commands(mib: u64, seconds: u64) -> String {
    format!(
        "reporting flush; reporting flush; sleep 1; echo {READY}; sleep 1; memhog {mib}M hold 1; \
         echo {FREED}; sleep {seconds}; echo {OVER}"
    )
}

/// A run and what the host observed.
struct Observed {
    heard: Heard,
    /// The resident memory in MiB, by seconds since all was freed; earlier times are negative.
    samples: Vec<(f64, f64)>,
}

/// Watches the memory of the machine that `run` starts.
fn observed(shape: &Shape, run: impl FnOnce() -> Result<Heard, Error>) -> Result<Observed, Error> {
    let (heard, samples) = watched(shape.memory_bytes, run);
    cut(heard?, &samples)
}

/// Cuts out the samples between the marks.
fn cut(heard: Heard, samples: &[Sample]) -> Result<Observed, Error> {
    // Linux's program puts an `@` in front of all that it says.
    let time = |mark: &str| heard.time_of(mark).or_else(|| heard.time_of(&format!("@{mark}")));
    let (Some(ready), Some(freed), Some(over)) = (time(READY), time(FREED), time(OVER)) else {
        return Err(failed("a machine did not report freeing its memory"));
    };
    let relative = |at: Instant| {
        let after = at.saturating_duration_since(freed).as_secs_f64();
        after - freed.saturating_duration_since(at).as_secs_f64()
    };
    let between = samples.iter().filter(|sample| (ready..=over).contains(&sample.at));
    let mib = |sample: &Sample| sample.bytes as f64 / f64::from(1 << 20);
    let samples: Vec<_> = between.map(|sample| (relative(sample.at), mib(sample))).collect();
    if samples.is_empty() {
        return Err(failed("the memory of a machine could not be seen in its smaps"));
    }
    Ok(Observed { heard, samples })
}

impl Observed {
    /// The amount of memory from which it fell.
    fn top_mib(&self) -> f64 {
        self.samples
            .iter()
            .filter(|sample| sample.0 <= 0.0)
            .map(|sample| sample.1)
            .fold(0.0, f64::max)
    }

    /// The seconds until this share of the dirtied memory is back.
    fn seconds_until(&self, share: f64, dirtied_mib: u64) -> Option<f64> {
        let wanted = self.top_mib() - dirtied_mib as f64 * share;
        self.samples
            .iter()
            .find(|sample| sample.0 >= 0.0 && sample.1 <= wanted)
            .map(|sample| sample.0)
    }

    /// The memory at the end in excess of that at the beginning.
    fn left_mib(&self) -> Option<f64> {
        Some((self.samples.last()?.1 - self.samples.first()?.1).max(0.0))
    }

    fn shown(&self, dirtied_mib: u64) -> String {
        let seconds = self.seconds_until(MOST, dirtied_mib);
        seconds.map_or("not all came back".into(), |seconds| format!("95 % after {seconds:.1} s"))
    }

    /// The row with the memory over time.
    fn series(&self, system: &str, pace: &str, dirtied_mib: u64) -> Value {
        let points = self.samples.iter().step_by(self.samples.len().div_ceil(MOST_POINTS).max(1));
        let (at, mib): (Vec<f64>, Vec<f64>) =
            points.map(|&(at, mib)| (rounded(at, 1e3), rounded(mib, 10.0))).unzip();
        let row = Course {
            what: "freed memory".into(),
            system: system.into(),
            on: "qemu".into(),
            pace: pace.into(),
            dirtied_mib: Some(Size(dirtied_mib.into())),
            before_mib: None,
            at_seconds: Times(Some(at)),
            rss_mib: mib.into(),
        };
        row.to_json()
    }
}

fn rounded(value: f64, parts: f64) -> f64 {
    (value * parts).round() / parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(start: Instant, ms: u64) -> Instant {
        start + Duration::from_millis(ms)
    }

    #[test]
    fn a_fall_is_cut_out_and_measured() {
        let start = Instant::now();
        let mut heard = Heard::of(&[]);
        let marks = [(1000, "@mark ready"), (5000, "mark freed"), (9000, "@mark over")];
        heard.lines = marks.map(|(ms, line)| (at(start, ms), line.to_owned())).to_vec();
        let mib = [7, 10, 11, 500, 1010, 1011, 800, 400, 50, 20, 3];
        let sample =
            |(second, mib): (u64, u64)| Sample { at: at(start, second * 1000), bytes: mib << 20 };
        let samples: Vec<_> = (0..).zip(mib).map(sample).collect();
        let Ok(seen) = cut(heard, &samples) else { panic!("everything was seen") };
        assert_eq!((seen.samples.len(), seen.samples[0]), (9, (-4.0, 10.0)));
        assert_eq!((seen.top_mib(), seen.left_mib()), (1011.0, Some(10.0)));
        assert_eq!(
            (seen.seconds_until(0.5, 1000), seen.seconds_until(0.95, 1000)),
            (Some(2.0), Some(3.0))
        );
        assert_eq!(seen.seconds_until(0.999, 1000), None);
        let series = seen.series("linux", "fixed", 1000);
        assert_eq!(series["at_seconds"][0], -4.0);
        assert_eq!(series["rss_mib"].as_array().map(Vec::len), Some(9));
    }

    #[test]
    fn five_runs_have_a_middle_and_ends() {
        let mut of = OfPace::new("fixed", Demand::Ratio(1.0), 100);
        let seen = |seconds: f64| Observed {
            heard: Heard::of(&[]),
            samples: vec![(-1.0, 100.0), (0.0, 100.0), (seconds / 2.0, 50.0), (seconds, 3.0)],
        };
        for (linux, ours) in [(12.0, 10.0), (14.0, 11.0), (13.0, 9.0), (18.0, 15.0), (12.5, 10.5)] {
            of.add(&seen(linux), &seen(ours), 100);
        }
        let row = of.most.value(&crate::rows::Compare::default());
        let of = |name: &str| row[name].as_f64();
        assert_eq!(
            ["linux_seconds", "linux_seconds_min", "linux_seconds_max"].map(of),
            [Some(13.0), Some(12.0), Some(18.0)]
        );
        assert_eq!(
            ["ours_seconds", "ours_seconds_min", "ours_seconds_max"].map(of),
            [Some(10.5), Some(9.0), Some(15.0)]
        );
        assert_eq!((&row["repetitions"], &row["met"]), (&5.into(), &true.into()));
        // The next run is watched for the time that it needs, with a margin.
        assert_eq!([Some(12.4), Some(0.1), Some(60.0), None].map(next_patience), [21, 8, 30, 30]);
    }

    #[test]
    fn runs_whose_memory_never_came_back_are_judged() {
        let mut of = OfPace::new("adaptive", Demand::AtMost(Unit::Seconds, 3.0), 100);
        let seen = |left: f64| Observed {
            heard: Heard::of(&[]),
            samples: vec![(-1.0, 100.0), (0.0, 100.0), (1.0, left)],
        };
        for left in [3.0, 80.0, 80.0, 80.0, 80.0] {
            of.add(&seen(3.0), &seen(left), 100);
        }
        let row = of.most.value(&crate::rows::Compare::default());
        assert_eq!((&row["met"], &row["repetitions"]), (&false.into(), &5.into()));
        assert_eq!(row["remark"], "not reached in 4 of 5 runs by ours");
    }

    #[test]
    fn what_was_not_seen_is_an_error() {
        let mut heard = Heard::of(&["@mark ready", "@mark freed"]);
        assert!(cut(heard, &[]).is_err());
        heard = Heard::of(&["@mark ready", "@mark freed", "@mark over"]);
        assert!(cut(heard, &[]).is_err());
    }
}
