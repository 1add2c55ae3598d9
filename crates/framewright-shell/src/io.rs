//! Where a command's output and error messages go.

use core::fmt::{self, Write};

/// A failed command's exit status. The command has already written why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failed(pub u8);

impl Failed {
    /// The command failed.
    pub const FAILURE: Self = Self(1);
    /// The command line was wrong.
    pub const USAGE: Self = Self(2);
    /// The command was interrupted.
    pub const INTERRUPTED: Self = Self(130);
}

/// An error while writing the output.
impl From<fmt::Error> for Failed {
    fn from(_: fmt::Error) -> Self {
        Self::FAILURE
    }
}

/// A command's output and error messages.
pub struct Io<'a> {
    /// The command's name, which begins its error messages.
    pub name: &'a str,
    /// Its output.
    pub out: &'a mut dyn Write,
    /// Its error messages.
    pub errors: &'a mut dyn Write,
}

impl Io<'_> {
    /// Reports a failure.
    pub fn fail(&mut self, why: fmt::Arguments<'_>) -> Failed {
        self.report(why, Failed::FAILURE)
    }

    /// Reports a wrong command line.
    pub fn wrong(&mut self, why: fmt::Arguments<'_>) -> Failed {
        self.report(why, Failed::USAGE)
    }

    /// Reports an interrupt.
    pub fn interrupted(&mut self) -> Failed {
        self.report(format_args!("interrupted"), Failed::INTERRUPTED)
    }

    fn report(&mut self, why: fmt::Arguments<'_>, failed: Failed) -> Failed {
        // An error message that cannot be written is lost.
        let _ = writeln!(self.errors, "{}: {why}", self.name);
        failed
    }
}

/// A buffer for text of up to `BYTES` bytes.
pub struct Text<const BYTES: usize> {
    bytes: [u8; BYTES],
    len: usize,
    overflown: bool,
}

impl<const BYTES: usize> Text<BYTES> {
    pub const fn new() -> Self {
        Self { bytes: [0; BYTES], len: 0, overflown: false }
    }

    /// Whether more was written than fits.
    pub const fn is_overflown(&self) -> bool {
        self.overflown
    }

    pub fn as_str(&self) -> &str {
        self.bytes.get(..self.len).and_then(|bytes| str::from_utf8(bytes).ok()).unwrap_or("")
    }
}

impl<const BYTES: usize> Write for Text<BYTES> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let Some(room) = self.bytes.get_mut(self.len..self.len + text.len()) else {
            self.overflown = true;
            return Err(fmt::Error);
        };
        room.copy_from_slice(text.as_bytes());
        self.len += text.len();
        Ok(())
    }
}
