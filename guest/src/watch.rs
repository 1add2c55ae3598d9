//! The second serial line, over which a program can read control files while the shell works.
//!
//! A request is a line with a number and a path. The answer is `=NUMBER`, then the file's lines
//! with a `+` in front, then `.NUMBER`; or `!NUMBER` and what was wrong. `framewright top` uses it.

use crate::platform::PLATFORM;
use core::fmt::{self, Write};
use framewright::platform::Platform;
use framewright::procfs::FileSystem;
use framewright_arch::x86_64::serial::Serial;
use framewright_shell::Requests;

/// The second serial port of a PC, if it has one.
// SAFETY: the port is there or nothing is, and only this module uses it.
static SERIAL: Serial = unsafe { Serial::at(0x2f8) };

/// One in this many calls polls the line, because a poll is an exit to the hypervisor.
const CALLS_PER_POLL: u32 = 64;
/// Most bytes that are read in one poll.
const MOST_BYTES: u32 = 512;

/// How long the other end may hold up a part of an answer. On a busy machine it may have to be
/// scheduled first. A client that does not read delays the shell once for each request.
const PATIENCE_NS: u64 = 300_000_000;
const MOST_TURNS: u32 = 1 << 10;

/// The requests that came over the line so far.
pub struct Watch {
    requests: Requests,
    calls: u32,
}

impl Watch {
    /// Sets up the line.
    pub fn begin() -> Self {
        SERIAL.begin();
        Self { requests: Requests::new(), calls: 0 }
    }

    /// Polls the line if it is this call's turn, and answers a request.
    pub fn poll(&mut self, files: &FileSystem<'_>) {
        self.calls = self.calls.wrapping_add(1);
        if !self.calls.is_multiple_of(CALLS_PER_POLL) {
            return;
        }
        for _ in 0..MOST_BYTES {
            let Some(byte) = SERIAL.receive() else { return };
            if self.requests.take(byte) {
                // A client that does not read the answer has to ask again.
                let _ = self.requests.answer(&mut |path, out| files.read(path, out), &mut Answer);
                return;
            }
        }
    }
}

/// Writes an answer to the line.
struct Answer;

impl Write for Answer {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // Without a clock, waits about as long by counting turns.
        let (began, mut turns) = (PLATFORM.now_ns(), 0);
        let mut is_late = || {
            turns += 1;
            let waited = PLATFORM.now_ns().zip(began).map(|(now, began)| now.saturating_sub(began));
            waited.map_or(turns > MOST_TURNS, |waited| waited > PATIENCE_NS)
        };
        if SERIAL.try_send(text.as_bytes(), &mut is_late) { Ok(()) } else { Err(fmt::Error) }
    }
}
