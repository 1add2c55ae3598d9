//! Where the balloon is on the PCI buses.

use virtio_drivers::transport::DeviceType;
use virtio_drivers::transport::pci::bus::{Command, ConfigurationAccess, DeviceFunction, HeaderType, PciRoot};
use virtio_drivers::transport::pci::virtio_device_type;

/// The register of a bridge that holds its bus numbers; the bus behind it is in the second byte.
const BUS_NUMBERS: u8 = 0x18;
/// The register with the status (upper half) and the command.
const COMMAND: u8 = 0x04;

/// The first balloon on bus 0 or on a bus behind it, as firmware has numbered them.
pub fn find<C: ConfigurationAccess>(access: &C) -> Option<DeviceFunction> {
    // SAFETY: it only reads what does not change.
    let root = PciRoot::new(unsafe { access.unsafe_clone() });
    // One bit a bus: to be looked at, and looked at.
    let (mut wanted, mut seen) = ([0u64; 4], [0u64; 4]);
    let mut next = Some(0u8);
    while let Some(bus) = next {
        seen[usize::from(bus) / 64] |= 1 << (bus % 64);
        for (place, device) in root.enumerate_bus(bus) {
            if virtio_device_type(&device) == Some(DeviceType::MemoryBalloon) {
                return Some(place);
            }
            if device.header_type == HeaderType::PciPciBridge {
                let behind = access.read_word(place, BUS_NUMBERS).to_le_bytes()[1];
                wanted[usize::from(behind) / 64] |= 1 << (behind % 64);
            }
        }
        next = (0..=u8::MAX)
            .find(|&bus| (wanted[usize::from(bus) / 64] & !seen[usize::from(bus) / 64]) >> (bus % 64) & 1 != 0);
    }
    None
}

/// Lets the device answer to memory accesses and access memory itself, and keeps it from the interrupt line: the driver looks by itself.
pub fn enable<C: ConfigurationAccess>(access: &mut C, place: DeviceFunction) {
    let command = Command::from_bits_retain(u16::try_from(access.read_word(place, COMMAND) & 0xffff).unwrap_or(0));
    let command = command | Command::MEMORY_SPACE | Command::BUS_MASTER | Command::INTERRUPT_DISABLE;
    // Ones would clear the status bits in the upper half.
    access.write_word(place, COMMAND, command.bits().into());
}
