//! How the host's share of a machine's memory falls.

use crate::bench::common::Spread;
use framewright::reporting::Pace;
use framewright::units::PAGE_SIZE;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// How much a share may waver and still count as the same.
const STEADY_BYTES: u64 = 1 << 20;

/// What the host had at some time.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub at: Instant,
    pub bytes: u64,
}

/// One course: dirtied, freed, fallen.
pub struct Fall {
    pub on: &'static str,
    pub pace: Pace,
    pub dirtied_bytes: u64,
    /// Before anything was dirtied.
    pub before_bytes: u64,
    /// When all was freed.
    pub freed: Instant,
    /// From the free on, the first at the height from which it falls.
    pub samples: Vec<Sample>,
    /// Pages reported between the time before and the end, and those of them that came while idle.
    pub reported_pages: u64,
    pub idle_pages: u64,
}

impl Fall {
    /// Seconds from the free until so much of what was dirtied is back.
    fn seconds_until(&self, share: f64) -> Option<f64> {
        let top = self.samples.first()?.bytes;
        let wanted = self.dirtied_bytes as f64 * share;
        let sample = self.samples.iter().find(|sample| top.saturating_sub(sample.bytes) as f64 >= wanted)?;
        Some(sample.at.saturating_duration_since(self.freed).as_secs_f64())
    }

    /// The row.
    pub fn row(&self) -> Value {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let left = self.samples.last().map_or(0, |sample| sample.bytes.saturating_sub(self.before_bytes));
        let beyond = self.reported_pages.saturating_sub(self.dirtied_bytes / PAGE_SIZE);
        let mut row = json!({
            "bench": "reporting", "on": self.on, "pace": self.pace.name(), "dirtied_mib": mib(self.dirtied_bytes),
            "t50_s": self.seconds_until(0.5), "t95_s": self.seconds_until(0.95), "left_mib": mib(left),
            "reported_twice": beyond.max(self.idle_pages),
        });
        // A fall is one run.
        for name in ["t50_s", "t95_s", "left_mib"] {
            Spread::of(row[name].as_f64()).put(&mut row, name);
        }
        row
    }
}

/// How long a share must not fall any more before it has fallen, and how long that may take.
pub const fn patience(pace: Pace) -> (Duration, Duration) {
    match pace {
        Pace::Adaptive => (Duration::from_secs(2), Duration::from_secs(30)),
        Pace::Fixed => (Duration::from_secs(6), Duration::from_secs(90)),
    }
}

/// Whether the last samples show no fall any more, though there was one.
pub fn has_settled(samples: &[Sample], quiet: Duration) -> bool {
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else { return false };
    // The first of those at the end that are as low as the last.
    let low = samples.iter().rev().take_while(|sample| sample.bytes <= last.bytes + STEADY_BYTES).last();
    let still = low.is_some_and(|low| last.at.saturating_duration_since(low.at) >= quiet);
    still && first.bytes > last.bytes + STEADY_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(freed: Instant, mib: &[u64]) -> Vec<Sample> {
        let at = |index: usize| freed + Duration::from_secs(index as u64);
        mib.iter().enumerate().map(|(index, &mib)| Sample { at: at(index), bytes: mib << 20 }).collect()
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
            idle_pages: 3,
        };
        let row = fall.row();
        assert_eq!((row["t50_s"].as_f64(), row["t95_s"].as_f64()), (Some(2.0), Some(4.0)));
        assert_eq!((row["left_mib"].as_f64(), row["reported_twice"].as_u64()), (Some(2.0), Some(7)));
        let stuck = Fall { samples: samples(freed, &[110, 60, 60]), idle_pages: 9, ..fall };
        assert_eq!((stuck.row()["t95_s"].as_f64(), stuck.row()["reported_twice"].as_u64()), (None, Some(9)));
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
