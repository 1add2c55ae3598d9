//! Requests and answers on the queue, one at a time (virtio 1.2, 5.15.6).

use crate::error::DeviceFault;
use core::fmt;
use framewright_virtio::{Buffer, DmaPage, Ring, Used};
use virtio_drivers::transport::Transport;
use virtio_drivers::{BufferDirection, Hal};

/// The device's only queue.
pub const QUEUE: u16 = 0;
/// Descriptors of a request: what is asked, and where the answer goes.
pub const DESCRIPTORS: u16 = 2;
/// Most blocks of one request.
pub const MOST_BLOCKS: u64 = u16::MAX as u64;

// What is asked, from the page's start on.
const REQUEST_TYPE: usize = 0;
const REQUEST_ADDRESS: usize = 8;
const REQUEST_BLOCKS: usize = 16;
const REQUEST_BYTES: u32 = 24;
// Where the answer goes.
const ANSWER: usize = 64;
const ANSWER_STATE: usize = ANSWER + 8;
const ANSWER_BYTES: u32 = 10;
/// Without a state an answer is whole with its type.
const TYPE_BYTES: u32 = 2;
/// What stands there until the device answers.
const NO_ANSWER: u16 = u16::MAX;

/// What a device can be asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestKind {
    /// To plug blocks.
    Plug = 0,
    /// To unplug blocks.
    Unplug = 1,
    /// To unplug all blocks.
    UnplugAll = 2,
    /// Whether blocks are plugged.
    State = 3,
}

impl fmt::Display for RequestKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plug => "PLUG",
            Self::Unplug => "UNPLUG",
            Self::UnplugAll => "UNPLUG_ALL",
            Self::State => "STATE",
        })
    }
}

/// A device's answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// It was done.
    Done,
    /// To [`RequestKind::State`]: what the blocks are.
    Blocks(BlockState),
    /// Not now, because more would be plugged than is requested.
    Nack,
    /// Not now.
    Busy,
    /// Never.
    Error,
}

/// What blocks are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockState {
    Plugged,
    Unplugged,
    Mixed,
}

/// The queue, and the page for requests and answers.
pub struct Channel<H: Hal> {
    ring: Ring<H>,
    page: DmaPage<H>,
    /// What was asked and is not answered.
    asked: Option<RequestKind>,
}

impl<H: Hal> Channel<H> {
    /// `most` is how many descriptors the device allows, at least two. `None` when there is no
    /// memory.
    pub fn new(most: u32) -> Option<Self> {
        let ring = Ring::new(QUEUE, most, DESCRIPTORS)?;
        Some(Self { ring, page: DmaPage::new(BufferDirection::Both)?, asked: None })
    }

    /// Forgets what was asked. Only after a reset.
    pub fn clear(&mut self) {
        self.ring.clear();
        self.asked = None;
    }

    /// Tells the device where the queue is.
    ///
    /// # Safety
    /// The channel is neither dropped nor cleared before the device has completed a reset
    /// (invariant 32).
    pub unsafe fn set_up<T: Transport>(&self, transport: &mut T) {
        // SAFETY: passed on to the caller.
        unsafe { self.ring.set_up(transport) };
    }

    /// Descriptors of the queue.
    pub fn descriptors(&self) -> u16 {
        self.ring.size()
    }

    /// Sends a request about `blocks` blocks at `address`. False while there is one.
    pub fn send<T: Transport>(
        &mut self,
        transport: &mut T,
        kind: RequestKind,
        address: u64,
        blocks: u16,
    ) -> bool {
        if self.asked.is_some() {
            return false;
        }
        self.page.publish_u16(REQUEST_TYPE, kind as u16);
        self.page.store_u64(REQUEST_ADDRESS, address);
        self.page.publish_u16(REQUEST_BLOCKS, blocks);
        self.page.publish_u16(ANSWER, NO_ANSWER);
        self.page.publish_u16(ANSWER_STATE, NO_ANSWER);
        let at = self.page.physical();
        let buffers = [
            Buffer { address: at, bytes: REQUEST_BYTES, device_writes: false },
            Buffer { address: at + ANSWER as u64, bytes: ANSWER_BYTES, device_writes: true },
        ];
        // SAFETY: the driver's own page, of which what the device writes is read with suspicion
        // (invariant 32).
        if !unsafe { self.ring.add(buffers.into_iter(), 0) } {
            return false;
        }
        self.asked = Some(kind);
        self.ring.notify(transport);
        true
    }

    /// The answer, if it has come.
    ///
    /// # Errors
    /// The device broke a rule.
    pub fn poll(&mut self) -> Result<Option<Answer>, DeviceFault> {
        let Some(Used { written, .. }) = self.ring.poll()? else { return Ok(None) };
        // The ring knows what is out: an answer to nothing is its error.
        let Some(asked) = self.asked.take() else { return Ok(None) };
        let whole = if asked == RequestKind::State { ANSWER_BYTES } else { TYPE_BYTES };
        if written < whole || written > ANSWER_BYTES {
            return Err(DeviceFault::Length { written });
        }
        // Each word is read once: the device may change it at any time.
        let answer = self.page.observe_u16(ANSWER);
        match answer {
            0 if asked == RequestKind::State => match self.page.observe_u16(ANSWER_STATE) {
                0 => Ok(Some(Answer::Blocks(BlockState::Plugged))),
                1 => Ok(Some(Answer::Blocks(BlockState::Unplugged))),
                2 => Ok(Some(Answer::Blocks(BlockState::Mixed))),
                state => Err(DeviceFault::UnknownAnswer { answer: state }),
            },
            0 => Ok(Some(Answer::Done)),
            // Only plugging is refused so.
            1 if asked == RequestKind::Plug => Ok(Some(Answer::Nack)),
            1 => Err(DeviceFault::Unexpected { request: asked, answer }),
            2 => Ok(Some(Answer::Busy)),
            3 => Ok(Some(Answer::Error)),
            _ => Err(DeviceFault::UnknownAnswer { answer }),
        }
    }
}
