//! What a report is made of: files of results and snapshots, recognised by their content, and
//! refused with the place of what is wrong.

use framewright_cli::error::Error;
use framewright_cli::grid::counted;
use framewright_cli::page::files::{self, FileInfo};
use framewright_cli::snapshot::Snapshot;
use serde_json::{Map, Value, json};
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

/// Everything that was read.
#[derive(Default)]
pub struct Input {
    /// The files, in order.
    pub files: Vec<FileInfo>,
    /// What was timed and left out, by table.
    pub notes: Vec<Note>,
    /// All rows; of rows that measure the same thing only the last.
    pub rows: Vec<Value>,
    /// How many rows gave way to later ones.
    pub replaced: usize,
    /// Memory, each with the name of its file.
    pub snapshots: Vec<(String, Snapshot)>,
    /// The notes once more, to find them.
    known: HashSet<Note>,
    /// Where in `rows` what a row measures is.
    places: HashMap<String, usize>,
}

/// About a table.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Note {
    /// Its name.
    pub bench: String,
    /// What was timed.
    pub timed: String,
    /// What is not in it, and why.
    pub left_out: Vec<String>,
}

/// Reads all files.
///
/// # Errors
/// The first that cannot be used, with the place of what is wrong in it.
pub fn read(results: &[PathBuf], snapshots: &[PathBuf]) -> Result<Input, Error> {
    let mut input = Input::default();
    for path in results.iter().chain(snapshots) {
        let bad = |why: String| Error::Usage(format!("{}: {why}", path.display()));
        let value = files::load(path).map_err(bad)?;
        input.take(&files::name(path), &value).map_err(bad)?;
    }
    for path in snapshots {
        let name = files::name(path);
        if !input.snapshots.iter().any(|(file, _)| *file == name) {
            return Err(Error::Usage(format!(
                "{}: it has results and no snapshot",
                path.display()
            )));
        }
    }
    Ok(input)
}

impl Input {
    /// Takes one file.
    fn take(&mut self, name: &str, value: &Value) -> Result<(), String> {
        let object = files::object(value)?;
        let mut content = Vec::new();
        if let Some(snapshot) = files::snapshot(object)? {
            self.snapshots.push((name.to_owned(), snapshot));
            content.push("a snapshot of memory".to_owned());
        }
        if let Some(rows) = object.get("rows") {
            let bench = object
                .get("bench")
                .map_or(Ok(None), |bench| bench.as_str().map(Some).ok_or("bench is no text"))?;
            let count = self.take_rows(rows, bench)?;
            self.take_notes(object);
            content.push(counted(count as u64, "row"));
        }
        if content.is_empty() {
            return Err("has neither \"rows\" nor \"snapshot\": it is no file of results".into());
        }
        self.files.push(FileInfo::of(name, content.join(" and "), object));
        Ok(())
    }

    fn take_rows(&mut self, rows: &Value, bench: Option<&str>) -> Result<usize, String> {
        let rows = rows.as_array().ok_or("rows is no list")?;
        if rows.is_empty() {
            return Err("rows is empty: nothing was measured".into());
        }
        for (index, row) in rows.iter().enumerate() {
            let place = format!("rows[{index}]");
            let object = row.as_object().ok_or_else(|| format!("{place} is no object"))?;
            let mut object = object.clone();
            match (object.get("bench"), bench) {
                (Some(Value::String(_)), _) => {}
                (None, Some(bench)) => {
                    object.insert("bench".into(), bench.into());
                }
                _ => return Err(format!("{place}.bench is no text, so it is in no table")),
            }
            check(&object).map_err(|(field, why)| format!("{place}.{field} {why}"))?;
            self.keep(Value::Object(object));
        }
        Ok(rows.len())
    }

    /// Keeps a row in the place of an earlier one that measured the same.
    fn keep(&mut self, row: Value) {
        let identity = identity(&row);
        if let Some(&place) = self.places.get(&identity) {
            self.replaced += 1;
            self.rows[place] = row;
        } else {
            self.places.insert(identity, self.rows.len());
            self.rows.push(row);
        }
    }

