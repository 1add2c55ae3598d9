//! Choosing rows of results by what they say.

use serde_json::Value;
use std::collections::HashMap;

/// A measurement, and which it is.
#[derive(Clone, PartialEq, Debug)]
pub struct Sample {
    /// In the unit of its target.
    pub value: f64,
    /// What tells it from the others, in words.
    pub place: String,
}

/// Some rows.
#[derive(Clone)]
pub struct Rows<'a>(Vec<&'a Value>);

impl<'a> Rows<'a> {
    /// All of these.
    pub fn new(rows: &'a [Value]) -> Self {
        Self(rows.iter().collect())
    }

    /// Those of a table.
    pub fn bench(&self, name: &str) -> Self {
        self.is("bench", name)
    }

    /// Those whose field is this: a word, a number or a boolean.
    pub fn is(&self, field: &str, value: impl Into<Value>) -> Self {
        let value = value.into();
        self.filter(|row| row.get(field) == Some(&value))
    }

    /// Those for which `wanted` is true.
    pub fn filter(&self, wanted: impl Fn(&Value) -> bool) -> Self {
        Self(self.0.iter().copied().filter(|row| wanted(row)).collect())
    }

    /// The rows.
    pub fn iter(&self) -> impl Iterator<Item = &'a Value> {
        self.0.iter().copied()
    }

    /// A measured field of each row, as `scale` of it; `place` names the fields that tell rows
    /// apart.
    pub fn samples(&self, field: &str, scale: f64, place: &[&str]) -> Vec<Sample> {
        let one = |row: &&Value| {
            Some(Sample { value: number(row, field)? * scale, place: words(row, place) })
        };
        self.0.iter().filter_map(one).collect()
    }

    /// The quotient of a field over that field of the row of `others` that agrees in all of `same`;
    /// of several that do, the last counts.
    pub fn over(&self, others: &Self, field: &str, same: &[&str], place: &[&str]) -> Vec<Sample> {
        let others = others.by(same);
        let one = |row: &&Value| {
            let theirs = number(others.get(&key(row, same))?, field).filter(|&one| one > 0.0)?;
            Some(Sample { value: number(row, field)? / theirs, place: words(row, place) })
        };
        self.0.iter().filter_map(one).collect()
    }

    /// The rows by what they say in `fields`, the last of each kind. See [`key`].
    pub fn by(&self, fields: &[&str]) -> HashMap<String, &'a Value> {
        self.0.iter().map(|row| (key(row, fields), *row)).collect()
    }
}

/// Memory that is dirtied and freed where a target speaks of 2 GiB, in MiB.
const JUDGED_MIB: f64 = 2048.0;

/// Whether a row is of 2 GiB that were dirtied: a target only judges rows of its own size.
pub fn is_two_gib(row: &Value) -> bool {
    number(row, "dirtied_mib") == Some(JUDGED_MIB)
}

/// What Linux took until 95 % of 2 GiB were back with the host, where that was measured.
pub fn linux_seconds(rows: &Rows<'_>) -> Option<f64> {
    let rows = rows.bench("compare").is("what", "freed memory: 95 % back").filter(is_two_gib);
    rows.iter().find_map(|row| number(row, "linux_seconds"))
}

/// What a row says in these fields: rows that agree in all of them have one key.
pub fn key(row: &Value, fields: &[&str]) -> String {
    let mut key = String::new();
    for field in fields {
        // JSON has no unescaped line ends.
        key.extend(row.get(*field).map(Value::to_string));
        key.push('\n');
    }
    key
}

/// A field that is a number.
pub fn number(row: &Value, field: &str) -> Option<f64> {
    row.get(field).and_then(Value::as_f64)
}

/// A field that is a whole number.
pub fn whole(row: &Value, field: &str) -> Option<u64> {
    row.get(field).and_then(Value::as_u64)
}

/// A field that is a word; empty where it is none.
pub fn text<'a>(row: &'a Value, field: &str) -> &'a str {
    row.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// Fields in words: `order 3, bulk, 8 GiB`.
fn words(row: &Value, fields: &[&str]) -> String {
    let word = |field: &&str| {
        let value = row.get(*field)?;
        Some(match (*field, value) {
            (_, Value::Null) => return None,
            (_, Value::String(text)) => text.clone(),
            ("order", value) => format!("order {value}"),
            ("threads", value) => counted(value, "thread"),
            ("cpus", value) => counted(value, "CPU"),
            ("managed_gib", value) => format!("{value} GiB"),
            ("units", value) => counted(value, "unit"),
            ("unit_ns", value) => format!("{value} ns each"),
            ("pages", value) => counted(value, "page"),
            ("dirtied_mib", value) => format!("{} MiB dirtied", value.as_f64()?),
            ("size_kb", value) => match value.as_u64() {
                Some(kb) if kb >= 1 << 20 => format!("{} GiB", kb >> 20),
                Some(kb) => format!("{} MiB", kb >> 10),
                None => return None,
            },
            (field, value) => format!("{} {value}", field.replace('_', " ")),
        })
    };
    fields.iter().filter_map(word).collect::<Vec<_>>().join(", ")
}

fn counted(value: &Value, what: &str) -> String {
    format!("{value} {what}{}", if value.as_u64() == Some(1) { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rows_are_chosen_measured_and_compared() {
        let rows = [
            json!({ "bench": "a", "engine": "ours", "threads": 1, "seconds": 3.0 }),
            json!({ "bench": "a", "engine": "ours", "threads": 2, "seconds": null }),
            json!({ "bench": "a", "engine": "serial", "threads": 1, "seconds": 2.0, "what": "Page \
                pools" }),
            json!({ "bench": "b", "engine": "serial", "threads": 1, "seconds": 9.0 }),
        ];
        let rows = Rows::new(&rows).bench("a");
        assert_eq!(rows.iter().count(), 3);
        let ours = rows.is("engine", "ours");
        assert_eq!(
            ours.samples("seconds", 1e3, &["threads"]),
            [Sample { value: 3e3, place: "1 thread".into() }]
        );
        let over = ours.over(
            &rows.is("engine", "serial"),
            "seconds",
            &["threads"],
            &["engine", "threads"],
        );
        assert_eq!(over, [Sample { value: 1.5, place: "ours, 1 thread".into() }]);
        assert_eq!(
            rows.iter().map(|row| text(row, "what")).collect::<Vec<_>>(),
            ["", "", "Page pools"]
        );
    }
}
