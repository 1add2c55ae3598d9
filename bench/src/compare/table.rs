//! Rows for people: both side by side, what was demanded, and what falls short of it.

use super::results::Results;
use crate::bench::wrapped;
use framewright_cli::error::Error;
use framewright_cli::grid::{Grid, counted, microseconds, size};
use framewright_cli::output::Output;
use serde_json::Value;

/// Stands behind what is less than was demanded.
const FALLS_SHORT: &str = "FALLS SHORT";

/// Prints everything.
///
/// # Errors
/// Those of writing.
pub fn show(results: &Results, output: &mut Output) -> Result<(), Error> {
    let style = output.style();
    let rows: Vec<&Value> = results.rows().iter().filter(|row| row["bench"] == "compare").collect();
    grid(&rows).render(style).iter().try_for_each(|line| output.line(line))?;
    output.line("")?;
    for row in &rows {
        for (name, words) in [("skipped", "not compared: "), ("remark", "")] {
            if let Some(why) = row[name].as_str() {
                output.line(&format!("{}: {words}{why}", title(row)))?;
            }
        }
    }
    let text = |name: &str| results.machine()[name].as_str().unwrap_or("unknown").to_owned();
    let first = rows.first().copied().unwrap_or(&Value::Null);
    let mut notes = vec![format!(
        "Linux {} and Framewright {} by turns in QEMU {} ({}) on {}, {}, {}; medians, in \
         parentheses the least and the most. Linux / ours is the ratio of the medians, and in \
         parentheses those of neighbouring runs.",
        first["kernel"].as_str().unwrap_or("unknown"),
        env!("CARGO_PKG_VERSION"),
        text("qemu"),
        first["accel"].as_str().unwrap_or("unknown"),
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

fn grid(rows: &[&Value]) -> Grid {
    let mut grid = Grid::new(&[
        "<what",
        "<machine",
        ">Linux",
        ">Framewright",
        ">Linux / ours",
        ">demanded",
        "<",
        ">runs",
    ]);
    for row in rows {
        grid.row([
            title(row),
            machine(row),
            spread(row, "linux"),
            spread(row, "ours"),
            ratio(row),
            demanded(row),
            mark(row).to_owned(),
            row["repetitions"].to_string(),
        ]);
    }
    grid
}

/// What a row is about, with everything that tells it from others.
fn title(row: &Value) -> String {
    let mut title = row["what"].as_str().unwrap_or_default().to_owned();
    for (name, before) in [
        ("when", ""),
        ("pages", "pages "),
        ("reclaim", "reclaim "),
        ("policy", ""),
        ("cpus_used", "CPUs "),
        ("pace", ""),
    ] {
        match &row[name] {
            Value::String(text) => title += &format!(", {before}{text}"),
            Value::Number(number) => title += &format!(", {before}{number}"),
            _ => {}
        }
    }
    title
}

fn machine(row: &Value) -> String {
    let nodes = row["nodes"].as_u64().unwrap_or(1);
    format!(
        "{}, {nodes} node{}",
        size(row["memory_bytes"].as_u64().unwrap_or(0)),
        if nodes == 1 { "" } else { "s" }
    )
}

/// The unit of a row, by the names of its fields.
fn unit(row: &Value) -> &str {
    let names = row.as_object().into_iter().flat_map(|row| row.keys());
    names
        .filter_map(|name| name.strip_prefix("linux_"))
        .min_by_key(|unit| unit.len())
        .unwrap_or_default()
}

fn number(value: f64, unit: &str) -> String {
    match unit {
        "ms" => microseconds(value * 1e3),
        "seconds" => format!("{value:.2} s"),
        "mib" => format!("{value:.1} MiB"),
        // Sizes are whole numbers of bytes below 2^53.
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a number of bytes"
        )]
        "bytes" => size(value.max(0.0) as u64),
        _ => format!("{value:.0}/s"),
    }
}

fn spread(row: &Value, who: &str) -> String {
    let unit = unit(row);
    let value = |end: &str| row[format!("{who}_{unit}{end}")].as_f64();
    match (value(""), value("_min"), value("_max")) {
        (None, ..) => "-".to_owned(),
        (Some(middle), Some(least), Some(most)) if least < most => {
            format!("{} ({} .. {})", number(middle, unit), number(least, unit), number(most, unit))
        }
        (Some(middle), ..) => number(middle, unit),
    }
}

fn ratio(row: &Value) -> String {
    let shown =
        |ratio: f64| if ratio >= 99.5 { format!("{ratio:.0}") } else { format!("{ratio:.2}") };
    let value = |name: &str| row[name].as_f64();
    if row["comparable"] == false {
        return "not comparable".to_owned();
    }
    match (value("ratio"), value("ratio_min"), value("ratio_max")) {
        (None, ..) => "-".to_owned(),
        (Some(middle), Some(least), Some(most)) if least < most => {
            format!("{} ({} .. {})", shown(middle), shown(least), shown(most))
        }
        (Some(middle), ..) => shown(middle),
    }
}

fn demanded(row: &Value) -> String {
    let unit = unit(row);
    let most = row[format!("demanded_{unit}")]
        .as_f64()
        .map(|most| format!("ours <= {}", number(most, unit)));
    let ratio = row["demanded_ratio"].as_f64().map(|least| format!(">= {least}"));
    most.or(ratio).unwrap_or_default()
}

fn mark(row: &Value) -> &'static str {
    match row["met"].as_bool() {
        Some(true) => "met",
        Some(false) => FALLS_SHORT,
        None => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::rows::{Demand, Row, Unit};
    use framewright_cli::output::Style;
    use serde_json::Map;

    fn common() -> Map<String, Value> {
        let mut common = Map::new();
        common.insert("memory_bytes".into(), (8_u64 << 30).into());
        common.insert("nodes".into(), 2.into());
        common
    }

    #[test]
    fn rows_say_what_falls_short() {
        let mut fast = Row::new("boot", Unit::Milliseconds)
            .with("policy", "deferred")
            .demanding(Demand::Ratio(3.0));
        fast.add([40.0, 44.0], [4.0, 4.0]);
        let mut slow = Row::new("back", Unit::Seconds).demanding(Demand::AtMost(3.0));
        slow.add([18.0], [4.0]);
        let mut none = Row::new("pool", Unit::Milliseconds)
            .with("pages", 64)
            .with("reclaim", "on")
            .demanding(Demand::Ratio(2.0));
        none.skipped = Some("too little".into());
        let mut memory = Row::new("memory", Unit::Bytes);
        memory.add([f64::from(3 << 20)], [f64::from(1 << 20)]);
        let rows: Vec<Value> =
            [fast, slow, none, memory].iter().map(|row| row.value(&common())).collect();
        let lines = grid(&rows.iter().collect::<Vec<_>>()).render(Style::PLAIN);
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
        assert_eq!(words(3), "pool, pages 64, reclaim on 8.00 GiB, 2 nodes - - - >= 2 0");
        assert_eq!(words(4), "memory 8.00 GiB, 2 nodes 3.00 MiB 1.00 MiB 3.00 1");
    }
}
