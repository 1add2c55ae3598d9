//! Bringing memory up, and the memory map.

use super::rows::{number, text};
use super::{Measure, Rows, Sample, Target, at_least, at_most};
use serde_json::Value;

const MAP: &str = "The memory map";
const BRING_UP: &str = "Bring-up (on-demand)";

const LINUX: &str = "Linux 2020: 768 GiB in 1785.7 ms on one thread, 138 ms on 52";

const fn limit_ratio(id: &'static str, what: &'static str, measure: Measure) -> Target {
    let against = ("plain fill of the same bytes, same threads", "init");
    at_least(MAP, id, what, (0.9, "x"), against, measure)
}

const fn bring_up(id: &'static str, what: &'static str, wanted: f64, measure: Measure) -> Target {
    at_most(BRING_UP, id, what, (wanted, "ms"), (LINUX, "bring-up"), measure)
}

pub(super) const TARGETS: &[Target] = &[
    bring_up("bring-up-768g", "768 GiB on demand, one thread, tables backed", 1.0, |rows| {
        milliseconds(rows, "768G/2 nodes")
    }),
    bring_up("bring-up-24t", "24 TiB on demand, one thread, tables backed", 10.0, |rows| {
        milliseconds(rows, "24T/16 nodes")
    }),
    at_most(
        BRING_UP,
        "metadata",
        "Metadata of an idle machine over 0.01 % of memory + 64 KiB + 4 KiB a CPU",
        (1.0, "x"),
        ("Linux: 1.56 % of memory", "bring-up"),
        metadata,
    ),
    limit_ratio("init-eager-zero", "Eager, zero: speed of a plain fill", |rows| {
        limits(rows, "eager", "zero")
    }),
    limit_ratio("init-eager-template", "Eager, template: speed of plain movnti", |rows| {
        limits(rows, "eager", "template")
    }),
    limit_ratio(
        "init-deferred-zero",
        "Deferred, zero, 1 and 2 threads: speed of a plain fill",
        |rows| limits(rows, "deferred", "zero"),
    ),
    limit_ratio(
        "init-deferred-template",
        "Deferred, template, 1 and 2 threads: speed of plain movnti",
        |rows| limits(rows, "deferred", "template"),
    ),
    at_most(
        MAP,
        "init-cpu",
        "Deferred on one thread: CPU time over eager's",
        (1.03, "x"),
        ("eager", "init"),
        |rows| {
            let rows = rows
                .bench("init")
                .is("first_touch", false)
                .is("threads", 1)
                .is("policy", "deferred");
            rows.samples("eager_cpu_ratio", 1.0, &["init"])
        },
    ),
    at_most(
        MAP,
        "init-growth",
        "A section on demand: time over its share of the bulk",
        (2.0, "x"),
        ("deferred initialisation", "init"),
        |rows| rows.bench("init").is("policy", "growth").samples("bulk_ratio", 1.0, &["init"]),
    ),
];

fn milliseconds(rows: &Rows<'_>, machine: &str) -> Vec<Sample> {
    let rows =
        rows.bench("bring-up").is("tables", "backed").is("threads", 1).is("machine", machine);
    rows.samples("bring_up_us", 1e-3, &["machine"])
}

/// What is allowed grows with memory and CPUs, of which one is counted, as rows do not say how many
/// there are.
fn metadata(rows: &Rows<'_>) -> Vec<Sample> {
    let one = |row: &Value| {
        let allowed = number(row, "managed_gib")? * (1_u64 << 30) as f64 * 1e-4 + 65536.0 + 4096.0;
        Some(Sample {
            value: number(row, "metadata_bytes")? / allowed,
            place: text(row, "machine").to_owned(),
        })
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
