//! Targets of the guest compared with Linux on one virtual machine.

use super::sample::{samples, words};
use super::{Sample, is_two_gib};
use crate::rows::{Compare, Rows, Unit};
use framewright_cli::grid::counted;

const COMMAND: &str = "compare linux";
const LINUX: &str = "Linux, same QEMU";

targets! { TARGETS:
    Guest, COMMAND, "boot-prompt", "Spawn to prompt: how many times sooner than Linux's init",
        >= 10.0 "x", LINUX, |rows| ratios(rows, |row| row.what == "spawn to prompt");
    Guest, COMMAND, "guest-deferred", "Memory map deferred, slower node: times faster",
        >= 3.0 "x", LINUX, |rows| memory_map(rows, "deferred");
    Guest, COMMAND, "guest-on-demand", "Memory map on demand, slower node: times faster",
        >= 50.0 "x", LINUX, |rows| memory_map(rows, "on-demand");
    Guest, "compare linux --cpus 16", "guest-16-cpus", "16 CPUs up",
        <= 100.0 "ms", "an absolute limit",
        |rows| {
            let is = |row: &&Compare| row.what == "all CPUs up" && row.cpus == 16;
            samples(rows.compare.iter().filter(is), |row| row.both.ours.middle, place)
        };
    Pools, COMMAND, "guest-pools",
        "2 MiB pool at run time, HVO off: times faster, fill and empty",
        >= 2.0 "x", "Linux 6.12, same QEMU", |rows| pool(rows, "off");
    Pools, COMMAND, "guest-pools-reclaim",
        "2 MiB pool at run time, HVO on: times faster, fill and empty",
        >= 10.0 "x", "Linux 6.12, same QEMU", |rows| pool(rows, "on");
    Moving, COMMAND, "guest-compaction-time",
        "Compaction and a pool of all 2 MiB pages, 80 % in use: times faster",
        >= 1.0 "x", LINUX, |rows| ratios(rows, |row| row.what == "compaction: both");
    Moving, COMMAND, "guest-compaction-pages",
        "The same: free memory that is in no such page, Linux's over ours",
        >= 1.0 "x", LINUX,
        |rows| ratios(rows, |row| row.what.starts_with("compaction: free memory not got"));
    Reporting, COMMAND, "reporting-fixed",
        "95 % of 2 GiB back at Linux's own pace: Linux's time over ours", >= 1.0 "x", LINUX,
        |rows| {
            ratios(rows, |row| {
                row.what == FREED
                    && row.pace.as_deref() == Some("fixed")
                    && is_two_gib(row.dirtied_mib.as_ref())
            })
        };
}

/// The row about memory that is back with the host.
const FREED: &str = "freed memory: 95 % back";

fn place(row: &Compare) -> String {
    let word = |word: &Option<String>| word.clone().unwrap_or_default();
    words(&[
        &row.what,
        &word(&row.when),
        &word(&row.policy),
        &word(&row.reclaim),
        &word(&row.pace),
        &row.accel,
        &counted(row.cpus, "CPU"),
    ])
}

/// Linux's numbers over ours.
fn ratios(rows: &Rows, is: impl Fn(&Compare) -> bool) -> Vec<Sample> {
    samples(rows.compare.iter().filter(|row| is(row)), |row| row.ratio.middle, place)
}

fn memory_map(rows: &Rows, policy: &str) -> Vec<Sample> {
    ratios(rows, |row| {
        row.what == "memory map, slowest node" && row.policy.as_deref() == Some(policy)
    })
}

/// Pools of 2 MiB pages at run time.
fn pool(rows: &Rows, reclaim: &str) -> Vec<Sample> {
    ratios(rows, |row| {
        row.when.as_deref() == Some("run time")
            && row.reclaim.as_deref() == Some(reclaim)
            && matches!(row.what.as_str(), "pool of 2 MiB, fill" | "pool of 2 MiB, empty")
    })
}

/// How long Linux took until 95 % of 2 GiB were back with the host, if that was measured.
pub fn linux_seconds(rows: &Rows) -> Option<f64> {
    let judged =
        rows.compare.iter().filter(|row| row.what == FREED && is_two_gib(row.dirtied_mib.as_ref()));
    judged.filter(|row| row.both.unit == Some(Unit::Seconds)).find_map(|row| row.both.linux.middle)
}
