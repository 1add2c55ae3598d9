//! Rows of a comparison: one operation by both, as a file of results has it (docs/usage.md).

use crate::rows::{Both, Compare, LateRemark, Measured, Row as _, Spread};
pub use crate::rows::{Demand, Unit};
use serde_json::Value;

/// A row before it is written.
#[derive(Default)]
pub struct Row {
    unit: Unit,
    /// What was measured.
    details: Compare,
    pub linux: Vec<f64>,
    pub ours: Vec<f64>,
    /// The measurements that were made one after the other, where both sides have one.
    pairs: Vec<[f64; 2]>,
    /// Why there is no number, or why some runs do not count.
    pub skipped: Option<String>,
}

impl Row {
    /// A row without measurements.
    pub fn new(what: &str, unit: Unit) -> Self {
        Self {
            unit,
            details: Compare { what: what.into(), ..Compare::default() },
            ..Self::default()
        }
    }

    /// Adds settings that say what was measured.
    pub fn with(mut self, set: impl FnOnce(&mut Compare)) -> Self {
        set(&mut self.details);
        self
    }

    /// Sets what the row must show.
    pub fn demanding(self, demand: Demand) -> Self {
        self.with(|row| row.demand = demand)
    }

    /// Adds the measurements of both in one repetition; either side may have none.
    pub fn add(
        &mut self,
        linux: impl IntoIterator<Item = f64>,
        ours: impl IntoIterator<Item = f64>,
    ) {
        let (first_linux, first_ours) = (self.linux.len(), self.ours.len());
        self.linux.extend(linux);
        self.ours.extend(ours);
        let both = self.linux[first_linux..].iter().zip(&self.ours[first_ours..]);
        self.pairs.extend(both.map(|(&linux, &ours)| [linux, ours]));
    }

    /// Adds how long both took in one repetition to reach something that one may never have
    /// reached. Never counts as longer than any time: if it were left out, only the other
    /// repetitions would be judged.
    pub fn add_reached(&mut self, linux: Option<f64>, ours: Option<f64>) {
        self.add([linux.unwrap_or(f64::INFINITY)], [ours.unwrap_or(f64::INFINITY)]);
    }

    /// The row as an object; `common` has the fields that all rows of a machine share.
    pub fn value(&self, common: &Compare) -> Value {
        let [linux, ours] =
            [&self.linux, &self.ours].map(|values| Spread::of(values.iter().copied()));
        let pairs = self.pairs.iter().filter_map(|&[linux, ours]| quotient(linux, ours));
        let ratio = linux.middle.zip(ours.middle).and_then(|(linux, ours)| quotient(linux, ours));
        let met = match (self.details.demand, linux.middle.zip(ours.middle)) {
            (Demand::Nothing, _) => None,
            // If neither ever reached it, neither was faster.
            (Demand::Ratio(_), Some((f64::INFINITY, f64::INFINITY))) => None,
            (Demand::Ratio(least), both) => {
                Some(both.is_some_and(|(linux, ours)| ours > 0.0 && linux / ours >= least))
            }
            (Demand::AtMost(_, most), _) => Some(ours.middle.is_some_and(|ours| ours <= most)),
        };
        // A number of only one of them compares nothing.
        let is_number = |spread: Spread| spread.middle.is_some_and(f64::is_finite);
        let is_skipped = self.skipped.is_some() && !(is_number(linux) && is_number(ours));
        let left_out = self.skipped.as_ref().map(|why| format!("left out where {why}"));
        let remarks: Vec<String> = self.not_reached().into_iter().chain(left_out).collect();
        let remark = (!remarks.is_empty()).then(|| remarks.join("; "));
        let Compare { kernel, accel, cpus, memory_bytes, nodes, .. } = common.clone();
        let row = Compare {
            both: Both { unit: Some(self.unit), linux, ours },
            // The ratio of the medians; its ends are those of pairs from one repetition.
            ratio: Spread { middle: ratio, ..Spread::of(pairs) },
            skipped: self.skipped.clone().filter(|_| is_skipped).map(Measured::from),
            met: met.filter(|_| !is_skipped).map(Measured::from),
            left_out: LateRemark(remark.filter(|_| !is_skipped)),
            repetitions: (self.linux.len().min(self.ours.len()) as u64).into(),
            kernel,
            accel,
            cpus,
            memory_bytes,
            nodes,
            ..self.details.clone()
        };
        row.to_json()
    }
}

