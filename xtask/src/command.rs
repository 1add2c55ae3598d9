//! Running a program with its output kept, so that only failures are shown.

use crate::step::{Failure, Tally};
use crate::workspace;
use std::ffi::OsStr;
use std::io::Read;
use std::process::{Command, Stdio};

/// What decides how programs of the profile `dev` and of those that inherit from it panic.
pub const PANIC: &str = "CARGO_PROFILE_DEV_PANIC";

/// Flags for compilers, in words.
const FLAGS: [&str; 2] = ["RUSTFLAGS", "RUSTDOCFLAGS"];

/// A command to be run from the root of the source tree.
pub struct Run {
    command: Command,
}

impl Run {
    /// Any program.
    pub fn program(program: impl AsRef<OsStr>, arguments: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(workspace::root()).stdin(Stdio::null());
        Self { command }
    }

    /// Cargo: the one that runs us, so that the toolchain is the same.
    pub fn cargo(arguments: &[&str]) -> Self {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        // Whoever runs every check builds once: what makes the next build fast costs time here, and
        // so does what only a debugger reads. Test programs unwind; with programs that do as well,
        // the libraries below both are built once.
        Self::program(cargo, arguments)
            .env("CARGO_INCREMENTAL", "0")
            // Colours would be in the midst of what is looked for.
            .env("CARGO_TERM_COLOR", "never")
            .env("CARGO_PROFILE_DEV_DEBUG", "none")
            .env(PANIC, "unwind")
    }

    /// Sets an environment variable. Of flags for compilers cargo knows an encoded form, which it
    /// prefers: one that we inherit would win.
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

    /// Runs to the end; gives what it wrote on both outputs, in the order in which it wrote it.
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
        // The command holds our ends of the pipe: reading ends only when they are gone.
        drop(command);
        let mut bytes = Vec::new();
        let read = reader.read_to_end(&mut bytes);
        let output = String::from_utf8_lossy(&bytes).into_owned();
        let status = child.wait().map_err(|error| failed(error.to_string()))?;
        read.map_err(|error| failed(error.to_string()))?;
        if status.success() { Ok(output) } else { Err(failed(format!("{output}{status}\n"))) }
    }
}

fn shown(command: &Command) -> String {
    let mut words = Vec::new();
    for (name, value) in command.get_envs() {
        // What is taken away has no value.
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
    fn flags_win_over_encoded_ones() {
        let run = Run::program("true", &[]).env("RUSTFLAGS", "--cfg loom").env("OTHER", "a");
        let environment: Vec<_> = run.command.get_envs().collect();
        assert!(environment.contains(&(OsStr::new("CARGO_ENCODED_RUSTFLAGS"), None)));
        assert_eq!(environment.len(), 3, "{environment:?}");
        assert_eq!(shown(&run.command), "OTHER=a RUSTFLAGS='--cfg loom' true");
    }
}
