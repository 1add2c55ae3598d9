//! Targets of free page reporting and of the shuffle.

use super::guest::linux_seconds;
use super::sample::{samples, words};
use super::{Sample, is_two_gib};
use crate::rows::{Fault, Reporting, Rows};
use framewright_cli::grid::counted;

const GUEST: &str = "reporting --on qemu";
const HOSTED: &str = "reporting --on hosted";

targets! { TARGETS:
    Reporting, GUEST, "reporting-adaptive", "Guest of 4 GiB: 95 % of 2 GiB back, adaptive pace",
        <= 3.0 "s", "Linux 6.12 elsewhere: about 18 s", |rows| until_back(rows, "adaptive");
    Reporting, GUEST, "reporting-linux-pace", "Guest of 4 GiB: 95 % of 2 GiB back, Linux's pace",
        <= 18.0 "s", "Linux 6.12 elsewhere: about 18 s", |rows| until_back(rows, "fixed"),
        limit linux_seconds;
    Reporting, "reporting", "reported-twice", "Pages that are reported twice",
        <= 0.0 "pages", "an absolute limit",
        |rows| falls(rows, |row| Some(row.reported_twice.get()? as f64));
    Reporting, GUEST, "reporting-left", "Guest: memory that stays with the host's mapping",
        <= 40.0 "MiB", "what it was before",
        |rows| falls(rows, |row| row.left_mib.0.middle.filter(|_| row.on == "qemu"));
    Reporting, HOSTED, "reporting-cost",
        "Cost to page_fault1 and page_fault2, in a process, paired runs",
        <= 1.7 "%", "reporting off", cost;
    Reporting, GUEST, "reused-early",
        "Guest: share of reported blocks that are reused while others are free",
        <= 0.0 "%", "an absolute limit",
        |rows| falls(rows, |row| row.reused_early_percent.get().filter(|_| row.on == "qemu"));
    Reporting, "reporting", "shuffle-1t", "Shuffle of 1 TiB on one thread",
        <= 50.0 "ms", "an absolute limit",
        |rows| {
            let large = rows.shuffle.iter().filter(|row| row.managed_gib == 1024);
            samples(large, |row| row.shuffle_ms.middle, |row| format!("{} GiB", row.managed_gib))
        };
}

fn falls(rows: &Rows, value: fn(&Reporting) -> Option<f64>) -> Vec<Sample> {
    samples(&rows.reporting, value, |row| words(&[&row.on, &row.pace]))
}

/// Seconds until the host has back 95 % of 2 GiB from a guest.
fn until_back(rows: &Rows, pace: &str) -> Vec<Sample> {
    let is = |row: &&Reporting| {
        row.on == "qemu" && row.pace == pace && is_two_gib(row.dirtied_mib.as_ref())
    };
    let place = |row: &Reporting| {
        row.dirtied_mib.as_ref().map_or(String::new(), |mib| format!("{} MiB dirtied", mib.get()))
    };
    samples(rows.reporting.iter().filter(is), |row| row.t95_s.middle, place)
}

/// The loss in percent, from the median of the ratios of neighbouring runs.
fn cost(rows: &Rows) -> Vec<Sample> {
    let percent = |ratio: f64| (1.0 - ratio) * 100.0;
    let place = |row: &Fault| {
        let interval = match (row.against_off.high, row.against_off.low) {
            (Some(high), Some(low)) => {
                format!(", 95 % between {:.1} and {:.1} %", percent(high), percent(low))
            }
            _ => String::new(),
        };
        format!("{}, {}{interval}", row.workload, counted(row.cpus.max(1), "CPU"))
    };
    let on = rows.fault.iter().filter(|row| row.on == "hosted" && row.config == "on");
    samples(on, |row| row.against_off.middle.map(percent), place)
}
