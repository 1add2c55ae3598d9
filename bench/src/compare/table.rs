//! Shows rows to people: both side by side, the requirement, and which rows fall short of it.

use super::results::Results;
use crate::bench::section::{Column, shown, table};
use crate::bench::wrapped;
use crate::rows::{Compare, Demand, Rows, Spread, Unit};
use framewright_cli::error::Error;
use framewright_cli::grid::{counted, microseconds, size};
use framewright_cli::output::Output;

/// Marks a row that falls short of its requirement.
const FALLS_SHORT: &str = "FALLS SHORT";

/// Prints everything.
///
/// # Errors
/// The errors of writing.
pub fn show(results: &Results, output: &mut Output) -> Result<(), Error> {
    let style = output.style();
    let rows = Rows::of(results.rows()).compare;
    let lines = table(&COLUMNS, &rows).map(|table| table.grid.render(style)).unwrap_or_default();
    lines.iter().try_for_each(|line| output.line(line))?;
    output.line("")?;
    for row in &rows {
        for (why, words) in [(&row.skipped, "not compared: "), (&row.remark, "")] {
            if let Some(why) = why.as_ref().and_then(|why| why.0.as_ref()) {
                output.line(&format!("{}: {words}{why}", title(row)))?;
            }
        }
    }
    let text = |name: &str| results.machine()[name].as_str().unwrap_or("unknown").to_owned();
    let (kernel, accel) = rows
        .first()
        .map_or(("unknown", "unknown"), |row| (row.kernel.as_str(), row.accel.as_str()));
    let mut notes = vec![format!(
        "Linux {} and Framewright {} in turn in QEMU {} ({}) on {}, {}, {}; medians, with minimum \
         and maximum in parentheses. Linux / ours is the ratio of the medians, with those of \
         neighbouring runs in parentheses.",
        kernel,
        env!("CARGO_PKG_VERSION"),
        text("qemu"),
        accel,
        text("cpu"),
        results.machine()["cpus"]
            .as_u64()
            .map_or("unknown CPUs".to_owned(), |cpus| counted(cpus, "CPU")),
        text("kernel"),
    )];
    notes.extend(results.conditions().iter().map(|condition| format!("{condition}.")));
    notes.extend(results.timed().map(|(name, timed)| format!("{name}: {timed}.")));
    for note in notes {
        wrapped(&note).iter().try_for_each(|line| output.line(&style.dim(line)))?;
    }
    Ok(())
}

const COLUMNS: [Column<Compare>; 8] = [
    ("<what", title),
    ("<machine", |row| format!("{}, {}", size(row.memory_bytes), counted(row.nodes, "node"))),
    (">Linux", |row| with_ends(row.both.linux, |value| number(value, row.both.unit))),
    (">Framewright", |row| with_ends(row.both.ours, |value| number(value, row.both.unit))),
    (">Linux / ours", |row| match row.comparable {
        Some(false) => "not comparable".into(),
        _ => with_ends(row.ratio, |ratio| {
            if ratio >= 99.5 { format!("{ratio:.0}") } else { format!("{ratio:.2}") }
        }),
    }),
    (">demanded", |row| match row.demand {
        Demand::Nothing => String::new(),
        Demand::Ratio(least) => format!(">= {least}"),
        Demand::AtMost(unit, most) => format!("ours <= {}", number(most, Some(unit))),
    }),
    ("<", |row| match row.met.as_ref().and_then(|met| met.get()) {
        Some(true) => "met".into(),
        Some(false) => FALLS_SHORT.into(),
        None => String::new(),
    }),
    (">runs", |row| shown(row.repetitions.get(), |runs| runs.to_string())),
];

/// What a row is about, with everything that tells it from other rows.
fn title(row: &Compare) -> String {
    let number = |number: Option<u64>, before: &str| {
        number.map_or_else(String::new, |number| format!(", {before} {number}"))
    };
    let word = |word: &Option<String>, before: &str| {
        word.as_ref().map_or_else(String::new, |word| format!(", {before}{word}"))
    };
    [
        row.what.clone(),
        word(&row.when, ""),
        number(row.pages, "pages"),
        word(&row.reclaim, "HVO "),
        word(&row.policy, ""),
        number(row.cpus_used, "CPUs"),
        word(&row.pace, ""),
    ]
    .concat()
}

fn number(value: f64, unit: Option<Unit>) -> String {
    match unit {
        Some(Unit::Milliseconds) => microseconds(value * 1e3),
        Some(Unit::Seconds) => format!("{value:.2} s"),
        Some(Unit::Mebibytes) => format!("{value:.1} MiB"),
        Some(Unit::Pages | Unit::Requests) => format!("{value:.0}"),
        Some(Unit::Percent) => format!("{value:.1} %"),
        // Sizes are whole numbers of bytes below 2^53.
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a number of bytes"
        )]
        Some(Unit::Bytes) => size(value.max(0.0) as u64),
        _ => format!("{value:.0}/s"),
    }
}

/// The median, with the extremes if they differ.
fn with_ends(spread: Spread, how: impl Fn(f64) -> String) -> String {
    match (spread.middle, spread.least, spread.most) {
        (None, ..) => "-".to_owned(),
        (Some(middle), Some(least), Some(most)) if least < most => {
            format!("{} ({} .. {})", how(middle), how(least), how(most))
        }
        (Some(middle), ..) => how(middle),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::rows::Row;
    use framewright_cli::output::Style;
    use serde_json::Value;

    fn common() -> Compare {
        Compare { memory_bytes: 8 << 30, nodes: 2, ..Compare::default() }
    }

    #[test]
    fn rows_say_what_falls_short() {
        let mut fast = Row::new("boot", Unit::Milliseconds)
            .with(|row| row.policy = Some("deferred".into()))
            .demanding(Demand::Ratio(3.0));
        fast.add([40.0, 44.0], [4.0, 4.0]);
        let mut slow =
            Row::new("back", Unit::Seconds).demanding(Demand::AtMost(Unit::Seconds, 3.0));
        slow.add([18.0], [4.0]);
        let mut none = Row::new("pool", Unit::Milliseconds)
            .with(|row| {
                row.pages = Some(64);
                row.reclaim = Some("on".into());
            })
            .demanding(Demand::Ratio(2.0));
        none.skipped = Some("too little".into());
        let mut memory = Row::new("memory", Unit::Bytes);
        memory.add([f64::from(3 << 20)], [f64::from(1 << 20)]);
        let rows: Vec<Value> =
            [fast, slow, none, memory].iter().map(|row| row.value(&common())).collect();
        let rows = Rows::of(&rows).compare;
        let lines = table(&COLUMNS, &rows).expect("rows").grid.render(Style::PLAIN);
        let words = |line: usize| lines[line].split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(
            words(1),
            "boot, deferred 8.00 GiB, 2 nodes 42.0 ms (40.0 ms .. 44.0 ms) 4.000 ms 10.50 (10.00 \
             .. 11.00) >= 3 met 2"
        );
        assert_eq!(
            words(2),
            "back 8.00 GiB, 2 nodes 18.00 s 4.00 s 4.50 ours <= 3.00 s FALLS SHORT 1"
        );
        assert_eq!(words(3), "pool, pages 64, HVO on 8.00 GiB, 2 nodes - - - >= 2 0");
        assert_eq!(words(4), "memory 8.00 GiB, 2 nodes 3.00 MiB 1.00 MiB 3.00 1");
    }
}
