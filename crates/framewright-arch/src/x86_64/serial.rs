//! A serial port (16550), without interrupts.
//!
//! Orders of memory: Relaxed: the size of a queue stands alone.

use crate::x86_64::port::Port;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Turns of waiting for bytes to leave. A port that never gets ready must not stop the machine: the
/// byte is then sent anyway.
const MAX_TURNS: u32 = 1 << 20;
/// Turns from one look at the clock to the next.
const TURNS_OF_A_TRY: u32 = 1 << 8;
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
        // Both bits say that the queues are on; where there is no port all are set, and nothing is
        // lost.
        if identity & 0xc0 == 0xc0 {
            self.room.store(QUEUE_BYTES, Ordering::Relaxed);
        }
    }

    /// Sends bytes. Those of several senders come in some order.
    ///
    /// The port is asked once for each queue that it can be filled with: to a virtual machine every
    /// look is an exit.
    pub fn send(&self, bytes: &[u8]) {
        for queue in self.queues(bytes) {
            self.is_ready_within(MAX_TURNS);
            queue.iter().for_each(|&byte| self.data.write_u8(byte));
        }
    }

    /// The same for a line at whose other end nobody may be: gives up where `is_late`, which is
    /// asked while the port is not ready, says so. Whether all were sent.
    pub fn try_send(&self, bytes: &[u8], is_late: &mut dyn FnMut() -> bool) -> bool {
        self.queues(bytes).all(|queue| {
            let is_ready = loop {
                if self.is_ready_within(TURNS_OF_A_TRY) {
                    break true;
                }
                if is_late() {
                    break false;
                }
            };
            if is_ready {
                queue.iter().for_each(|&byte| self.data.write_u8(byte));
            }
            is_ready
        })
    }

    fn queues<'a>(&self, bytes: &'a [u8]) -> core::slice::Chunks<'a, u8> {
        bytes.chunks(self.room.load(Ordering::Relaxed).max(1))
    }

    fn is_ready_within(&self, turns: u32) -> bool {
        (0..turns).any(|_| {
            let is_ready = self.status.read_u8() & READY != 0;
            if !is_ready {
                core::hint::spin_loop();
            }
            is_ready
        })
    }

    /// Takes the next byte that has come, if any has. Never waits.
    pub fn receive(&self) -> Option<u8> {
        let status = self.status.read_u8();
        // Where there is no port all bits are set.
        if status != u8::MAX && status & COME != 0 { Some(self.data.read_u8()) } else { None }
    }
}