    fn take_notes(&mut self, object: &Map<String, Value>) {
        let sections = object.get("sections").and_then(Value::as_array);
        let sections: Vec<&Map<String, Value>> = match sections {
            Some(sections) => sections.iter().filter_map(Value::as_object).collect(),
            None => vec![object],
        };
        let mut seconds = 0.0;
        for section in sections {
            let text = |name: &str| {
                section.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
            };
            let left_out = section.get("left_out").and_then(Value::as_array);
            let left_out = left_out.map_or(&[][..], Vec::as_slice).iter();
            let left_out =
                left_out.filter_map(|reason| reason.as_str().map(str::to_owned)).collect();
            let note = Note { bench: text("bench"), timed: text("timed"), left_out };
            if !note.bench.is_empty() && self.known.insert(note.clone()) {
                self.notes.push(note);
            }
            seconds += section.get("seconds").and_then(Value::as_f64).unwrap_or(0.0);
        }
        // How long a whole run took has limits of its own.
        if let (Some(command), true) =
            (object.get("command").and_then(Value::as_str), seconds > 0.0)
        {
            self.keep(json!({ "bench": "run", "command": command, "run_seconds": seconds }));
        }
    }
}

/// Ends of names of what is measured.
const UNITS: [&str; 14] = [
    "_ns", "_us", "_ms", "_s", "_seconds", "_bytes", "_kib", "_mib", "_gib", "_percent", "_ratio",
    "_min", "_max", "_low",
];
/// Further names of what is measured, or does not tell what was.
const MEASURED: [&str; 12] = [
    "seconds",
    "ratio",
    "deviation",
    "cpu_deviation",
    "against_off",
    "against_off_high",
    "flushes",
    "ipis",
    "reported_twice",
    "repetitions",
    "working_set",
    "limit_fill",
];
/// Names of what is said of measurements.
const OUTCOMES: [&str; 3] = ["met", "skipped", "remark"];
/// Names that end like a unit and say what was measured all the same.
const SETTINGS: [&str; 5] =
    ["managed_gib", "unit_ns", "dirtied_mib", "memory_bytes", "cpus_percent"];

/// Whether a field is a measurement.
pub fn is_measured(field: &str) -> bool {
    !SETTINGS.contains(&field)
        && (MEASURED.contains(&field)
            || field.ends_with("_high")
            || UNITS.iter().any(|unit| field.ends_with(unit)))
}

/// What tells a row from the others of its table.
fn identity(row: &Value) -> String {
    let fields = row.as_object().into_iter().flatten();
    let settings = fields.filter(|(name, value)| {
        !is_measured(name)
            && !OUTCOMES.contains(&name.as_str())
            && (value.is_string()
                || value.is_boolean()
                || value.is_u64() && !name.ends_with("_pages"))
    });
    settings.map(|(name, value)| format!("{name}={value};")).collect()
}

/// Whether a row can be what was measured: its numbers are not negative where that means nothing,
/// and its series belong together.
fn check(row: &Map<String, Value>) -> Result<(), (String, String)> {
    let mut length = None;
    for (name, value) in row {
        let wrong = |why: &str| Err((name.clone(), why.to_owned()));
        match value {
            Value::Array(values) => {
                let numbers: Option<Vec<f64>> = values.iter().map(Value::as_f64).collect();
                let Some(numbers) = numbers else {
                    return wrong("is a series with something that is no number");
                };
                if numbers.is_empty() {
                    return wrong("is an empty series");
                }
                match length {
                    None => length = Some((name.clone(), numbers.len())),
                    Some((ref other, len)) if len != numbers.len() => {
                        return wrong(&format!(
                            "has {} values and {other} has {len}",
                            numbers.len()
                        ));
                    }
                    Some(_) => {}
                }
                if name.starts_with("at_") && numbers.windows(2).any(|pair| pair[1] < pair[0]) {
                    return wrong("goes back in time");
                }
                // Some count from an event in the middle.
                if !name.starts_with("at_") && numbers.iter().any(|&number| number < 0.0) {
                    return wrong("is a series with a negative number");
                }
            }
            Value::Number(number) => {
                let number = number.as_f64().filter(|number| number.is_finite());
                let Some(number) = number else { return wrong("is no finite number") };
                if number < 0.0 && !may_be_negative(name) {
                    return wrong(&format!("is {number}, which cannot be negative"));
                }
            }
            Value::String(text) if is_measured(name) && !MEASURED.contains(&name.as_str()) => {
                return wrong(&format!("is {text:?} where a number belongs"));
            }
            _ => {}
        }
    }
    let number = |name: &str| row.get(name).and_then(Value::as_f64);
    for name in row.keys() {
        if let (Some(least), Some(most)) =
            (number(&format!("{name}_min")), number(&format!("{name}_max")))
            && least > most
        {
            return Err((format!("{name}_min"), format!("is {least}, above the largest, {most}")));
        }
    }
    Ok(())
}

