//! Where the balloon is on the PCI buses, and where its registers are.

pub use framewright_virtio::pci::{Registers, RegistersError, enable, registers};

use virtio_drivers::transport::DeviceType;
use virtio_drivers::transport::pci::bus::{ConfigurationAccess, DeviceFunction};

/// The first balloon on bus 0 or on a bus behind it, as firmware has numbered them.
pub fn find<C: ConfigurationAccess>(access: &C) -> Option<DeviceFunction> {
    framewright_virtio::pci::find(access, DeviceType::MemoryBalloon)
}
