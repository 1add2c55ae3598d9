//! The CPUs that firmware lists (MADT).

use super::entries::{Entries, Entry};
use super::error::AcpiError;
use super::table::Table;

const FIRST_ENTRY: usize = 44;
const LOCAL_APIC: u8 = 0;
const LOCAL_X2APIC: u8 = 9;
const ENABLED: u32 = 1 << 0;
const ONLINE_CAPABLE: u32 = 1 << 1;
/// The 8-bit identifier that addresses all CPUs at once. CPUs with identifiers from here on have
/// only x2APIC entries.
const BROADCAST: u32 = 0xff;

/// A CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cpu {
    /// The identifier of its interrupt controller.
    pub apic_id: u32,
    /// Whether it is present and may be started. Other CPUs are not counted.
    pub enabled: bool,
    /// Whether it may be enabled later.
    pub online_capable: bool,
}

/// All CPUs of the table, whether enabled or not. A CPU with an identifier below 255 that has
/// enabled entries of both sorts is returned once. A CPU that a malformed table lists twice in any
/// other way is returned twice, and the caller can report that.
///
/// # Errors
/// The table is too short. For malformed entries, the iterator returns errors.
pub fn cpus<'a>(
    table: Table<'a>,
) -> Result<impl Iterator<Item = Result<Cpu, AcpiError>> + 'a, AcpiError> {
    let entries = Entries::new(table, FIRST_ENTRY)?;
    // Some firmware lists CPUs with identifiers below 255 in both ways; then the 8-bit entries
    // count, as in Linux (`acpi_parse_x2apic` in `arch/x86/kernel/acpi/boot.c`).
    let twice = entries.clone().any(|entry| {
        entry.is_ok_and(|entry| {
            entry.kind == LOCAL_APIC
                && decode(&entry).is_ok_and(|cpu| cpu.is_some_and(|cpu| cpu.enabled))
        })
    });
    Ok(entries.filter_map(move |entry| {
        let cpu = entry.and_then(|entry| Ok((entry.kind, decode(&entry)?)));
        match cpu {
            Ok((_, None)) => None,
            Ok((LOCAL_X2APIC, Some(cpu))) if twice && cpu.apic_id < BROADCAST => None,
            Ok((_, Some(cpu))) => Some(Ok(cpu)),
            Err(error) => Some(Err(error)),
        }
    }))
}

fn decode(entry: &Entry<'_>) -> Result<Option<Cpu>, AcpiError> {
    let (apic_id, flags, none) = match entry.kind {
        LOCAL_APIC => {
            entry.at_least(8)?;
            (u32::from(entry.u8(3)), entry.u32(4), BROADCAST)
        }
        LOCAL_X2APIC => {
            entry.at_least(16)?;
            (entry.u32(4), entry.u32(8), u32::MAX)
        }
        _ => return Ok(None),
    };
    if apic_id == none {
        return Ok(None);
    }
    let enabled = flags & ENABLED != 0;
    Ok(Some(Cpu { apic_id, enabled, online_capable: !enabled && flags & ONLINE_CAPABLE != 0 }))
}
