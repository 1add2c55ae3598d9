//! A fake virtio-mem device: the device's side of a driver's tests.
//!
//! [`FakeVirtioMem`] is the host's end, [`FakeTransport`] what the driver gets, [`FakeHal`] the
//! driver's memory. The device does what is asked as QEMU does: it checks the range, then the
//! wish, then the state of blocks. It can also be busy, refuse, stay silent, answer twice or with
//! garbage, do a request in part, and say what it likes in its configuration. It checks the driver:
//! the order of the start-up, the form of requests, the use of memory that is not shared.

mod device;
mod host;

pub use crate::virtio::FakeHal;
pub use device::{Answers, Asked, Offer, Reply};
pub use host::{FakeTransport, FakeVirtioMem};
