//! PCI: configuration through I/O ports, which `q35` and `pc` both have, and registers in memory.

use crate::direct_map;
use crate::platform::GuestPlatform;
use framewright::Manager;
use framewright::units::{PAGE_SIZE, PhysRange};
use framewright_x86::cpu::port::Port;
use framewright_x86::page_table::MapFault;
use virtio_drivers::transport::pci::bus::{ConfigurationAccess, DeviceFunction};

const ADDRESS_PORT: u16 = 0xcf8;
const DATA_PORT: u16 = 0xcfc;
const ENABLE: u32 = 1 << 31;

/// The two ports through which the first 256 bytes of every function's configuration are reached.
pub struct Ports {
    address: Port,
    data: Port,
}

impl Ports {
    /// The ports of every PC.
    ///
    /// # Safety
    /// Nobody else uses them meanwhile: what the data port means depends on what was written to the other.
    pub const unsafe fn new() -> Self {
        // SAFETY: configuration of PCI; only this module writes to it, and nothing that moves memory.
        let address = unsafe { Port::new(ADDRESS_PORT) };
        // SAFETY: as above.
        let data = unsafe { Port::new(DATA_PORT) };
        Self { address, data }
    }

    /// The same ports, for use by turns on this CPU.
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

/// Shows a device's registers where the direct map would show memory at their address.
pub fn map_registers(manager: &Manager<GuestPlatform>, address: u64, bytes: u64) -> Result<(), MapFault> {
    let start = address & !(PAGE_SIZE - 1);
    let end = address.saturating_add(bytes).checked_next_multiple_of(PAGE_SIZE).unwrap_or(u64::MAX);
    direct_map::add_registers(manager, PhysRange::new(start, end))
}
