//! Reads the input of a report: files of results and snapshots, recognised by their content. Errors
//! name the place in the file.

use crate::rows::{self, Measured, Row, Rows, Run};
use framewright_cli::error::Error;
use framewright_cli::grid::counted;
use framewright_cli::page::files::{self, FileInfo};
use framewright_cli::snapshot::Snapshot;
use serde_json::{Map, Value};
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

/// Everything that was read.
#[derive(Default)]
pub struct Input {
    /// The files, in order.
    pub files: Vec<FileInfo>,
    /// What each table timed and left out.
    pub notes: Vec<Note>,
    /// All rows in their files' form; of rows that measure the same thing, only the last.
    pub rows: Vec<Value>,
    /// The rows of tables that this program knows.
    pub known_rows: Rows,
    /// How many rows were replaced by later ones.
    pub replaced: usize,
    /// The snapshots of memory, each with the name of its file.
    pub snapshots: Vec<(String, Snapshot)>,
    /// The notes again, for lookup.
    known: HashSet<Note>,
    /// The index in `rows` for each identity of a row.
    places: HashMap<String, usize>,
}

/// A note about a table.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Note {
    /// The table's name.
    pub bench: String,
    /// What was timed.
    pub timed: String,
    /// What was left out, and why.
    pub left_out: Vec<String>,
}

/// Reads all files.
///
/// # Errors
/// The first file that cannot be used, with the place of the error.
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
    input.known_rows = Rows::of(&input.rows);
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
                .map_or(Ok(None), |bench| bench.as_str().map(Some).ok_or("bench is not text"))?;
            let count = self.take_rows(rows, bench)?;
            self.take_notes(object);
            content.push(counted(count as u64, "row"));
        }
        if content.is_empty() {
            return Err("has neither \"rows\" nor \"snapshot\": it is not a file of results".into());
        }
        self.files.push(FileInfo::of(name, content.join(" and "), object));
        Ok(())
    }

    fn take_rows(&mut self, rows: &Value, bench: Option<&str>) -> Result<usize, String> {
        let rows = rows.as_array().ok_or("rows is not a list")?;
        if rows.is_empty() {
            return Err("rows is empty: nothing was measured".into());
        }
        for (index, row) in rows.iter().enumerate() {
            let place = format!("rows[{index}]");
            let object = row.as_object().ok_or_else(|| format!("{place} is not an object"))?;
            let mut object = object.clone();
            match (object.get("bench"), bench) {
                (Some(Value::String(_)), _) => {}
                (None, Some(bench)) => {
                    object.insert("bench".into(), bench.into());
                }
                _ => return Err(format!("{place}.bench is not text, so it is in no table")),
            }
            let bad = |(field, why)| format!("{place}.{field} {why}");
            check_series(&object).map_err(bad)?;
            self.keep(rows::identity(&object).map_err(bad)?, Value::Object(object));
        }
        Ok(rows.len())
    }

    /// Adds a row, or replaces an earlier one that measured the same thing.
    fn keep(&mut self, identity: String, row: Value) {
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
        let (mut seconds, mut done) = (0.0, 0);
        for section in sections {
            done += u64::from(section.get("failed").is_none());
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
        // The limits for the time of a whole run would be met by any part of one.
        let is_whole = object.get("parts").and_then(Value::as_u64).is_none_or(|all| done >= all);
        if let (Some(command), true) =
            (object.get("command").and_then(Value::as_str), seconds > 0.0 && is_whole)
        {
            let run = Run { command: command.to_owned(), run_seconds: Measured(Some(seconds)) };
            self.keep(format!("run;{command}"), run.to_json());
        }
    }
}

/// Checks that all series of a row have the same length.
fn check_series(row: &Map<String, Value>) -> Result<(), (String, String)> {
    let mut length = None;
    for (name, value) in row {
        let Value::Array(values) = value else { continue };
        let wrong = |why: &str| Err((name.clone(), why.to_owned()));
        if !values.iter().all(Value::is_number) {
            return wrong("is a series with a value that is not a number");
        }
        if values.is_empty() {
            return wrong("is an empty series");
        }
        let (other, len) = *length.get_or_insert((name, values.len()));
        if len != values.len() {
            return wrong(&format!("has {} values and {other} has {len}", values.len()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
        let with = |name: &str, value: Value| {
            let mut file = all.clone();
            file[name] = value;
            taken(&file).expect("it is right").rows.len()
        };
        assert_eq!(with("parts", json!(2)), 2);
        assert_eq!(with("parts", json!(3)), 1, "it was interrupted");
        let failed = json!([{ "bench": "alloc", "seconds": 2.0 }, { "bench": "jobs",
            "failed": "x" }]);
        let mut file = all.clone();
        (file["sections"], file["parts"]) = (failed, json!(2));
        assert_eq!(taken(&file).expect("it is right").rows.len(), 1);
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
        let row = |row: Value| json!({ "rows": [{ "bench": "alloc", "alloc_ns": 1 }, row] });
        for (value, expected) in [
            (json!([1]), "is not a JSON object"),
            (json!({ "format": 2, "rows": [] }), "has format 2; this program reads format 1"),
            (json!({ "format": "1", "rows": [] }), "has format \"1\""),
            (json!({ "zones": [] }), "has neither"),
            (json!({ "rows": {} }), "rows is not a list"),
            (json!({ "rows": [] }), "rows is empty"),
            (json!({ "bench": 3, "rows": [{}] }), "bench is not text"),
            (row(json!(3)), "rows[1] is not an object"),
            (row(json!({ "x_ns": 1 })), "rows[1].bench is not text"),
            (
                row(json!({ "bench": "alloc", "alloc_ns": -0.5 })),
                "rows[1].alloc_ns is -0.5, which cannot be negative",
            ),
            (
                row(json!({ "bench": "alloc", "alloc_ns": "NaN" })),
                "rows[1].alloc_ns is \"NaN\" where a number belongs",
            ),
            (
                row(json!({ "bench": "alloc", "free_ns_min": 3, "free_ns_max": 2, "free_ns": 2 })),
                "rows[1].free_ns_min is 3, above",
            ),
            (
                row(json!({ "bench": "a", "at_seconds": [1, 2], "rss_mib": [1] })),
                "rows[1].rss_mib has 1 values and at_seconds has 2",
            ),
            (
                row(json!({ "bench": "series", "at_seconds": [2, 1], "rss_mib": [1, 1] })),
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
                row(json!({ "bench": "series", "rss_mib": [1, -1] })),
                "rows[1].rss_mib is a series with a negative",
            ),
        ] {
            let error = taken(&value).err().unwrap_or_default();
            assert!(error.starts_with(expected), "{value}: {error}");
        }
        assert!(
            taken(&row(json!({ "bench": "series", "at_seconds": [-1, 0], "rss_mib": [2, 1] })))
                .is_ok()
        );
        // Differences may be negative.
        assert!(taken(&row(json!({ "bench": "model", "error_percent": -3.0 }))).is_ok());
        assert!(taken(&row(json!({ "bench": "reporting", "left_mib": -1.5 }))).is_ok());
    }
}
