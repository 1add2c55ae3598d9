//! What virtio drivers without a heap share: queues that do not trust the device, and the start of
//! a device.
//!
//! It uses the transports and [`Hal`](virtio_drivers::Hal) of the crate `virtio-drivers`. Only
//! [`reset`] and [`release`] wait, for a bounded time. Whatever a device writes is either the
//! answer to a request or an error, with two exceptions: `virtio-drivers` itself reads a queue's
//! notify address at each notification, and panics if the device has put it outside its registers;
//! and its PCI transport, when it is made, asks the device once more where its registers are, so
//! whoever maps them must be ready for another answer than [`pci::registers`] had.
//! * [`Ring`] is a split virtqueue, and [`DmaPage`] is a page that the device can access too.
//! * [`Private`] is a value in a page that no device can access; [`PrivateMemory`] provides such
//!   pages.
//! * [`reset`] and [`agree`] take a device from any state to accepted features; [`release`] ends
//!   its use.
//! * [`pci`] finds devices, and says where their registers are, after checking that no memory is
//!   there.
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

/// The size of a page as devices count it, whatever the kernel's page size is.
pub const PAGE_SIZE: u64 = 4096;
