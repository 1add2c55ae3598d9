//! The log on the first serial port. As in Linux, each line has the time since the guest began.
//! Lines end in LF, and times are zero until the clock is known. With `report=json`, one line is
//! `@json {...}`, and the last line of a successful run is `@end`.
//!
//! Orders of memory: Relaxed where a CPU checks whether the turn is its own, because it stored that
//! value itself, and where an exchange fails, because it is tried again.

use crate::platform::PLATFORM;
use crate::smp;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};
use framewright::bootlog::BootLog;
use framewright::platform::Platform;
use framewright_arch::x86_64::serial::Serial;

/// The first serial port of every PC.
// SAFETY: the port is there or nothing is, and only this module uses it.
static SERIAL: Serial = unsafe { Serial::at(0x3f8) };

/// Whose turn it is: the number of the CPU that writes a line, plus one.
static TURN: AtomicU32 = AtomicU32::new(0);

/// Sets up the port. To be called before the first line.
pub fn begin() {
    SERIAL.begin();
}

/// Takes the port from the CPU that holds it, for the last messages of a failing guest.
pub fn seize() {
    TURN.store(smp::index() + 1, Ordering::Relaxed);
}

/// Calls `write` while no other CPU writes. An exception or a panic in the middle of a line garbles
/// only that line.
fn in_turn(write: impl FnOnce()) {
    let me = smp::index() + 1;
    let state = PLATFORM.irq_save();
    let mine_already = TURN.load(Ordering::Relaxed) == me;
    // Acquire and Release pair with each other. They guard nothing but the port.
    while !mine_already
        && TURN.compare_exchange_weak(0, me, Ordering::Acquire, Ordering::Relaxed).is_err()
    {
        PLATFORM.relax();
    }
    write();
    if !mine_already {
        TURN.store(0, Ordering::Release);
    }
    // SAFETY: `state` was saved above, and interrupts were not touched since.
    unsafe { PLATFORM.irq_restore(state) };
}

/// The raw port: no time stamps, and line ends as written.
pub struct Console;

impl Console {
    /// The next byte that was typed, if any.
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

/// How many bytes at the end of the log are kept. A boot logs less than this.
const KEPT: usize = 16 << 10;
/// The end of the log, a ring: byte `n` is at `n % KEPT`.
static TEXT: [AtomicU8; KEPT] = [const { AtomicU8::new(0) }; KEPT];
/// Bytes logged so far. Only the CPU whose turn it is writes it; a reader may see a line that is
/// being overwritten.
static LOGGED: AtomicUsize = AtomicUsize::new(0);

/// Writes to the kept log.
struct Keeper;

impl Write for Keeper {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let start = LOGGED.load(Ordering::Relaxed);
        for (place, &byte) in (start..).zip(text.as_bytes()) {
            TEXT[place % KEPT].store(byte, Ordering::Relaxed);
        }
        // Release: pairs with the Acquire of `show_log`, which reads the bytes before this end.
        LOGGED.store(start + text.len(), Ordering::Release);
        Ok(())
    }
}

/// Writes the part of the log that is kept, in whole lines.
///
/// # Errors
/// Those of `out`.
pub fn show_log(out: &mut dyn Write) -> fmt::Result {
    let end = LOGGED.load(Ordering::Acquire);
    let byte = |place: usize| TEXT[place % KEPT].load(Ordering::Relaxed);
    let mut start = end.saturating_sub(KEPT);
    if start != 0 {
        // The first line is cut off.
        start = (start..end).find(|&place| byte(place) == b'\n').map_or(end, |place| place + 1);
    }
    while start < end {
        // Words of the command line need not be ASCII.
        let length = byte(start).leading_ones().max(1) as usize;
        let bytes: [u8; 4] = core::array::from_fn(|index| byte(start + index));
        let text = bytes.get(..length).and_then(|bytes| core::str::from_utf8(bytes).ok());
        out.write_str(text.unwrap_or("\u{fffd}"))?;
        start += text.map_or(1, str::len);
    }
    Ok(())
}

/// The log.
pub struct Log;

impl BootLog for Log {
    fn line(&mut self, line: fmt::Arguments<'_>) {
        let microseconds = PLATFORM.now_ns().unwrap_or(0) / 1000;
        // The port cannot fail.
        in_turn(|| {
            let (seconds, rest) = (microseconds / 1_000_000, microseconds % 1_000_000);
            let _ = writeln!(Console, "[{seconds:5}.{rest:06}] {line}");
            let _ = writeln!(Keeper, "[{seconds:5}.{rest:06}] {line}");
        });
    }
}

/// Logs one line with a time stamp.
macro_rules! log {
    ($($argument:tt)*) => {
        framewright::bootlog::BootLog::line(&mut $crate::console::Log, format_args!($($argument)*))
    };
}
pub(crate) use log;

/// Writes one line without a time stamp, for programs to read.
pub fn plain_line(line: fmt::Arguments<'_>) {
    in_turn(|| {
        let _ = writeln!(Console, "{line}");
    });
}
