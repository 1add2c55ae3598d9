//! Where a device is on the PCI buses, and where its registers are.

use crate::PAGE_SIZE;
use core::fmt;
use virtio_drivers::transport::DeviceType;
use virtio_drivers::transport::pci::bus::{
    Command, ConfigurationAccess, DeviceFunction, HeaderType, PciError, PciRoot,
};
use virtio_drivers::transport::pci::virtio_device_type;

/// The register of a bridge that holds its bus numbers; the bus behind it is in the second byte.
const BUS_NUMBERS: u8 = 0x18;
/// The register with the status (upper half) and the command.
const COMMAND: u8 = 0x04;
/// In the status: there is a list of capabilities.
const HAS_CAPABILITIES: u32 = 1 << 20;
/// The register that holds where that list begins.
const CAPABILITIES: u8 = 0x34;
/// How many registers of four bytes a configuration space has. A list has no more capabilities.
const CONFIGURATION_WORDS: usize = 64;

/// The first virtio device of this kind on bus 0 or on a bus behind it, as firmware has numbered
/// them.
pub fn find<C: ConfigurationAccess>(access: &C, kind: DeviceType) -> Option<DeviceFunction> {
    // SAFETY: it only reads what does not change.
    let root = PciRoot::new(unsafe { access.unsafe_clone() });
    // One bit per bus: to be searched, and searched.
    let (mut wanted, mut seen) = ([0u64; 4], [0u64; 4]);
    let mut next = Some(0u8);
    while let Some(bus) = next {
        seen[usize::from(bus) / 64] |= 1 << (bus % 64);
        for (place, device) in root.enumerate_bus(bus) {
            if virtio_device_type(&device) == Some(kind) {
                return Some(place);
            }
            if device.header_type == HeaderType::PciPciBridge {
                let behind = access.read_word(place, BUS_NUMBERS).to_le_bytes()[1];
                wanted[usize::from(behind) / 64] |= 1 << (behind % 64);
            }
        }
        next = (0..=u8::MAX).find(|&bus| {
            (wanted[usize::from(bus) / 64] & !seen[usize::from(bus) / 64]) >> (bus % 64) & 1 != 0
        });
    }
    None
}

/// A range of a device's registers in memory, from one base address register (BAR).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Registers {
    /// Number of the base address register.
    pub number: usize,
    /// First physical address.
    pub address: u64,
    /// Bytes, at least one; `address + bytes` does not wrap.
    pub bytes: u64,
}

impl Registers {
    /// First and last address of the whole pages that they lie in.
    fn pages(&self) -> (u64, u64) {
        (self.address & !(PAGE_SIZE - 1), (self.address + (self.bytes - 1)) | (PAGE_SIZE - 1))
    }
}

impl fmt::Display for Registers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = self.address.saturating_add(self.bytes.saturating_sub(1));
        write!(f, "BAR {} at {:#x}..={last:#x}", self.number, self.address)
    }
}

/// Why a device's registers cannot be used. Nothing of the device has changed then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegistersError {
    /// The PCI configuration space is malformed.
    Pci(PciError),
    /// The list of its capabilities leads back into itself.
    EndlessCapabilities,
    /// They reach beyond the last address.
    Wrap {
        /// Number of the base address register.
        number: usize,
        /// First address.
        address: u64,
        /// Bytes.
        bytes: u64,
    },
    /// They lie, in whole or in part, in the same pages as memory: writing to them would write to
    /// it.
    OverMemory(Registers),
    /// Two ranges lie in the same pages.
    Overlap(Registers, Registers),
}

impl fmt::Display for RegistersError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pci(error) => error.fmt(f),
            Self::EndlessCapabilities => {
                f.write_str("its list of capabilities has no end; the device is left alone")
            }
            Self::Wrap { number, address, bytes } => {
                write!(
                    f,
                    "BAR {number}: {bytes:#x} bytes from {address:#x} on \
                     reach beyond the last address"
                )
            }
            Self::OverMemory(registers) => {
                write!(f, "{registers} lies over memory; the device is left alone")
            }
            Self::Overlap(first, second) => {
                write!(f, "{first} and {second} overlap; the device is left alone")
            }
        }
    }
}

impl core::error::Error for RegistersError {}

