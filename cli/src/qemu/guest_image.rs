//! The images that virtual machines run: the reference guest, and the init program of the Linux
//! that it is compared with. Each is a file that the user names, or is built from this program's
//! source tree.

use crate::error::{self, Error};
use crate::interrupt;
use serde_json::Value;
use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

/// The time between two checks whether a build has ended.
const GLANCE: Duration = Duration::from_millis(20);

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
/// Says why there is no program. Fails if a signal comes during a build.
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
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .args(["build", "--release", "-p", name, "--message-format", "json-render-diagnostics"])
        .args(["--color", "never"])
        .current_dir(workspace);
    let cannot = |error: io::Error| {
        Error::Failed(format!(
            "cargo, which builds the {title}, cannot be started: {error}; set {override_by} to \
             the path of a built one"
        ))
    };
    let output = supervise(command, title, &cannot)?;
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

/// Runs cargo, and tells the user once it turns out to take a while.
///
/// # Errors
/// Fails if cargo cannot be started or a signal comes. Cargo is gone by then.
fn supervise(
    mut command: Command,
    title: &'static str,
    cannot: &dyn Fn(io::Error) -> Error,
) -> Result<Output, Error> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut cargo = command.spawn().map_err(cannot)?;
    let (stdout, stderr) = (cargo.stdout.take(), cargo.stderr.take());
    let stdout = thread::spawn(move || collect(stdout, &|_| ()));
    let is_told = Cell::new(false);
    let stderr = thread::spawn(move || {
        collect(stderr, &|line| {
            if is_work(line) && !is_told.replace(true) {
                error::note(&format!("building the {title}, which takes a while the first time"));
            }
        })
    });
    let status = loop {
        if let Err(error) = interrupt::check() {
            interrupt::pass_on(cargo.id());
            // Nothing is lost if cargo, which a second signal would leave alone, has ended already.
            let _ = cargo.wait();
            return Err(error);
        }
        match cargo.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) => thread::sleep(GLANCE),
            Err(error) => return Err(cannot(error)),
        }
    };
    // An interrupt from the keyboard reaches cargo, too, which may end before it is seen here.
    interrupt::check()?;
    // A thread that panicked has ended the program.
    let [stdout, stderr] = [stdout, stderr].map(|reader| reader.join().unwrap_or_default());
    Ok(Output { status, stdout, stderr })
}

/// Reads all that comes, and shows each line to `see`.
fn collect(source: Option<impl Read>, see: &dyn Fn(&[u8])) -> Vec<u8> {
    let mut all = Vec::new();
    let Some(mut source) = source.map(BufReader::new) else { return all };
    loop {
        let before = all.len();
        // What was read before an error may still say what went wrong.
        match source.read_until(b'\n', &mut all) {
            Ok(1..) => see(&all[before..]),
            Ok(0) | Err(_) => return all,
        }
    }
}

/// Whether a line of cargo's means that not everything has been built yet.
fn is_work(line: &[u8]) -> bool {
    let words = ["Blocking", "Compiling", "Downloading", "Updating"];
    words.iter().any(|word| line.trim_ascii_start().starts_with(word.as_bytes()))
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
