//! Parts that fake virtio devices share: the driver's memory, the transport, and the device's side
//! of a queue and of its start.

mod hal;
mod line;
mod ring;
mod transport;

pub use hal::FakeHal;
pub use line::{Line, Turn};
pub use ring::{Chain, DeviceRing, Piece, load_u8};
pub use transport::{FakeTransport, Side};