impl Row {
    /// Says how often something was never reached.
    fn not_reached(&self) -> Option<String> {
        let never = [("Linux", &self.linux), ("ours", &self.ours)].map(|(name, values)| {
            let count = values.iter().filter(|value| value.is_infinite()).count();
            (count > 0).then(|| format!("in {count} of {} runs by {name}", values.len()))
        });
        let never: Vec<String> = never.into_iter().flatten().collect();
        (!never.is_empty()).then(|| format!("not reached {}", never.join(" and ")))
    }
}

fn quotient(linux: f64, ours: f64) -> Option<f64> {
    Some(linux / ours).filter(|ratio| ratio.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn common() -> Compare {
        let (kernel, accel) = ("6.12".into(), "tcg".into());
        Compare { kernel, accel, cpus: 2, memory_bytes: 1 << 30, nodes: 1, ..Compare::default() }
    }

    #[test]
    fn a_row_has_medians_spread_and_ratios_of_neighbours() {
        let mut row = Row::new("boot", Unit::Milliseconds)
            .with(|row| row.policy = Some("eager".into()))
            .demanding(Demand::Ratio(10.0));
        row.add([100.0, 300.0], [10.0, 10.0]);
        row.add([200.0], [40.0]);
        let expected = json!({
            "bench": "compare", "what": "boot", "policy": "eager",
            "linux_ms": 200.0, "linux_ms_min": 100.0, "linux_ms_max": 300.0,
            "ours_ms": 10.0, "ours_ms_min": 10.0, "ours_ms_max": 40.0,
            "ratio": 20.0, "ratio_min": 5.0, "ratio_max": 30.0, "demanded_ratio": 10.0, "met": true,
            "repetitions": 3, "kernel": "6.12", "accel": "tcg", "cpus": 2,
            "memory_bytes": 1 << 30, "nodes": 1,
        });
        assert_eq!(row.value(&common()).to_string(), expected.to_string());
    }

    #[test]
    fn numbers_of_different_repetitions_are_no_pair() {
        let mut row = Row::new("boot", Unit::Milliseconds);
        row.add([100.0], []);
        row.add([300.0, 500.0], [10.0]);
        row.add([200.0], [40.0]);
        let value = row.value(&common());
        assert_eq!((&value["ratio_min"], &value["ratio_max"]), (&json!(5.0), &json!(30.0)));
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
        assert_eq!(met(Demand::AtMost(Unit::Seconds, 3.0), &[1.0], &[3.5]), false);
        assert_eq!(met(Demand::AtMost(Unit::Seconds, 3.0), &[], &[2.5]), true);
        // A value that was not seen was not reached.
        assert_eq!(met(Demand::AtMost(Unit::Seconds, 3.0), &[1.0], &[]), false);
        assert_eq!(met(Demand::Ratio(3.0), &[1.0], &[0.0]), false);
    }

    #[test]
    fn what_one_never_reached_took_longer_than_anything() {
        let row = |demand, ours: [Option<f64>; 3]| {
            let mut row = Row::new("x", Unit::Seconds).demanding(demand);
            ours.into_iter().for_each(|ours| row.add_reached(Some(2.0), ours));
            row.value(&common())
        };
        for demand in [Demand::AtMost(Unit::Seconds, 3.0), Demand::Ratio(1.0)] {
            let stuck = row(demand, [Some(1.0), None, None]);
            assert_eq!((&stuck["met"], &stuck["repetitions"]), (&json!(false), &json!(3)));
            assert_eq!((&stuck["ours_seconds"], &stuck["ratio_min"]), (&json!(null), &json!(0.0)));
            assert_eq!(stuck["remark"], "not reached in 2 of 3 runs by ours");
            let met = row(demand, [Some(1.0), None, Some(2.0)]);
            assert_eq!((&met["met"], &met["ours_seconds"]), (&json!(true), &json!(2.0)));
            assert_eq!((&met["ours_seconds_max"], &met["ratio_max"]), (&json!(null), &json!(2.0)));
        }
        // Whoever reaches it alone is faster by any measure; if neither does, the row is open.
        let judged = |linux, ours| {
            let mut row = Row::new("x", Unit::Seconds).demanding(Demand::Ratio(2.0));
            row.add_reached(linux, ours);
            row.value(&common()).get("met").cloned()
        };
        assert_eq!(judged(None, Some(1.0)), Some(json!(true)));
        assert_eq!(judged(Some(1.0), None), Some(json!(false)));
        assert_eq!(judged(None, None), None);
        // Without Linux's driver the row is of no use.
        let mut row = Row::new("x", Unit::Seconds).demanding(Demand::Ratio(1.0));
        row.add_reached(None, Some(1.0));
        row.skipped = Some("no driver".into());
        let value = row.value(&common());
        assert_eq!((value.get("met"), &value["skipped"]), (None, &json!("no driver")));
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
