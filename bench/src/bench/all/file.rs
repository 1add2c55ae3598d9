//! A file of results that grows section by section: after each it is replaced as a whole, so that
//! it is never half written, and a later run continues with what is missing.

use super::PARTS;
use crate::bench::section::Section;
use crate::machine;
use framewright_cli::error::Error;
use framewright_cli::file::{self, FORMAT, Kind};
use serde_json::{Map, Value, json};
use std::fs;
use std::path::{Path, PathBuf};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Identifies a run: two runs with equal headers are one run that was interrupted.
#[derive(Clone, Debug)]
pub struct Header {
    /// The build of this program, as identified by [`machine::program`].
    pub program: String,
    /// The command, without options that do not change the numbers.
    pub command: String,
    /// The machine.
    pub machine: Value,
}

/// The result of a section.
#[derive(Debug)]
pub enum Outcome {
    /// It was measured.
    Measured {
        /// The measurements.
        section: Section,
        /// How long it took.
        seconds: f64,
    },
    /// It is not possible here, for this reason. Nothing is wrong.
    LeftOut(String),
    /// It should have worked, but failed for this reason.
    Failed(String),
}

/// The results so far, and the file that they go to.
#[derive(Debug)]
pub struct ResultsFile {
    path: Option<PathBuf>,
    header: Header,
    started: String,
    sections: Vec<Value>,
    rows: Vec<Value>,
}

/// What to do with an earlier file.
#[derive(Debug)]
enum Earlier {
    /// Continue with these sections and rows.
    GoOn { started: String, sections: Vec<Value>, rows: Vec<Value> },
    /// Begin anew, for this reason.
    Anew(String),
}

impl ResultsFile {
    /// Results without a file.
    pub fn new(header: Header) -> Self {
        Self { path: None, header, started: machine::now(), sections: Vec::new(), rows: Vec::new() }
    }

    /// Continues with the existing file if it is of this run; with `fresh`, replaces any file of
    /// results. Also says why it does so.
    ///
    /// # Errors
    /// Fails if the existing file is not one of results, or none can be written there.
    pub fn open(path: &Path, header: Header, fresh: bool) -> Result<(Self, Option<String>), Error> {
        file::check("--json", path)?;
        let mut file = Self { path: Some(path.to_owned()), ..Self::new(header) };
        let usage = |why: String| Error::Usage(format!("{}: {why}", path.display()));
        if fresh {
            file::claim("--json", path, Kind::Results)?;
            return Ok((file, None));
        }
        let text =
            file::earlier(path).map_err(|error| usage(format!("cannot be read: {error}")))?;
        let Some(text) = text else { return Ok((file, None)) };
        let earlier = earlier(&text, &file.header).map_err(|why| {
            usage(format!("is not a file of results ({why}): name another, or remove it first"))
        })?;
        let why = match earlier {
            Earlier::GoOn { started, sections, rows } => {
                let why =
                    format!("resumes; {} of {} sections are there", sections.len(), PARTS.len());
                (file.started, file.sections, file.rows) = (started, sections, rows);
                why
            }
            Earlier::Anew(why) => {
                // A symbolic link stays, and then leads to the new file.
                let target = file::target(path).map_err(|error| usage(error.to_string()))?;
                let kept = unused(&target);
                fs::rename(&target, &kept)
                    .map_err(|error| usage(format!("cannot be renamed: {error}")))?;
                format!("starts over, because {why}; the old file is {}", kept.display())
            }
        };
        Ok((file, Some(why)))
    }

    /// The identity of this run.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Whether a section is done.
    pub fn has(&self, name: &str) -> bool {
        self.sections.iter().any(|section| section["section"] == name)
    }

    /// The sections that failed.
    pub fn failed(&self) -> Vec<String> {
        let failed = self.sections.iter().filter(|section| section["failed"].is_string());
        failed.filter_map(|section| section["section"].as_str().map(ToOwned::to_owned)).collect()
    }

