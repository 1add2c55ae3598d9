//! Standard output, line by line, with colours if it is a terminal.

use crate::error::Error;
use std::fmt;
use std::io::{self, IsTerminal, StdoutLock, Write};

/// Standard output.
pub struct Output {
    stdout: StdoutLock<'static>,
    style: Style,
    /// The error with which writing failed, kept until [`Output::settle`].
    failed: Option<io::Error>,
    /// Whether the program goes on when nobody reads its output any more.
    is_lasting: bool,
}

/// Standard error, for text that comes in pieces.
pub struct Errors;

impl fmt::Write for Errors {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // If standard error is gone, there is nobody left to tell.
        let _ = io::stderr().write_all(text.as_bytes());
        Ok(())
    }
}

/// Accepts text in pieces. [`Output::settle`] reports why a write failed.
impl fmt::Write for Output {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let written = self.stdout.write_all(text.as_bytes());
        self.forgive(written).map_err(|error| {
            self.failed = Some(error);
            fmt::Error
        })
    }
}

/// Whether to colour text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Style {
    colour: bool,
}

impl Style {
    /// No colours.
    pub const PLAIN: Self = Self { colour: false };

    /// `text` as a heading.
    pub fn bold(self, text: &str) -> String {
        self.wrap("1", text)
    }

    /// `text`, dimmed because readers may skip it.
    pub fn dim(self, text: &str) -> String {
        self.wrap("2", text)
    }

    /// A log line with its time stamp dimmed, as `dmesg` shows it.
    pub fn log_line(self, line: &str) -> String {
        match line.split_once("] ") {
            Some((stamp, rest)) if self.colour && stamp.starts_with('[') => {
                format!("{} {rest}", self.wrap("32", &format!("{stamp}]")))
            }
            _ => line.to_owned(),
        }
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

impl Default for Output {
    fn default() -> Self {
        Self::new()
    }
}

impl Output {
    /// Takes standard output. Colours are used only on terminals, and only if the user allows them
    /// (`NO_COLOR`, `TERM=dumb`).
    pub fn new() -> Self {
        let stdout = std::io::stdout().lock();
        let minds = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        let style = Style { colour: stdout.is_terminal() && !minds };
        Self { stdout, style, failed: None, is_lasting: false }
    }

    /// Takes standard output for a program whose main work is elsewhere, such as writing a file.
    /// When nobody reads the output any more, it is dropped and the work goes on.
    #[must_use]
    pub fn lasting(mut self) -> Self {
        self.is_lasting = true;
        self
    }

    fn forgive(&self, result: io::Result<()>) -> io::Result<()> {
        match result {
            Err(error) if self.is_lasting && error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            result => result,
        }
    }

    /// How to colour text.
    pub fn style(&self) -> Style {
        self.style
    }

    /// Whether standard output is a terminal.
    pub fn is_terminal(&self) -> bool {
        self.stdout.is_terminal()
    }

    /// Writes bytes unchanged and flushes them.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let written = self.stdout.write_all(bytes).and_then(|()| self.stdout.flush());
        Ok(self.forgive(written)?)
    }

    /// Flushes text that came in pieces.
    ///
    /// # Errors
    /// Returns the error with which writing or flushing failed.
    pub fn settle(&mut self) -> Result<(), Error> {
        self.failed.take().map_or(Ok(()), Err)?;
        let written = self.stdout.flush();
        Ok(self.forgive(written)?)
    }

    /// Writes one line and flushes it.
    pub fn line(&mut self, line: &str) -> Result<(), Error> {
        let written = writeln!(self.stdout, "{line}").and_then(|()| self.stdout.flush());
        Ok(self.forgive(written)?)
    }
}

#[cfg(test)]
mod tests {
    use super::Style;

    #[test]
    fn only_the_time_stamp_is_coloured() {
        let colour = Style { colour: true };
        assert_eq!(
            colour.log_line("[    0.000001] NUMA: [mem 0x0] x"),
            "\x1b[32m[    0.000001]\x1b[0m NUMA: [mem 0x0] x"
        );
        assert_eq!(colour.log_line("plain [x] y"), "plain [x] y");
        assert_eq!(Style::PLAIN.log_line("[    0.000001] a"), "[    0.000001] a");
        assert_eq!(Style::PLAIN.bold("a"), "a");
    }
}
