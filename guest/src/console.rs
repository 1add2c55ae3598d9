//! The log on the first serial port, each line with the time since the guest began, as in Linux.
//!
//! Orders of memory: Relaxed: a CPU looks whether the turn is its own, which it stored itself; a
//! failed exchange is tried again.

use crate::platform::PLATFORM;
use crate::smp;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU32, Ordering};
use framewright::platform::Platform;
use framewright::report::BootLog;
use framewright_x86::serial::Serial;

/// The first serial port of every PC.
// SAFETY: it is there or nothing is, and nobody but this module uses it.
static SERIAL: Serial = unsafe { Serial::at(0x3f8) };

/// Whose turn it is: the number of the CPU that writes a line, plus one.
static TURN: AtomicU32 = AtomicU32::new(0);

/// Sets the port up. To be called before the first line.
pub fn begin() {
    SERIAL.begin();
}

/// Takes the port from whoever has it: what comes now is the last that is said.
pub fn seize() {
    TURN.store(smp::index() + 1, Ordering::Relaxed);
}

/// Calls `write` while no other CPU writes. An exception or a panic in the middle of a line only garbles it.
fn in_turn(write: impl FnOnce()) {
    let me = smp::index() + 1;
    let state = PLATFORM.irq_save();
    let mine_already = TURN.load(Ordering::Relaxed) == me;
    // Acquire and Release pair with one another; the port is all that is guarded.
    while !mine_already && TURN.compare_exchange_weak(0, me, Ordering::Acquire, Ordering::Relaxed).is_err() {
        PLATFORM.relax();
    }
    write();
    if !mine_already {
        TURN.store(0, Ordering::Release);
    }
    PLATFORM.irq_restore(state);
}

/// The raw port: no time stamps, end of line as written.
pub struct Console;

impl Console {
    /// Takes the next byte that somebody typed, if there is any.
    pub fn receive() -> Option<u8> {
        SERIAL.receive()
    }
}

impl Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        SERIAL.send(text.as_bytes());
        Ok(())
    }
}

/// The log.
pub struct Log;

impl BootLog for Log {
    fn line(&mut self, line: fmt::Arguments<'_>) {
        let microseconds = PLATFORM.now_ns().unwrap_or(0) / 1000;
        // The port cannot fail.
        in_turn(|| {
            let _ = writeln!(Console, "[{:5}.{:06}] {line}", microseconds / 1_000_000, microseconds % 1_000_000);
        });
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
    in_turn(|| {
        let _ = writeln!(Console, "{line}");
    });
}
