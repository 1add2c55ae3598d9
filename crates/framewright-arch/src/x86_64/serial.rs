//! A serial port (16550), used without interrupts.
//!
//! Orders of memory: Relaxed, because the size of the queue stands alone.

use crate::x86_64::port::Port;
use core::sync::atomic::{AtomicUsize, Ordering};

/// How often to poll the port for an empty queue. A port that never gets ready must not stop the
/// machine, so the byte is sent anyway after that.
const MAX_POLLS: u32 = 1 << 20;
/// How often to poll the port between two looks at the clock.
const POLLS_PER_TRY: u32 = 1 << 8;
/// Status bit: the transmitter's queue is empty.
const READY: u8 = 1 << 5;

/// How many bytes a 16550's transmitter takes when its queue is empty.
const QUEUE_BYTES: usize = 16;
/// Status bit: a byte was received.
const RECEIVED: u8 = 1;

/// A serial port.
#[derive(Debug)]
pub struct Serial {
    base: u16,
    data: Port,
    status: Port,
    /// How many bytes the transmitter takes at once.
    queue_bytes: AtomicUsize,
}

impl Serial {
    /// The port at `base` (0x3f8 for the first one), not set up yet.
    ///
    /// # Safety
    /// A 16550 or nothing is at `base..base + 8`, nobody else uses it, and the code may use ports.
    #[must_use]
    pub const unsafe fn at(base: u16) -> Self {
        // SAFETY: the caller promises what is at the port; a 16550 does not touch memory.
        let data = unsafe { Port::new(base) };
        // SAFETY: as for the first port.
        let status = unsafe { Port::new(base + 5) };
        Self { base, data, status, queue_bytes: AtomicUsize::new(1) }
    }

    /// Sets the port up: 115200 bits per second, 8 data bits, no parity.
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
            // SAFETY: the creator of this value promised what is at these ports.
            unsafe { Port::new(self.base + offset) }.write_u8(value);
        }
        // SAFETY: as for the other ports.
        let identity = unsafe { Port::new(self.base + 2) }.read_u8();
        // Both bits say that the queues are on. If there is no port, all bits are set, which does
        // no harm.
        if identity & 0xc0 == 0xc0 {
            self.queue_bytes.store(QUEUE_BYTES, Ordering::Relaxed);
        }
    }

    /// Sends bytes. The bytes of several senders may be interleaved.
    ///
    /// The port is polled only once for each full queue, because in a virtual machine every poll is
    /// an exit.
    pub fn send(&self, bytes: &[u8]) {
        for queue in self.queues(bytes) {
            self.is_ready_within(MAX_POLLS);
            queue.iter().for_each(|&byte| self.data.write_u8(byte));
        }
    }

    /// Sends bytes to a port that may never get ready. Gives up when `is_late`, which is called
    /// while the port is not ready, returns true. Returns whether all bytes were sent.
    pub fn try_send(&self, bytes: &[u8], is_late: &mut dyn FnMut() -> bool) -> bool {
        self.queues(bytes).all(|queue| {
            let is_ready = loop {
                if self.is_ready_within(POLLS_PER_TRY) {
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
        bytes.chunks(self.queue_bytes.load(Ordering::Relaxed).max(1))
    }

    fn is_ready_within(&self, polls: u32) -> bool {
        (0..polls).any(|_| {
            let is_ready = self.status.read_u8() & READY != 0;
            if !is_ready {
                core::hint::spin_loop();
            }
            is_ready
        })
    }

    /// Returns the next byte that was received, if any. Never waits.
    pub fn receive(&self) -> Option<u8> {
        let status = self.status.read_u8();
        // If there is no port, all bits are set.
        if status != u8::MAX && status & RECEIVED != 0 { Some(self.data.read_u8()) } else { None }
    }
}
