//! The file of results, in the form of docs/usage.md.

use super::lab::{EMULATED_CPU, LINUX_WORDS, Lab, SAME_FOR_BOTH};
use crate::args::CompareLinux;
use crate::machine;
use framewright_cli::error::Error;
use framewright_cli::file::{self, FORMAT};
use framewright_cli::qemu::command::Accelerator;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Instant;

/// The command, with those options that change what is measured.
fn command(options: &CompareLinux) -> String {
    let only = options.only.as_ref().map_or_else(String::new, |only| format!(" --only {only}"));
    let quick = if options.quick { " --quick" } else { "" };
    format!("compare linux{quick}{only}")
}

/// The measurements so far.
pub struct Results {
    command: String,
    started: String,
    machine: Value,
    /// The parameters of both kernels and of QEMU, in sentences.
    conditions: Vec<String>,
    sections: Vec<Value>,
    rows: Vec<Value>,
}

impl Results {
    /// Starts without measurements.
    pub fn new(lab: &Lab, options: &CompareLinux) -> Self {
        let taken = "QEMU takes a machine's memory before it begins (-mem-prealloc), except for \
                     times to the prompt and for reporting";
        let cpu = if lab.accelerator() == Accelerator::Tcg { EMULATED_CPU } else { "host" };
        let conditions = vec![
            format!("both: {SAME_FOR_BOTH}"),
            format!("Linux: {LINUX_WORDS}"),
            "ours has no mitigations and clears no memory by default; neither is told to be quiet"
                .to_owned(),
            format!(
                "{taken}; both run in turn on the same machine (q35, -cpu {cpu}, console on the \
                 serial port)"
            ),
        ];
        Self {
            command: command(options),
            started: machine::now(),
            machine: machine::describe(Some(lab.qemu())),
            conditions,
            sections: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// Measures a section.
    ///
    /// # Errors
    /// The errors of `measure`; the section is then listed as left out.
    pub fn section(
        &mut self,
        name: &str,
        timed: &str,
        measure: impl FnOnce() -> Result<Vec<Value>, Error>,
    ) -> Result<(), Error> {
        let started = Instant::now();
        let measured = measure();
        let left_out: Vec<String> = match &measured {
            Ok(_) => Vec::new(),
            Err(Error::Failed(why)) => vec![why.lines().next().unwrap_or_default().to_owned()],
            Err(_) => vec!["interrupted".to_owned()],
        };
        let seconds = (started.elapsed().as_secs_f64() * 10.0).round() / 10.0;
        let mut rows = measured.as_ref().map_or_else(|_| Vec::new(), Clone::clone);
        let repetitions = rows.iter().filter_map(|row| row["repetitions"].as_u64()).max();
        let mut section = json!({
            "bench": "compare", "name": name, "repetitions": repetitions, "timed": timed,
            "seconds": seconds, "left_out": left_out,
        });
        if let Some(why) = left_out.first() {
            section["failed"] = json!(why);
        }
        self.sections.push(section);
        self.rows.append(&mut rows);
        debug_assert_eq!(crate::rows::repeated(&self.rows), None, "in {name}");
        measured.map(|_| ())
    }

    /// Adds a sentence to the conditions.
    pub fn remark(&mut self, text: String) {
        self.conditions.push(text);
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// All rows.
    pub fn rows(&self) -> &[Value] {
        &self.rows
    }

    /// What is timed, section by section.
    pub fn timed(&self) -> impl Iterator<Item = (&str, &str)> {
        self.sections
            .iter()
            .filter_map(|section| Some((section["name"].as_str()?, section["timed"].as_str()?)))
    }

    /// The parameters of both, in sentences.
    pub fn conditions(&self) -> &[String] {
        &self.conditions
    }

    /// The machine that everything ran on.
    pub fn machine(&self) -> &Value {
        &self.machine
    }

    /// Writes the file, whole or not at all.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let object = json!({
            "format": FORMAT,
            "framewright": env!("CARGO_PKG_VERSION"),
            "command": self.command,
            "started": self.started,
            "machine": self.machine,
            "conditions": self.conditions,
            "parts": super::SECTIONS.len(),
            "sections": self.sections,
            "rows": self.rows,
        });
        file::replace(path, format!("{object:#}\n").as_bytes())
    }
}
