//! Rows of results: the fields of each table, in the order in which they are written.
//!
//! ```text
//!   bench  --Row::to_json-->  file of results  --Rows::of-->  tables, limits, figures
//! ```
//!
//! Settings, which say what was measured (`policy`, `threads`, `order`, `on`), are words, whole
//! numbers or booleans. Measured fields end in their unit: `_ns`, `_us`, `_ms`, `_seconds`,
//! `_bytes`, `_mib`, `_pages`, `_percent`, `_ratio`, `_per_s` (`seconds` alone in `init` and
//! `jobs`, `_s` in `reporting`). The value is the median; `_min` and `_max` are its spread, `_low`
//! and `_high` an interval. `null` means that it does not apply. Arrays are series and come in
//! pairs, such as `at_seconds` and `rss_mib`.
//!
//! Benchmarks make these rows and readers of results get them; the type of a field says what it is
//! ([`field`]). Files of earlier versions lack some fields, and those of later versions have more:
//! a missing field is zero, empty or none, and an unknown field is left alone.
//!
//! Ratios compare neighbouring runs: in `jobs` with a plain loop and with ours, in `hugepages` with
//! and without HVO, with one thread and with the system's call alone. The engine `framewright-new`
//! knows nothing about the units; `off, again` shows a benchmark's own error.
//!
//! serde's derive is not used: it does not know that three fields are one spread, which fields are
//! settings, or how to name the field that is wrong.
//!
//! A file of results:
//!
//! ```json
//! {
//!   "format": 1, "framewright": "0.1.0", "program": "1f0c9a...", "command": "bench all --quick",
//!   "started": "2026-01-31T12:00:00Z", "parts": 17,
//!   "machine": { "cpu": "AMD EPYC 9B45", "cpus": 2, "memory_bytes": 25769803776,
//!                "kernel": "Linux 6.18.1" },
//!   "sections": [ { "section": "alloc", "bench": "alloc", "repetitions": 5,
//!                   "timed": "what is timed", "seconds": 11.2, "left_out": [] } ],
//!   "rows": [ { "bench": "alloc", "allocator": "framewright", "order": 0,
//!               "alloc_ns": 3.5, "alloc_ns_min": 3.4, "alloc_ns_max": 3.9 } ]
//! }
//! ```
//!
//! A single bench prints `{ "bench", "repetitions", "timed", "left_out", "rows" }`. Readers skip
//! fields and benches that they do not know. A section that could not be measured has `failed`, a
//! sentence; one that is impossible on this machine has only `left_out`. A run with fewer sections
//! than `parts` was interrupted. `compare linux` adds `conditions`, a list of sentences. In a row,
//! `bench` names its table. Ratios compare neighbouring runs; rows with `"comparable": false` took
//! different paths on the two sides and are in no picture.

pub mod field;
mod spread;

use field::{Bad, Field, Object};
pub use field::{Measured, Series, Signed, Size, Times};
use serde_json::{Value, json};
pub use spread::{Interval, Spread};
use std::collections::HashSet;

/// A row of a table.
pub trait Row: Field {
    /// The name of the row's table.
    const BENCH: &'static str;

    /// The row as it is written into a file.
    fn to_json(&self) -> Value {
        let mut object = Object::new();
        object.insert("bench".into(), json!(Self::BENCH));
        self.write(&mut object, "");
        Value::Object(object)
    }
}

/// Defines groups of fields.
macro_rules! fields {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty,)* })*) => { $(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Default, Debug)]
        #[allow(missing_docs, reason = "their names say it, with docs/usage.md")]
        pub struct $name { $(pub $field: $type,)* }

        impl Field for $name {
            fn read(object: &Object, _: &str) -> Result<Self, Bad> {
                Ok(Self { $($field: Field::read(object, stringify!($field))?,)* })
            }
            fn write(&self, object: &mut Object, _: &str) {
                $(self.$field.write(object, stringify!($field));)*
            }
            fn is_in(object: &Object, _: &str) -> bool {
                [$(<$type as Field>::is_in(object, stringify!($field))),*].contains(&true)
            }
            fn settings(&self, _: &str, out: &mut String) {
                $(self.$field.settings(stringify!($field), out);)*
            }
        }
    )* };
}

