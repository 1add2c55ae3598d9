//! Tables for people.

use crate::bench::section::{Column, Table, shown, table};
use crate::rows::{Fault, Measured, Reporting, Rows, Shuffle};

/// A number with this many decimals.
fn digits(number: Option<f64>, digits: usize) -> String {
    shown(number, |number| format!("{number:.digits$}"))
}

fn whole(number: &Measured<f64>) -> String {
    digits(number.get(), 0)
}

/// How far a ratio is from one, in percent.
fn percent(ratio: Option<f64>) -> String {
    shown(ratio, |ratio| format!("{:+.2} %", (ratio - 1.0) * 100.0))
}

const FALLS: [Column<Reporting>; 7] = [
    ("<on", |row| row.on.clone()),
    ("<pace", |row| row.pace.clone()),
    (">dirtied MiB", |row| digits(row.dirtied_mib.as_ref().map(|mib| mib.get()), 0)),
    (">t50 s", |row| digits(row.t50_s.middle, 2)),
    (">t95 s", |row| digits(row.t95_s.middle, 2)),
    (">left MiB", |row| digits(row.left_mib.0.middle, 1)),
    (">pages twice", |row| shown(row.reported_twice.get(), |pages| pages.to_string())),
];

const FAULTS: [Column<Fault>; 12] = [
    ("<on", |row| row.on.clone()),
    ("<workload", |row| row.workload.clone()),
    (">CPUs", |row| row.cpus.to_string()),
    ("<config", |row| row.config.clone()),
    (">iterations/s", |row| digits(row.iterations_per_s.middle, 0)),
    (">deviation", |row| whole(&row.deviation)),
    (">per CPU s", |row| digits(row.iterations_per_cpu_s.middle, 0)),
    (">deviation", |row| whole(&row.cpu_deviation)),
    (">reported MiB/s", |row| digits(row.reported_mib_per_s.middle, 0)),
    (">host faults/s", |row| digits(row.host_faults_per_s.middle, 0)),
    (">against off", |row| percent(row.against_off.middle)),
    (">95 % interval", |row| {
        format!("{} .. {}", percent(row.against_off.low), percent(row.against_off.high))
    }),
];

const SHUFFLES: [Column<Shuffle>; 5] = [
    (">shuffled GiB", |row| row.managed_gib.to_string()),
    (">threads", |row| row.threads.to_string()),
    (">ms", |row| digits(row.shuffle_ms.middle, 2)),
    (">least", |row| digits(row.shuffle_ms.least, 2)),
    (">most", |row| digits(row.shuffle_ms.most, 2)),
];

/// All tables that have rows.
pub fn tables(rows: &Rows) -> Vec<Table> {
    let tables = [
        table(&FALLS, &rows.reporting),
        table(&FAULTS, &rows.fault),
        table(&SHUFFLES, &rows.shuffle),
    ];
    tables.into_iter().flatten().collect()
}
