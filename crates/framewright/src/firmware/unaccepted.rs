//! EFI's configuration table that says which memory a confidential guest has not accepted yet.
//!
//! A boot loader makes it for the first kernel. It stays reserved so that the next kernel finds it,
//! too: whoever accepts memory clears its bits ([`UnacceptedTable::clear`]).
//!
//! ```text
//!   0  version, 1     8  address of the first unit    24  one bit for each unit, the lowest first:
//!   4  bytes a unit  16  bytes of bits                    set when it is not accepted
//! ```
//!
//! Memory outside the table's units is accepted.

use super::map::{MapBuilder, MapError};
use crate::units::{PAGE_SIZE, PHYSICAL_ADDRESS_END, PhysRange};
use core::fmt;
use core::ops::Range;

/// The table's GUID, d5d1de3c-105c-44f9-9ea9-bcef98120031, as laid out in memory.
pub const UNACCEPTED_TABLE_GUID: [u8; 16] = [
    0x3c, 0xde, 0xd1, 0xd5, 0x5c, 0x10, 0xf9, 0x44, 0x9e, 0xa9, 0xbc, 0xef, 0x98, 0x12, 0x00, 0x31,
];

/// The number of bytes before the bits.
const HEADER: usize = 24;
const VERSION: u32 = 1;

/// Why a table was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnacceptedTableError {
    /// The bytes given are fewer than the table says that it has, or than its header.
    Short {
        /// The number of bytes given.
        bytes: u64,
        /// The number of bytes that it should have.
        needed_bytes: u64,
    },
    /// The table's version is unknown.
    Version(u32),
    /// The unit size is no power of two, or less than a page.
    Unit(u32),
    /// The first unit does not begin at a multiple of its size.
    Base(u64),
    /// The units reach beyond the highest physical address.
    BeyondAddressSpace {
        /// The address of the first unit.
        base: u64,
        /// The number of bytes of bits.
        bitmap_bytes: u64,
    },
}

impl fmt::Display for UnacceptedTableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("table of unaccepted memory: ")?;
        match self {
            Self::Short { bytes, needed_bytes } => {
                write!(f, "{bytes} bytes were given, but it has {needed_bytes}")
            }
            Self::Version(version) => write!(f, "version {version} is unknown"),
            Self::Unit(bytes) => write!(f, "a unit of {bytes:#x} bytes is invalid"),
            Self::Base(base) => write!(f, "{base:#x} is not a multiple of the unit"),
            Self::BeyondAddressSpace { base, bitmap_bytes } => write!(
                f,
                "a bitmap of {bitmap_bytes} bytes for {base:#x} reaches beyond the address space"
            ),
        }
    }
}

impl core::error::Error for UnacceptedTableError {}

/// The table, borrowed from whoever found it.
#[derive(Debug)]
pub struct UnacceptedTable<'a> {
    unit_bytes: u64,
    base: u64,
    bits: &'a mut [u8],
}

