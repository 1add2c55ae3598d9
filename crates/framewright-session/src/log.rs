//! The boot log of a machine in this process.

use framewright::bootlog::BootLog;
use std::fmt;
use std::time::{Duration, Instant};

/// Keeps lines, each with the time since the log was opened. They are shown later, so that a slow
/// terminal does not affect measurements.
pub struct Lines {
    opened: Instant,
    lines: Vec<String>,
}

impl Default for Lines {
    fn default() -> Self {
        Self::new()
    }
}

impl Lines {
    /// Returns an empty log whose time starts now.
    pub fn new() -> Self {
        Self { opened: Instant::now(), lines: Vec::new() }
    }

    /// Returns the lines so far.
    pub fn into_lines(self) -> Vec<String> {
        self.lines
    }
}

impl BootLog for Lines {
    fn line(&mut self, line: fmt::Arguments<'_>) {
        self.lines.push(format!("{} {line}", stamp(self.opened.elapsed())));
    }
}

/// Discards all lines without formatting them.
pub struct Silent;

impl BootLog for Silent {
    fn line(&mut self, _line: fmt::Arguments<'_>) {}
}

/// Formats a time as Linux prints it.
fn stamp(time: Duration) -> String {
    format!("[{:>5}.{:06}]", time.as_secs(), time.subsec_micros())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_look_like_those_of_linux() {
        assert_eq!(stamp(Duration::from_micros(123)), "[    0.000123]");
        assert_eq!(stamp(Duration::from_millis(12_345_678)), "[12345.678000]");
    }
}
