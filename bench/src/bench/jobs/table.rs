//! Rows for people: engines side by side.

use super::engines::Engine;
use framewright_cli::grid::Grid;
use serde_json::Value;

/// One line for each case, with how much longer a loop and rayon take than we do.
pub fn grid(rows: &[Value]) -> Grid {
    let names = Engine::ALL.map(|engine| format!(">{}", engine.name()));
    let mut columns = vec!["<case", ">units", ">unit ns"];
    columns.extend(names.iter().map(String::as_str));
    columns.extend([">threads", ">serial / ours", ">rayon / ours"]);
    let mut grid = Grid::new(&columns);
    let key = |row: &Value| ["case", "units", "unit_ns"].map(|name| row[name].clone());
    let mut cases = Vec::new();
    for row in rows {
        if !cases.contains(&key(row)) {
            cases.push(key(row));
        }
    }
    for case in cases {
        let row = |engine: Engine| {
            rows.iter().find(|row| row["engine"] == engine.name() && key(row) == case)
        };
        let seconds = |engine: Engine| row(engine).and_then(|row| row["seconds"].as_f64());
        // The middle of the rounds' ratios and its interval.
        let ratio = |engine: Engine| {
            let of_rounds = |end: &str| row(engine)?[format!("framewright_ratio{end}")].as_f64();
            match (of_rounds(""), of_rounds("_low"), of_rounds("_high")) {
                (Some(middle), Some(low), Some(high)) => {
                    format!("{middle:.3} ({low:.3} .. {high:.3})")
                }
                _ => "-".to_owned(),
            }
        };
        let [name, units, unit_ns] = &case;
        let mut cells =
            vec![name.as_str().unwrap_or("-").to_owned(), units.to_string(), unit_ns.to_string()];
        cells.extend(Engine::ALL.map(|engine| seconds(engine).map_or("-".to_owned(), time)));
        cells.push(row(Engine::Ours).map_or("-".to_owned(), |row| row["threads"].to_string()));
        cells.extend([ratio(Engine::Serial), ratio(Engine::Rayon)]);
        grid.row(cells);
    }
    grid
}

fn time(seconds: f64) -> String {
    match seconds {
        short if short < 1e-6 => format!("{:.0} ns", short * 1e9),
        short if short < 1e-3 => format!("{:.2} us", short * 1e6),
        long => format!("{:.2} ms", long * 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use framewright_cli::output::Style;
    use serde_json::json;

    #[test]
    fn a_case_is_one_line() {
        let row = |engine: Engine, units: u64, seconds: f64| {
            let ratio = seconds / 5e-7;
            json!({ "case": "uniform", "engine": engine.name(), "units": units, "unit_ns": 10,
                "threads": 2, "seconds": seconds,
                    "framewright_ratio": ratio, "framewright_ratio_low": ratio - 0.5,
                    "framewright_ratio_high": ratio + 0.25 })
        };
        let rows = [
            row(Engine::Serial, 100, 1e-6),
            row(Engine::Ours, 100, 5e-7),
            row(Engine::Rayon, 100, 2e-6),
            json!({ "case": "uniform", "engine": "serial", "units": 1000, "unit_ns": 10,
                "threads": 1, "seconds": 0.02 }),
        ];
        let lines = grid(&rows).render(Style::PLAIN);
        let words = |line: &String| line.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(
            lines[1..].iter().map(words).collect::<Vec<_>>(),
            [
                "uniform 100 10 1.00 us 500 ns - 2.00 us - - 2 2.000 (1.500 .. 2.250) 4.000 (3.500 \
                 .. 4.250)",
                "uniform 1000 10 20.00 ms - - - - - - - -",
            ]
        );
    }
}
