//! Rows for people: allocators side by side.

use crate::bench::subject;
use framewright_cli::grid::Grid;
use serde_json::Value;

/// The rows of one machine, all allocators of a case in one line, with how much longer the fastest
/// of the others takes than we do; and for several threads how much longer we take, to allocate and
/// to free, than one thread and than threads that share nothing.
pub fn grid(rows: &[Value]) -> Grid {
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
    let case = |row: &Value| ["order", "pattern", "threads"].map(|name| row[name].clone());
    let mut cases = Vec::new();
    for row in rows {
        // Blocks with one free page: the allocators differ by a few.
        let key = (
            case(row),
            row["pattern"] == "one-left" && row["allocator"] == ours && is_large(row, rows),
        );
        if !cases.contains(&key) {
            cases.push(key);
        }
    }
    for (wanted, large) in cases {
        let row = |name: &str| {
            rows.iter().find(|row| {
                row["allocator"] == name
                    && case(row) == wanted
                    && is_large(row, rows) == (large && name == ours)
            })
        };
        let found =
            if large { [row(ours), None, None] } else { [row(ours), row(buddy), row(depot)] };
        let first = found.into_iter().flatten().next();
        let text = |name: &str| first.map_or("-".to_owned(), |row| row[name].to_string());
        let mut cells = vec![
            text("order"),
            wanted[1].as_str().unwrap_or("-").to_owned(),
            text("threads"),
            text("working_set"),
        ];
        for row in found {
            cells.extend(
                ["alloc_ns", "free_ns"]
                    .map(|name| nanoseconds(row.and_then(|row| row[name].as_f64()))),
            );
        }
        let [ours, others @ ..] = found.map(|row| row.and_then(both));
        let best = others.into_iter().flatten().min_by(f64::total_cmp);
        cells.push(ours.zip(best).map_or("-".to_owned(), |(ours, best)| ratio(best / ours)));
        let mine = found[0].filter(|row| row["threads"] != 1);
        for (name, threads) in [(subject::NAMES[0], &Value::from(1)), (subject::APART, &wanted[2])]
        {
            let same = |row: &&Value| {
                row["allocator"] == name
                    && row["threads"] == *threads
                    && ["order", "pattern"]
                        .iter()
                        .zip(&wanted)
                        .all(|(&field, value)| row[field] == *value)
            };
            cells.push(
                mine.zip(rows.iter().find(same))
                    .map_or("-".to_owned(), |(row, other)| halves(row, other)),
            );
        }
        grid.row(cells);
    }
    grid
}

/// Whether there is a row about the same case and allocator with a smaller working set.
fn is_large(row: &Value, rows: &[Value]) -> bool {
    let same = |other: &&Value| {
        ["allocator", "order", "pattern", "threads"].iter().all(|&name| other[name] == row[name])
    };
    let least = rows.iter().filter(same).filter_map(|row| row["working_set"].as_u64()).min();
    row["working_set"].as_u64() > least
}

/// Both halves of a row.
fn both(row: &Value) -> Option<f64> {
    Some(row["alloc_ns"].as_f64()? + row["free_ns"].as_f64().unwrap_or(0.0))
}

/// Both halves of a row over those of another.
fn halves(row: &Value, other: &Value) -> String {
    let over = |field: &str| Some(ratio(row[field].as_f64()? / other[field].as_f64()?));
    ["alloc_ns", "free_ns"].into_iter().filter_map(over).collect::<Vec<_>>().join("/")
}

fn ratio(ratio: f64) -> String {
    if ratio < 0.995 { format!("{ratio:.2}") } else { format!("{ratio:.1}") }
}

fn nanoseconds(ns: Option<f64>) -> String {
    ns.map_or("-".to_owned(), |ns| if ns < 99.95 { format!("{ns:.1}") } else { format!("{ns:.0}") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use framewright_cli::output::Style;
    use serde_json::json;

    #[test]
    fn a_case_is_one_line() {
        let row = |allocator: &str,
                   pattern: &str,
                   working_set: u64,
                   alloc_ns: f64,
                   free_ns: Option<f64>| {
            json!({ "allocator": allocator, "order": 0, "pattern": pattern, "threads": 1,
                "working_set": working_set,
                    "alloc_ns": alloc_ns, "free_ns": free_ns })
        };
        let [ours, buddy, depot] = subject::NAMES;
        let two = |allocator: &str, alloc_ns: f64| {
            let mut row = row(allocator, "bulk", 32, alloc_ns, Some(10.0));
            row["threads"] = json!(2);
            row
        };
        let rows = [
            row(ours, "bulk", 64, 5.0, Some(5.0)),
            two(ours, 6.0),
            two(subject::APART, 5.0),
            row(ours, "one-left", 63, 10.0, Some(10.0)),
            row(ours, "one-left", 999, 12.0, Some(12.0)),
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
                ["0", "one-left", "1", "999", "12.0", "12.0", "-", "-", "-", "-", "-", "-", "-"],
            ]
        );
    }
}
