//! Where a device is on the PCI buses, and where its registers are.

use crate::PAGE_SIZE;
use core::fmt;
use virtio_drivers::transport::DeviceType;
use virtio_drivers::transport::pci::bus::{
    Command, ConfigurationAccess, DeviceFunction, HeaderType, PciError, PciRoot,
};
use virtio_drivers::transport::pci::virtio_device_type;

/// The register of a bridge that holds its bus numbers; the second byte is the bus behind the
/// bridge.
const BUS_NUMBERS: u8 = 0x18;
/// The register that holds the status (upper half) and the command.
const COMMAND: u8 = 0x04;
/// Status bit: there is a list of capabilities.
const HAS_CAPABILITIES: u32 = 1 << 20;
/// The register that holds the start of that list.
const CAPABILITIES: u8 = 0x34;
/// How many four-byte registers a configuration space has. No list has more capabilities than that.
const CONFIGURATION_WORDS: usize = 64;
const CONFIGURATION_BYTES: u16 = 256;

// The parts of virtio's capabilities (virtio 1.2, 4.1.4) that the transport uses.
const VENDOR_CAPABILITY: u8 = 9;
/// A shorter capability does not say where registers are.
const PLACE_BYTES: u8 = 16;
const NOTIFY: u8 = 2;
/// The notification capability has a multiplier after the location.
const NOTIFY_BYTES: u8 = 20;
const LAST_KIND: u8 = 4;
// Offsets of a capability's fields.
const BAR_NUMBER: u8 = 4;
const OFFSET: u8 = 8;
const LENGTH: u8 = 12;

/// Finds the first virtio device of this kind on bus 0 or on a bus behind it, in the numbering of
/// the firmware.
pub fn find<C: ConfigurationAccess>(access: &C, kind: DeviceType) -> Option<DeviceFunction> {
    // SAFETY: this copy only reads registers that do not change.
    let root = PciRoot::new(unsafe { access.unsafe_clone() });
    // One bit per bus: buses to be searched, and buses already searched.
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
    /// The number of the base address register.
    pub number: usize,
    /// The first physical address.
    pub address: u64,
    /// The size in bytes, at least one; `address + bytes` does not wrap.
    pub bytes: u64,
}

impl Registers {
    /// The first and the last address of the whole pages that contain the registers.
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

/// Why a device's registers cannot be used. Nothing in the device has changed then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegistersError {
    /// The PCI configuration space is malformed.
    Pci(PciError),
    /// The device's list of capabilities is circular.
    EndlessCapabilities,
    /// A capability extends beyond the configuration space.
    CapabilityCut {
        /// The offset at which it begins.
        at: u8,
        /// Its length in bytes, as it says.
        bytes: u8,
    },
    /// A capability names a range that does not lie within the device's registers in memory.
    CapabilityOutside {
        /// The offset at which the capability begins.
        at: u8,
        /// The number of the base address register, as the capability says.
        number: u8,
        /// The offset of the named range, counted from the first register.
        offset: u32,
        /// The size of the range in bytes.
        length: u32,
    },
    /// The registers extend beyond the last address.
    Wrap {
        /// The number of the base address register.
        number: usize,
        /// The first address.
        address: u64,
        /// The size in bytes.
        bytes: u64,
    },
    /// The registers lie, in whole or in part, in the same pages as memory: writing to them would
    /// write to the memory.
    OverMemory(Registers),
    /// Two ranges of registers lie in the same pages.
    Overlap(Registers, Registers),
}

