//! Runs a program and keeps its output, so that only failures are shown.

use crate::step::{Failure, Tally};
use crate::workspace;
use std::ffi::OsStr;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Chooses how programs panic with the profile `dev` and profiles that inherit from it.
pub const PANIC: &str = "CARGO_PROFILE_DEV_PANIC";

/// Variables with compiler flags, separated by spaces.
const FLAGS: [&str; 2] = ["RUSTFLAGS", "RUSTDOCFLAGS"];

/// A command that runs in the root of the source tree.
pub struct Run {
    command: Command,
}

impl Run {
    /// Runs any program.
    pub fn program(program: impl AsRef<OsStr>, arguments: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(workspace::root()).stdin(Stdio::null());
        Self { command }
    }

    /// Runs the cargo that runs this program, so that the toolchain is the same.
    pub fn cargo(arguments: &[&str]) -> Self {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        // A run of all checks builds everything once, so incremental builds and debug information
        // would only cost time. Test programs unwind; if other programs do so, too, the libraries
        // are built only once.
        Self::program(cargo, arguments)
            .env("CARGO_INCREMENTAL", "0")
            // Colours would disturb the search for words in the output.
            .env("CARGO_TERM_COLOR", "never")
            .env("CARGO_PROFILE_DEV_DEBUG", "none")
            .env(PANIC, "unwind")
    }

    /// Sets an environment variable. Cargo prefers an encoded form of compiler flags, so an
    /// inherited encoded form is removed, as it would win.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        if FLAGS.contains(&name) {
            self.command.env_remove(format!("CARGO_ENCODED_{name}"));
        }
        self.command.env(name, value);
        self
    }

    /// Appends arguments.
    pub fn args<S: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.command.args(arguments);
        self
    }

    /// Runs to the end. Returns what the program wrote to both outputs, in order.
    ///
    /// # Errors
    /// What the program wrote, if it failed, or why it could not be started.
    pub fn output(self) -> Result<String, Failure> {
        let Self { mut command } = self;
        let shown = shown(&command);
        let failed = |output: String| Failure {
            tests: Tally::of(&output),
            output: format!("$ {shown}\n{output}"),
        };
        let started = std::io::pipe().and_then(|(reader, writer)| {
            let child = command.stdout(writer.try_clone()?).stderr(writer).spawn()?;
            Ok((reader, child))
        });
        let (mut reader, mut child) =
            started.map_err(|error| failed(format!("cannot be started: {error}\n")))?;
        // The command holds our write ends of the pipe; reading ends only once they are closed.
        drop(command);
        let mut bytes = Vec::new();
        let read = reader.read_to_end(&mut bytes);
        let output = String::from_utf8_lossy(&bytes).into_owned();
        let status = child.wait().map_err(|error| failed(error.to_string()))?;
        read.map_err(|error| failed(error.to_string()))?;
        if status.success() { Ok(output) } else { Err(failed(format!("{output}{status}\n"))) }
    }

    /// Runs a cargo command that builds one program, and returns where that is.
    ///
    /// # Errors
    /// The compiler's messages, or that cargo names no program of `what`.
    pub fn built(self, what: &str) -> Result<PathBuf, Failure> {
        let messages = self.args(["--message-format", "json-render-diagnostics"]).output()?;
        executable(&messages)
            .ok_or_else(|| Failure::new(format!("cargo names no program of {what}\n")))
    }
}

/// The last `"executable":"..."` in cargo's messages. Paths in a build folder should need no
/// escapes.
fn executable(messages: &str) -> Option<PathBuf> {
    let (_, rest) = messages.rsplit_once("\"executable\":\"")?;
    rest.split_once('"').map(|(path, _)| PathBuf::from(path))
}

fn shown(command: &Command) -> String {
    let mut words = Vec::new();
    for (name, value) in command.get_envs() {
        // A variable that is removed has no value.
        let Some(value) = value else { continue };
        words.push(format!("{}={}", name.to_string_lossy(), quoted(&value.to_string_lossy())));
    }
    let program = std::path::Path::new(command.get_program());
    words.push(program.file_name().unwrap_or_default().to_string_lossy().into_owned());
    words.extend(command.get_args().map(|argument| quoted(&argument.to_string_lossy())));
    words.join(" ")
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,".contains(c);
    if !word.is_empty() && word.chars().all(plain) { word.to_owned() } else { format!("'{word}'") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_outputs_are_kept_in_order_and_a_failure_says_what_ran() {
        let output = Run::program("sh", &["-c", "echo one; echo two >&2; echo three"]).output();
        assert_eq!(output.ok().as_deref(), Some("one\ntwo\nthree\n"));
        let failure =
            Run::program("sh", &["-c", "echo why; exit 3"]).env("A", "b c").output().err();
        let output = failure.map(|failure| failure.output).unwrap_or_default();
        assert!(output.starts_with("$ A='b c' sh -c 'echo why; exit 3'\nwhy\n"), "{output}");
        assert!(Run::program("/nonexistent/program", &[]).output().is_err());
    }

    #[test]
    fn the_program_is_found_in_cargos_messages() {
        let messages = "warning: x\n{\"executable\":null}\n\
            {\"reason\":\"a\",\"executable\":\"/t/release/guest\",\"fresh\":true}\n";
        assert_eq!(executable(messages), Some(PathBuf::from("/t/release/guest")));
        assert_eq!(executable("{\"executable\":null}"), None);
    }

    #[test]
    fn flags_win_over_encoded_ones() {
        let run = Run::program("true", &[]).env("RUSTFLAGS", "--cfg loom").env("OTHER", "a");
        let environment: Vec<_> = run.command.get_envs().collect();
        assert!(environment.contains(&(OsStr::new("CARGO_ENCODED_RUSTFLAGS"), None)));
        assert_eq!(environment.len(), 3, "{environment:?}");
        assert_eq!(shown(&run.command), "OTHER=a RUSTFLAGS='--cfg loom' true");
    }
}
