//! How the host's share of a machine's memory falls.

use crate::rows::{Course, Measured, Reporting, Signed, Spread, Times};
use framewright::reporting::Pace;
use framewright::units::PAGE_SIZE;
use std::time::{Duration, Instant};

/// How much the share may waver and still count as unchanged.
const STEADY_BYTES: u64 = 1 << 20;

/// How often a series has a point if nothing changes.
const SELDOM: Duration = Duration::from_millis(500);

/// How much memory the host gave the machine at some time.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub at: Instant,
    pub bytes: u64,
}

/// One course: memory is dirtied and freed, and the share falls.
pub struct Fall {
    pub on: &'static str,
    pub pace: Pace,
    pub dirtied_bytes: u64,
    /// The share before anything was dirtied.
    pub before_bytes: u64,
    /// When everything was freed.
    pub freed: Instant,
    /// The samples from the free on; the first has the share from which it falls.
    pub samples: Vec<Sample>,
    /// Pages reported between the time before and the end, and those of them reported while idle.
    pub reported_pages: u64,
    pub idle_pages: u64,
    /// Reported pages that were handed out although unreported ones would have served equally well.
    pub reused_early_pages: u64,
}

impl Fall {
    /// Seconds from the free until this part of the dirtied memory is back.
    fn seconds_until(&self, share: f64) -> Option<f64> {
        let top = self.samples.first()?.bytes;
        let wanted = self.dirtied_bytes as f64 * share;
        let sample =
            self.samples.iter().find(|sample| top.saturating_sub(sample.bytes) as f64 >= wanted)?;
        Some(sample.at.saturating_duration_since(self.freed).as_secs_f64())
    }

    fn left_mib(&self) -> f64 {
        mib(self.samples.last().map_or(0, |sample| sample.bytes.saturating_sub(self.before_bytes)))
    }

    fn reported_twice(&self) -> u64 {
        self.reported_pages.saturating_sub(self.dirtied_bytes / PAGE_SIZE).max(self.idle_pages)
    }

