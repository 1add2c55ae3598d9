//! Tables for people.

use crate::bench::section::{Column, Table, shown, table};
use crate::rows::{Init, InitLimit};
use framewright_cli::grid::{microseconds, size};

fn time(seconds: Option<f64>) -> String {
    shown(seconds, |seconds| microseconds(seconds * 1e6))
}

fn ratio(ratio: Option<f64>) -> String {
    shown(ratio, |ratio| format!("{ratio:.2}"))
}

/// A value of the limit, if there is one.
fn limit<T>(row: &Init, of: impl Fn(&InitLimit) -> Option<T>) -> Option<T> {
    row.limit.as_ref().and_then(of)
}

const COLUMNS: [Column<Init>; 15] = [
    ("<policy", |row| row.policy.clone()),
    ("<init", |row| row.init.clone()),
    ("<memory", |row| if row.first_touch { "first touch" } else { "backed" }.into()),
    (">threads", |row| row.threads.to_string()),
    (">written", |row| size(row.bytes)),
    (">time", |row| time(row.seconds.middle)),
    (">min", |row| time(row.seconds.least)),
    (">max", |row| time(row.seconds.most)),
    (">CPU time", |row| time(limit(row, |limit| limit.cpu_seconds.middle))),
    (">limit", |row| {
        time(match &row.growth {
            Some(growth) => growth.share_of_bulk_seconds.middle,
            None => limit(row, |limit| limit.limit_seconds.middle),
        })
    }),
    ("<by", |row| match row.growth {
        Some(_) => "the job".into(),
        None => shown(limit(row, |limit| limit.limit_fill.0.clone()), |fill| fill),
    }),
    (">ratio", |row| {
        ratio(match &row.growth {
            Some(growth) => growth.bulk_ratio.get(),
            None => limit(row, |limit| limit.limit_ratio.middle),
        })
    }),
    (">quarters", |row| {
        let low = ratio(limit(row, |limit| limit.limit_ratio_low.get()));
        format!("{low} .. {}", ratio(limit(row, |limit| limit.limit_ratio_high.get())))
    }),
    (">by CPU time", |row| ratio(limit(row, |limit| limit.limit_cpu_ratio.middle))),
    (">CPU / eager", |row| ratio(limit(row, |limit| limit.eager_cpu_ratio.middle))),
];

/// A table of all rows.
pub fn rows(rows: &[Init]) -> Option<Table> {
    table(&COLUMNS, rows)
}
