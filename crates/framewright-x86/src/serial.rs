//! A serial port (16550), without interrupts.

use crate::cpu::port::Port;

/// Turns of waiting for a byte to leave. A port that never gets ready must not stop the machine: the byte is then sent anyway.
const MAX_TURNS: u32 = 1 << 20;
/// The transmitter takes another byte.
const READY: u8 = 1 << 5;

/// A byte has come.
const COME: u8 = 1;

/// A serial port.
#[derive(Debug)]
pub struct Serial {
    base: u16,
    data: Port,
    status: Port,
}

impl Serial {
    /// The port at `base` (0x3f8 for the first), not set up yet.
    ///
    /// # Safety
    /// A 16550 or nothing is at `base..base + 8`, nobody else uses it, and the code may use ports.
    #[must_use]
    pub const unsafe fn at(base: u16) -> Self {
        // SAFETY: the caller promises what is there; a 16550 does not touch memory.
        let data = unsafe { Port::new(base) };
        // SAFETY: as above.
        let status = unsafe { Port::new(base + 5) };
        Self { base, data, status }
    }

    /// Sets it to 115200 bits a second, 8 data bits, no parity.
    pub fn begin(&self) {
        for (offset, value) in [
            (1, 0x00), // no interrupts
            (3, 0x80), // the next two set the divisor
            (0, 0x01),
            (1, 0x00),
            (3, 0x03), // 8 data bits, no parity, 1 stop bit
            (2, 0xc7), // queues on and empty
            (4, 0x03), // ready
        ] {
            // SAFETY: whoever made this promised what is at these ports.
            unsafe { Port::new(self.base + offset) }.write_u8(value);
        }
    }

    /// Sends one byte. Bytes of several senders come in some order.
    pub fn send(&self, byte: u8) {
        for _ in 0..MAX_TURNS {
            if self.status.read_u8() & READY != 0 {
                break;
            }
            core::hint::spin_loop();
        }
        self.data.write_u8(byte);
    }

    /// Takes the next byte that has come, if any has. Never waits.
    pub fn receive(&self) -> Option<u8> {
        let status = self.status.read_u8();
        // Where there is no port all bits are set.
        if status != u8::MAX && status & COME != 0 { Some(self.data.read_u8()) } else { None }
    }
}
