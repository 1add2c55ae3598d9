//! Standard output: lines, with colour where a person looks at them.

use crate::error::Error;
use std::io::{IsTerminal, StdoutLock, Write};

/// Standard output.
pub struct Output {
    stdout: StdoutLock<'static>,
    style: Style,
}

/// Whether to colour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Style {
    colour: bool,
}

impl Style {
    /// No colour.
    #[cfg(test)]
    pub const PLAIN: Self = Self { colour: false };

    /// `text` as a heading.
    pub fn bold(self, text: &str) -> String {
        self.wrap("1", text)
    }

    /// `text` that the eye may skip.
    pub fn dim(self, text: &str) -> String {
        self.wrap("2", text)
    }

    /// A log line, its time stamp set apart as `dmesg` does.
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

impl Output {
    /// Takes standard output. Colour is for terminals whose owner does not mind (`NO_COLOR`, `TERM=dumb`).
    pub fn new() -> Self {
        let stdout = std::io::stdout().lock();
        let minds = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        let style = Style { colour: stdout.is_terminal() && !minds };
        Self { stdout, style }
    }

    /// How to colour.
    pub fn style(&self) -> Style {
        self.style
    }

    /// Whether a person looks at it.
    pub fn is_terminal(&self) -> bool {
        self.stdout.is_terminal()
    }

    /// Writes one line, seen at once.
    pub fn line(&mut self, line: &str) -> Result<(), Error> {
        writeln!(self.stdout, "{line}")?;
        Ok(self.stdout.flush()?)
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
