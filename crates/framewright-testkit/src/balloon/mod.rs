//! A fake virtio balloon: the device's side of a driver's tests.
//!
//! [`FakeBalloon`] is the host's end, [`FakeTransport`] what the driver gets, [`FakeHal`] the
//! driver's memory. A device usually answers when it is notified. It can also be slow or silent,
//! answer in part, lie, refuse features, take long for a reset, and change afterwards. It checks
//! the driver: the order of the start-up, use of memory that is not shared, descriptors that make
//! no sense.

mod device;
mod host;

pub use crate::virtio::FakeHal;
pub use device::{Answers, Lie, Numbering, Offer};
pub use host::{FakeBalloon, FakeTransport};
