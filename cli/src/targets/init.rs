//! Bringing memory up, and the memory map.

use super::Comparison::{AtLeast, AtMost};
use super::rows::number;
use super::{Rows, Sample, Target};
use serde_json::Value;

const MAP: &str = "The memory map";
const BRING_UP: &str = "Bring-up (on-demand)";

const fn limit_ratio(id: &'static str, what: &'static str, measure: fn(&Rows<'_>) -> Vec<Sample>) -> Target {
    Target {
        id,
        area: MAP,
        what,
        comparison: AtLeast,
        wanted: 0.9,
        unit: "x",
        against: "plain fill of the same bytes, same threads",
        measure,
        command: "bench init",
    }
}

const fn bring_up(id: &'static str, what: &'static str, wanted: f64, measure: fn(&Rows<'_>) -> Vec<Sample>) -> Target {
    Target {
        id,
        area: BRING_UP,
        what,
        comparison: AtMost,
        wanted,
        unit: "ms",
        against: "Linux 2020: 768 GiB in 1785.7 ms on one thread, 138 ms on 52",
        measure,
        command: "bench bring-up",
    }
}

pub(super) const TARGETS: &[Target] = &[
    bring_up("bring-up-768g", "768 GiB on demand, one thread, tables backed", 1.0, |rows| milliseconds(rows, "768g")),
    bring_up("bring-up-24t", "24 TiB on demand, one thread, tables backed", 10.0, |rows| milliseconds(rows, "24t")),
    Target {
        id: "metadata",
        area: BRING_UP,
        what: "Metadata of an idle machine over 0.01 % of memory + 64 KiB + 4 KiB a CPU",
        comparison: AtMost,
        wanted: 1.0,
        unit: "x",
        against: "Linux: 1.56 % of memory",
        measure: metadata,
        command: "bench bring-up",
    },
    limit_ratio("init-eager-zero", "Eager, zero: speed of a plain fill", |rows| limits(rows, "eager", "zero")),
    limit_ratio("init-eager-template", "Eager, template: speed of plain movnti", |rows| {
        limits(rows, "eager", "template")
    }),
    limit_ratio("init-deferred-zero", "Deferred, zero, 1 and 2 threads: speed of a plain fill", |rows| {
        limits(rows, "deferred", "zero")
    }),
    limit_ratio("init-deferred-template", "Deferred, template, 1 and 2 threads: speed of plain movnti", |rows| {
        limits(rows, "deferred", "template")
    }),
    Target {
        id: "init-cpu",
        area: MAP,
        what: "Deferred on one thread: CPU time over eager's",
        comparison: AtMost,
        wanted: 1.03,
        unit: "x",
        against: "eager",
        measure: cpu_time,
        command: "bench init",
    },
    Target {
        id: "init-growth",
        area: MAP,
        what: "A section on demand: time over its share of the bulk",
        comparison: AtMost,
        wanted: 2.0,
        unit: "x",
        against: "deferred initialisation",
        measure: |rows| rows.bench("init").is("policy", "growth").samples("bulk_ratio", 1.0, &["init"]),
        command: "bench init",
    },
];

fn milliseconds(rows: &Rows<'_>, machine: &str) -> Vec<Sample> {
    let rows = rows.bench("bring-up").is("tables", "backed").is("threads", 1).says("machine", &[machine]);
    rows.samples("bring_up_us", 1e-3, &["machine"])
}

/// What is allowed grows with memory and CPUs, of which a row without their number has one.
fn metadata(rows: &Rows<'_>) -> Vec<Sample> {
    let one = |row: &Value| {
        let cpus = number(row, "cpus").unwrap_or(1.0);
        let allowed = number(row, "managed_gib")? * (1_u64 << 30) as f64 * 1e-4 + 65536.0 + 4096.0 * cpus;
        let place = row.get("machine").and_then(Value::as_str).unwrap_or_default().to_owned();
        Some(Sample { value: number(row, "metadata_bytes")? / allowed, place })
    };
    rows.bench("bring-up").is("tables", "backed").iter().filter_map(one).collect()
}

/// Memory that is backed and dirty.
fn limits(rows: &Rows<'_>, policy: &str, init: &str) -> Vec<Sample> {
    let rows = rows.bench("init").is("policy", policy).is("init", init).is("first_touch", false);
    rows.filter(|row| number(row, "threads").is_some_and(|threads| threads <= 2.0)).samples(
        "limit_ratio",
        1.0,
        &["threads"],
    )
}

/// In pairs of one round where rows have that.
fn cpu_time(rows: &Rows<'_>) -> Vec<Sample> {
    let rows = rows.bench("init").is("first_touch", false).is("threads", 1);
    let deferred = rows.is("policy", "deferred");
    let paired = deferred.samples("eager_cpu_ratio", 1.0, &["init"]);
    if paired.is_empty() {
        deferred.over(&rows.is("policy", "eager"), "cpu_seconds", &["init"], &["init"])
    } else {
        paired
    }
}
