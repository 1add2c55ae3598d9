//! Where the balloon is on the PCI buses, and where its registers are.

pub use framewright_virtio::pci::{Registers, RegistersError, enable, registers};

use virtio_drivers::transport::DeviceType;
use virtio_drivers::transport::pci::bus::{ConfigurationAccess, DeviceFunction};

/// Finds the first balloon on bus 0 or on a bus behind it, in the numbering of the firmware.
pub fn find<C: ConfigurationAccess>(access: &C) -> Option<DeviceFunction> {
    framewright_virtio::pci::find(access, DeviceType::MemoryBalloon)
}
