//! Clocks of known rate that ACPI describes: the HPET and the power-management timer.

use super::error::{AcpiError, Signature};
use super::table::Table;
use super::tables::Tables;
use crate::bytes::{u8_at, u16_at, u32_at, u64_at};

/// The power-management timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PowerTimer {
    /// Its port.
    pub port: u16,
}

/// The physical address of the HPET's registers. `None` if the machine has no HPET in memory, or if
/// the address is not a multiple of 8 bytes, the size of a register.
///
/// # Errors
/// The table is malformed.
pub fn hpet_address(tables: &Tables<'_>) -> Result<Option<u64>, AcpiError> {
    let Some(table) = tables.find(Signature::HPET)? else { return Ok(None) };
    table.at_least(56)?;
    Ok(memory_register(&table, 40).filter(|&address| address != 0 && address.is_multiple_of(8)))
}

/// The power-management timer, if the machine has one at a port.
///
/// # Errors
/// The table is malformed.
pub fn power_timer(tables: &Tables<'_>) -> Result<Option<PowerTimer>, AcpiError> {
    let Some(table) = tables.find(Signature::FADT)? else { return Ok(None) };
    table.at_least(92)?;
    let port = u16_at(table.bytes, 76)
        .filter(|_| u32_at(table.bytes, 76).is_some_and(|port| port <= 0xffff));
    let length = u8_at(table.bytes, 91);
    Ok(port.filter(|&port| port != 0 && length == Some(4)).map(|port| PowerTimer { port }))
}

/// The address in the generic address structure at `offset`, if it is in memory space.
fn memory_register(table: &Table<'_>, offset: usize) -> Option<u64> {
    u64_at(table.bytes, offset + 4).filter(|_| u8_at(table.bytes, offset) == Some(0))
}