    /// Adds a section and writes the file.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn add(
        &mut self,
        name: &str,
        bench: &str,
        on: Option<&str>,
        outcome: &Outcome,
    ) -> Result<(), Error> {
        let mut entry = json!({ "section": name, "bench": bench, "on": on });
        match outcome {
            Outcome::Measured { section, seconds } => {
                let Section { repetitions, timed, left_out, further, rows, .. } = section;
                entry["repetitions"] = json!(repetitions);
                entry["timed"] = json!(timed);
                entry["seconds"] = json!(seconds);
                entry["left_out"] = json!(left_out);
                for (name, value) in further {
                    entry[name] = value.clone();
                }
                self.rows.extend(rows.iter().cloned());
            }
            Outcome::LeftOut(why) => entry["left_out"] = json!([why]),
            Outcome::Failed(why) => entry["failed"] = json!(why),
        }
        self.sections.push(entry);
        self.write()
    }

    fn to_json(&self) -> Value {
        json!({
            "format": FORMAT,
            "framewright": VERSION,
            "program": self.header.program,
            "command": self.header.command,
            "started": self.started,
            "machine": self.header.machine,
            "parts": PARTS.len(),
            "sections": self.sections,
            "rows": self.rows,
        })
    }

    fn write(&self) -> Result<(), Error> {
        let write =
            |path: &PathBuf| file::replace(path, format!("{}\n", self.to_json()).as_bytes());
        self.path.as_ref().map_or(Ok(()), write)
    }
}

/// An unused name beside a file: `FILE.old`, or that with a number.
fn unused(path: &Path) -> PathBuf {
    let name = |number: u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(".old");
        if number != 0 {
            name.push(format!(".{number}"));
        }
        PathBuf::from(name)
    };
    // The name of a dangling link is in use, too.
    let is_unused = |path: &PathBuf| fs::symlink_metadata(path).is_err();
    (0..u32::MAX).map(name).find(is_unused).unwrap_or_else(|| name(u32::MAX))
}

/// Decides what of an earlier file counts for the run that `header` describes.
///
/// # Errors
/// Says why the text is no file of results.
fn earlier(text: &str, header: &Header) -> Result<Earlier, String> {
    let mut file: Map<String, Value> =
        serde_json::from_str(text).map_err(|error| error.to_string())?;
    let format = file.get("format").and_then(Value::as_u64).ok_or("it has no \"format\"")?;
    if format != FORMAT {
        return Err(format!("it has format {format}, but this program reads {FORMAT}"));
    }
    let list = |value: Option<Value>| match value {
        Some(Value::Array(list)) => Ok(list),
        _ => Err("sections or rows are missing"),
    };
    let (sections, rows) = (list(file.remove("sections"))?, list(file.remove("rows"))?);
    let word = |name: &str| file.get(name).and_then(Value::as_str).unwrap_or("none").to_owned();
    let (version, command) = (word("framewright"), word("command"));
    if version != VERSION {
        return Ok(Earlier::Anew(format!("it is from version {version}, but this is {VERSION}")));
    }
    if word("program") != header.program {
        return Ok(Earlier::Anew("it is from another build of this program".into()));
    }
    if command != header.command {
        return Ok(Earlier::Anew(format!("it is from another command ({command:?})")));
    }
    for name in ["cpu", "cpus", "memory_bytes", "kernel", "qemu", "build"] {
        let (theirs, ours) =
            (&file.get("machine").unwrap_or(&Value::Null)[name], &header.machine[name]);
        if theirs != ours {
            return Ok(Earlier::Anew(format!(
                "it is from another machine ({name}: {theirs}, now {ours})"
            )));
        }
    }
    // Failed sections are tried again; they have no rows.
    let sections: Vec<Value> =
        sections.into_iter().filter(|section| section["failed"].is_null()).collect();
    if PARTS
        .into_iter()
        .all(|part| sections.iter().any(|section| section["section"] == part.name().as_str()))
    {
        return Ok(Earlier::Anew("nothing is missing".into()));
    }
    Ok(Earlier::GoOn { started: word("started"), sections, rows })
}

#[cfg(test)]
mod tests;
