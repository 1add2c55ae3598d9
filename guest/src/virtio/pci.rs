//! PCI: configuration through I/O ports, which `q35` and `pc` both have, and registers in memory.
//!
//! Orders of memory: Relaxed, because one CPU finds devices and uses them.

use crate::direct_map;
use crate::platform::GuestPlatform;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use framewright::Manager;
use framewright::units::{PAGE_SIZE, PhysRange};
use framewright_arch::paging::MapFault;
use framewright_arch::x86_64::port::Port;
use framewright_virtio::pci::Registers;
use virtio_drivers::transport::pci::bus::{ConfigurationAccess, DeviceFunction};

const ADDRESS_PORT: u16 = 0xcf8;
const DATA_PORT: u16 = 0xcfc;
const ENABLE: u32 = 1 << 31;

/// The two ports that access the first 256 bytes of every function's configuration.
pub struct Ports {
    address: Port,
    data: Port,
}

impl Ports {
    /// The ports that every PC has.
    ///
    /// # Safety
    /// Nobody else uses them meanwhile: the meaning of the data port depends on what was written to
    /// the address port.
    pub const unsafe fn new() -> Self {
        // SAFETY: this is a port of PCI configuration. Only this module writes to it, and it never
        // moves the addresses of memory.
        let address = unsafe { Port::new(ADDRESS_PORT) };
        // SAFETY: as for the address port.
        let data = unsafe { Port::new(DATA_PORT) };
        Self { address, data }
    }

    /// A second handle to these ports. The handles are used by turns on one CPU.
    pub const fn again(&self) -> Self {
        Self { address: self.address, data: self.data }
    }

    fn select(&self, place: DeviceFunction, register: u8) {
        let address = u32::from(place.bus) << 16
            | u32::from(place.device) << 11
            | u32::from(place.function) << 8
            | u32::from(register & !3);
        self.address.write_u32(ENABLE | address);
    }
}

impl ConfigurationAccess for Ports {
    fn read_word(&self, place: DeviceFunction, register: u8) -> u32 {
        self.select(place, register);
        self.data.read_u32()
    }

    fn write_word(&mut self, place: DeviceFunction, register: u8, value: u32) {
        self.select(place, register);
        self.data.write_u32(value);
    }

    unsafe fn unsafe_clone(&self) -> Self {
        self.again()
    }
}

/// Most ranges of registers of one device.
const RANGES: usize = 6;
/// How many devices the guest has drivers for.
const DEVICES: usize = 2;
/// Where registers are mapped. Each range has 1 GiB of addresses.
const REGISTERS: u64 = 0xffff_ff00_0000_0000;
const STEP: u64 = 1 << 30;

/// The first and last physical address of each range that is mapped there; none if the last is 0.
static SEEN: [[AtomicU64; 2]; DEVICES * RANGES] =
    [const { [const { AtomicU64::new(0) }; 2] }; DEVICES * RANGES];

/// Maps a range of the registers of device `device`. The range is not memory.
pub fn map_registers(
    manager: &Manager<GuestPlatform>,
    device: usize,
    registers: Registers,
) -> Result<(), MapFault> {
    let Registers { number, address, bytes } = registers;
    let number = device * RANGES + number;
    let start = address & !(PAGE_SIZE - 1);
    let end = address.saturating_add(bytes).checked_next_multiple_of(PAGE_SIZE).unwrap_or(u64::MAX);
    let range = PhysRange::new(start, end);
    let place = REGISTERS + STEP * number as u64;
    let seen = SEEN.get(number).filter(|_| end - start <= STEP);
    let Some([first, last]) = seen else {
        return Err(MapFault::BadRange { address: place, range });
    };
    direct_map::add_registers(manager, place, range)?;
    first.store(start, Ordering::Relaxed);
    last.store(end - 1, Ordering::Relaxed);
    Ok(())
}

/// All register ranges that are mapped, by physical address.
pub fn mapped() -> impl Iterator<Item = PhysRange> {
    SEEN.iter().map(|[first, last]| {
        let (first, last) = (first.load(Ordering::Relaxed), last.load(Ordering::Relaxed));
        PhysRange::new(first, if last == 0 { first } else { last.saturating_add(1) })
    })
}

/// Returns where `bytes` bytes of registers at a physical address are mapped. If they are not,
/// returns the page before all registers, which is not mapped. The device is asked many times where
/// its registers are, and may give another answer than when they were mapped.
pub fn registers_at(address: u64, bytes: usize) -> NonNull<u8> {
    let end = address.checked_add((bytes as u64).max(1) - 1);
    let seen = SEEN.iter().zip(0..).find_map(|([first, last], number)| {
        let (first, last) = (first.load(Ordering::Relaxed), last.load(Ordering::Relaxed));
        let is_inside = first <= address && end.is_some_and(|end| end <= last);
        is_inside.then(|| REGISTERS + STEP * number + (address - first))
    });
    let place =
        usize::try_from(seen.unwrap_or(REGISTERS - PAGE_SIZE)).expect("addresses have 64 bits");
    NonNull::new(core::ptr::with_exposed_provenance_mut(place)).expect("registers are not at zero")
}