/// Defines the tables.
macro_rules! tables {
    ($($bench:literal $table:ident: $row:ident,)*) => {
        /// Rows of results, by table.
        #[derive(Default, Debug)]
        #[allow(missing_docs, reason = "a table each")]
        pub struct Rows { $(pub $table: Vec<$row>,)* }

        $(impl Row for $row { const BENCH: &'static str = $bench; })*

        impl Rows {
            /// Adds a row if its table is known here.
            ///
            /// # Errors
            /// The field that is wrong, and why.
            fn add(&mut self, object: &Object) -> Result<(), Bad> {
                match object.get("bench").and_then(Value::as_str) {
                    $(Some($bench) => self.$table.push(Field::read(object, "")?),)*
                    _ => {}
                }
                Ok(())
            }

            /// Whether there are rows of a table.
            pub fn has(&self, bench: &str) -> bool {
                match bench {
                    $($bench => !self.$table.is_empty(),)*
                    _ => false,
                }
            }
        }

        /// What identifies a row: rows with equal identities measured the same thing. In an unknown
        /// table, everything in the row counts.
        ///
        /// # Errors
        /// The field that is wrong, and why.
        pub fn identity(object: &Object) -> Result<String, Bad> {
            match object.get("bench").and_then(Value::as_str) {
                $(Some($bench) => identity_as::<$row>(object),)*
                _ => Ok(json!(object).to_string()),
            }
        }
    };
}

fn identity_as<R: Row>(object: &Object) -> Result<String, Bad> {
    let row = R::read(object, "")?;
    let mut identity = format!("{};", R::BENCH);
    row.settings("", &mut identity);
    // Later versions may distinguish rows that are alike for this version.
    let Value::Object(known) = row.to_json() else { return Ok(identity) };
    let words = object.iter().filter(|(name, value)| {
        (value.is_string() || value.is_boolean()) && !known.contains_key(*name)
    });
    words.for_each(|(name, value)| identity.push_str(&format!("{name}={value};")));
    Ok(identity)
}

/// The identity that two of these rows share, if any do: in a report one would replace the other.
pub fn repeated(rows: &[Value]) -> Option<String> {
    let mut known = HashSet::new();
    let identities = rows.iter().filter_map(|row| identity(row.as_object()?).ok());
    identities.into_iter().find(|identity| !known.insert(identity.clone()))
}

impl Rows {
    /// All rows of known tables. Rows that cannot be read are skipped.
    pub fn of(rows: &[Value]) -> Self {
        let mut all = Self::default();
        for object in rows.iter().filter_map(Value::as_object) {
            let _ = all.add(object);
        }
        all
    }
}

/// Rows as they are written into a file.
pub fn to_json<R: Row>(rows: &[R]) -> Vec<Value> {
    rows.iter().map(R::to_json).collect()
}

tables! {
    "alloc" alloc: Alloc,
    "bring-up" bring_up: BringUp,
    "compare" compare: Compare,
    "contig" contig: Contig,
    "fault" fault: Fault,
    "fragment" fragment: Fragment,
    "hotplug" hotplug: Hotplug,
    "hugepages" hugepages: Hugepages,
    "init" init: Init,
    "jobs" jobs: Jobs,
    "longest" longest: Longest,
    "model" model: Model,
    "reporting" reporting: Reporting,
    "run" run: Run,
    "scaling" scaling: Scaling,
    "series" series: Course,
    "shuffle" shuffle: Shuffle,
    "store" store: Store,
    "tail" tail: Tail,
    "traffic" traffic: Traffic,
    "simulate" simulate: Simulate,
}

fields! {
    /// Operations of one kind.
    Alloc {
        allocator: String, managed_gib: u64, order: u64, pattern: String, threads: u64,
        working_set: Measured<u64>, repetitions: Measured<u64>,
        alloc_ns: Spread, free_ns: Spread, line_ns: Spread,
    }
    /// A machine brought up.
    BringUp {
        machine: String, threads: u64, tables: String,
        bring_up_us: Spread, first_alloc_us: Spread,
        metadata_bytes: Measured<u64>, metadata_ratio: Measured<f64>, managed_gib: Measured<f64>,
    }
    /// Memory that is moved.
    Contig {
        what: String, managed_gib: u64, runs: Measured<u64>,
        call_us: Spread, moved_pages: Spread, copy_ratio: Spread, ideal_ratio: Spread,
        copy_before_ratio: Spread, copy_after_ratio: Spread, plain_ratio: Spread,
        whole_before_percent: Spread, whole_after_percent: Spread,
    }
    /// A workload that allocates, with reports or without.
    Fault {
        on: String, workload: String, cpus: u64, config: String,
        runs: Measured<u64>, run_seconds: Measured<f64>,
        iterations_per_s: Spread, deviation: Measured<f64>,
        iterations_per_cpu_s: Spread, cpu_deviation: Measured<f64>,
        reported_mib_per_s: Spread, host_faults_per_s: Spread,
        against_off: Interval, against_off_min: Measured<f64>, against_off_max: Measured<f64>,
        against_off_deviation: Measured<f64>,
    }
    /// The whole blocks that are left after long use.
    Fragment {
        allocator: String, managed_gib: u64,
        allocated_percent: Spread, free_in_whole_blocks_percent: Spread, own_count_percent: Spread,
    }
    /// Memory that was added or removed.
    Hotplug {
        what: String, call_us: Spread, taken_kib: Spread,
    }
    /// A pool that was filled and emptied.
    Hugepages {
        on: String, policy: String, tables: String, size_kb: u64, pages: u64,
        reclaim: String, restore: String, threads: u64,
        fill_ms: Spread, empty_ms: Spread, serial_ratio: Spread, empty_serial_ratio: Spread,
        madvise_ms: Spread, madvise_ratio: Spread,
        reclaim_ratio: Spread, empty_reclaim_ratio: Spread,
        flushes: Measured<u64>, ipis: Measured<u64>, saved_bytes: Measured<u64>,
    }
    /// The making of the vmemmap, or of one section of it.
    Init {
        policy: String, init: String, threads: u64, pages: u64, bytes: u64,
        seconds: Spread, limit: Option<InitLimit>, growth: Option<InitGrowth>, first_touch: bool,
    }
    /// The limit of the vmemmap.
    InitLimit {
        cpu_seconds: Spread, limit_fill: Measured<String>,
        limit_seconds: Spread, limit_cpu_seconds: Spread,
        limit_ratio: Spread, limit_ratio_low: Measured<f64>, limit_ratio_high: Measured<f64>,
        limit_of_minima_ratio: Measured<f64>, limit_cpu_ratio: Interval, eager_cpu_ratio: Spread,
    }
    /// The values that one section is compared with.
    InitGrowth { share_of_bulk_seconds: Spread, bulk_ratio: Measured<f64>, }
    /// A job by one engine.
    Jobs {
        case: String, engine: String, units: u64, unit_ns: u64,
        threads: Measured<u64>, repetitions: Measured<u64>,
        seconds: Spread, serial_ratio: Interval, framewright_ratio: Interval,
    }
    /// The longest call of an operation.
    Longest {
        managed_gib: u64, state: String, operation: String, calls: Measured<u64>,
        call_us: Spread, hold_us: Spread,
    }
    /// A prediction.
    Model {
        source: String, what: String, machine: String, threads: u64,
        chunk_sections: Option<Measured<u64>>, calibration: Option<String>,
        predicted_ms: Measured<f64>, measured_ms: Measured<f64>,
        measured_ms_min: Option<Measured<f64>>, measured_ms_max: Option<Measured<f64>>,
        error_percent: Signed<Measured<f64>>,
    }
    /// Memory that was dirtied, freed and returned to the host.
    Reporting {
        on: String, pace: String, dirtied_mib: Option<Size>, falls: Measured<u64>,
        reported_twice: Measured<u64>, reused_early_percent: Measured<f64>,
        t50_s: Spread, t95_s: Spread, left_mib: Signed<Spread>,
    }
    /// How long a whole command took; the reader of files adds this row.
    Run { command: String, run_seconds: Measured<f64>, }
    /// Boots with a number of threads.
    Scaling {
        what: String, threads: u64, cpus_percent: Measured<f64>,
        boot_ms: Spread, boot_deviation_percent: Measured<f64>, boot_speedup_ratio: Spread,
        init_ms: Spread, init_deviation_percent: Measured<f64>, speedup_ratio: Spread,
        on: String, managed_gib: u64,
    }
    /// A machine's memory over time, as the host sees it.
    Course {
        what: String, system: String, on: String, pace: String,
        dirtied_mib: Option<Size>, before_mib: Option<Measured<f64>>,
        at_seconds: Times, rss_mib: Series,
    }
    /// A shuffle of all free memory.
    Shuffle { managed_gib: u64, threads: u64, shuffle_ms: Spread, }
    /// Plain fills of the vmemmap's memory by one kind of store.
    Store {
        store: String, init: String, threads: u64, bytes: u64,
        seconds: Spread, best_ratio: Measured<f64>, chosen: Measured<u64>,
    }
    /// The time that a given percentage of the calls of one kind in a trace did not exceed.
    Tail {
        allocator: String, managed_gib: u64, pattern: String, full: String, threads: u64,
        operation: String, orders: String, calls: Measured<u64>,
        p50_ns: Measured<u64>, p99_ns: Measured<u64>, p99_9_ns: Measured<u64>,
        p99_99_ns: Measured<u64>, max_ns: Measured<u64>,
    }
    /// A trace.
    Traffic {
        allocator: String, managed_gib: u64, pattern: String, full: String, threads: u64,
        repetitions: Measured<u64>, operation_ns: Spread, harness_ns: Spread,
        refused_percent: Measured<f64>,
    }
    /// A number of CPUs, simulated or real.
    Simulate {
        pattern: String, layout: String, cpus: u64, parts: u64,
        calls_per_us: Measured<f64>, speedup_ratio: Measured<f64>, waiting_percent: Measured<f64>,
        busiest_percent: Measured<f64>, over_real_ratio: Measured<f64>,
    }
    /// One operation by Linux and by the guest.
    Compare {
        what: String, when: Option<String>, size_kb: Option<u64>, pages: Option<u64>,
        reclaim: Option<String>, policy: Option<String>, pace: Option<String>,
        dirtied_mib: Option<Size>, cpus_used: Option<u64>, comparable: Option<bool>,
        remark: Option<Measured<String>>, both: Both, ratio: Spread, demand: Demand,
        skipped: Option<Measured<String>>, met: Option<Measured<bool>>, left_out: LateRemark,
        repetitions: Measured<u64>,
        kernel: String, accel: String, cpus: u64, memory_bytes: u64, nodes: u64,
    }
}

/// The unit of a comparison's numbers. Its name ends the names of a row's fields.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Unit {
    #[default]
    Milliseconds,
    Seconds,
    Bytes,
    Mebibytes,
    /// Iterations of 4 KiB each.
    IterationsPerSecond,
    /// Pages of the size in the row.
    Pages,
    Percent,
    /// Requests to a device.
    Requests,
}

impl Unit {
    const ALL: [Self; 8] = [
        Self::Milliseconds,
        Self::Seconds,
        Self::Bytes,
        Self::Mebibytes,
        Self::IterationsPerSecond,
        Self::Pages,
        Self::Percent,
        Self::Requests,
    ];

    /// The unit's name in field names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Milliseconds => "ms",
            Self::Seconds => "seconds",
            Self::Bytes => "bytes",
            Self::Mebibytes => "mib",
            Self::IterationsPerSecond => "iterations_per_s",
            Self::Pages => "pages",
            Self::Percent => "percent",
            Self::Requests => "requests",
        }
    }
}

