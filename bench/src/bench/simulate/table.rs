//! Simulated CPUs for people: a table for each pattern, a line for each number of CPUs.

use super::{BY_RULE, COUNTER, FOREIGN, NOTHING, OF_REAL, ONE_LOCK, QUARTER, REAL};
use crate::bench::section::{Column, Table, shown, table};
use crate::rows::{Measured, Rows, Simulate};
use framewright_cli::grid::Grid;

const LAYOUTS: [&str; 6] = [ONE_LOCK, QUARTER, BY_RULE, COUNTER, FOREIGN, NOTHING];

const COMPARED: [Column<Simulate>; 6] = [
    ("<pattern", |row| row.pattern.clone()),
    ("<what", |row| row.layout.clone()),
    (">CPUs", |row| row.cpus.to_string()),
    (">calls a \u{b5}s", |row| number(&row.calls_per_us)),
    (">over one", |row| number(&row.speedup_ratio)),
    (">over real", |row| shown(row.over_real_ratio.get(), |ratio| format!("{ratio:.2}"))),
];

/// Tables for people.
pub fn tables(rows: &Rows) -> Vec<Table> {
    let alike = rows.simulate.chunk_by(|one, next| one.pattern == next.pattern);
    let mut tables: Vec<Table> = alike.map(speedups).collect();
    let compared = rows.simulate.iter().filter(|row| [REAL, OF_REAL].contains(&&*row.layout));
    let title = "Two threads here, and the simulation of them".to_owned();
    tables.extend(table(&COMPARED, compared).map(|made| Table { title: Some(title), ..made }));
    tables
}

/// The throughput relative to one CPU and, in brackets, the share of time spent waiting.
fn speedups(rows: &[Simulate]) -> Table {
    let titles = LAYOUTS.map(|layout| format!(">{layout}"));
    let titles = [">CPUs", ">parts"].into_iter().chain(titles.iter().map(String::as_str));
    let mut grid = Grid::new(&titles.collect::<Vec<_>>());
    for rule in rows.iter().filter(|row| row.layout == BY_RULE) {
        let cell = |layout| {
            let row = rows.iter().find(|row| row.layout == layout && row.cpus == rule.cpus);
            row.map_or_else(String::new, |row| {
                let waiting = shown(row.waiting_percent.get(), |share| format!("{share:.0}%"));
                format!("{} ({waiting:>3})", number(&row.speedup_ratio))
            })
        };
        let start = [rule.cpus.to_string(), rule.parts.to_string()];
        grid.row(start.into_iter().chain(LAYOUTS.map(cell)).collect::<Vec<_>>());
    }
    let pattern = rows.first().map_or("", |row| &row.pattern);
    let title = format!("{pattern}: throughput over one CPU's (time waited)");
    Table { title: Some(title), grid }
}

fn number(measured: &Measured<f64>) -> String {
    shown(measured.get(), |number| format!("{number:.1}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use framewright_cli::output::Style;

    #[test]
    fn layouts_stand_side_by_side() {
        let row = |layout: &str, speedup: f64| Simulate {
            pattern: "mixed".into(),
            layout: layout.into(),
            cpus: 64,
            parts: 16,
            speedup_ratio: Measured(Some(speedup)),
            waiting_percent: Measured(Some(12.4)),
            over_real_ratio: Measured((layout == OF_REAL).then_some(0.9)),
            ..Simulate::default()
        };
        let rows = [row(ONE_LOCK, 3.0), row(BY_RULE, 50.0), row(OF_REAL, 1.5)];
        let tables = tables(&Rows { simulate: rows.into(), ..Rows::default() });
        let lines: Vec<Vec<String>> =
            tables.iter().map(|table| table.grid.render(Style::PLAIN)).collect();
        let words: Vec<&str> = lines[0][1].split_whitespace().collect();
        assert_eq!(words, ["64", "16", "3.0", "(12%)", "50.0", "(12%)"]);
        assert!(lines[1].last().is_some_and(|line| line.ends_with("0.90")));
    }
}