    /// The share over time: a point at each change, and at least twice a second.
    pub fn series(&self) -> Course {
        let (mut at_seconds, mut rss_mib) = (Vec::new(), Vec::new());
        let mut last: Option<Sample> = None;
        for (index, &sample) in self.samples.iter().enumerate() {
            let is_end = index == 0 || index + 1 == self.samples.len();
            let differs = last.is_none_or(|last| {
                last.bytes.abs_diff(sample.bytes) >= (self.dirtied_bytes / 200).max(STEADY_BYTES)
                    || sample.at.saturating_duration_since(last.at) >= SELDOM
            });
            if is_end || differs {
                at_seconds.push(sample.at.saturating_duration_since(self.freed).as_secs_f64());
                rss_mib.push(mib(sample.bytes));
                last = Some(sample);
            }
        }
        Course {
            what: "reporting".into(),
            system: "framewright".into(),
            on: self.on.into(),
            pace: self.pace.name().into(),
            dirtied_mib: Some(mib(self.dirtied_bytes).into()),
            before_mib: Some(mib(self.before_bytes).into()),
            at_seconds: Times(Some(at_seconds)),
            rss_mib: rss_mib.into(),
        }
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// The percentage of reported pages that were handed out although unreported ones would have
/// served.
fn reused_early_percent(falls: &[Fall]) -> Option<f64> {
    let sum = |of: fn(&Fall) -> u64| falls.iter().map(of).sum::<u64>() as f64;
    let reported = sum(|fall| fall.reported_pages);
    (reported != 0.0).then(|| sum(|fall| fall.reused_early_pages) / reported * 100.0)
}

/// The row of courses with equal settings. A time that one of them did not reach has no median.
pub fn row(falls: &[Fall]) -> Reporting {
    let first = falls.first();
    let of = |measure: &dyn Fn(&Fall) -> Option<f64>| {
        let values: Option<Vec<f64>> = falls.iter().map(measure).collect();
        Spread::of(values.unwrap_or_default())
    };
    Reporting {
        on: first.map_or("", |fall| fall.on).into(),
        pace: first.map_or("", |fall| fall.pace.name()).into(),
        dirtied_mib: first.map(|fall| mib(fall.dirtied_bytes).into()),
        falls: (falls.len() as u64).into(),
        reported_twice: Measured(falls.iter().map(Fall::reported_twice).max()),
        reused_early_percent: Measured(reused_early_percent(falls)),
        t50_s: of(&|fall| fall.seconds_until(0.5)),
        t95_s: of(&|fall| fall.seconds_until(0.95)),
        left_mib: Signed(of(&|fall| Some(fall.left_mib()))),
    }
}

/// How long the share must be steady before the fall is over, and how long the fall may take.
pub const fn patience(pace: Pace) -> (Duration, Duration) {
    match pace {
        Pace::Adaptive => (Duration::from_secs(2), Duration::from_secs(30)),
        Pace::Fixed => (Duration::from_secs(6), Duration::from_secs(90)),
    }
}

/// Whether the last samples show that a fall has happened and is over.
pub fn has_settled(samples: &[Sample], quiet: Duration) -> bool {
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else { return false };
    // The first of the final samples that are as low as the last.
    let low =
        samples.iter().rev().take_while(|sample| sample.bytes <= last.bytes + STEADY_BYTES).last();
    let still = low.is_some_and(|low| last.at.saturating_duration_since(low.at) >= quiet);
    still && first.bytes > last.bytes + STEADY_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(freed: Instant, mib: &[u64]) -> Vec<Sample> {
        let at = |index: usize| freed + Duration::from_secs(index as u64);
        mib.iter()
            .enumerate()
            .map(|(index, &mib)| Sample { at: at(index), bytes: mib << 20 })
            .collect()
    }

    #[test]
    fn times_are_those_of_the_first_sample_that_is_low_enough() {
        let freed = Instant::now();
        let fall = Fall {
            on: "hosted",
            pace: Pace::Fixed,
            dirtied_bytes: 100 << 20,
            before_bytes: 10 << 20,
            freed,
            samples: samples(freed, &[110, 61, 60, 20, 15, 12]),
            reported_pages: 25600 + 7,
            reused_early_pages: 0,
            idle_pages: 3,
        };
        let series = fall.series();
        assert_eq!(series.at_seconds.0, Some(vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0]));
        assert_eq!(series.rss_mib.0, Some(vec![110.0, 61.0, 60.0, 20.0, 15.0, 12.0]));
        let row = row(std::slice::from_ref(&fall));
        assert_eq!((row.t50_s.middle, row.t95_s.middle), (Some(2.0), Some(4.0)));
        assert_eq!((row.left_mib.0.middle, row.reported_twice.get()), (Some(2.0), Some(7)));
        assert_eq!((row.t95_s.least, row.t95_s.most), (Some(4.0), Some(4.0)));
        assert_eq!(row.reused_early_percent.get(), Some(0.0));
        let stuck = Fall {
            samples: samples(freed, &[110, 60, 60]),
            idle_pages: 9,
            reported_pages: 400,
            reused_early_pages: 4,
            ..fall
        };
        let row = super::row(&[stuck]);
        assert_eq!(row.reused_early_percent.get(), Some(1.0));
        assert_eq!((row.t95_s.middle, row.reported_twice.get()), (None, Some(9)));
    }

    #[test]
    fn a_fall_ends_when_nothing_falls_any_more() {
        let start = Instant::now();
        let quiet = Duration::from_secs(2);
        assert!(!has_settled(&[], quiet));
        assert!(!has_settled(&samples(start, &[100, 100, 100, 100]), quiet), "it has not begun");
        assert!(!has_settled(&samples(start, &[100, 50, 10, 10]), quiet));
        assert!(has_settled(&samples(start, &[100, 50, 10, 10, 10]), quiet));
    }
}
