//! A serial port (16550), without interrupts.

use crate::cpu::port::Port;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Turns of waiting for bytes to leave. A port that never gets ready must not stop the machine: the byte is then sent anyway.
const MAX_TURNS: u32 = 1 << 20;
/// The transmitter's queue is empty.
const READY: u8 = 1 << 5;

/// Bytes that a 16550's transmitter takes when its queue is empty.
const QUEUE_BYTES: usize = 16;
/// A byte has come.
const COME: u8 = 1;

/// A serial port.
#[derive(Debug)]
pub struct Serial {
    base: u16,
    data: Port,
    status: Port,
    /// Bytes that the transmitter takes at once.
    room: AtomicUsize,
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
        Self { base, data, status, room: AtomicUsize::new(1) }
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
        // SAFETY: as above.
        let identity = unsafe { Port::new(self.base + 2) }.read_u8();
        // Both bits say that the queues are on; where there is no port all are set, and nothing is lost.
        if identity & 0xc0 == 0xc0 {
            self.room.store(QUEUE_BYTES, Ordering::Relaxed);
        }
    }

    /// Sends bytes. Those of several senders come in some order.
    ///
    /// The port is asked once for each queue that it can be filled with: to a virtual machine every look is an exit.
    pub fn send(&self, bytes: &[u8]) {
        for queue in bytes.chunks(self.room.load(Ordering::Relaxed).max(1)) {
            for _ in 0..MAX_TURNS {
                if self.status.read_u8() & READY != 0 {
                    break;
                }
                core::hint::spin_loop();
            }
            queue.iter().for_each(|&byte| self.data.write_u8(byte));
        }
    }

    /// Takes the next byte that has come, if any has. Never waits.
    pub fn receive(&self) -> Option<u8> {
        let status = self.status.read_u8();
        // Where there is no port all bits are set.
        if status != u8::MAX && status & COME != 0 { Some(self.data.read_u8()) } else { None }
    }
}
