//! The shell of the reference guest, over its serial line.

use crate::args::Target;
use crate::error::{self, Error};
use crate::output::Output;
use crate::qemu::attempts::Attempts;
use crate::qemu::protocol::Transcript;
use crate::qemu::run::Watch;
use crate::terminal::Terminal;
use std::io::{ErrorKind, Read, Write};
use std::process::ChildStdin;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

/// The byte that ends the input of the guest's shell.
const END: u8 = 4;

/// The escape byte before a byte that the guest's shell must not take for a key, and the bits in
/// which that byte is changed.
const ESCAPE: u8 = 16;
const ESCAPED: u8 = 64;
/// The byte that interrupts a command in the guest.
const INTERRUPT: u8 = 3;
/// The key that stops the machine, Ctrl-], as in telnet. It never reaches the guest, which may
/// hang.
const STOP: u8 = 29;

/// How the guest's complaints about a bad parameter begin.
const PROBLEMS: [&str; 2] = ["Unknown kernel command line parameter", "Malformed parameter"];

/// Boots the guest and connects standard input and output to its shell. Returns the status of the
/// last command.
///
/// # Errors
/// Anything from a missing QEMU to a guest that panicked.
pub fn run(target: &Target) -> Result<u8, Error> {
    let attempts = Attempts::prepare(target)?;
    let terminal = Terminal::open();
    let words = if terminal.is_some() { "shell" } else { "shell=plain" };
    let (failures, failed) = mpsc::channel();
    let mut line = Line { terminal, output: Output::new(), failures, failed };
    let (_, ended) = attempts.run(words, true, &mut line)?;
    drop(line);
    attempts.check(&ended, false)?;
    ended.transcript.status.ok_or_else(|| {
        Error::Failed("the guest ended without reporting the status of its shell".into())
    })
}

/// The user's end of the serial line.
struct Line {
    terminal: Option<Terminal>,
    output: Output,
    /// Where the thread that reads the input says why the run has to end.
    failures: Sender<Error>,
    failed: Receiver<Error>,
}

impl Watch for Line {
    /// Shows only complaints about parameters, which the user must see; the shell's `dmesg` shows
    /// the rest of the log.
    fn line(&mut self, line: &str) -> Result<(), Error> {
        let said = line.split_once("] ").map_or(line, |(_, said)| said);
        if PROBLEMS.iter().any(|problem| said.starts_with(problem)) {
            error::note(said);
        }
        Ok(())
    }

    fn has_input(&self) -> bool {
        true
    }

    fn is_watchable(&self) -> bool {
        true
    }

    fn shell(
        &mut self,
        _: &Transcript,
        _: Option<Duration>,
        input: Option<ChildStdin>,
    ) -> Result<(), Error> {
        if let Some(terminal) = &self.terminal {
            terminal.take_keys();
            self.output.line("Ctrl-] stops the machine, even one that hangs")?;
        }
        if let Some(input) = input {
            let is_typed = self.terminal.is_some();
            let failures = self.failures.clone();
            std::thread::spawn(move || {
                if let Err(error) = forward(input, is_typed) {
                    // If the run has ended meanwhile, nobody waits for this.
                    let _ = failures.send(error);
                }
            });
        }
        Ok(())
    }

    fn check(&mut self) -> Result<(), Error> {
        let Ok(error) = self.failed.try_recv() else { return Ok(()) };
        if self.terminal.is_some() {
            // The cursor is behind the prompt.
            self.output.line("")?;
        }
        Err(error)
    }

    fn output(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.output.bytes(bytes)
    }
}

/// Escapes `bytes` so that the guest takes none of them for a key.
fn escaped(bytes: &[u8]) -> Vec<u8> {
    let mut all = Vec::with_capacity(bytes.len());
    for &byte in bytes {
        if matches!(byte, INTERRUPT | END | ESCAPE) {
            all.extend([ESCAPE, byte ^ ESCAPED]);
        } else {
            all.push(byte);
        }
    }
    all
}

/// Sends the input to the guest, and then the end byte, until the input or the guest ends.
///
/// # Errors
/// Fails if the input cannot be read, or the user stops the machine.
fn forward(mut guest: ChildStdin, is_typed: bool) -> Result<(), Error> {
    let mut stdin = std::io::stdin().lock();
    let mut buffer = [0; 256];
    loop {
        let sent = match stdin.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) if is_typed => {
                let keys = &buffer[..length];
                if keys.contains(&STOP) {
                    return Err(Error::Interrupted(libc::SIGINT));
                }
                guest.write_all(keys)
            }
            Ok(length) => guest.write_all(&escaped(&buffer[..length])),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(()),
            Err(error) => {
                return Err(Error::Failed(format!("standard input cannot be read: {error}")));
            }
        };
        if sent.is_err() {
            return Ok(());
        }
    }
    let _ = guest.write_all(&[END]);
    // Keep the serial line open, as the guest may still be at work.
    std::mem::forget(guest);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_byte_of_a_script_is_a_key() {
        let all: Vec<u8> = (0..=u8::MAX).collect();
        let sent = escaped(&all);
        assert!(!sent.contains(&INTERRUPT) && !sent.contains(&END));
        let mut bytes = sent.into_iter();
        let received = std::iter::from_fn(|| match bytes.next()? {
            ESCAPE => bytes.next().map(|byte| byte ^ ESCAPED),
            byte => Some(byte),
        });
        assert!(received.eq(all));
    }
}
