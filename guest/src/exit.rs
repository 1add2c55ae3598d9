//! Ends the guest through QEMU's `isa-debug-exit` device, whose exit status is twice the code plus
//! one.
//!
//! | code written to port 0xf4 | QEMU's exit status | means |
//! |---|---|---|
//! | 0x10 | 33 | memory is up |
//! | 0x11 | 35 | panic, exception, or tables found wrong |
//! | 0x12 | 37 | refused: memory cannot be brought up on this machine |
//!
//! Without the device the CPU halts instead.

use framewright_arch::x86_64::port::Port;
use framewright_arch::x86_64::registers;

/// How the guest ended.
#[derive(Clone, Copy, Debug)]
pub enum Ending {
    /// Memory is up: QEMU exits with 33.
    Success = 0x10,
    /// A panic or an exception: QEMU exits with 35.
    Crash = 0x11,
    /// Memory could not be brought up, and the log says why: QEMU exits with 37.
    Refused = 0x12,
}

/// Ends the guest. On a machine without the device, halts the CPU.
pub fn exit(ending: Ending) -> ! {
    // SAFETY: port 0xf4 belongs to the exit device or to nothing, and ending the program is the
    // purpose.
    let port = unsafe { Port::new(0xf4) };
    port.write_u32(ending as u32);
    registers::halt()
}
