//! Tables for people: allocators side by side.

use crate::bench::section::shown;
use crate::bench::subject;
use crate::rows::Alloc;
use framewright_cli::grid::Grid;

/// The rows of one machine, with all allocators of a case in one line and how much longer the
/// fastest of the others takes than ours. For several threads also how much longer ours takes, to
/// allocate and to free, than one thread and than threads that share nothing.
pub fn grid(rows: &[Alloc]) -> Grid {
    let [ours, buddy, depot] = subject::NAMES;
    let mut grid = Grid::new(&[
        ">order",
        "<pattern",
        ">threads",
        ">working set",
        &format!(">{ours} alloc"),
        ">free",
        &format!(">{buddy} alloc"),
        ">free",
        &format!(">{depot} alloc"),
        ">free",
        ">best peer / ours",
        ">over one thread",
        ">over apart",
    ]);
    let mut cases: Vec<&Alloc> = Vec::new();
    for row in rows {
        if !cases.iter().any(|other| case(other) == case(row)) {
            cases.push(row);
        }
    }
    for wanted in cases {
        let row =
            |name: &str| rows.iter().find(|row| row.allocator == name && case(row) == case(wanted));
        let found = [row(ours), row(buddy), row(depot)];
        let first = found.into_iter().flatten().next();
        let text = |of: fn(&Alloc) -> Option<u64>| shown(first.and_then(of), |n| n.to_string());
        let mut cells = vec![
            text(|row| Some(row.order)),
            wanted.pattern.clone(),
            text(|row| Some(row.threads)),
            text(|row| row.working_set.get()),
        ];
        for row in found {
            let halves = [row.map(|row| row.alloc_ns), row.map(|row| row.free_ns)];
            cells.extend(halves.map(|half| shown(half.and_then(|ns| ns.middle), nanoseconds)));
        }
        let [ours, others @ ..] = found.map(|row| row.and_then(both));
        let best = others.into_iter().flatten().min_by(f64::total_cmp);
        cells.push(shown(ours.zip(best), |(ours, best)| ratio(best / ours)));
        let mine = found[0].filter(|row| row.threads != 1);
        for (name, threads) in [(subject::NAMES[0], 1), (subject::APART, wanted.threads)] {
            let same = |row: &&Alloc| {
                row.allocator == name && case(row) == (wanted.order, &wanted.pattern, threads)
            };
            let other = mine.zip(rows.iter().find(same));
            cells.push(shown(other, |(row, other)| halves(row, other)));
        }
        grid.row(cells);
    }
    grid
}

/// What is measured.
fn case(row: &Alloc) -> (u64, &str, u64) {
    (row.order, &row.pattern, row.threads)
}

/// The sum of both halves of a row.
fn both(row: &Alloc) -> Option<f64> {
    Some(row.alloc_ns.middle? + row.free_ns.middle.unwrap_or(0.0))
}

/// Both halves of a row over those of another.
fn halves(row: &Alloc, other: &Alloc) -> String {
    let over = |(one, other): (Option<f64>, Option<f64>)| Some(ratio(one? / other?));
    let halves =
        [(row.alloc_ns.middle, other.alloc_ns.middle), (row.free_ns.middle, other.free_ns.middle)];
    halves.into_iter().filter_map(over).collect::<Vec<_>>().join("/")
}

fn ratio(ratio: f64) -> String {
    if ratio < 0.995 { format!("{ratio:.2}") } else { format!("{ratio:.1}") }
}

fn nanoseconds(ns: f64) -> String {
    if ns < 99.95 { format!("{ns:.1}") } else { format!("{ns:.0}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::Spread;
    use framewright_cli::output::Style;

    #[test]
    fn a_case_is_one_line() {
        let row = |allocator: &str,
                   pattern: &str,
                   working_set: u64,
                   alloc_ns: f64,
                   free_ns: Option<f64>| {
            let of = |middle| Spread { middle, ..Spread::default() };
            Alloc {
                allocator: allocator.into(),
                pattern: pattern.into(),
                threads: 1,
                working_set: working_set.into(),
                alloc_ns: of(Some(alloc_ns)),
                free_ns: of(free_ns),
                ..Alloc::default()
            }
        };
        let [ours, buddy, depot] = subject::NAMES;
        let two = |allocator: &str, alloc_ns: f64| {
            let mut row = row(allocator, "bulk", 32, alloc_ns, Some(10.0));
            row.threads = 2;
            row
        };
        let rows = [
            row(ours, "bulk", 64, 5.0, Some(5.0)),
            two(ours, 6.0),
            two(subject::APART, 5.0),
            row(ours, "one-left", 63, 10.0, Some(10.0)),
            row(ours, "half", 999, 12.0, Some(12.0)),
            row(buddy, "bulk", 64, 100.0, Some(200.25)),
            row(depot, "bulk", 64, 20.0, Some(5.0)),
            row(depot, "one-left", 64, 30.0, None),
        ];
        let lines = grid(&rows).render(Style::PLAIN);
        let words: Vec<Vec<&str>> =
            lines[1..].iter().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            words,
            [
                [
                    "0", "bulk", "1", "64", "5.0", "5.0", "100", "200", "20.0", "5.0", "2.5", "-",
                    "-"
                ],
                [
                    "0", "bulk", "2", "32", "6.0", "10.0", "-", "-", "-", "-", "-", "1.2/2.0",
                    "1.2/1.0"
                ],
                [
                    "0", "one-left", "1", "63", "10.0", "10.0", "-", "-", "30.0", "-", "1.5", "-",
                    "-"
                ],
                ["0", "half", "1", "999", "12.0", "12.0", "-", "-", "-", "-", "-", "-", "-"],
            ]
        );
    }
}
