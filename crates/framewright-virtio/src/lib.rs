//! What virtio drivers without a heap share: queues that trust no device, and how one is started.
//!
//! It uses the transports and [`Hal`](virtio_drivers::Hal) of the crate `virtio-drivers`. Nothing
//! waits but [`reset`] and [`release`], for a bounded time, and whatever a device writes is an
//! answer to a request or an error. One value `virtio-drivers` reads itself, at each notification:
//! a device that puts a queue's notify address outside its registers makes that panic.
//! * [`Ring`] is a split virtqueue, [`DmaPage`] a page that the device sees too.
//! * [`Private`] is a value in a page that no device reaches, which [`PrivateMemory`] lends.
//! * [`reset`] and [`agree`] take a device from whatever it was doing to accepted features;
//!   [`release`] ends its use.
//! * [`pci`] finds devices, and says where registers are and that no memory is there.
#![no_std]

mod dma;
mod handshake;
pub mod pci;
mod private;
mod ring;

pub use dma::DmaPage;
pub use handshake::{HandshakeError, VERSION_1, agree, release, reset, run};
pub use private::{PRIVATE_PAGE_BYTES, Private, PrivateMemory};
pub use ring::{Buffer, MOST_DESCRIPTORS, Ring, RingFault, Used};

/// Bytes of a page as devices count them, whatever the kernel's pages are.
pub const PAGE_SIZE: u64 = 4096;
