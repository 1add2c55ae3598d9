//! Targets of bring-up and of the memory map.

use super::Sample;
use super::sample::{samples, threads, words};
use crate::rows::{BringUp, Init, Rows};

const FILL: &str = "best plain fill of the same bytes, same threads";
const LINUX: &str = "Linux 2020: 768 GiB in 1785.7 ms on one thread, 138 ms on 52";

targets! { BRING_UP:
    BringUp, "bring-up", "bring-up-768g", "768 GiB on demand, one thread, tables backed",
        <= 1.0 "ms", LINUX, |rows| milliseconds(rows, "768G/2 nodes");
    BringUp, "bring-up", "bring-up-24t", "24 TiB on demand, one thread, tables backed",
        <= 10.0 "ms", LINUX, |rows| milliseconds(rows, "24T/16 nodes");
    BringUp, "bring-up", "metadata",
        "Metadata of an idle machine over 0.01 % of memory + 64 KiB + 4 KiB a CPU",
        <= 1.0 "x", "Linux: 1.56 % of memory", metadata;
}

targets! { MAP:
    Map, "init", "init-eager-zero", "Eager, zero: speed of a plain fill", >= 0.9 "x", FILL,
        |rows| limits(rows, "eager", "zero");
    Map, "init", "init-eager-template", "Eager, template: speed of a plain fill", >= 0.9 "x",
        FILL,
        |rows| limits(rows, "eager", "template");
    Map, "init", "init-deferred-zero", "Deferred, zero, 1 and 2 threads: speed of a plain fill",
        >= 0.9 "x", FILL, |rows| limits(rows, "deferred", "zero");
    Map, "init", "init-deferred-template",
        "Deferred, template, 1 and 2 threads: speed of a plain fill", >= 0.9 "x", FILL,
        |rows| limits(rows, "deferred", "template");
    Map, "init", "init-one-thread", "One thread: speed of the best plain fill (goal: 0.97)",
        >= 0.9 "x", FILL, |rows| by_threads(rows, 1);
    Map, "init", "init-two-threads", "Two threads: speed of the best plain fill (goal: 0.97)",
        >= 0.9 "x", FILL, |rows| by_threads(rows, 2);
    Map, "init", "init-store", "The store chosen by CPUID: speed of the best, 1 and 2 threads",
        >= 0.9 "x", "every store of this CPU", |rows| {
            let chosen = rows.store.iter().filter(|row| row.chosen.get() == Some(1));
            samples(chosen, |row| row.best_ratio.get(), |row| {
                words(&[&row.store, &row.init, &threads(row.threads)])
            })
        };
    Map, "init", "init-cpu", "Deferred on one thread: CPU time over eager's", <= 1.03 "x", "eager",
        |rows| {
            let is = |row: &&Init| !row.first_touch && row.threads == 1 && row.policy == "deferred";
            let ratio = |row: &Init| row.limit.as_ref()?.eager_cpu_ratio.middle;
            samples(rows.init.iter().filter(is), ratio, |row| row.init.clone())
        };
    Map, "init", "init-growth", "A section on demand: time over its share of the bulk",
        <= 2.0 "x", "deferred initialisation",
        |rows| {
            let ratio = |row: &Init| row.growth.as_ref()?.bulk_ratio.get();
            samples(&rows.init, ratio, |row| row.init.clone())
        };
}

fn milliseconds(rows: &Rows, machine: &str) -> Vec<Sample> {
    let is = |row: &&BringUp| row.tables == "backed" && row.threads == 1 && row.machine == machine;
    let ms = |row: &BringUp| Some(row.bring_up_us.middle? * 1e-3);
    samples(rows.bring_up.iter().filter(is), ms, |row| row.machine.clone())
}

/// The allowance grows with memory and CPUs; one CPU is assumed, as rows do not say how many there
/// are.
fn metadata(rows: &Rows) -> Vec<Sample> {
    let share = |row: &BringUp| {
        let allowed = row.managed_gib.get()? * (1_u64 << 30) as f64 * 1e-4 + 65536.0 + 4096.0;
        Some(row.metadata_bytes.get()? as f64 / allowed)
    };
    let backed = rows.bring_up.iter().filter(|row| row.tables == "backed");
    samples(backed, share, |row| row.machine.clone())
}

/// Ratios to the limit, in memory that is backed and dirty.
fn limits(rows: &Rows, policy: &str, init: &str) -> Vec<Sample> {
    let is = |row: &&Init| {
        row.policy == policy && row.init == init && !row.first_touch && row.threads <= 2
    };
    let ratio = |row: &Init| row.limit.as_ref()?.limit_ratio.middle;
    samples(rows.init.iter().filter(is), ratio, |row| threads(row.threads))
}

/// Ratios of all policies and first values, in memory that is backed and dirty.
fn by_threads(rows: &Rows, threads: u64) -> Vec<Sample> {
    let is = |row: &&Init| row.threads == threads && !row.first_touch && row.growth.is_none();
    let ratio = |row: &Init| row.limit.as_ref()?.limit_ratio.middle;
    samples(rows.init.iter().filter(is), ratio, |row| words(&[&row.policy, &row.init]))
}
