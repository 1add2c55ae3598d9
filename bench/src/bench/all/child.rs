//! Runs one benchmark in a process of its own: this program, asked for JSON and for lines of
//! progress.

use crate::progress;
use framewright_cli::error::{self, Error};
use framewright_cli::interrupt;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

/// How often to check whether the child has ended: rarely, so as not to disturb it.
const LOOK: Duration = Duration::from_millis(100);

/// Returns what the child printed, or why it failed.
///
/// # Errors
/// Fails if a signal comes, or no process can be started.
pub fn run(arguments: &[&str]) -> Result<Result<String, String>, Error> {
    let failed = |error: std::io::Error| {
        Error::Failed(format!("this program cannot be started again: {error}"))
    };
    let mut child = Command::new(std::env::current_exe().map_err(failed)?)
        .args(arguments)
        .env(progress::WANTED, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (status, printed, complaint) = thread::scope(|scope| {
        let printed = scope.spawn(|| {
            let mut text = String::new();
            // Output that cannot be read is missing, and then fails to parse as JSON.
            let _ = stdout.map(|mut stdout| stdout.read_to_string(&mut text));
            text
        });
        let complaint = scope.spawn(|| stderr.map(listen).unwrap_or_default());
        let status = wait(&mut child);
        (status, printed.join().unwrap_or_default(), complaint.join().unwrap_or_default())
    });
    interrupt::check()?;
    match status {
        Ok(status) if status.success() => Ok(Ok(printed)),
        Ok(status) if complaint.is_empty() => Ok(Err(format!("it ended with {status}"))),
        Ok(_) => Ok(Err(complaint)),
        Err(error) => Err(failed(error)),
    }
}

/// Waits for the child's end; passes on a signal that this process received, once.
fn wait(child: &mut Child) -> std::io::Result<std::process::ExitStatus> {
    let mut told = false;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if interrupt::has_come() && !told {
            told = true;
            interrupt::pass_on(child.id());
        }
        thread::sleep(LOOK);
    }
}

/// Follows the child's messages: returns the first line of its complaint, as what follows are
/// details, or of what else it said, and passes on notes.
fn listen(stderr: impl Read) -> String {
    let prefix = format!("{}: ", error::program());
    let note = format!("{prefix}note: ");
    let (mut complaint, mut other) = (None, None);
    let mut notes = BTreeSet::new();
    for line in BufReader::new(stderr).lines().map_while(Result::ok) {
        if let Some(step) = line.strip_prefix(progress::MARK) {
            // The loop that waits for the process checks for signals.
            let _ = progress::step(&step);
        } else if line.starts_with(&note) {
            // A note that is repeated at every boot is shown once.
            if notes.insert(line.clone()) {
                // If standard error is gone, there is nobody left to tell.
                progress::aside(|| drop(writeln!(std::io::stderr(), "{line}")));
            }
        } else if let Some(said) = line.strip_prefix(&prefix) {
            complaint.get_or_insert_with(|| said.to_owned());
        } else {
            other.get_or_insert(line);
        }
    }
    complaint.or(other).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_of_a_complaint_counts() {
        let said = format!(
            "{}alloc: 8 GiB\nframewright: note: no KVM\nqemu: a warning\n\
             framewright: too little memory\nthe guest's log\n",
            progress::MARK
        );
        assert_eq!(listen(said.as_bytes()), "too little memory");
        assert_eq!(listen(&b"thread panicked\nnote: a backtrace"[..]), "thread panicked");
        assert_eq!(listen(&b""[..]), "");
    }
}