/// Where the device's registers are, by number of base address register; `None` where there are no
/// registers in memory or firmware has assigned no address.
///
/// Addresses are what firmware or the host wrote, and whoever maps them maps whatever is there. So
/// `is_memory` gets the first and last address of each range of whole pages of 4096 bytes, and says
/// whether any of it is memory. Call this before anything is mapped and before [`enable`].
///
/// # Errors
/// See [`RegistersError`].
pub fn registers<C: ConfigurationAccess>(
    access: &mut C,
    place: DeviceFunction,
    is_memory: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<[Option<Registers>; 6], RegistersError> {
    if !capabilities_end(access, place) {
        return Err(RegistersError::EndlessCapabilities);
    }
    // SAFETY: nobody else has access meanwhile.
    let mut root = PciRoot::new(unsafe { access.unsafe_clone() });
    let mut found = [None; 6];
    for (number, bar) in root.bars(place).map_err(RegistersError::Pci)?.into_iter().enumerate() {
        let memory = bar.and_then(|bar| bar.memory_address_size());
        let Some((address, bytes)) = memory.filter(|&(address, bytes)| address != 0 && bytes != 0)
        else {
            continue;
        };
        if address.checked_add(bytes).is_none() {
            return Err(RegistersError::Wrap { number, address, bytes });
        }
        let registers = Registers { number, address, bytes };
        let (first, last) = registers.pages();
        if is_memory(first, last) {
            return Err(RegistersError::OverMemory(registers));
        }
        for other in found.iter().flatten().copied() {
            let (other_first, other_last) = Registers::pages(&other);
            if first <= other_last && other_first <= last {
                return Err(RegistersError::Overlap(other, registers));
            }
        }
        found[number] = Some(registers);
    }
    Ok(found)
}

/// Whether the list of capabilities has an end. The transport would follow it for ever.
fn capabilities_end<C: ConfigurationAccess>(access: &C, place: DeviceFunction) -> bool {
    if access.read_word(place, COMMAND) & HAS_CAPABILITIES == 0 {
        return true;
    }
    let mut at = access.read_word(place, CAPABILITIES).to_le_bytes()[0] & !3;
    (0..CONFIGURATION_WORDS).any(|_| {
        at = access.read_word(place, at).to_le_bytes()[1];
        // None of the header's registers, and none in between, is a capability.
        at < 64 || !at.is_multiple_of(4)
    })
}

/// Lets the device respond to memory accesses and access memory itself, and keeps it off the
/// interrupt line, because the driver polls.
pub fn enable<C: ConfigurationAccess>(access: &mut C, place: DeviceFunction) {
    let command = Command::from_bits_retain(
        u16::try_from(access.read_word(place, COMMAND) & 0xffff).unwrap_or(0),
    );
    let command =
        command | Command::MEMORY_SPACE | Command::BUS_MASTER | Command::INTERRUPT_DISABLE;
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
    type Words = BTreeMap<(u8, u8, u8, u8), u32>;

    #[derive(Clone, Default)]
    struct Buses {
        words: Rc<RefCell<Words>>,
        /// Bits of words that can be written; all, where nothing is said.
        masks: Rc<RefCell<Words>>,
    }

    impl Buses {
        fn set(&self, place: (u8, u8, u8), register: u8, value: u32) {
            self.words.borrow_mut().insert((place.0, place.1, place.2, register), value);
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
            let words = self.words.borrow();
            let absent = if register == 0 { u32::MAX } else { 0 };
            *words.get(&(place.bus, place.device, place.function, register)).unwrap_or(&absent)
        }

        fn write_word(&mut self, place: DeviceFunction, register: u8, value: u32) {
            let name = (place.bus, place.device, place.function, register);
            let mask = self.masks.borrow().get(&name).copied().unwrap_or(u32::MAX);
            let kept = self.read_word(place, register) & !mask;
            self.words.borrow_mut().insert(name, kept | value & mask);
        }

        unsafe fn unsafe_clone(&self) -> Self {
            self.clone()
        }
    }

    #[test]
    fn devices_are_found_on_every_bus_that_a_bridge_leads_to() {
        let buses = Buses::default();
        assert_eq!(find(&buses, DeviceType::MemoryBalloon), None);
        // Another virtio device, another vendor's device with that number, a bridge that leads to
        // where it is, and one that leads nowhere.
        buses.device((0, 1, 0), 0x1af4, 0x1044);
        buses.device((0, 2, 0), 0x8086, 0x1045);
        buses.bridge((0, 3, 0), 0);
        buses.bridge((0, 4, 0), 255);
        assert_eq!(find(&buses, DeviceType::MemoryBalloon), None);
        buses.bridge((0, 5, 0), 3);
        buses.bridge((3, 0, 0), 2);
        buses.bridge((2, 31, 0), 3);
        assert_eq!(find(&buses, DeviceType::MemoryBalloon), None);
        for device in [0x1045, 0x1002] {
            buses.device((2, 7, 0), 0x1af4, device);
            assert_eq!(
                find(&buses, DeviceType::MemoryBalloon),
                Some(DeviceFunction { bus: 2, device: 7, function: 0 })
            );
        }
    }

    const DEVICE: (u8, u8, u8) = (0, 3, 0);
    const PLACE: DeviceFunction = DeviceFunction { bus: 0, device: 3, function: 0 };

    impl Buses {
        /// A device with 64-bit registers in memory: number, address, bytes (a power of two).
        fn with_bars(bars: &[(u8, u64, u64)]) -> Self {
            let buses = Self::default();
            buses.device(DEVICE, 0x1af4, 0x1045);
            for number in 0..6 {
                // Without registers there is nothing to write.
                buses.masks.borrow_mut().insert((0, 3, 0, 0x10 + 4 * number), 0);
            }
            for &(number, address, bytes) in bars {
                let halves = |value: u64| [(value & 0xffff_fff0) as u32, (value >> 32) as u32];
                for (half, (value, mask)) in
                    (0..).zip(halves(address).into_iter().zip(halves(!(bytes - 1))))
                {
                    let register = 0x10 + 4 * (number + half);
                    buses.set(DEVICE, register, if half == 0 { value | 0b1100 } else { value });
                    buses.masks.borrow_mut().insert((0, 3, 0, register), mask);
                }
            }
            buses
        }
    }

    #[test]
    fn registers_over_memory_are_refused_and_the_device_is_left_alone() {
        // Memory below 2 GiB and from 4 GiB to 6 GiB.
        let mut is_memory =
            |first: u64, last: u64| first < 2 << 30 || first < 6 << 30 && last >= 4 << 30;
        let at = |number, address, bytes| Registers { number, address, bytes };
        for (bars, expected) in [
            (
                &[(4, 0xfe00_0000, 0x4000)][..],
                Ok([None, None, None, None, Some(at(4, 0xfe00_0000, 0x4000)), None]),
            ),
            (
                &[(0, 6 << 30, 1 << 20), (4, 0xfe00_0000, 0x4000)],
                Ok([
                    Some(at(0, 6 << 30, 1 << 20)),
                    None,
                    None,
                    None,
                    Some(at(4, 0xfe00_0000, 0x4000)),
                    None,
                ]),
            ),
            // Not placed by firmware.
            (&[(4, 0, 0x4000)], Ok([None; 6])),
            (&[(4, 0x20_0000, 0x4000)], Err(RegistersError::OverMemory(at(4, 0x20_0000, 0x4000)))),
            (&[(4, 4 << 30, 0x4000)], Err(RegistersError::OverMemory(at(4, 4 << 30, 0x4000)))),
            // It begins in memory and ends behind it; smaller than a page, and beside memory in it.
            (
                &[(0, 0, 16), (2, 4 << 30, 4 << 30)],
                Err(RegistersError::OverMemory(at(2, 4 << 30, 4 << 30))),
            ),
            (
                &[(2, (6 << 30) - 64, 16)],
                Err(RegistersError::OverMemory(at(2, (6 << 30) - 64, 16))),
            ),
            (
                &[(0, 0xfe00_0000, 0x4000), (4, 0xfe00_2000, 0x1000)],
                Err(RegistersError::Overlap(
                    at(0, 0xfe00_0000, 0x4000),
                    at(4, 0xfe00_2000, 0x1000),
                )),
            ),
            (
                &[(0, 0xffff_ffff_ffff_f000, 0x1000)],
                Err(RegistersError::Wrap {
                    number: 0,
                    address: 0xffff_ffff_ffff_f000,
                    bytes: 0x1000,
                }),
            ),
        ] {
            let mut buses = Buses::with_bars(bars);
            let before = buses.words.borrow().clone();
            let found = registers(&mut buses, PLACE, &mut is_memory);
            assert_eq!(found, expected, "{bars:x?}");
            let mut after = buses.words.borrow().clone();
            after.retain(|name, _| before.contains_key(name));
            assert_eq!(after, before, "{bars:x?}: the device has changed");
        }
        let text = RegistersError::OverMemory(at(4, 0x20_0000, 0x4000));
        assert_eq!(
            std::format!("{text}"),
            "BAR 4 at 0x200000..=0x203fff lies over memory; the device is left alone"
        );
    }

    #[test]
    fn a_list_of_capabilities_that_leads_back_into_itself_is_refused() {
        let places = |list: &[u8]| -> Buses {
            let buses = Buses::with_bars(&[(4, 0xfe00_0000, 0x4000)]);
            buses.set(DEVICE, COMMAND, HAS_CAPABILITIES);
            buses.set(DEVICE, CAPABILITIES, list[0].into());
            for pair in list.windows(2) {
                buses.set(DEVICE, pair[0], u32::from(pair[1]) << 8 | 9);
            }
            buses
        };
        let longest: std::vec::Vec<u8> = (64..=252).step_by(4).chain([0]).collect();
        for list in [&[64, 0][..], &[64, 84, 98], &[252, 64, 3], &longest] {
            assert!(registers(&mut places(list), PLACE, &mut |_, _| false).is_ok(), "{list:?}");
        }
        for list in [
            &[64, 64][..],
            &[64, 84, 128, 84],
            &longest[..longest.len() - 1].iter().copied().chain([64]).collect::<std::vec::Vec<_>>(),
        ] {
            let found = registers(&mut places(list), PLACE, &mut |_, _| false);
            assert_eq!(found, Err(RegistersError::EndlessCapabilities), "{list:?}");
        }
    }

    #[test]
    fn a_device_is_enabled_and_its_status_is_not_touched() {
        let mut buses = Buses::default();
        buses.set((0, 3, 0), COMMAND, 0xffff_0101);
        enable(&mut buses, DeviceFunction { bus: 0, device: 3, function: 0 });
        assert_eq!(
            buses.read_word(DeviceFunction { bus: 0, device: 3, function: 0 }, COMMAND),
            0x0507
        );
    }
}
