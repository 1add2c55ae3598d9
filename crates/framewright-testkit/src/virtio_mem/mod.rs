//! A fake virtio-mem device: the device's side of a driver's tests.
//!
//! [`FakeVirtioMem`] is the host's end, [`FakeTransport`] is what the driver gets, [`FakeHal`] is
//! the driver's memory. The device handles requests as QEMU does: it checks the range, then the
//! requested size, then the state of blocks. It can also be busy, refuse, stay silent, answer twice
//! or with garbage, do a part of a request, and report any values in its configuration. It checks
//! the driver: the order of its start-up, the form of requests, and the use of memory that is not
//! shared.

mod device;
mod host;

pub use crate::virtio::FakeHal;
pub use device::{Answers, Asked, Offer, Reply};
pub use host::{FakeTransport, FakeVirtioMem};
