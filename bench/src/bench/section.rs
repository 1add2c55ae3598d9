//! The results of a benchmark and the one way of showing them: rows as docs/usage.md describes
//! them.

use super::common::wrapped;
use crate::progress;
use crate::rows::{Row, Rows, repeated, to_json};
use framewright_cli::error::Error;
use framewright_cli::grid::Grid;
use framewright_cli::output::Output;
use serde_json::{Map, Value, json};

/// The results of one benchmark.
#[derive(Debug)]
pub struct Section {
    /// The section's name, which is that of the table to which most of its rows belong.
    pub bench: String,
    /// The most timed repetitions of a row.
    pub repetitions: usize,
    /// Describes the timing, for readers of the numbers.
    pub timed: String,
    /// What was not measured, and why.
    pub left_out: Vec<String>,
    /// Further remarks about all rows, by name.
    pub further: Map<String, Value>,
    /// The rows.
    pub rows: Vec<Value>,
}

/// A table of rows for people.
pub struct Table {
    /// What the rows are about, if there are several tables.
    pub title: Option<String>,
    /// The rows.
    pub grid: Grid,
}

/// Makes tables for people from the rows of a benchmark.
pub type Tables = fn(&Rows) -> Vec<Table>;

/// A column: its title after `<` or `>` for left or right alignment, and how to show a row in it.
pub type Column<R> = (&'static str, fn(&R) -> String);

/// A table of these rows; `None` without rows.
pub fn table<'a, R: 'a>(
    columns: &[Column<R>],
    rows: impl IntoIterator<Item = &'a R>,
) -> Option<Table> {
    let mut grid = Grid::new(&columns.iter().map(|column| column.0).collect::<Vec<_>>());
    let mut is_empty = true;
    for row in rows {
        is_empty = false;
        grid.row(columns.iter().map(|column| column.1(row)).collect::<Vec<_>>());
    }
    (!is_empty).then_some(Table { title: None, grid })
}

/// A number in the form of `how`; `-` if there is none.
pub fn shown<T>(number: Option<T>, how: impl FnOnce(T) -> String) -> String {
    number.map_or_else(|| "-".to_owned(), how)
}

impl Section {
    /// A section of one table, with nothing left out and no further remarks.
    pub fn of<R: Row>(repetitions: usize, timed: impl Into<String>, rows: &[R]) -> Self {
        Self::new(R::BENCH, repetitions, timed, to_json(rows))
    }

    /// A section of several tables.
    pub fn new(
        bench: &str,
        repetitions: usize,
        timed: impl Into<String>,
        rows: Vec<Value>,
    ) -> Self {
        let (left_out, further) = (Vec::new(), Map::new());
        Self { bench: bench.to_owned(), repetitions, timed: timed.into(), left_out, further, rows }
    }

    /// The object that a single benchmark prints.
    pub fn to_json(&self) -> Value {
        debug_assert_eq!(repeated(&self.rows), None, "of {}", self.bench);
        let mut object = json!({ "bench": self.bench, "repetitions": self.repetitions });
        for (name, value) in &self.further {
            object[name] = value.clone();
        }
        object["timed"] = json!(self.timed);
        object["left_out"] = json!(self.left_out);
        object["rows"] = json!(self.rows);
        object
    }

    /// Reads such an object.
    ///
    /// # Errors
    /// Says what the object lacks.
    pub fn from_json(text: &str) -> Result<Self, String> {
        let mut value: Value =
            serde_json::from_str(text).map_err(|error| format!("not JSON: {error}"))?;
        let object = value.as_object_mut().ok_or("not an object")?;
        let mut take = |name: &str| object.shift_remove(name);
        let words =
            |value: Option<Value>| value.and_then(|value| value.as_str().map(ToOwned::to_owned));
        let bench = words(take("bench")).ok_or("no \"bench\"")?;
        let repetitions =
            take("repetitions").and_then(|value| value.as_u64()).ok_or("no \"repetitions\"")?;
        let timed = words(take("timed")).ok_or("no \"timed\"")?;
        let Some(Value::Array(rows)) = take("rows") else { return Err("no \"rows\"".into()) };
        let left_out = take("left_out")
            .and_then(|value| serde_json::from_value(value).ok())
            .unwrap_or_default();
        let repetitions = usize::try_from(repetitions).unwrap_or(usize::MAX);
        Ok(Self { bench, repetitions, timed, left_out, further: std::mem::take(object), rows })
    }

    /// Prints the section for people, or as one JSON object and nothing else. `tables` makes tables
    /// from the rows.
    ///
    /// # Errors
    /// Fails if standard output is gone.
    pub fn print(&self, json: bool, tables: Tables) -> Result<(), Error> {
        progress::end();
        let mut output = Output::new();
        if json { output.line(&self.to_json().to_string()) } else { self.show(&mut output, tables) }
    }

    /// Prints the section for people, with the tables that `tables` makes from the rows.
    ///
    /// # Errors
    /// Fails if standard output is gone.
    pub fn show(&self, output: &mut Output, tables: Tables) -> Result<(), Error> {
        let style = output.style();
        for Table { title, grid } in tables(&Rows::of(&self.rows)) {
            if let Some(title) = title {
                output.line(&style.bold(&title))?;
            }
            grid.render(style).iter().try_for_each(|line| output.line(line))?;
            output.line("")?;
        }
        let further = self.further.iter().filter_map(|(name, value)| match value {
            Value::String(words) => Some(format!("{words}; ")),
            // These are only of use to programs.
            Value::Object(_) | Value::Array(_) | Value::Null => None,
            other => Some(format!("{name}: {other}; ")),
        });
        let heading = format!(
            "{}up to {} repetitions a row; {}.",
            further.collect::<String>(),
            self.repetitions,
            self.timed
        );
        let left_out = self.left_out.iter().map(|reason| format!("Left out: {reason}."));
        for text in left_out.chain([heading]) {
            wrapped(&text).iter().try_for_each(|line| output.line(&style.dim(line)))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_survives_being_written_and_read() {
        let mut section =
            Section::new("alloc", 3, "time", vec![json!({ "bench": "alloc", "get_ns": 1.5 })]);
        section.left_out.push("order 18".into());
        section.further.insert("cpus".into(), json!(2));
        let read = Section::from_json(&section.to_json().to_string()).expect("is whole");
        assert_eq!(read.to_json(), section.to_json());
        assert_eq!((read.further["cpus"].as_u64(), read.left_out.len()), (Some(2), 1));
    }

    #[test]
    #[should_panic(expected = "threads=2")]
    fn rows_of_one_section_are_told_apart() {
        let row = |threads: u64, ns: f64| {
            json!({ "bench": "alloc", "threads": threads,
            "alloc_ns": ns })
        };
        let _ = Section::new("alloc", 1, "", vec![row(1, 1.0), row(2, 2.0)]).to_json();
        let _ = Section::new("alloc", 1, "", vec![row(2, 1.0), row(2, 2.0)]).to_json();
    }

    #[test]
    fn what_is_no_section_is_told() {
        for (text, expected) in [
            ("", "not JSON"),
            ("[]", "not an object"),
            ("{}", "no \"bench\""),
            (r#"{"bench":"x","repetitions":1,"timed":"t"}"#, "no \"rows\""),
        ] {
            let error = Section::from_json(text).expect_err("is none");
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
