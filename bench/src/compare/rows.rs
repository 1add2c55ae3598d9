//! Rows: the same thing done by both, as it goes into a file of results (docs/usage.md).

use crate::bench::common::Spread;
use serde_json::{Map, Value, json};

/// What a number counts. Its name ends the names of a row's fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    Milliseconds,
    Seconds,
    Bytes,
    Mebibytes,
    /// Of 4 KiB each.
    IterationsPerSecond,
}

impl Unit {
    /// As in names of fields.
    pub fn name(self) -> &'static str {
        match self {
            Self::Milliseconds => "ms",
            Self::Seconds => "seconds",
            Self::Bytes => "bytes",
            Self::Mebibytes => "mib",
            Self::IterationsPerSecond => "iterations_per_s",
        }
    }
}

/// What a row must show.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Demand {
    /// Linux's number is at least so many times ours.
    Ratio(f64),
    /// Ours is at most this.
    AtMost(f64),
}

/// One row before it is written down.
pub struct Row {
    pub what: String,
    pub unit: Unit,
    /// Fields that say what was measured.
    pub details: Vec<(&'static str, Value)>,
    /// Measurements; those with the same place were made one after the other.
    pub linux: Vec<f64>,
    pub ours: Vec<f64>,
    pub demand: Option<Demand>,
    /// Why there is no number, or why some runs do not count.
    pub skipped: Option<String>,
}

impl Row {
    /// A row without measurements.
    pub fn new(what: &str, unit: Unit) -> Self {
        let (linux, ours) = (Vec::new(), Vec::new());
        Self {
            what: what.to_owned(),
            unit,
            details: Vec::new(),
            linux,
            ours,
            demand: None,
            skipped: None,
        }
    }

    /// With one more field.
    pub fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.details.push((name, value.into()));
        self
    }

    /// With what it must show.
    pub fn demanding(mut self, demand: Demand) -> Self {
        self.demand = Some(demand);
        self
    }

    /// Adds what was measured of both in one repetition; numbers stay together, even where only one
    /// has some.
    pub fn add(
        &mut self,
        linux: impl IntoIterator<Item = f64>,
        ours: impl IntoIterator<Item = f64>,
    ) {
        self.linux.extend(linux);
        self.ours.extend(ours);
    }

    /// The row as an object; `common` is what all rows of a machine share.
    pub fn value(&self, common: &Map<String, Value>) -> Value {
        let mut row = json!({ "bench": "compare", "what": self.what });
        for (name, value) in &self.details {
            row[*name] = value.clone();
        }
        let unit = self.unit.name();
        let [linux, ours] =
            [&self.linux, &self.ours].map(|values| Spread::of(values.iter().copied()));
        linux.put(&mut row, &format!("linux_{unit}"));
        ours.put(&mut row, &format!("ours_{unit}"));
        let pairs =
            self.linux.iter().zip(&self.ours).filter_map(|(&linux, &ours)| quotient(linux, ours));
        let ratio = linux.middle.zip(ours.middle).and_then(|(linux, ours)| quotient(linux, ours));
        // Of the middles; its ends are those of neighbours.
        Spread { middle: ratio, ..Spread::of(pairs) }.put(&mut row, "ratio");
        let met = match self.demand {
            None => None,
            Some(Demand::Ratio(least)) => {
                row["demanded_ratio"] = json!(least);
                Some(ratio.is_some_and(|ratio| ratio >= least))
            }
            Some(Demand::AtMost(most)) => {
                row[format!("demanded_{unit}")] = json!(most);
                Some(ours.middle.is_some_and(|ours| ours <= most))
            }
        };
        match &self.skipped {
            // A number of one of them alone compares nothing.
            Some(why) if self.linux.is_empty() || self.ours.is_empty() => {
                row["skipped"] = json!(why)
            }
            why => {
                if let Some(met) = met {
                    row["met"] = json!(met);
                }
                if let Some(why) = why {
                    row["remark"] = json!(format!("left out where {why}"));
                }
            }
        }
        row["repetitions"] = json!(self.linux.len().min(self.ours.len()));
        for (name, value) in common {
            row[name] = value.clone();
        }
        row
    }
}

fn quotient(linux: f64, ours: f64) -> Option<f64> {
    Some(linux / ours).filter(|ratio| ratio.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn common() -> Map<String, Value> {
        let Value::Object(common) = json!({ "accel": "tcg", "cpus": 2 }) else {
            unreachable!("it is one")
        };
        common
    }

    #[test]
    fn a_row_has_medians_spread_and_ratios_of_neighbours() {
        let mut row = Row::new("boot", Unit::Milliseconds)
            .with("policy", "eager")
            .demanding(Demand::Ratio(10.0));
        row.add([100.0, 300.0], [10.0, 10.0]);
        row.add([200.0], [40.0]);
        let expected = json!({
            "bench": "compare", "what": "boot", "policy": "eager",
            "linux_ms": 200.0, "linux_ms_min": 100.0, "linux_ms_max": 300.0,
            "ours_ms": 10.0, "ours_ms_min": 10.0, "ours_ms_max": 40.0,
            "ratio": 20.0, "ratio_min": 5.0, "ratio_max": 30.0, "demanded_ratio": 10.0, "met": true,
            "repetitions": 3, "accel": "tcg", "cpus": 2,
        });
        assert_eq!(row.value(&common()), expected);
    }

    #[test]
    fn demands_are_judged() {
        let met = |demand, linux: &[f64], ours: &[f64]| {
            let mut row = Row::new("x", Unit::Seconds).demanding(demand);
            row.add(linux.iter().copied(), ours.iter().copied());
            row.value(&common())["met"].clone()
        };
        assert_eq!(met(Demand::Ratio(3.0), &[2.9], &[1.0]), false);
        assert_eq!(met(Demand::Ratio(3.0), &[3.0], &[1.0]), true);
        assert_eq!(met(Demand::AtMost(3.0), &[1.0], &[3.5]), false);
        assert_eq!(met(Demand::AtMost(3.0), &[], &[2.5]), true);
        // What was not seen was not reached.
        assert_eq!(met(Demand::AtMost(3.0), &[1.0], &[]), false);
        assert_eq!(met(Demand::Ratio(3.0), &[1.0], &[0.0]), false);
    }

    #[test]
    fn what_was_skipped_has_no_numbers_and_is_not_judged() {
        let mut row = Row::new("pool", Unit::Milliseconds).demanding(Demand::Ratio(2.0));
        row.skipped = Some("too little memory".into());
        let value = row.value(&common());
        assert!(
            value["linux_ms"].is_null() && value["ratio"].is_null() && value.get("met").is_none()
        );
        assert_eq!(
            (value["skipped"].as_str(), value["repetitions"].as_u64()),
            (Some("too little memory"), Some(0))
        );
    }
}