/// Differences go both ways.
fn may_be_negative(field: &str) -> bool {
    ["error", "left", "change", "against", "added", "difference"]
        .iter()
        .any(|word| field.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(value: &Value) -> Result<Input, String> {
        let mut input = Input::default();
        input.take("a.json", value).map(|()| input)
    }

    #[test]
    fn both_forms_of_results_are_read() {
        let one = json!({ "bench": "fragment", "timed": "t", "rows": [{ "allocator": "a",
            "free_in_whole_blocks_percent": 2.5 }] });
        let input = taken(&one).expect("it is right");
        assert_eq!(input.rows[0]["bench"], "fragment");
        assert_eq!(
            (input.notes[0].timed.as_str(), input.files[0].content.as_str()),
            ("t", "1 row")
        );
        let all = json!({ "format": 1, "command": "bench all", "machine": { "cpus": 2,
            "memory_bytes": 1 << 30 },
            "sections": [{ "bench": "alloc", "seconds": 2.0, "left_out": ["x"] }, {
                "bench": "jobs", "seconds": 3.5 }],
            "rows": [{ "bench": "alloc", "alloc_ns": 1.5 }], "later": {} });
        let input = taken(&all).expect("it is right");
        assert_eq!(
            input.rows[1],
            json!({ "bench": "run", "command": "bench all", "run_seconds": 5.5 })
        );
        assert!(input.files[0].facts.contains(&("memory".into(), "1.00 GiB".into())));
        assert_eq!(input.notes[0].left_out, ["x"]);
    }

    #[test]
    fn later_rows_replace_those_that_measured_the_same() {
        let row = |ns: f64, threads: u64| {
            json!({ "bench": "alloc", "order": 0,
            "threads": threads, "alloc_ns": ns, "alloc_ns_max": ns })
        };
        let mut input = taken(&json!({ "rows": [row(1.0, 1), row(2.0, 2)] })).expect("it is right");
        input.take("b.json", &json!({ "rows": [row(3.0, 1)] })).expect("it is right");
        assert_eq!((input.rows.len(), input.replaced), (2, 1));
        assert_eq!(input.rows[0]["alloc_ns"], 3.0);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let row = |row: Value| json!({ "rows": [{ "bench": "a", "x_ns": 1 }, row] });
        for (value, expected) in [
            (json!([1]), "is no JSON object"),
            (json!({ "format": 2, "rows": [] }), "has format 2; this program reads format 1"),
            (json!({ "format": "1", "rows": [] }), "has format \"1\""),
            (json!({ "zones": [] }), "has neither"),
            (json!({ "rows": {} }), "rows is no list"),
            (json!({ "rows": [] }), "rows is empty"),
            (json!({ "bench": 3, "rows": [{}] }), "bench is no text"),
            (row(json!(3)), "rows[1] is no object"),
            (row(json!({ "x_ns": 1 })), "rows[1].bench is no text"),
            (
                row(json!({ "bench": "a", "x_ns": -0.5 })),
                "rows[1].x_ns is -0.5, which cannot be negative",
            ),
            (
                row(json!({ "bench": "a", "x_ns": "NaN" })),
                "rows[1].x_ns is \"NaN\" where a number belongs",
            ),
            (
                row(json!({ "bench": "a", "x_ns_min": 3, "x_ns_max": 2, "x_ns": 2 })),
                "rows[1].x_ns_min is 3, above",
            ),
            (
                row(json!({ "bench": "a", "at_seconds": [1, 2], "rss_mib": [1] })),
                "rows[1].rss_mib has 1 values and at_seconds has 2",
            ),
            (
                row(json!({ "bench": "a", "at_seconds": [2, 1], "rss_mib": [1, 1] })),
                "rows[1].at_seconds goes back in time",
            ),
            (
                row(json!({ "bench": "a", "at_seconds": [], "rss_mib": [] })),
                "rows[1].at_seconds is an empty series",
            ),
            (
                row(json!({ "bench": "a", "at_seconds": [1, null] })),
                "rows[1].at_seconds is a series with",
            ),
            (
                row(json!({ "bench": "a", "rss_mib": [1, -1] })),
                "rows[1].rss_mib is a series with a negative",
            ),
        ] {
            let error = taken(&value).err().unwrap_or_default();
            assert!(error.starts_with(expected), "{value}: {error}");
        }
        assert!(
            taken(&row(json!({ "bench": "a", "error_percent": -3.0, "left_mib": -1.5,
            "at_seconds": [-1, 0], "rss_mib": [2, 1] })))
            .is_ok()
        );
    }
}
