//! Virtio devices of the virtual machine. They are found on PCI, and their registers are mapped.

mod memory;
mod pci;

use crate::platform::GuestPlatform;
use crate::{smp, virtio_mem};
use core::fmt;
use framewright::Manager;
use framewright::firmware::{MemoryKind, MemoryMap};
use framewright::units::PhysRange;
use framewright_arch::paging::MapFault;
use framewright_virtio::pci::{Registers, RegistersError, enable, find, registers};
use virtio_drivers::transport::DeviceType;
use virtio_drivers::transport::pci::bus::{DeviceFunction, PciRoot};
use virtio_drivers::transport::pci::{PciTransport, VirtioPciError};

pub use memory::{GuestHal, lend};

/// Where every PC has its interrupt controllers and its timer (HPET), and where writes are
/// message-signalled interrupts.
const PC_REGISTERS: PhysRange = PhysRange::new(0xfec0_0000, 0xfef0_0000);

/// Devices that the guest has drivers for. The number decides where their registers are mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Device {
    Balloon = 0,
    Memory = 1,
}

/// Why a device that exists cannot be used.
#[derive(Debug)]
pub enum OpenError {
    /// Its registers are at an impossible address.
    Place(RegistersError),
    /// Its registers overlap those of other devices.
    Taken(Registers),
    /// Its registers cannot be mapped.
    Registers(MapFault),
    /// Its registers are not where virtio devices have them.
    Transport(VirtioPciError),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Registers(error) => write!(f, "its registers: {error}"),
            Self::Place(error) => error.fmt(f),
            Self::Taken(registers) => {
                write!(f, "{registers} overlaps other registers; the device is left alone")
            }
            Self::Transport(error) => error.fmt(f),
        }
    }
}

/// Finds the device. Returns where it is on PCI, and its transport, or `None` if the machine has no
/// such device. To be called once for each device.
pub fn open(
    manager: &Manager<GuestPlatform>,
    map: MemoryMap<'_>,
    device: Device,
) -> Option<(DeviceFunction, Result<PciTransport, OpenError>)> {
    let kind = match device {
        Device::Balloon => DeviceType::MemoryBalloon,
        Device::Memory => DeviceType::Memory,
    };
    // SAFETY: nobody else uses the ports of PCI configuration.
    let mut ports = unsafe { pci::Ports::new() };
    let place = find(&ports, kind)?;
    Some((place, transport(manager, map, &mut ports, device, place)))
}

fn transport(
    manager: &Manager<GuestPlatform>,
    map: MemoryMap<'_>,
    ports: &mut pci::Ports,
    device: Device,
    place: DeviceFunction,
) -> Result<PciTransport, OpenError> {
    let found = registers(ports, place, &mut |first, last| is_memory(map, first, last))
        .map_err(OpenError::Place)?;
    let pages =
        |found: &Registers| PhysRange::with_size(found.address, found.bytes).touched_frames();
    let taken = found.iter().flatten().find(|found| has_registers(pages(found).to_phys()));
    if let Some(&taken) = taken {
        return Err(OpenError::Taken(taken));
    }
    for registers in found.into_iter().flatten() {
        pci::map_registers(manager, device as usize, registers).map_err(OpenError::Registers)?;
    }
    enable(ports, place);
    let mut root = PciRoot::new(ports.again());
    PciTransport::new::<GuestHal, _>(&mut root, place).map_err(OpenError::Transport)
}

/// Whether anything is between `first` and `last`: memory or not, if the map names it, or
/// registers.
pub fn is_taken(map: MemoryMap<'_>, first: u64, last: u64) -> bool {
    let pages = PhysRange::new(first, last.saturating_add(1));
    let mut ranges = map.ranges().iter();
    ranges.any(|range| !range.range.intersection(pages).is_empty()) || has_registers(pages)
}

/// Whether anything between `first` and `last` is memory, or may be later. Everything that the map
/// names counts, managed or not, except reserved ranges, which include windows for registers.
fn is_memory(map: MemoryMap<'_>, first: u64, last: u64) -> bool {
    let pages = PhysRange::new(first, last.saturating_add(1));
    let ranges = map.ranges().iter().filter(|range| range.kind != MemoryKind::Reserved);
    let later = virtio_mem::region().to_phys();
    let mut ranges = ranges.map(|range| range.range).chain([later]);
    ranges.any(|range| !range.intersection(pages).is_empty())
}

/// Whether `pages` contain registers that this guest knows of: those of devices in use, and those
/// that every PC has.
fn has_registers(pages: PhysRange) -> bool {
    let mut ranges = pci::mapped().chain([PC_REGISTERS, smp::registers()]);
    ranges.any(|range| !range.intersection(pages).is_empty())
}