/// Linux's number and ours, if there are any.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Both {
    pub unit: Option<Unit>,
    pub linux: Spread,
    pub ours: Spread,
}

impl Field for Both {
    fn read(object: &Object, _: &str) -> Result<Self, Bad> {
        let has = |unit: &Unit| object.contains_key(&format!("linux_{}", unit.name()));
        let Some(unit) = Unit::ALL.into_iter().find(has) else { return Ok(Self::default()) };
        let of = |system: &str| Spread::read(object, &format!("{system}_{}", unit.name()));
        Ok(Self { unit: Some(unit), linux: of("linux")?, ours: of("ours")? })
    }

    fn write(&self, object: &mut Object, _: &str) {
        let Some(unit) = self.unit else { return };
        self.linux.write(object, &format!("linux_{}", unit.name()));
        self.ours.write(object, &format!("ours_{}", unit.name()));
    }
}

/// The requirement on a comparison.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub enum Demand {
    #[default]
    Nothing,
    /// Linux's number is at least this many times ours.
    Ratio(f64),
    /// Our number is at most this.
    AtMost(Unit, f64),
}

impl Field for Demand {
    fn read(object: &Object, _: &str) -> Result<Self, Bad> {
        for unit in Unit::ALL {
            let most = field::number(object, &format!("demanded_{}", unit.name()), false)?;
            if let Some(most) = most {
                return Ok(Self::AtMost(unit, most));
            }
        }
        let ratio = field::number(object, "demanded_ratio", false)?;
        Ok(ratio.map_or(Self::Nothing, Self::Ratio))
    }

