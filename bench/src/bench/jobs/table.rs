//! Tables for people: engines side by side.

use super::engines::Engine;
use crate::bench::section::shown;
use crate::rows::Jobs;
use framewright_cli::grid::Grid;

/// One line for each case, with how much longer a loop and rayon take than our engine.
pub fn grid(rows: &[Jobs]) -> Grid {
    let names = Engine::ALL.map(|engine| format!(">{}", engine.name()));
    let mut columns = vec!["<case", ">units", ">unit ns"];
    columns.extend(names.iter().map(String::as_str));
    columns.extend([">threads", ">serial / ours", ">rayon / ours"]);
    let mut grid = Grid::new(&columns);
    let mut cases = Vec::new();
    for row in rows {
        if !cases.contains(&row.job()) {
            cases.push(row.job());
        }
    }
    for case in cases {
        let row = |engine: Engine| {
            rows.iter().find(|row| row.engine == engine.name() && row.job() == case)
        };
        // The median of the rounds' ratios and its interval.
        let ratio = |engine: Engine| {
            let ratio = row(engine).map(|row| row.framewright_ratio).unwrap_or_default();
            match (ratio.middle, ratio.low, ratio.high) {
                (Some(middle), Some(low), Some(high)) => {
                    format!("{middle:.3} ({low:.3} .. {high:.3})")
                }
                _ => "-".to_owned(),
            }
        };
        let (name, units, unit_ns) = case;
        let mut cells = vec![name.to_owned(), units.to_string(), unit_ns.to_string()];
        let seconds = |engine: Engine| row(engine).and_then(|row| row.seconds.middle);
        cells.extend(Engine::ALL.map(|engine| shown(seconds(engine), time)));
        let threads = row(Engine::Ours).and_then(|row| row.threads.get());
        cells.push(shown(threads, |threads| threads.to_string()));
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
    use crate::rows::{Interval, Spread};
    use framewright_cli::output::Style;

    #[test]
    fn a_case_is_one_line() {
        let row = |engine: Engine, units: u64, seconds: f64, threads: u64| Jobs {
            case: "uniform".into(),
            engine: engine.name().into(),
            units,
            unit_ns: 10,
            threads: threads.into(),
            seconds: Spread::of([seconds]),
            ..Jobs::default()
        };
        let with_ratio = |engine: Engine, seconds: f64| {
            let ratio = seconds / 5e-7;
            let (low, high) = (Some(ratio - 0.5), Some(ratio + 0.25));
            let framewright_ratio = Interval { middle: Some(ratio), low, high };
            Jobs { framewright_ratio, ..row(engine, 100, seconds, 2) }
        };
        let rows = [
            with_ratio(Engine::Serial, 1e-6),
            with_ratio(Engine::Ours, 5e-7),
            with_ratio(Engine::Rayon, 2e-6),
            row(Engine::Serial, 1000, 0.02, 1),
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
