//! Requests and answers on the queue, one at a time (virtio 1.2, 5.15.6).

use crate::error::DeviceFault;
use core::fmt;
use framewright_virtio::{Buffer, DmaPage, Ring, Used};
use virtio_drivers::transport::Transport;
use virtio_drivers::{BufferDirection, Hal};

/// The device's only queue.
pub const QUEUE: u16 = 0;
/// The descriptors of a request: one for the question, and one for the answer.
pub const DESCRIPTORS: u16 = 2;
/// The most blocks of one request.
pub const MOST_BLOCKS: u64 = u16::MAX as u64;

// Offsets of the request, which begins at the start of the page.
const REQUEST_TYPE: usize = 0;
const REQUEST_ADDRESS: usize = 8;
const REQUEST_BLOCKS: usize = 16;
const REQUEST_BYTES: u32 = 24;
// Offsets of the answer.
const ANSWER: usize = 64;
const ANSWER_STATE: usize = ANSWER + 8;
const ANSWER_BYTES: u32 = 10;
/// The size of an answer that has no state, only a type.
const TYPE_BYTES: u32 = 2;
/// The content of the answer until the device answers.
const NO_ANSWER: u16 = u16::MAX;

/// What a device can be asked to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestKind {
    /// Plug blocks.
    Plug = 0,
    /// Unplug blocks.
    Unplug = 1,
    /// Unplug all blocks.
    UnplugAll = 2,
    /// Say whether blocks are plugged.
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
    /// The request was carried out.
    Done,
    /// Answers [`RequestKind::State`]: the state of the blocks.
    Blocks(BlockState),
    /// Not now, because more would be plugged than is requested.
    Nack,
    /// Not now.
    Busy,
    /// Never: the request is invalid.
    Error,
}

/// The state of blocks.
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
    /// The request that has not been answered yet.
    asked: Option<RequestKind>,
}

impl<H: Hal> Channel<H> {
    /// `most` is how many descriptors the device allows, at least two. `None` if there is no
    /// memory.
    pub fn new(most: u32) -> Option<Self> {
        let ring = Ring::new(QUEUE, most, DESCRIPTORS)?;
        Some(Self { ring, page: DmaPage::new(BufferDirection::Both)?, asked: None })
    }

    /// Forgets the request in flight. Allowed only after a reset.
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
        // SAFETY: the caller keeps this function's promise.
        unsafe { self.ring.set_up(transport) };
    }

    /// The number of descriptors in the queue.
    pub fn descriptors(&self) -> u16 {
        self.ring.size()
    }

    /// Sends a request about `blocks` blocks at `address`. Returns false if another request is in
    /// flight.
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
        // SAFETY: the page belongs to the driver, which does not trust what the device writes there
        // (invariant 32).
        if !unsafe { self.ring.add(buffers.into_iter(), 0) } {
            return false;
        }
        self.asked = Some(kind);
        self.ring.notify(transport);
        true
    }

    /// Returns the answer, if it has come.
    ///
    /// # Errors
    /// The device broke a rule.
    pub fn poll(&mut self) -> Result<Option<Answer>, DeviceFault> {
        let Some(Used { written, .. }) = self.ring.poll()? else { return Ok(None) };
        // The ring knows which requests the device has: it returns an error if the device answers
        // none of them.
        let Some(asked) = self.asked.take() else { return Ok(None) };
        let whole = if asked == RequestKind::State { ANSWER_BYTES } else { TYPE_BYTES };
        if written < whole || written > ANSWER_BYTES {
            return Err(DeviceFault::Length { written });
        }
        // Each word is read only once, because the device may change it at any time.
        let answer = self.page.observe_u16(ANSWER);
        match answer {
            0 if asked == RequestKind::State => match self.page.observe_u16(ANSWER_STATE) {
                0 => Ok(Some(Answer::Blocks(BlockState::Plugged))),
                1 => Ok(Some(Answer::Blocks(BlockState::Unplugged))),
                2 => Ok(Some(Answer::Blocks(BlockState::Mixed))),
                state => Err(DeviceFault::UnknownAnswer { answer: state }),
            },
            0 => Ok(Some(Answer::Done)),
            // NACK is an answer to PLUG only.
            1 if asked == RequestKind::Plug => Ok(Some(Answer::Nack)),
            1 => Err(DeviceFault::Unexpected { request: asked, answer }),
            2 => Ok(Some(Answer::Busy)),
            3 => Ok(Some(Answer::Error)),
            _ => Err(DeviceFault::UnknownAnswer { answer }),
        }
    }
}