    fn write(&self, object: &mut Object, _: &str) {
        match *self {
            Self::Nothing => {}
            Self::Ratio(least) => {
                object.insert("demanded_ratio".into(), json!(least));
            }
            Self::AtMost(unit, most) => {
                object.insert(format!("demanded_{}", unit.name()), json!(most));
            }
        }
    }
}

/// A remark that depends on the measurements; it replaces another one.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct LateRemark(pub Option<String>);

impl Field for LateRemark {
    fn read(_: &Object, _: &str) -> Result<Self, Bad> {
        Ok(Self(None))
    }
    fn write(&self, object: &mut Object, _: &str) {
        let Some(remark) = &self.0 else { return };
        object.insert("remark".into(), json!(remark));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows as version 0.1.0 wrote them, before all of their fields existed.
    const OLD: &str = r#"[
        { "bench": "alloc", "allocator": "framewright", "managed_gib": 8, "order": 0,
          "pattern": "bulk", "threads": 1, "alloc_ns": 3.5, "free_ns": null },
        { "bench": "scaling", "what": "deferred", "threads": 2, "init_ms": 7.5 },
        { "bench": "bring-up", "machine": "8G/1 node", "metadata_bytes": 360000.0 },
        { "bench": "init", "policy": "growth", "bulk_ratio": 1.03, "first_touch": false },
        { "bench": "compare", "what": "boot", "policy": null, "linux_seconds": 2.0,
          "ours_seconds": 1.0, "demanded_seconds": 3.0, "remark": "why" },
        { "bench": "reporting", "on": "qemu", "dirtied_mib": 2048, "left_mib": -0.5 },
        { "bench": "later", "field": 1 }
    ]"#;

