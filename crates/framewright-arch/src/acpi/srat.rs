//! Which memory and which CPUs belong together (SRAT).

use super::entries::Entries;
use super::error::{AcpiError, Fault};
use super::table::Table;

const FIRST_ENTRY: usize = 48;
const CPU: u8 = 0;
const MEMORY: u8 = 1;
const X2APIC_CPU: u8 = 2;
const ENABLED: u32 = 1 << 0;
const HOT_PLUGGABLE: u32 = 1 << 1;

/// One affinity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Affinity {
    /// A CPU belongs to a domain.
    Cpu {
        /// The identifier of its interrupt controller.
        apic_id: u32,
        /// The proximity domain.
        domain: u32,
    },
    /// A range of addresses belongs to a domain.
    Memory {
        /// The first byte.
        start: u64,
        /// The size in bytes; `start + size_bytes` does not wrap.
        size_bytes: u64,
        /// The proximity domain.
        domain: u32,
        /// Whether the memory may be added or removed later.
        hot_pluggable: bool,
    },
}

/// All enabled affinities, in the order of the table, each with its offset in the table.
///
/// # Errors
/// The table is too short. For malformed entries, the iterator returns errors.
pub fn affinities<'a>(
    table: Table<'a>,
) -> Result<impl Iterator<Item = Result<(usize, Affinity), AcpiError>> + Clone + 'a, AcpiError> {
    // In the first revision domains had 8 bits, and the bytes of the upper 24 bits were undefined.
    let wide = table.revision() >= 2;
    let narrow = move |domain: u32| if wide { domain } else { domain & 0xff };
    let entries = Entries::new(table, FIRST_ENTRY)?;
    Ok(entries.filter_map(move |entry| {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => return Some(Err(error)),
        };
        let (least, flags_offset) = match entry.kind {
            CPU => (16, 4),
            MEMORY => (40, 28),
            X2APIC_CPU => (24, 12),
            _ => return None,
        };
        if let Err(error) = entry.at_least(least) {
            return Some(Err(error));
        }
        let flags = entry.u32(flags_offset);
        if flags & ENABLED == 0 {
            return None;
        }
        let affinity = match entry.kind {
            CPU => {
                let domain =
                    u32::from_le_bytes([entry.u8(2), entry.u8(9), entry.u8(10), entry.u8(11)]);
                Affinity::Cpu { apic_id: u32::from(entry.u8(3)), domain: narrow(domain) }
            }
            X2APIC_CPU => Affinity::Cpu { apic_id: entry.u32(8), domain: entry.u32(4) },
            _ => {
                let (start, size_bytes) = (entry.u64(8), entry.u64(16));
                if start.checked_add(size_bytes).is_none() {
                    return Some(Err(
                        table.error(entry.offset, Fault::MemoryWraps { start, size_bytes })
                    ));
                }
                let hot_pluggable = flags & HOT_PLUGGABLE != 0;
                Affinity::Memory { start, size_bytes, domain: narrow(entry.u32(2)), hot_pluggable }
            }
        };
        Some(Ok((entry.offset, affinity)))
    }))
}
