//! Rows for people.

use framewright_cli::grid::{Grid, microseconds, number, size, word};
use serde_json::Value;

fn time(row: &Value, name: &str) -> String {
    number(row, name, |seconds| microseconds(seconds * 1e6))
}

fn ratio(row: &Value, name: &str) -> String {
    number(row, name, |ratio| format!("{ratio:.2}"))
}

/// All rows.
pub fn rows(rows: &[Value]) -> Grid {
    let mut grid = Grid::new(&[
        "<policy",
        "<init",
        "<memory",
        ">threads",
        ">written",
        ">time",
        ">min",
        ">max",
        ">CPU time",
        ">limit",
        "<by",
        ">ratio",
        ">quarters",
        ">by CPU time",
        ">CPU / eager",
    ]);
    for row in rows {
        let touch =
            if row["first_touch"].as_bool() == Some(true) { "first touch" } else { "backed" };
        let growth = row.get("bulk_ratio").is_some();
        grid.row([
            word(row, "policy"),
            word(row, "init"),
            touch.to_owned(),
            row["threads"].to_string(),
            row["bytes"].as_u64().map_or("-".to_owned(), size),
            time(row, "seconds"),
            time(row, "seconds_min"),
            time(row, "seconds_max"),
            time(row, "cpu_seconds"),
            time(row, if growth { "share_of_bulk_seconds" } else { "limit_seconds" }),
            if growth { "the job".to_owned() } else { word(row, "limit_fill") },
            ratio(row, if growth { "bulk_ratio" } else { "limit_ratio" }),
            format!("{} .. {}", ratio(row, "limit_ratio_low"), ratio(row, "limit_ratio_high")),
            ratio(row, "limit_cpu_ratio"),
            ratio(row, "eager_cpu_ratio"),
        ]);
    }
    grid
}
