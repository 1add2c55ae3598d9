//! The guest beside Linux on the same virtual machine.

use super::Comparison::{AtLeast, AtMost};
use super::{Rows, Sample, Target};
use serde_json::Value;

const PLACE: &[&str] = &["what", "when", "policy", "reclaim", "pace", "accel", "cpus"];

/// Linux's time over ours.
const fn faster(
    id: &'static str,
    (area, what): (&'static str, &'static str),
    wanted: f64,
    against: &'static str,
    measure: fn(&Rows<'_>) -> Vec<Sample>,
) -> Target {
    Target { id, area, what, comparison: AtLeast, wanted, unit: "x", against, measure, command: "compare linux" }
}

const GUEST: &str = "The guest beside Linux";

pub(super) const TARGETS: &[Target] = &[
    faster(
        "boot-prompt",
        (GUEST, "Spawn to prompt: how many times sooner than Linux's init"),
        10.0,
        "Linux, same QEMU",
        |rows| {
            let is_quiet =
                |row: &Value| row.get("what").and_then(Value::as_str).is_some_and(|what| what.contains("quiet"));
            compare(rows, &["prompt"]).filter(|row| !is_quiet(row)).samples("ratio", 1.0, PLACE)
        },
    ),
    faster(
        "guest-deferred",
        (GUEST, "Memory map deferred, slower node: times faster"),
        3.0,
        "Linux, same QEMU",
        |rows| memory_map(rows, "deferred"),
    ),
    faster(
        "guest-on-demand",
        (GUEST, "Memory map on demand, slower node: times faster"),
        50.0,
        "Linux, same QEMU",
        |rows| memory_map(rows, "on-demand"),
    ),
    Target {
        id: "guest-16-cpus",
        area: GUEST,
        what: "16 CPUs up",
        comparison: AtMost,
        wanted: 100.0,
        unit: "ms",
        against: "an absolute limit",
        measure: |rows| {
            let rows = rows.filter(|row| row.get("cpus").and_then(Value::as_u64) == Some(16));
            let rows = rows.says("what", &["cpus up"]);
            ["ours_ms", "init_ms", "boot_ms"].iter().flat_map(|field| rows.samples(field, 1.0, PLACE)).collect()
        },
        command: "compare linux --cpus 16",
    },
    faster(
        "guest-pools",
        ("Huge-page pools", "2 MiB pool at run time, reclaim off: times faster, fill and empty"),
        2.0,
        "Linux 6.12, same QEMU",
        |rows| pool(rows, "off"),
    ),
    faster(
        "guest-pools-reclaim",
        ("Huge-page pools", "2 MiB pool at run time, reclaim on: times faster, fill and empty"),
        10.0,
        "Linux 6.12, same QEMU",
        |rows| pool(rows, "on"),
    ),
    faster(
        "reporting-fixed",
        ("Page reporting", "95 % of 2 GiB back at Linux's own pace: Linux's time over ours"),
        1.0,
        "Linux, same QEMU",
        |rows| {
            let rows = compare(rows, &["95 %"]);
            let fixed = rows.filter(|row| {
                ["pace", "what", "policy"]
                    .iter()
                    .any(|name| row.get(*name).and_then(Value::as_str).is_some_and(|text| text.contains("fixed")))
            });
            fixed.samples("ratio", 1.0, PLACE)
        },
    ),
];

fn compare<'a>(rows: &Rows<'a>, words: &[&str]) -> Rows<'a> {
    rows.bench("compare").says("what", words)
}

fn memory_map(rows: &Rows<'_>, policy: &str) -> Vec<Sample> {
    let rows = rows.bench("compare").is("policy", policy).filter(|row| {
        let what = row.get("what").and_then(Value::as_str).unwrap_or_default().to_lowercase();
        what.contains("slowest node") || what.contains("slower node")
    });
    rows.samples("ratio", 1.0, PLACE)
}

/// 2 MiB pages at run time; `reclaim` is `off`, or begins with `on`, or is how maps come back.
fn pool(rows: &Rows<'_>, reclaim: &str) -> Vec<Sample> {
    let rows = compare(rows, &["2 mib"]).filter(|row| {
        let text = |name: &str| row.get(name).and_then(Value::as_str).unwrap_or_default().to_lowercase();
        let is_off = matches!(text("reclaim").as_str(), "off" | "none" | "");
        (reclaim == "off") == is_off && !text("what").contains("boot") && text("when") != "boot"
    });
    rows.samples("ratio", 1.0, PLACE)
}
