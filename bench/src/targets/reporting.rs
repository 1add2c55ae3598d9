//! Free page reporting and the shuffle.

use super::rows::{is_two_gib, linux_seconds, number, text, whole};
use super::{Rows, Sample, Target, at_most};
use serde_json::Value;

const AREA: &str = "Page reporting";
const PLACE: &[&str] = &["on", "pace"];

const GUEST: &str = "reporting --on qemu";
const HOSTED: &str = "reporting --on hosted";

pub(super) const TARGETS: &[Target] = &[
    at_most(
        AREA,
        "reporting-adaptive",
        "Guest of 4 GiB: 95 % of 2 GiB back, adaptive pace",
        (3.0, "s"),
        ("Linux 6.12 elsewhere: about 18 s", GUEST),
        |rows| {
            falls(rows).is("on", "qemu").is("pace", "adaptive").filter(is_two_gib).samples(
                "t95_s",
                1.0,
                &["dirtied_mib"],
            )
        },
    ),
    Target {
        limit: Some(linux_seconds),
        ..at_most(
            AREA,
            "reporting-linux-pace",
            "Guest of 4 GiB: 95 % of 2 GiB back, Linux's pace",
            (18.0, "s"),
            ("Linux 6.12 elsewhere: about 18 s", GUEST),
            |rows| {
                let rows = falls(rows).is("on", "qemu").is("pace", "fixed").filter(is_two_gib);
                rows.samples("t95_s", 1.0, &["dirtied_mib"])
            },
        )
    },
    at_most(
        AREA,
        "reported-twice",
        "Pages that are reported twice",
        (0.0, "pages"),
        ("an absolute limit", "reporting"),
        |rows| falls(rows).samples("reported_twice", 1.0, PLACE),
    ),
    at_most(
        AREA,
        "reporting-left",
        "Guest: memory that stays with the host's mapping",
        (40.0, "MiB"),
        ("what it was before", GUEST),
        |rows| falls(rows).is("on", "qemu").samples("left_mib", 1.0, PLACE),
    ),
    at_most(
        AREA,
        "reporting-cost",
        "Cost to page_fault1 and page_fault2, in a process, paired runs",
        (1.7, "%"),
        ("reporting off", HOSTED),
        cost,
    ),
    at_most(
        AREA,
        "reused-early",
        "Guest: share of reported blocks that are reused while others are free",
        (0.0, "%"),
        ("an absolute limit", GUEST),
        |rows| falls(rows).samples("reused_early_percent", 1.0, PLACE),
    ),
    at_most(
        AREA,
        "shuffle-1t",
        "Shuffle of 1 TiB on one thread",
        (50.0, "ms"),
        ("an absolute limit", "reporting"),
        |rows| {
            rows.bench("shuffle").is("managed_gib", 1024).samples(
                "shuffle_ms",
                1.0,
                &["managed_gib"],
            )
        },
    ),
];

fn falls<'a>(rows: &Rows<'a>) -> Rows<'a> {
    rows.bench("reporting")
}

/// What is lost in percent, by the middle of the ratios of neighbouring runs.
fn cost(rows: &Rows<'_>) -> Vec<Sample> {
    let one = |row: &Value| {
        let ratio = number(row, "against_off")?;
        let percent = |ratio: f64| (1.0 - ratio) * 100.0;
        let cpus = whole(row, "cpus").unwrap_or(1);
        let interval = match (number(row, "against_off_high"), number(row, "against_off_low")) {
            (Some(high), Some(low)) => {
                format!(", 95 % between {:.1} and {:.1} %", percent(high), percent(low))
            }
            _ => String::new(),
        };
        let place = format!(
            "{}, {cpus} CPU{}{interval}",
            text(row, "workload"),
            if cpus == 1 { "" } else { "s" }
        );
        Some(Sample { value: percent(ratio), place })
    };
    rows.bench("fault").is("on", "hosted").is("config", "on").iter().filter_map(one).collect()
}
