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
/// The registers that say where a device's registers are, and whether it answers there.
const MAPPING: [u8; 7] = [0x10, 0x14, 0x18, 0x1c, 0x20, 0x24, COMMAND];
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
    let before = MAPPING.map(|register| access.read_word(place, register));
    // SAFETY: nothing else accesses the configuration space at the same time.
    let mut root = PciRoot::new(unsafe { access.unsafe_clone() });
    let bars = root.bars(place).map_err(|error| {
        // It may have stopped at a register that it had overwritten to learn its size. The status,
        // the upper half of the last register, is written as zeros: ones would clear its bits.
        for (register, word) in MAPPING.into_iter().zip(before) {
            access.write_word(
                place,
                register,
                if register == COMMAND { word & 0xffff } else { word },
            );
        }
        RegistersError::Pci(error)
    })?;
    let mut found = [None; 6];
    for (number, bar) in bars.into_iter().enumerate() {
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
mod tests;
