//! Virtio devices of the virtual machine: found on PCI, with their registers mapped.

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

/// Where every PC has its interrupt controllers and its timer (HPET), and where messages are
/// interrupts.
const PC_REGISTERS: PhysRange = PhysRange::new(0xfec0_0000, 0xfef0_0000);

/// What the guest has drivers for. The number says where registers are mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Device {
    Balloon = 0,
    Memory = 1,
}

/// Why there is a device that cannot be used.
#[derive(Debug)]
pub enum OpenError {
    /// Its registers are at an impossible address.
    Place(RegistersError),
    /// Its registers are where others are.
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
                write!(f, "{registers} lies over registers of others; the device is left alone")
            }
            Self::Transport(error) => error.fmt(f),
        }
    }
}

/// Where the machine has the device, if it has one, and the way to it. To be called once for each
/// device.
pub fn open(
    manager: &Manager<GuestPlatform>,
    map: MemoryMap<'_>,
    device: Device,
) -> Option<(DeviceFunction, Result<PciTransport, OpenError>)> {
    let kind = match device {
        Device::Balloon => DeviceType::MemoryBalloon,
        Device::Memory => DeviceType::Memory,
    };
    // SAFETY: nobody else uses PCI's configuration ports.
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

/// Whether anything is from `first` to `last`: what the map names, memory or not, or registers.
pub fn is_taken(map: MemoryMap<'_>, first: u64, last: u64) -> bool {
    let pages = PhysRange::new(first, last.saturating_add(1));
    let mut ranges = map.ranges().iter();
    ranges.any(|range| !range.range.intersection(pages).is_empty()) || has_registers(pages)
}

/// Whether anything from `first` to `last` is memory, or may be later. Whatever the map names is,
/// managed or not, but for what it reserves: windows for registers are among that.
fn is_memory(map: MemoryMap<'_>, first: u64, last: u64) -> bool {
    let pages = PhysRange::new(first, last.saturating_add(1));
    let ranges = map.ranges().iter().filter(|range| range.kind != MemoryKind::Reserved);
    let later = virtio_mem::region().to_phys();
    let mut ranges = ranges.map(|range| range.range).chain([later]);
    ranges.any(|range| !range.intersection(pages).is_empty())
}

/// Whether registers that this guest knows of are in `pages`: those of devices that are in use, and
/// those that every PC has.
fn has_registers(pages: PhysRange) -> bool {
    let mut ranges = pci::mapped().chain([PC_REGISTERS, smp::registers()]);
    ranges.any(|range| !range.intersection(pages).is_empty())
}
