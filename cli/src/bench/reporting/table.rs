//! Rows for people.

use crate::grid::Grid;
use serde_json::Value;

fn number(row: &Value, name: &str, digits: usize) -> String {
    row[name].as_f64().map_or("-".to_owned(), |number| format!("{number:.digits$}"))
}

fn text(row: &Value, name: &str) -> String {
    row[name].as_str().unwrap_or("-").to_owned()
}

/// Falls, if there are any.
pub fn falls(rows: &[&Value]) -> Option<Grid> {
    let mut grid = Grid::new(&["<on", "<pace", ">dirtied MiB", ">t50 s", ">t95 s", ">left MiB", ">pages twice"]);
    for row in rows {
        grid.row([
            text(row, "on"),
            text(row, "pace"),
            number(row, "dirtied_mib", 0),
            number(row, "t50_s", 2),
            number(row, "t95_s", 2),
            number(row, "left_mib", 1),
            number(row, "reported_twice", 0),
        ]);
    }
    (!rows.is_empty()).then_some(grid)
}

/// Workloads, if there are any.
pub fn faults(rows: &[&Value]) -> Option<Grid> {
    let mut grid = Grid::new(&[
        "<on",
        "<workload",
        ">CPUs",
        "<config",
        ">iterations/s",
        ">deviation",
        ">per CPU s",
        ">deviation",
        ">reported MiB/s",
        ">host faults/s",
        ">against off",
        ">95 % interval",
    ]);
    for row in rows {
        let percent =
            |name: &str| row[name].as_f64().map_or("-".to_owned(), |ratio| format!("{:+.2} %", (ratio - 1.0) * 100.0));
        grid.row([
            text(row, "on"),
            text(row, "workload"),
            number(row, "cpus", 0),
            text(row, "config"),
            number(row, "iterations_per_s", 0),
            number(row, "deviation", 0),
            number(row, "iterations_per_cpu_s", 0),
            number(row, "cpu_deviation", 0),
            number(row, "reported_mib_per_s", 0),
            number(row, "host_faults_per_s", 0),
            percent("against_off"),
            format!("{} .. {}", percent("against_off_low"), percent("against_off_high")),
        ]);
    }
    (!rows.is_empty()).then_some(grid)
}

/// Shuffles, if there are any.
pub fn shuffles(rows: &[&Value]) -> Option<Grid> {
    let mut grid = Grid::new(&[">shuffled GiB", ">threads", ">ms", ">least", ">most"]);
    for row in rows {
        grid.row([
            number(row, "managed_gib", 0),
            number(row, "threads", 0),
            number(row, "shuffle_ms", 2),
            number(row, "shuffle_ms_min", 2),
            number(row, "shuffle_ms_max", 2),
        ]);
    }
    (!rows.is_empty()).then_some(grid)
}
