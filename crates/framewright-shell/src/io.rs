//! Where a command's words go.

use core::fmt::{self, Write};

/// A command that failed, with its exit status. It has said why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failed(pub u8);

impl Failed {
    /// It did not work.
    pub const FAILURE: Self = Self(1);
    /// It was called wrongly.
    pub const USAGE: Self = Self(2);
    /// Somebody wanted it to end.
    pub const INTERRUPTED: Self = Self(130);
}

/// Whoever takes the words has gone.
impl From<fmt::Error> for Failed {
    fn from(_: fmt::Error) -> Self {
        Self::FAILURE
    }
}

/// What a command says, and its complaints.
pub struct Io<'a> {
    /// The command's name, which begins its complaints.
    pub name: &'a str,
    /// What it says.
    pub out: &'a mut dyn Write,
    /// What it complains about.
    pub errors: &'a mut dyn Write,
}

impl Io<'_> {
    /// Complains that something did not work.
    pub fn fail(&mut self, why: fmt::Arguments<'_>) -> Failed {
        self.complain(why, Failed::FAILURE)
    }

    /// Complains about how the command was called.
    pub fn wrong(&mut self, why: fmt::Arguments<'_>) -> Failed {
        self.complain(why, Failed::USAGE)
    }

    /// Says that the command was interrupted.
    pub fn interrupted(&mut self) -> Failed {
        self.complain(format_args!("interrupted"), Failed::INTERRUPTED)
    }

    fn complain(&mut self, why: fmt::Arguments<'_>, failed: Failed) -> Failed {
        // When nobody takes complaints there is nobody to tell.
        let _ = writeln!(self.errors, "{}: {why}", self.name);
        failed
    }
}

/// Text of up to `BYTES` bytes, kept until it is used.
pub struct Text<const BYTES: usize> {
    bytes: [u8; BYTES],
    len: usize,
    overflown: bool,
}

impl<const BYTES: usize> Text<BYTES> {
    pub const fn new() -> Self {
        Self { bytes: [0; BYTES], len: 0, overflown: false }
    }

    /// Whether more came than fits.
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