impl fmt::Display for RegistersError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pci(error) => error.fmt(f),
            Self::EndlessCapabilities => {
                f.write_str("its list of capabilities is circular; the device is left alone")
            }
            Self::CapabilityCut { at, bytes } => write!(
                f,
                "its capability at {at:#x} of {bytes} bytes reaches beyond the configuration \
                 space; the device is left alone"
            ),
            Self::CapabilityOutside { at, number, offset, length } => write!(
                f,
                "its capability at {at:#x} names {length:#x} bytes at {offset:#x} of BAR {number}, \
                 which has no such registers; the device is left alone"
            ),
            Self::Wrap { number, address, bytes } => {
                write!(
                    f,
                    "BAR {number}: {bytes:#x} bytes at {address:#x} reach beyond the last address"
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

/// Returns where the device's registers are, by number of base address register; `None` if a number
/// has no registers in memory, or firmware has assigned no address to them. The contents of the
/// capabilities are checked too, because the transport trusts them.
///
/// The addresses are whatever firmware or the host wrote, and mapping them maps whatever is there.
/// Therefore `is_memory` is called with the first and the last address of each range of whole
/// 4096-byte pages, and says whether any of it is memory. Call this before anything is mapped and
/// before [`enable`].
///
/// # Errors
/// See [`RegistersError`].
pub fn registers<C: ConfigurationAccess>(
    access: &mut C,
    place: DeviceFunction,
    is_memory: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<[Option<Registers>; 6], RegistersError> {
    // This must come first: the transport would follow a circular list for ever.
    for_each_capability(access, place, &mut |_, _| Ok(()))?;
    // SAFETY: nothing else accesses the configuration space at the same time.
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
    check_capabilities(access, place, &found)?;
    Ok(found)
}

/// Calls `visit` with each capability: the offset at which it begins, and its first four bytes.
///
/// # Errors
/// The list is circular, or `visit` returned an error.
fn for_each_capability<C: ConfigurationAccess>(
    access: &C,
    place: DeviceFunction,
    visit: &mut dyn FnMut(u8, [u8; 4]) -> Result<(), RegistersError>,
) -> Result<(), RegistersError> {
    if access.read_word(place, COMMAND) & HAS_CAPABILITIES == 0 {
        return Ok(());
    }
    let mut at = access.read_word(place, CAPABILITIES).to_le_bytes()[0] & !3;
    for _ in 0..CONFIGURATION_WORDS {
        let header = access.read_word(place, at).to_le_bytes();
        visit(at, header)?;
        at = header[1];
        // A capability cannot be in the header's registers, or between registers.
        if at < 64 || !at.is_multiple_of(4) {
            return Ok(());
        }
    }
    Err(RegistersError::EndlessCapabilities)
}

/// Checks the capabilities that the transport uses, the first of each kind. The transport adds
/// their fields without checking the sum, and accepts any number of a base address register.
fn check_capabilities<C: ConfigurationAccess>(
    access: &C,
    place: DeviceFunction,
    found: &[Option<Registers>; 6],
) -> Result<(), RegistersError> {
    let mut seen = [false; LAST_KIND as usize + 1];
    for_each_capability(access, place, &mut |at, [id, _, bytes, kind]| {
        if id != VENDOR_CAPABILITY || bytes < PLACE_BYTES {
            return Ok(());
        }
        // Checked for every kind, because the transport reads the location of all of them.
        if u16::from(at) + u16::from(bytes) > CONFIGURATION_BYTES {
            return Err(RegistersError::CapabilityCut { at, bytes });
        }
        let is_used = kind != 0 && (kind != NOTIFY || bytes >= NOTIFY_BYTES);
        let Some(seen) = seen.get_mut(usize::from(kind)).filter(|_| is_used) else {
            return Ok(());
        };
        if core::mem::replace(seen, true) {
            return Ok(());
        }
        let number = access.read_word(place, at + BAR_NUMBER).to_le_bytes()[0];
        let offset = access.read_word(place, at + OFFSET);
        let length = access.read_word(place, at + LENGTH);
        let end = u64::from(offset) + u64::from(length);
        // The transport adds offset and length in 32 bits.
        let fits = |registers: Registers| end <= registers.bytes && end <= u32::MAX.into();
        if found.get(usize::from(number)).copied().flatten().is_some_and(fits) {
            Ok(())
        } else {
            Err(RegistersError::CapabilityOutside { at, number, offset, length })
        }
    })
}

/// Lets the device respond to memory accesses and access memory itself, and disables its interrupt
/// line, because the driver polls.
pub fn enable<C: ConfigurationAccess>(access: &mut C, place: DeviceFunction) {
    let command = Command::from_bits_retain(
        u16::try_from(access.read_word(place, COMMAND) & 0xffff).unwrap_or(0),
    );
    let command =
        command | Command::MEMORY_SPACE | Command::BUS_MASTER | Command::INTERRUPT_DISABLE;
    // The upper half is written as zeros: ones would clear status bits.
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

    /// By bus, device, function and register.
    type Words = BTreeMap<(u8, u8, u8, u8), u32>;

    #[derive(Clone, Default)]
    struct Buses {
        words: Rc<RefCell<Words>>,
        /// The writable bits of each word; all bits, if there is no entry.
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
        // Another virtio device, another vendor's device with the same device number, a bridge that
        // leads to the bus of the device, and a bridge that leads nowhere.
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
        /// A device with 64-bit registers in memory, given as number, address and size in bytes (a
        /// power of two).
        fn with_bars(bars: &[(u8, u64, u64)]) -> Self {
            let buses = Self::default();
            buses.device(DEVICE, 0x1af4, 0x1045);
            for number in 0..6 {
                // Without registers no bit is writable.
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
            // Firmware has assigned no address.
            (&[(4, 0, 0x4000)], Ok([None; 6])),
            (&[(4, 0x20_0000, 0x4000)], Err(RegistersError::OverMemory(at(4, 0x20_0000, 0x4000)))),
            (&[(4, 4 << 30, 0x4000)], Err(RegistersError::OverMemory(at(4, 4 << 30, 0x4000)))),
            // One range begins in memory and ends after it; another is smaller than a page and
            // shares its page with memory.
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

    /// Finds the registers of a device with two ranges and a list of capabilities, each given as
    /// its offset, its kind and length, the number of its base address register, and the offset and
    /// length of its range.
    fn with_capabilities(
        capabilities: &[(u8, [u8; 2], u8, u32, u32)],
    ) -> Result<(), RegistersError> {
        let mut buses = Buses::with_bars(&[(2, 0xfd00_0000, 0x1000), (4, 0xfe00_0000, 8 << 30)]);
        buses.set(DEVICE, COMMAND, HAS_CAPABILITIES);
        buses.set(DEVICE, CAPABILITIES, capabilities.first().map_or(0, |first| first.0.into()));
        for (index, &(at, [kind, bytes], number, offset, length)) in capabilities.iter().enumerate()
        {
            let next = capabilities.get(index + 1).map_or(0, |next| next.0);
            buses.set(DEVICE, at, u32::from_le_bytes([VENDOR_CAPABILITY, next, bytes, kind]));
            for (register, value) in [(4, number.into()), (8, offset), (12, length)] {
                if let Some(register) = at.checked_add(register) {
                    buses.set(DEVICE, register, value);
                }
            }
        }
        registers(&mut buses, PLACE, &mut |_, _| false).map(|_| ())
    }

    #[test]
    fn capabilities_that_name_what_is_no_register_are_refused() {
        let cut = |at, bytes| Err(RegistersError::CapabilityCut { at, bytes });
        for (capability, expected) in [
            ((64, [1, 16], 2, 0, 0x1000), Ok(())),
            ((64, [1, 16], 4, 0xffff_e000, 0x1fff), Ok(())),
            // The configuration space ends after the capability, or within it.
            ((240, [1, 16], 2, 0, 64), Ok(())),
            ((236, [2, 20], 2, 0, 64), Ok(())),
            ((240, [2, 20], 2, 0, 64), cut(240, 20)),
            ((244, [1, 16], 2, 0, 64), cut(244, 16)),
            ((252, [9, 16], 2, 0, 64), cut(252, 16)),
            // The transport does not use these: they are too short, or of another kind.
            ((252, [1, 15], 255, 0, 64), Ok(())),
            ((64, [2, 16], 255, 0, 64), Ok(())),
            ((64, [0, 16], 255, 0, 64), Ok(())),
            ((64, [5, 20], 255, 0, 0), Ok(())),
        ] {
            assert_eq!(with_capabilities(&[capability]), expected, "{capability:x?}");
        }
        for kind in 1..=4 {
            for (number, offset, length) in [
                // A sum that wraps in 32 bits, one that does not, and a range that ends too late.
                (4, 0xffff_f000, 0x1038),
                (4, 0xffff_f000, 0x1000),
                (2, 0, 0x1001),
                (2, 0x1001, 0),
                (2, u32::MAX, u32::MAX),
                // No registers, the upper half of other registers, and no base address register at
                // all.
                (0, 0, 64),
                (3, 0, 64),
                (6, 0, 64),
                (60, 0, 64),
                (255, 0, 64),
            ] {
                let at = 96;
                let found = with_capabilities(&[
                    (64, [5, 20], 0, 0, 0),
                    (at, [kind, 20], number, offset, length),
                ]);
                let outside = RegistersError::CapabilityOutside { at, number, offset, length };
                assert_eq!(found, Err(outside), "kind {kind}");
            }
            // The transport uses the first capability of a kind.
            let first = (64, [kind, 20], 2, 0, 64);
            assert_eq!(with_capabilities(&[first, (96, [kind, 20], 255, 0, 64)]), Ok(()));
        }
        let outside =
            RegistersError::CapabilityOutside { at: 96, number: 6, offset: 16, length: 64 };
        assert_eq!(
            std::format!("{outside}"),
            "its capability at 0x60 names 0x40 bytes at 0x10 of BAR 6, which has no such \
             registers; the device is left alone"
        );
        assert_eq!(
            std::format!("{}", RegistersError::CapabilityCut { at: 252, bytes: 16 }),
            "its capability at 0xfc of 16 bytes reaches beyond the configuration space; the \
             device is left alone"
        );
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
