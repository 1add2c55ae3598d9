//! The file of results, in the form of docs/results.md.

use super::lab::{EMULATED_CPU, LINUX_WORDS, Lab, SAME_FOR_BOTH};
use crate::args::CompareLinux;
use crate::error::Error;
use crate::qemu::command::Accelerator;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// What was measured so far.
pub struct Results {
    command: String,
    started: String,
    machine: Value,
    /// What both kernels were told, and how QEMU was.
    conditions: Vec<String>,
    sections: Vec<Value>,
    rows: Vec<Value>,
}

impl Results {
    /// Nothing yet.
    pub fn new(lab: &Lab, options: &CompareLinux) -> Self {
        let taken = "QEMU takes a machine's memory before it begins (-mem-prealloc), but for times to the prompt and for reporting";
        let cpu = if lab.accelerator() == Accelerator::Tcg { EMULATED_CPU } else { "host" };
        let conditions = vec![
            format!("both: {SAME_FOR_BOTH}"),
            format!("Linux: {LINUX_WORDS}"),
            "ours has no mitigations and clears no memory by default; neither is told to be quiet".to_owned(),
            format!("{taken}; both run by turns on the same machine (q35, -cpu {cpu}, console on the serial port)"),
        ];
        Self {
            command: if options.quick { "compare linux --quick" } else { "compare linux" }.to_owned(),
            started: utc(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())),
            machine: machine(lab.qemu()),
            conditions,
            sections: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// Measures a section.
    ///
    /// # Errors
    /// Those of `measure`; the section is then listed as left out.
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
        self.sections.push(json!({
            "bench": "compare", "name": name, "repetitions": repetitions, "timed": timed, "seconds": seconds, "left_out": left_out,
        }));
        self.rows.append(&mut rows);
        measured.map(|_| ())
    }

    /// Adds to the conditions.
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
        self.sections.iter().filter_map(|section| Some((section["name"].as_str()?, section["timed"].as_str()?)))
    }

    /// What both were told.
    pub fn conditions(&self) -> &[String] {
        &self.conditions
    }

    /// The machine that all of it ran on.
    pub fn machine(&self) -> &Value {
        &self.machine
    }

    /// Writes the file, whole or not at all.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, file: &Path) -> Result<(), Error> {
        let object = json!({
            "format": 1,
            "framewright": env!("CARGO_PKG_VERSION"),
            "command": self.command,
            "started": self.started,
            "machine": self.machine,
            "conditions": self.conditions,
            "sections": self.sections,
            "rows": self.rows,
        });
        let partial = partial(file);
        let text = format!("{object:#}\n");
        let done = fs::write(&partial, text).and_then(|()| fs::rename(&partial, file));
        done.map_err(|error| Error::Failed(format!("{}: {error}", file.display())))
    }
}

/// Fails at once where a file could not be written after minutes of work.
///
/// # Errors
/// Why not.
pub fn check(file: &Path) -> Result<(), Error> {
    let wrong = |why: &str| Err(Error::Usage(format!("--json {}: {why}", file.display())));
    if file.is_dir() {
        return wrong("is a folder");
    }
    let partial = partial(file);
    match fs::write(&partial, "") {
        Ok(()) => {
            let _ = fs::remove_file(&partial);
            Ok(())
        }
        Err(error) => wrong(&error.to_string()),
    }
}

fn partial(file: &Path) -> PathBuf {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(".partial");
    file.with_file_name(name)
}

/// The host.
fn machine(qemu: &str) -> Value {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let value = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let memory = value(&read("/proc/meminfo"), "MemTotal");
    let memory = memory.and_then(|memory| memory.strip_suffix(" kB")?.parse::<u64>().ok()).map(|kib| kib << 10);
    let kernel = read("/proc/sys/kernel/osrelease");
    json!({
        "cpu": value(&read("/proc/cpuinfo"), "model name"),
        "cpus": std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        "memory_bytes": memory,
        "kernel": format!("Linux {}", kernel.trim()),
        "qemu": qemu,
        "build": if cfg!(debug_assertions) { "debug" } else { "release" },
    })
}

/// Seconds since 1970 as a date and time.
fn utc(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years that begin in March, so that the leap day is the last.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_772_323_200, "2026-03-01T00:00:00Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(seconds), expected);
        }
    }

    #[test]
    fn a_file_that_cannot_be_is_refused_before_anything_is_measured() {
        assert!(check(Path::new("/nowhere/at/all.json")).is_err());
        assert!(check(Path::new("/tmp")).is_err());
        let file = std::env::temp_dir().join(format!("framewright-results-{}", std::process::id()));
        assert!(check(&file).is_ok() && !file.exists() && !partial(&file).exists());
    }
}