    fn old() -> Vec<Value> {
        serde_json::from_str(OLD).expect("is JSON")
    }

    #[test]
    fn rows_of_earlier_versions_are_read() {
        let rows = Rows::of(&old());
        let (alloc, compare) = (&rows.alloc[0], &rows.compare[0]);
        assert_eq!((alloc.alloc_ns.middle, alloc.free_ns.middle), (Some(3.5), None));
        assert_eq!((compare.both.unit, &compare.policy), (Some(Unit::Seconds), &None));
        assert_eq!(compare.demand, Demand::AtMost(Unit::Seconds, 3.0));
        assert_eq!((rows.scaling[0].on.as_str(), rows.scaling[0].boot_ms.middle), ("", None));
        assert_eq!(rows.bring_up[0].metadata_bytes.get(), Some(360_000));
        let init = &rows.init[0];
        assert!(
            init.limit.is_none()
                && init.growth.as_ref().is_some_and(|it| { it.bulk_ratio.get() == Some(1.03) })
        );
        let reporting = &rows.reporting[0];
        assert_eq!(reporting.dirtied_mib.as_ref().map(Size::get), Some(2048.0));
        assert_eq!(reporting.left_mib.0.middle, Some(-0.5));
    }

    #[test]
    fn rows_survive_being_written_and_read() {
        fn again<R: Row + PartialEq + std::fmt::Debug>(rows: &[R], table: impl Fn(Rows) -> Vec<R>) {
            assert_eq!(table(Rows::of(&to_json(rows))), rows);
        }
        let rows = Rows::of(&old());
        again(&rows.alloc, |rows| rows.alloc);
        again(&rows.scaling, |rows| rows.scaling);
        again(&rows.bring_up, |rows| rows.bring_up);
        again(&rows.init, |rows| rows.init);
        again(&rows.compare, |rows| rows.compare);
        again(&rows.reporting, |rows| rows.reporting);
    }

    #[test]
    fn what_was_measured_does_not_tell_rows_apart() {
        let identity = |row: &str| {
            identity(serde_json::from_str::<Value>(row).expect("is JSON").as_object().expect("one"))
        };
        let one = identity(r#"{ "bench": "jobs", "case": "a", "seconds": 1.0, "threads": 2 }"#);
        let again = identity(r#"{ "bench": "jobs", "case": "a", "seconds": 2.0, "threads": 1 }"#);
        let other = identity(r#"{ "bench": "jobs", "case": "b", "seconds": 1.0 }"#);
        let later = identity(r#"{ "bench": "jobs", "case": "a", "later": "x", "seconds": 1.0 }"#);
        assert!(one == again && one != other && one != later);
        // An error names the field that is wrong.
        let wrong = identity(r#"{ "bench": "jobs", "seconds": "x" }"#);
        assert_eq!(wrong, Err(("seconds".into(), "is \"x\" where a number belongs".into())));
    }
}
