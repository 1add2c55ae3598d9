//! The files that a page is made from: results and snapshots, recognised by their content.

use crate::file::{FORMAT, MOST_BYTES};
use crate::snapshot::Snapshot;
use serde_json::{Map, Value};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// What a page says about one of its files.
pub struct FileInfo {
    /// The file's name without folders.
    pub name: String,
    /// What the file contains.
    pub content: String,
    /// What made the file, when, and where, as far as the file says so.
    pub facts: Vec<(String, String)>,
    /// If the machine was too busy to trust the measurements, how busy it was, in words.
    pub busy: Option<String>,
}

impl FileInfo {
    /// Collects what a file says about itself.
    pub fn of(name: &str, content: String, object: &Map<String, Value>) -> Self {
        Self { name: name.to_owned(), content, facts: facts(object), busy: busy(object) }
    }
}

/// The name of a file without folders.
pub fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Reads a file as JSON.
///
/// # Errors
/// Says why the file cannot be read or parsed.
pub fn load(path: &Path) -> Result<Value, String> {
    let text = read(path, "file of results")?;
    serde_json::from_slice(&text).map_err(|error| format!("is not JSON: {error}"))
}

/// Reads the whole of a file, which may grow meanwhile, or of a pipe. `what` it should be is for
/// the error about one that is too large. Devices have no end.
///
/// # Errors
/// Says why the file cannot be read or is refused.
pub fn read(path: &Path, what: &str) -> Result<Vec<u8>, String> {
    let failed = |error: io::Error| format!("cannot be read: {error}");
    let metadata = std::fs::metadata(path).map_err(failed)?;
    let kind = metadata.file_type();
    if kind.is_char_device() || kind.is_block_device() {
        return Err("is a device, not a file".into());
    }
    let file = File::open(path).map_err(failed)?;
    let mut text = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut text).map_err(failed)?;
    if text.len() as u64 > MOST_BYTES {
        let bytes = metadata.len().max(MOST_BYTES + 1);
        return Err(format!("has {bytes} bytes, too many for a {what}"));
    }
    Ok(text)
}

/// The object in a file, if it is in a format that this program knows.
///
/// # Errors
/// Fails if the file has no such object.
pub fn object(value: &Value) -> Result<&Map<String, Value>, String> {
    let object =
        value.as_object().ok_or("is not a JSON object, so neither results nor a snapshot")?;
    match object.get("format") {
        Some(format) if format.as_u64() != Some(FORMAT) => {
            Err(format!("has format {format}; this program reads format {FORMAT}"))
        }
        _ => Ok(object),
    }
}

/// The snapshot in a file, if it has one.
///
/// # Errors
/// Fails if the snapshot is malformed, and says where.
pub fn snapshot(object: &Map<String, Value>) -> Result<Option<Snapshot>, String> {
    object.get("snapshot").map(Snapshot::from_json).transpose()
}

/// Says how busy the machine was if other programs used more than half of its CPUs.
fn busy(object: &Map<String, Value>) -> Option<String> {
    let machine = object.get("machine")?;
    let (load, cpus) = (machine.get("load_average")?.as_f64()?, machine.get("cpus")?.as_u64()?);
    (load > cpus as f64 / 2.0).then(|| {
        let word = if cpus == 1 { "CPU" } else { "CPUs" };
        format!("at the start, {load:.1} other tasks were running on {cpus} {word}")
    })
}

/// The most facts about a machine that are taken from one file.
const MOST_FACTS: usize = 32;

/// What a file says about itself.
fn facts(object: &Map<String, Value>) -> Vec<(String, String)> {
    let mut facts = Vec::new();
    let mut add = |name: &str, value: &Value| {
        let value = match (name, value) {
            (_, Value::Null | Value::Object(_) | Value::Array(_)) => return,
            ("memory_bytes", value) => {
                value.as_u64().map_or_else(|| value.to_string(), crate::grid::size)
            }
            (_, Value::String(text)) => text.clone(),
            (_, value) => value.to_string(),
        };
        facts.push((name.trim_end_matches("_bytes").replace('_', " "), value));
    };
    for name in ["command", "started", "framewright"] {
        object.get(name).into_iter().for_each(|value| add(name, value));
    }
    if let Some(machine) = object.get("machine").and_then(Value::as_object) {
        machine.iter().take(MOST_FACTS).for_each(|(name, value)| add(name, value));
    }
    facts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_end_is_not_read() {
        let why = |path: &Path| load(path).expect_err("no results");
        assert_eq!(why(Path::new("/dev/zero")), "is a device, not a file");
        assert!(why(Path::new("/")).starts_with("cannot be read: Is a directory"));
    }

    #[test]
    fn a_pipe_is_read_to_its_end() {
        use std::io::Write;
        use std::os::fd::AsRawFd;
        let (reader, mut writer) = io::pipe().expect("a pipe");
        writer.write_all(b"{\"format\": 1}").expect("there is room");
        drop(writer);
        let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
        assert_eq!(load(Path::new(&path)).expect("JSON")["format"], 1);
    }
}
