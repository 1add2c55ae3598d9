//! The log on the first serial port, each line with the time since the guest began, as in Linux.

use crate::platform::PLATFORM;
use core::cell::UnsafeCell;
use core::fmt::{self, Write};
use framewright::platform::Platform;
use framewright::report::BootLog;
use framewright_x86::serial::Serial;

/// The first serial port of every PC.
const FIRST_PORT: u16 = 0x3f8;

/// The serial port, once it is open. One CPU without interrupts uses it; an exception or a panic in the middle of a line only garbles it.
struct Shared(UnsafeCell<Option<Serial>>);

// SAFETY: this guest runs on one CPU and lets no interrupt in.
unsafe impl Sync for Shared {}

static SERIAL: Shared = Shared(UnsafeCell::new(None));

/// The raw port: no time stamps, end of line as written.
pub struct Console;

impl Console {
    /// Takes the next byte that somebody typed, if there is any.
    pub fn receive(&mut self) -> Option<u8> {
        Self::with(Serial::receive)
    }

    fn with<R>(work: impl FnOnce(&mut Serial) -> R) -> R {
        // SAFETY: one CPU, and whoever interrupts a line never returns to it, so that no two references are used by turns.
        let slot = unsafe { &mut *SERIAL.0.get() };
        work(slot.get_or_insert_with(|| {
            // SAFETY: the first serial port of a PC is there or nothing is, and nobody but this module uses it.
            unsafe { Serial::new(FIRST_PORT) }
        }))
    }
}

impl Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        Self::with(|serial| serial.write_str(text))
    }
}

/// The log.
pub struct Log;

impl BootLog for Log {
    fn line(&mut self, line: fmt::Arguments<'_>) {
        let microseconds = PLATFORM.now_ns().unwrap_or(0) / 1000;
        // The port cannot fail.
        let _ = writeln!(Console, "[{:5}.{:06}] {line}", microseconds / 1_000_000, microseconds % 1_000_000);
    }
}

/// Logs one line.
macro_rules! log {
    ($($argument:tt)*) => {
        framewright::report::BootLog::line(&mut $crate::console::Log, format_args!($($argument)*))
    };
}
pub(crate) use log;

/// Writes one line without a time stamp, for programs to read.
pub fn plain_line(line: fmt::Arguments<'_>) {
    let _ = writeln!(Console, "{line}");
}
