//! Targets of simulations with more CPUs than the host has.

use super::Sample;
use super::sample::samples;
use crate::bench::simulate::{FOREIGN, MIXED, PAGES};
use crate::rows::{Rows, Simulate};

const COMMAND: &str = "simulate";
const AGAINST: &str = "one CPU, simulated";

targets! { TARGETS:
    Allocation, COMMAND, "simulate-64-pages",
        "64 CPUs on one node, single pages, one drain in four away: throughput over one CPU's",
        >= 48.0 "x", AGAINST, |rows| speedup(rows, PAGES, 64);
    Allocation, COMMAND, "simulate-64-mixed",
        "64 CPUs on one node, all sizes, one drain in four away: throughput over one CPU's",
        >= 48.0 "x", AGAINST, |rows| speedup(rows, MIXED, 64);
    Allocation, COMMAND, "simulate-256-pages",
        "256 CPUs on one node, single pages, one drain in four away: throughput over one CPU's",
        >= 160.0 "x", AGAINST, |rows| speedup(rows, PAGES, 256);
    Allocation, COMMAND, "simulate-256-mixed",
        "256 CPUs on one node, all sizes, one drain in four away: throughput over one CPU's",
        >= 160.0 "x", AGAINST, |rows| speedup(rows, MIXED, 256);
}

fn speedup(rows: &Rows, pattern: &str, cpus: u64) -> Vec<Sample> {
    let of = |row: &&Simulate| (&*row.pattern, &*row.layout, row.cpus) == (pattern, FOREIGN, cpus);
    samples(
        rows.simulate.iter().filter(of),
        |row| row.speedup_ratio.get(),
        |row| format!("{} parts", row.parts),
    )
}

#[cfg(test)]
mod tests {
    use super::{FOREIGN, MIXED, PAGES};
    use crate::registry::evaluate;
    use crate::rows::Rows;
    use crate::targets::Verdict;
    use serde_json::json;

    #[test]
    fn parts_by_the_rule_are_judged() {
        let row = |pattern: &str, layout: &str, cpus: u64, speedup: f64| {
            json!({ "bench": "simulate", "pattern": pattern, "layout": layout, "cpus": cpus,
                "parts": 16, "speedup_ratio": speedup })
        };
        let rows = Rows::of(&[
            row(PAGES, FOREIGN, 64, 48.0),
            row(PAGES, "one lock", 64, 3.0),
            row(MIXED, FOREIGN, 256, 159.0),
        ]);
        let verdicts: Vec<(&str, Verdict)> = evaluate(&rows)
            .iter()
            .filter(|one| one.target.id.starts_with("simulate"))
            .map(|one| (one.target.id, one.verdict))
            .collect();
        assert_eq!(
            verdicts,
            [
                ("simulate-64-pages", Verdict::Met),
                ("simulate-64-mixed", Verdict::NotMeasured),
                ("simulate-256-pages", Verdict::NotMeasured),
                ("simulate-256-mixed", Verdict::Short),
            ]
        );
    }
}
