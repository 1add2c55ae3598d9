//! A fake virtio balloon: the device's side of a driver's tests.
//!
//! [`FakeBalloon`] is the host's end, [`FakeTransport`] what the driver gets, [`FakeHal`] the
//! driver's memory. A device that is well answers when it is notified; it can also be slow, silent,
//! answer a part, lie, refuse features, take its time for a reset, and change afterwards. It checks
//! what the driver does: order of the start-up, use of memory that is not shared, descriptors that
//! make no sense.

mod device;
mod hal;
mod host;
mod offer;
mod ring;
mod transport;

pub use device::{Answers, Lie};
pub use hal::FakeHal;
pub use host::FakeBalloon;
pub use offer::{Numbering, Offer};
pub use transport::FakeTransport;
