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

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::cell::RefCell;
    use std::collections::BTreeMap;
    use std::rc::Rc;

    const BRIDGE: u32 = 0x0001_0000;

    /// By bus, device, function and number.
    type Registers = BTreeMap<(u8, u8, u8, u8), u32>;

    #[derive(Clone, Default)]
    struct Buses(Rc<RefCell<Registers>>);

    impl Buses {
        fn set(&self, place: (u8, u8, u8), register: u8, value: u32) {
            self.0.borrow_mut().insert((place.0, place.1, place.2, register), value);
        }

        fn device(&self, place: (u8, u8, u8), vendor: u16, device: u16) {
            self.set(place, 0, u32::from(device) << 16 | u32::from(vendor));
        }

        fn bridge(&self, place: (u8, u8, u8), behind: u8) {
            self.device(place, 0x1b36, 0x000c);
            self.set(place, 0x0c, BRIDGE);
            self.set(place, BUS_NUMBERS, u32::from(behind) << 8);
        }
    }

    impl ConfigurationAccess for Buses {
        fn read_word(&self, place: DeviceFunction, register: u8) -> u32 {
            let registers = self.0.borrow();
            let absent = if register == 0 { u32::MAX } else { 0 };
            *registers.get(&(place.bus, place.device, place.function, register)).unwrap_or(&absent)
        }

        fn write_word(&mut self, place: DeviceFunction, register: u8, value: u32) {
            self.set((place.bus, place.device, place.function), register, value);
        }

        unsafe fn unsafe_clone(&self) -> Self {
            self.clone()
        }
    }

    #[test]
    fn balloons_are_found_on_every_bus_that_a_bridge_leads_to() {
        let buses = Buses::default();
        assert_eq!(find(&buses), None);
        // Another virtio device, another vendor's device with that number, a bridge that leads to where it is, and one that leads nowhere.
        buses.device((0, 1, 0), 0x1af4, 0x1044);
        buses.device((0, 2, 0), 0x8086, 0x1045);
        buses.bridge((0, 3, 0), 0);
        buses.bridge((0, 4, 0), 255);
        assert_eq!(find(&buses), None);
        buses.bridge((0, 5, 0), 3);
        buses.bridge((3, 0, 0), 2);
        buses.bridge((2, 31, 0), 3);
        assert_eq!(find(&buses), None);
        for device in [0x1045, 0x1002] {
            buses.device((2, 7, 0), 0x1af4, device);
            assert_eq!(find(&buses), Some(DeviceFunction { bus: 2, device: 7, function: 0 }));
        }
    }

    #[test]
    fn a_device_is_enabled_and_its_status_is_not_touched() {
        let mut buses = Buses::default();
        buses.set((0, 3, 0), COMMAND, 0xffff_0101);
        enable(&mut buses, DeviceFunction { bus: 0, device: 3, function: 0 });
        assert_eq!(buses.read_word(DeviceFunction { bus: 0, device: 3, function: 0 }, COMMAND), 0x0507);
    }
}