impl<'a> UnacceptedTable<'a> {
    /// Reads a table; `bytes` may extend beyond its end.
    ///
    /// # Errors
    /// See [`UnacceptedTableError`].
    pub fn new(bytes: &'a mut [u8]) -> Result<Self, UnacceptedTableError> {
        let given = bytes.len() as u64;
        let short = |needed_bytes| UnacceptedTableError::Short { bytes: given, needed_bytes };
        let header: &[u8; HEADER] = bytes.first_chunk().ok_or(short(HEADER as u64))?;
        let half = |at: usize| {
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let word = |at: usize| u64::from(half(at)) | u64::from(half(at + 4)) << 32;
        let (version, unit, base, bitmap_bytes) = (half(0), half(4), word(8), word(16));
        if version != VERSION {
            return Err(UnacceptedTableError::Version(version));
        }
        let unit_bytes = u64::from(unit);
        if !unit_bytes.is_power_of_two() || unit_bytes < PAGE_SIZE {
            return Err(UnacceptedTableError::Unit(unit));
        }
        if !base.is_multiple_of(unit_bytes) {
            return Err(UnacceptedTableError::Base(base));
        }
        let size = bitmap_bytes.checked_mul(8).and_then(|units| units.checked_mul(unit_bytes));
        let end = size.and_then(|size| base.checked_add(size));
        // Bits of units that do not exist may fill the last word.
        let slack = 64 * unit_bytes;
        if end.is_none_or(|end| end > PHYSICAL_ADDRESS_END + slack) {
            return Err(UnacceptedTableError::BeyondAddressSpace { base, bitmap_bytes });
        }
        let needed_bytes = (HEADER as u64).saturating_add(bitmap_bytes);
        let last = usize::try_from(needed_bytes).map_err(|_| short(needed_bytes))?;
        let bits = bytes.get_mut(HEADER..last).ok_or(short(needed_bytes))?;
        Ok(Self { unit_bytes, base, bits })
    }

    /// Returns the number of bytes in a unit.
    #[must_use]
    pub const fn unit_bytes(&self) -> u64 {
        self.unit_bytes
    }

    /// Returns the number of units.
    #[must_use]
    pub const fn units(&self) -> u64 {
        self.bits.len() as u64 * 8
    }

    /// Returns the address of a unit.
    #[must_use]
    pub const fn address(&self, unit: u64) -> u64 {
        self.base + unit * self.unit_bytes
    }

    /// Returns the units that `range` touches. If pages may be read past their end (`guards`) and
    /// the range ends on a unit boundary, the next unit is included. As in Linux, that is the first
    /// unit for a range that ends at the table's base.
    #[must_use]
    pub fn units_of(&self, range: PhysRange, guards: bool) -> Range<u64> {
        if range.is_empty() {
            return 0..0;
        }
        let of = |address: u64| address.saturating_sub(self.base);
        let last = of(range.end).div_ceil(self.unit_bytes);
        let guard = u64::from(guards && range.end.is_multiple_of(self.unit_bytes));
        let end = if range.end < self.base { 0 } else { last + guard };
        let start = of(range.start) / self.unit_bytes;
        start.min(self.units())..end.clamp(start, self.units().max(start)).min(self.units())
    }

    /// Returns the units that lie wholly in `range`.
    pub(super) fn units_within(&self, range: PhysRange) -> Range<u64> {
        let of = |address: u64| address.saturating_sub(self.base);
        let start = of(range.start).div_ceil(self.unit_bytes).min(self.units());
        start..(of(range.end) / self.unit_bytes).clamp(start, self.units())
    }

    /// Returns whether a unit is not accepted.
    #[must_use]
    pub fn is_unaccepted(&self, unit: u64) -> bool {
        let byte = usize::try_from(unit / 8).ok().and_then(|byte| self.bits.get(byte));
        byte.is_some_and(|byte| byte >> (unit % 8) & 1 != 0)
    }

    /// Returns the first run of units among `units` that are not accepted.
    #[must_use]
    pub fn first_run(&self, units: Range<u64>) -> Option<Range<u64>> {
        let end = units.end.min(self.units());
        let start = self.next(units.start, end, true)?;
        Some(start..self.next(start, end, false).unwrap_or(end))
    }

    /// Returns the first unit from `unit` on that is unaccepted or, without `unaccepted`, accepted.
    fn next(&self, unit: u64, end: u64, unaccepted: bool) -> Option<u64> {
        let empty = if unaccepted { 0 } else { 0xff };
        let mut unit = unit;
        while unit < end {
            let byte = usize::try_from(unit / 8).ok().and_then(|byte| self.bits.get(byte))?;
            if unit.is_multiple_of(8) && *byte == empty {
                unit += 8;
            } else if self.is_unaccepted(unit) == unaccepted {
                return Some(unit);
            } else {
                unit += 1;
            }
        }
        None
    }

    /// Marks units accepted.
    pub fn clear(&mut self, units: Range<u64>) {
        for unit in units.start..units.end.min(self.units()) {
            if let Some(byte) =
                usize::try_from(unit / 8).ok().and_then(|byte| self.bits.get_mut(byte))
            {
                *byte &= !(1 << (unit % 8));
            }
        }
    }

    /// Marks in a map what is not accepted. Only memory that the map calls usable is marked,
    /// because the table also has units that are not memory.
    ///
    /// # Errors
    /// [`MapError::TooManyRanges`]; some of the memory may then be marked.
    pub fn mark(&self, map: &mut MapBuilder<'_>) -> Result<(), MapError> {
        let mut from = 0;
        while let Some(memory) = map.next_usable(from) {
            let Some(run) = self.first_run(self.units_of(memory, false)) else {
                from = memory.end;
                continue;
            };
            let run = PhysRange::new(self.address(run.start), self.address(run.end));
            let unaccepted = memory.intersection(run);
            map.leave_unaccepted(unaccepted)?;
            from = unaccepted.end;
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::firmware::MemoryKind;
    use crate::firmware::map::MapRange;
    use std::vec;
    use std::vec::Vec;

    fn map_in(storage: &mut [MapRange]) -> MapBuilder<'_> {
        let mut map = MapBuilder::new(storage);
        for (start, bytes, kind) in [
            (1 << 20, 64 << 20, MemoryKind::Conventional),
            (1 << 32, 1 << 20, MemoryKind::Reserved),
            (1 << 40, 4 << 20, MemoryKind::Conventional),
        ] {
            map.add(start, bytes, kind).expect("there is room");
        }
        map
    }

    #[test]
    fn bits_for_what_is_no_memory_cost_nothing() {
        // Every second unit of 2 MiB is not accepted, up to 16 TiB.
        let mut table = vec![0x55; 24 + (1 << 20)];
        table[..24].fill(0);
        (table[0], table[6], table[18]) = (1, 0x20, 0x10);
        let table = UnacceptedTable::new(&mut table).expect("it is valid");
        // The first range has 33 units, 17 of which are not accepted: there is no room for these.
        assert!(table.mark(&mut map_in(&mut [MapRange::EMPTY; 8])).is_err());
        let mut storage = [MapRange::EMPTY; 80];
        let mut map = map_in(&mut storage);
        table.mark(&mut map).expect("there is room");
        let unaccepted: Vec<PhysRange> = map
            .ranges()
            .iter()
            .filter(|entry| entry.kind == MemoryKind::Unaccepted)
            .map(|entry| entry.range)
            .collect();
        // The first unit begins below its range.
        assert_eq!(unaccepted.len(), 17 + 1);
        assert_eq!(unaccepted[0], PhysRange::new(1 << 20, 2 << 20));
        assert_eq!(unaccepted[16], PhysRange::new(64 << 20, 65 << 20));
        assert_eq!(unaccepted[17], PhysRange::new(1 << 40, (1 << 40) + (2 << 20)));
        let steps = map.steps.counted();
        assert!(steps < 18 * 8 * 80, "{steps} steps");
    }
}
