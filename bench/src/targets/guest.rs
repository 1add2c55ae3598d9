//! The guest beside Linux on the same virtual machine.

use super::rows::{is_two_gib, text};
use super::{Measure, Rows, Sample, Target, at_least, at_most};

const GUEST: &str = "The guest beside Linux";
const POOLS: &str = "Huge-page pools";
const COMMAND: &str = "compare linux";
const LINUX: &str = "Linux, same QEMU";
const PLACE: &[&str] = &["what", "when", "policy", "reclaim", "pace", "accel", "cpus"];

/// Linux's time over ours.
const fn faster(
    id: &'static str,
    (area, what): (&'static str, &'static str),
    wanted: f64,
    against: &'static str,
    measure: Measure,
) -> Target {
    at_least(area, id, what, (wanted, "x"), (against, COMMAND), measure)
}

pub(super) const TARGETS: &[Target] = &[
    faster(
        "boot-prompt",
        (GUEST, "Spawn to prompt: how many times sooner than Linux's init"),
        10.0,
        LINUX,
        |rows| compare(rows, "spawn to prompt").samples("ratio", 1.0, PLACE),
    ),
    faster(
        "guest-deferred",
        (GUEST, "Memory map deferred, slower node: times faster"),
        3.0,
        LINUX,
        |rows| memory_map(rows, "deferred"),
    ),
    faster(
        "guest-on-demand",
        (GUEST, "Memory map on demand, slower node: times faster"),
        50.0,
        LINUX,
        |rows| memory_map(rows, "on-demand"),
    ),
    at_most(
        GUEST,
        "guest-16-cpus",
        "16 CPUs up",
        (100.0, "ms"),
        ("an absolute limit", "compare linux --cpus 16"),
        |rows| compare(rows, "all CPUs up").is("cpus", 16).samples("ours_ms", 1.0, PLACE),
    ),
    faster(
        "guest-pools",
        (POOLS, "2 MiB pool at run time, reclaim off: times faster, fill and empty"),
        2.0,
        "Linux 6.12, same QEMU",
        |rows| pool(rows, "off"),
    ),
    faster(
        "guest-pools-reclaim",
        (POOLS, "2 MiB pool at run time, reclaim on: times faster, fill and empty"),
        10.0,
        "Linux 6.12, same QEMU",
        |rows| pool(rows, "on"),
    ),
    faster(
        "reporting-fixed",
        ("Page reporting", "95 % of 2 GiB back at Linux's own pace: Linux's time over ours"),
        1.0,
        LINUX,
        |rows| {
            let rows =
                compare(rows, "freed memory: 95 % back").is("pace", "fixed").filter(is_two_gib);
            rows.samples("ratio", 1.0, PLACE)
        },
    ),
];

fn compare<'a>(rows: &Rows<'a>, what: &str) -> Rows<'a> {
    rows.bench("compare").is("what", what)
}

fn memory_map(rows: &Rows<'_>, policy: &str) -> Vec<Sample> {
    compare(rows, "memory map, slowest node").is("policy", policy).samples("ratio", 1.0, PLACE)
}

/// Pages of 2 MiB at run time.
fn pool(rows: &Rows<'_>, reclaim: &str) -> Vec<Sample> {
    let rows = rows.bench("compare").is("when", "run time").is("reclaim", reclaim);
    let rows = rows
        .filter(|row| matches!(text(row, "what"), "pool of 2 MiB, fill" | "pool of 2 MiB, empty"));
    rows.samples("ratio", 1.0, PLACE)
}
