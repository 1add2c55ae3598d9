//! Tables of traffic for people: the time of an operation, then the slowest calls of all orders,
//! then by order.

use super::tails::{self, ALL, OPERATIONS};
use crate::bench::section::{Column, Table, shown, table};
use crate::rows::{Measured, Rows, Spread, Tail, Traffic};
use framewright_cli::grid::Grid;

const COLUMNS: [Column<Traffic>; 7] = [
    ("<pattern", |row| row.pattern.clone()),
    (">full", |row| row.full.clone()),
    (">threads", |row| row.threads.to_string()),
    ("<allocator", |row| row.allocator.clone()),
    (">operation", |row| nanoseconds(row.operation_ns)),
    (">harness", |row| nanoseconds(row.harness_ns)),
    (">refused", |row| shown(row.refused_percent.get(), |percent| format!("{percent:.2} %"))),
];

const TAILS: [Column<Tail>; 10] = [
    ("<pattern", |row| row.pattern.clone()),
    (">full", |row| row.full.clone()),
    (">threads", |row| row.threads.to_string()),
    ("<call", |row| row.operation.clone()),
    ("<allocator", |row| row.allocator.clone()),
    (">p50", |row| time(&row.p50_ns)),
    (">p99", |row| time(&row.p99_ns)),
    (">p99.9", |row| time(&row.p99_9_ns)),
    (">p99.99", |row| time(&row.p99_99_ns)),
    (">max", |row| time(&row.max_ns)),
];

/// Tables for people.
pub fn tables(rows: &Rows) -> Vec<Table> {
    let titled = |title: &str, table: Table| Table { title: Some(title.into()), ..table };
    let throughput = table(&COLUMNS, &rows.traffic);
    let all = table(&TAILS, rows.tail.iter().filter(|row| row.orders == ALL));
    let by_order = (!rows.tail.is_empty()).then(|| by_order(&rows.tail));
    let titles = ["Operations", "Each call, all orders", "Each call by order: p50, p99.9 and max"];
    let tables = titles.into_iter().zip([throughput, all, by_order]);
    tables.filter_map(|(title, table)| Some(titled(title, table?))).collect()
}

/// A line for each trace, allocator and kind of call, a column for each class of orders.
fn by_order(rows: &[Tail]) -> Table {
    let titles: Vec<String> = tails::classes().map(|orders| format!(">order {orders}")).collect();
    let mut columns = vec!["<pattern", ">full", ">threads", "<call", "<allocator"];
    columns.extend(titles.iter().map(String::as_str));
    let mut grid = Grid::new(&columns);
    let key = |row: &Tail| {
        let Tail { pattern, full, allocator, .. } = row;
        (pattern.clone(), full.clone(), row.threads, allocator.clone())
    };
    for rows in rows.chunk_by(|one, next| key(one) == key(next)) {
        for operation in OPERATIONS {
            let of = |orders: &str| {
                let mut rows = rows.iter().filter(|row| row.operation == operation);
                rows.find(|row| row.orders == orders)
            };
            let Some(all) = of(ALL) else { continue };
            let start = [0, 1, 2, 3, 4].map(|column| TAILS[column].1(all));
            let cells = tails::classes().map(|orders| {
                shown(of(orders), |row| {
                    [&row.p50_ns, &row.p99_9_ns, &row.max_ns].map(time).join("  ")
                })
            });
            grid.row(start.into_iter().chain(cells).collect::<Vec<_>>());
        }
    }
    Table { title: None, grid }
}

fn nanoseconds(spread: Spread) -> String {
    shown(spread.middle, |ns| format!("{ns:.1} ns"))
}

/// A time in a convenient unit, with no more digits than a histogram knows.
fn time(ns: &Measured<u64>) -> String {
    shown(ns.get(), |ns| match ns {
        0..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{} \u{b5}s", ns / 1000),
        _ => format!("{} ms", ns / 1_000_000),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use framewright_cli::output::Style;

    #[test]
    fn calls_stand_by_allocator_and_by_order() {
        let row = |allocator: &str, operation: &str, orders: &str, max: u64| Tail {
            allocator: allocator.into(),
            pattern: "mixed".into(),
            operation: operation.into(),
            orders: orders.into(),
            p50_ns: Measured(Some(30)),
            max_ns: Measured(Some(max)),
            ..Tail::default()
        };
        let tail = ["a", "b"].map(|allocator| {
            [("get", ALL), ("get", "0"), ("put", ALL), ("put", "9")]
                .map(|(operation, orders)| row(allocator, operation, orders, 123_456))
        });
        let rows = Rows { tail: tail.concat(), ..Rows::default() };
        let tables: Vec<Vec<String>> =
            tables(&rows).iter().map(|table| table.grid.render(Style::PLAIN)).collect();
        assert_eq!(tables.iter().map(Vec::len).collect::<Vec<_>>(), [5, 5]);
        let words: Vec<&str> = tables[1][2].split_whitespace().collect();
        let expected = ["mixed", "0", "put", "a", "-", "-", "-", "30", "ns", "-", "123", "\u{b5}s"];
        assert_eq!(words, expected);
    }

    #[test]
    fn times_have_a_fitting_unit() {
        let times = [0, 9999, 10_000, 12_345_678].map(|ns| time(&Measured(Some(ns))));
        assert_eq!(times, ["0 ns", "9999 ns", "10 \u{b5}s", "12 ms"]);
    }
}
