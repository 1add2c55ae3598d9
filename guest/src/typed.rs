//! What was typed on the serial line while commands ran, and not read yet.

/// Bytes that are typed ahead.
pub const AHEAD: usize = 256;
/// Ctrl-C on the line.
const INTERRUPT: u8 = 3;

/// See the module documentation.
pub struct Typed {
    bytes: [u8; AHEAD],
    first: usize,
    len: usize,
    /// Ctrl-C came while a command ran.
    interrupted: bool,
    /// A line had no room, and has not ended yet.
    is_skipping: bool,
    has_lost: bool,
}

impl Typed {
    pub const NOTHING: Self = Self {
        bytes: [0; AHEAD],
        first: 0,
        len: 0,
        interrupted: false,
        is_skipping: false,
        has_lost: false,
    };

    /// Whether the next byte would be lost.
    pub const fn is_full(&self) -> bool {
        self.len == AHEAD
    }

    /// Takes a byte that came while a command ran. A line that has no room is lost as a whole: a
    /// part of it would be another command. Ctrl-C never needs room, and ends all that is typed
    /// ahead, as on any terminal.
    pub const fn take(&mut self, byte: u8) {
        let is_end = matches!(byte, b'\r' | b'\n');
        if byte == INTERRUPT {
            self.len = 0;
            self.interrupted = true;
            (self.is_skipping, self.has_lost) = (false, false);
        } else if self.is_skipping {
            self.is_skipping = !is_end;
        } else if self.is_full() {
            while self.len > 0 && !matches!(self.bytes[self.end(1)], b'\r' | b'\n') {
                self.len -= 1;
            }
            (self.is_skipping, self.has_lost) = (!is_end, true);
        } else {
            self.bytes[self.end(0)] = byte;
            self.len += 1;
        }
    }

    /// The place so many before the one behind the last byte.
    const fn end(&self, before: usize) -> usize {
        (self.first + self.len - before) % AHEAD
    }

    /// The first byte, which is read.
    pub fn next(&mut self) -> Option<u8> {
        self.len = self.len.checked_sub(1)?;
        let byte = self.bytes[self.first];
        self.first = (self.first + 1) % AHEAD;
        Some(byte)
    }

    /// A command begins, and nobody has interrupted it yet.
    pub const fn forget_interrupt(&mut self) {
        self.interrupted = false;
    }

    /// Whether somebody interrupted the command.
    pub const fn is_interrupted(&self) -> bool {
        self.interrupted
    }

    /// The command has ended: whether a line was lost meanwhile. From now on lines have room, also
    /// the rest of one that had none: whoever types sees it.
    pub const fn has_lost(&mut self) -> bool {
        self.is_skipping = false;
        core::mem::replace(&mut self.has_lost, false)
    }
}
