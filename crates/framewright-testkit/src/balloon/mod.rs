//! A fake virtio balloon: the device's side of a driver's tests.
//!
//! [`FakeBalloon`] is the host's end, [`FakeTransport`] is what the driver gets, [`FakeHal`] is the
//! driver's memory. The device usually answers when it is notified. It can also be slow or silent,
//! answer in part, lie, refuse features, take long for a reset, and change its offer afterwards. It
//! checks the driver: the order of its start-up, the use of memory that is not shared, and
//! descriptors that make no sense.

mod device;
mod host;

pub use crate::virtio::FakeHal;
pub use device::{Answers, Lie, Numbering, Offer};
pub use host::{FakeBalloon, FakeTransport};
