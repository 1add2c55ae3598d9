//! The reporting queue: ranges go to the host and come back when it has discarded their content.

use crate::error::DeviceFault;
use core::fmt;
use framewright_virtio::{Buffer, PAGE_SIZE, Ring, Used};
use virtio_drivers::Hal;
use virtio_drivers::transport::Transport;

/// The number of ranges in one request, unless [`Settings`](crate::Settings) ask for fewer or more.
pub const MOST_RANGES: u16 = 32;

/// Identifies a submitted request. Each request has its own token.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token(u64);

/// Why a request was not submitted. The device then has none of its ranges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SubmitError {
    /// The host takes no reports, or must not get any because of what free pages hold.
    NotSupported,
    /// There is no room until the device has answered earlier requests.
    Busy,
    /// The request has no range, or more than [`capacity`](crate::Balloon::capacity).
    BadCount {
        /// The number of ranges that it has.
        count: usize,
    },
    /// A range is empty, is not in whole pages, or ends beyond the address space.
    BadRange {
        /// The index of the range.
        index: usize,
    },
    /// The device must be reset first.
    Fault(DeviceFault),
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSupported => f.write_str("the virtio balloon takes no reports"),
            Self::Busy => f.write_str("the virtio balloon has no room for a report at the moment"),
            Self::BadCount { count } => write!(f, "a report cannot have {count} ranges"),
            Self::BadRange { index } => {
                write!(f, "range {index} of a report is not whole pages")
            }
            Self::Fault(fault) => fault.fmt(f),
        }
    }
}

impl core::error::Error for SubmitError {}

/// The device has returned a request and claims to have written more bytes than the request has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadAnswer {
    /// The bytes that it claims to have written.
    pub written: u32,
}

impl fmt::Display for BadAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the virtio balloon claims to have written {} bytes, more than a report has",
            self.written
        )
    }
}

impl core::error::Error for BadAnswer {}

/// A request that the device has returned. Its memory belongs to the caller again; the content of
/// the memory is undefined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The token of the request.
    pub token: Token,
    /// An error here does not mean that the host still has the memory.
    pub result: Result<(), BadAnswer>,
}

/// The requests in flight.
pub struct Reports<H: Hal> {
    ring: Ring<H>,
    capacity: u16,
}

impl<H: Hal> Reports<H> {
    pub fn new(ring: Ring<H>, wanted: u16) -> Self {
        let capacity = wanted.clamp(1, ring.size());
        Self { ring, capacity }
    }

    pub fn capacity(&self) -> usize {
        self.capacity.into()
    }

    pub fn in_flight(&self) -> usize {
        self.ring.chains_out().into()
    }

    pub fn ring(&mut self) -> &mut Ring<H> {
        &mut self.ring
    }

    /// Gives `ranges` to the device; `number` identifies the request.
    ///
    /// # Safety
    /// As for [`Balloon::submit`](crate::Balloon::submit).
    pub unsafe fn submit<T: Transport>(
        &mut self,
        transport: &mut T,
        ranges: &[(u64, u32)],
        number: u64,
    ) -> Result<Token, SubmitError> {
        if ranges.is_empty() || ranges.len() > self.capacity() {
            return Err(SubmitError::BadCount { count: ranges.len() });
        }
        let is_bad = |&(address, bytes): &(u64, u32)| {
            let whole = (address | u64::from(bytes)).is_multiple_of(PAGE_SIZE);
            bytes == 0 || !whole || address.checked_add(u64::from(bytes)).is_none()
        };
        if let Some(index) = ranges.iter().position(is_bad) {
            return Err(SubmitError::BadRange { index });
        }
        let buffers =
            ranges.iter().map(|&(address, bytes)| Buffer { address, bytes, device_writes: true });
        // SAFETY: the caller keeps this function's promise.
        if !unsafe { self.ring.add(buffers, number) } {
            return Err(SubmitError::Busy);
        }
        self.ring.notify(transport);
        Ok(Token(number))
    }

    pub fn poll(&mut self) -> Result<Option<Completion>, DeviceFault> {
        let used = self.ring.poll()?;
        Ok(used.map(|Used { tag, written, room }| Completion {
            token: Token(tag),
            result: if u64::from(written) > room { Err(BadAnswer { written }) } else { Ok(()) },
        }))
    }
}
