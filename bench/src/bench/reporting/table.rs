//! Rows for people.

use framewright_cli::grid::{self, Grid, word};
use serde_json::Value;

/// A column: its title, its field, and how many digits a number has behind the point.
type Column = (&'static str, &'static str, usize);

const FALLS: [Column; 7] = [
    ("<on", "on", 0),
    ("<pace", "pace", 0),
    (">dirtied MiB", "dirtied_mib", 0),
    (">t50 s", "t50_s", 2),
    (">t95 s", "t95_s", 2),
    (">left MiB", "left_mib", 1),
    (">pages twice", "reported_twice", 0),
];

const SHUFFLES: [Column; 5] = [
    (">shuffled GiB", "managed_gib", 0),
    (">threads", "threads", 0),
    (">ms", "shuffle_ms", 2),
    (">least", "shuffle_ms_min", 2),
    (">most", "shuffle_ms_max", 2),
];

/// Falls, if there are any.
pub fn falls(rows: &[&Value]) -> Option<Grid> {
    table(&FALLS, rows)
}

/// Shuffles, if there are any.
pub fn shuffles(rows: &[&Value]) -> Option<Grid> {
    table(&SHUFFLES, rows)
}

/// Words keep to the left, numbers to the right.
fn table(columns: &[Column], rows: &[&Value]) -> Option<Grid> {
    let mut grid = Grid::new(&columns.iter().map(|column| column.0).collect::<Vec<_>>());
    for row in rows {
        let cell = |&(title, field, digits): &Column| {
            if title.starts_with('<') { word(row, field) } else { number(row, field, digits) }
        };
        grid.row(columns.iter().map(cell).collect::<Vec<_>>());
    }
    (!rows.is_empty()).then_some(grid)
}

fn number(row: &Value, field: &str, digits: usize) -> String {
    grid::number(row, field, |number| format!("{number:.digits$}"))
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
        let percent = |name: &str| {
            grid::number(row, name, |ratio| format!("{:+.2} %", (ratio - 1.0) * 100.0))
        };
        grid.row([
            word(row, "on"),
            word(row, "workload"),
            number(row, "cpus", 0),
            word(row, "config"),
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
