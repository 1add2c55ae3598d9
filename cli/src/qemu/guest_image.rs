//! The reference guest's image: a file that the user names, or built from the source tree that this program comes from.

use crate::error::Error;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Names an image that is used as it is.
const OVERRIDE: &str = "FRAMEWRIGHT_GUEST";

/// Finds or builds the image.
///
/// # Errors
/// Why there is none.
pub fn provide() -> Result<PathBuf, Error> {
    match std::env::var_os(OVERRIDE).filter(|path| !path.is_empty()) {
        Some(path) => {
            let path = PathBuf::from(path);
            if path.is_file() {
                Ok(path)
            } else {
                Err(Error::Usage(format!("{OVERRIDE} names {}, which is no file", path.display())))
            }
        }
        None => build(),
    }
}

fn build() -> Result<PathBuf, Error> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("/"));
    if !workspace.join("guest/Cargo.toml").is_file() {
        return Err(Error::Failed(format!(
            "the source tree that this program was built from is gone ({}), so its guest cannot be built; \
             set {OVERRIDE} to the path of a guest image",
            workspace.display()
        )));
    }
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--release", "-p", "guest", "--message-format", "json-render-diagnostics"])
        .current_dir(workspace)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Error::Failed(format!("cargo, which builds the guest, cannot be started: {error}")))?;
    if !output.status.success() {
        let messages = String::from_utf8_lossy(&output.stderr);
        return Err(Error::Failed(format!("the guest cannot be built:\n{}", messages.trim_end())));
    }
    executable(&String::from_utf8_lossy(&output.stdout))
        .ok_or_else(|| Error::Failed("cargo built the guest but does not say where it is".into()))
}

/// The program that cargo's messages name last.
fn executable(messages: &str) -> Option<PathBuf> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    messages.filter_map(|message| message["executable"].as_str().map(PathBuf::from)).next_back()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_found_in_cargos_messages() {
        let messages = "{\"reason\":\"compiler-artifact\",\"executable\":null}\nnoise\n\
                        {\"reason\":\"compiler-artifact\",\"executable\":\"/t/release/guest\"}\n{\"success\":true}";
        assert_eq!(executable(messages), Some(PathBuf::from("/t/release/guest")));
        assert_eq!(executable("{}"), None);
    }
}
