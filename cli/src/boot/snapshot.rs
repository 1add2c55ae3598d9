//! `--snapshot FILE`: what memory was used for at the end of a boot.

use crate::args::{Boot, Target, Where};
use crate::error::Error;
use crate::file;
use crate::grid::size;
use crate::snapshot::Snapshot;

/// Writes the text of the control file, if there is any, as JSON to the file that the options name.
///
/// # Errors
/// Fails if the text is no snapshot or the file cannot be written.
pub fn keep(boot: &Boot, memory: Option<String>) -> Result<(), Error> {
    let (Some(path), Some(memory)) = (&boot.snapshot, memory) else { return Ok(()) };
    let commands = boot.exec.as_deref().unwrap_or_default();
    let snapshot = Snapshot::from_text(&memory, &machine(&boot.target), commands)
        .map_err(|why| Error::Failed(format!("the snapshot of memory is malformed: {why}")))?;
    let mut text = snapshot.to_json().to_string();
    text.push('\n');
    file::replace(path, text.as_bytes())
}

/// Describes the machine in words.
fn machine(target: &Target) -> String {
    let mut words = Vec::new();
    words.extend(
        target
            .map
            .as_ref()
            .and_then(|path| path.file_stem())
            .map(|name| name.to_string_lossy().into_owned()),
    );
    words.extend(target.memory.map(size));
    words.extend(
        target.nodes.map(|nodes| format!("{nodes} node{}", if nodes == 1 { "" } else { "s" })),
    );
    words.extend(target.cpus.map(|cpus| format!("{cpus} CPU{}", if cpus == 1 { "" } else { "s" })));
    if words.is_empty() && target.on == Where::Hosted {
        words.push("this machine".into());
    }
    words.push(if target.on == Where::Hosted { "in a process".into() } else { "on QEMU".into() });
    words.extend(target.parameters.iter().cloned());
    words.join(", ")
}
