//! The images that virtual machines run: the reference guest, and the init program of the Linux
//! that it is compared with. Each is a file that the user names, or is built from this program's
//! source tree.

use crate::error::Error;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A package that is built on demand.
pub struct Package {
    name: &'static str,
    /// The package's name in messages.
    title: &'static str,
    /// The environment variable that names a file to use instead.
    override_by: &'static str,
}

impl Package {
    /// The reference guest.
    pub const GUEST: Self =
        Self { name: "guest", title: "guest", override_by: "FRAMEWRIGHT_GUEST" };
    /// The init program of Linux.
    pub const LINUX_INIT: Self = Self {
        name: "linux-init",
        title: "program for Linux",
        override_by: "FRAMEWRIGHT_LINUX_INIT",
    };
}

/// Finds or builds a package's program.
///
/// # Errors
/// Says why there is no program.
pub fn provide(package: &Package) -> Result<PathBuf, Error> {
    let name = package.override_by;
    match std::env::var_os(name).filter(|path| !path.is_empty()) {
        Some(path) => {
            let path = PathBuf::from(path);
            if path.is_file() {
                Ok(path)
            } else {
                Err(Error::Usage(format!("{name} names {}, which is not a file", path.display())))
            }
        }
        None => build(package),
    }
}

fn build(package: &Package) -> Result<PathBuf, Error> {
    let &Package { name, title, override_by } = package;
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("/"));
    if !workspace.join(name).join("Cargo.toml").is_file() {
        return Err(Error::Failed(format!(
            "the source tree that this program was built from is gone ({}), so its {title} cannot \
             be built; \
             set {override_by} to the path of a built one",
            workspace.display()
        )));
    }
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--release", "-p", name, "--message-format", "json-render-diagnostics"])
        .current_dir(workspace)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| {
            Error::Failed(format!(
                "cargo, which builds the {title}, cannot be started: {error}; set {override_by} to \
                 the path of a built one"
            ))
        })?;
    if !output.status.success() {
        let messages = String::from_utf8_lossy(&output.stderr);
        return Err(Error::Failed(format!(
            "the {title} cannot be built; set {override_by} to the path of a built one, or fix \
             this:\n{}",
            messages.trim_end()
        )));
    }
    executable(&String::from_utf8_lossy(&output.stdout)).ok_or_else(|| {
        Error::Failed(format!("cargo built the {title} but does not say where it is"))
    })
}

/// The last program that cargo's messages name.
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
                        {\"reason\":\"compiler-artifact\",\"executable\":\"/t/release/guest\"}\n\
                        {\"success\":true}";
        assert_eq!(executable(messages), Some(PathBuf::from("/t/release/guest")));
        assert_eq!(executable("{}"), None);
    }
}
