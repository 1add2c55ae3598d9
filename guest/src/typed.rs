//! Keeps what was typed on the serial line while commands ran and has not been read yet.

/// How many bytes can be typed ahead.
pub const AHEAD: usize = 256;
/// Ctrl-C on the line.
const INTERRUPT: u8 = 3;

/// Bytes that were typed ahead, as a ring.
pub struct Typed {
    bytes: [u8; AHEAD],
    first: usize,
    len: usize,
    /// Whether Ctrl-C came while a command ran.
    interrupted: bool,
    /// Whether a line is being dropped for lack of room and has not ended yet.
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

    /// Takes a byte that came while a command ran. A line that has no room is dropped as a whole,
    /// because a part of it would be a different command. Ctrl-C never needs room, and discards
    /// everything that was typed ahead, as on any terminal.
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

    /// Returns the index `before` places before the end, which is one past the last byte.
    const fn end(&self, before: usize) -> usize {
        (self.first + self.len - before) % AHEAD
    }

    /// Removes and returns the first byte.
    pub fn next(&mut self) -> Option<u8> {
        self.len = self.len.checked_sub(1)?;
        let byte = self.bytes[self.first];
        self.first = (self.first + 1) % AHEAD;
        Some(byte)
    }

    /// Called when a command begins, which nobody has interrupted yet.
    pub const fn forget_interrupt(&mut self) {
        self.interrupted = false;
    }

    /// Whether somebody interrupted the command.
    pub const fn is_interrupted(&self) -> bool {
        self.interrupted
    }

    /// Called when a command has ended. Returns whether a line was lost meanwhile. From now on no
    /// line is dropped, not even the rest of one that had no room, because whoever types sees it.
    pub const fn has_lost(&mut self) -> bool {
        self.is_skipping = false;
        core::mem::replace(&mut self.has_lost, false)
    }
}
