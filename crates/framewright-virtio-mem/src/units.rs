//! The units in which memory comes and goes: the device's blocks, or the adopter's grain if that is
//! larger.

use crate::configuration::Region;
use crate::map::{MOST_UNITS, Run};
use crate::request::MOST_BLOCKS;

/// The units of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Units {
    /// The address of the first unit.
    start_bytes: u64,
    pub unit_bytes: u64,
    pub count: u32,
    blocks_in_unit: u64,
}

impl Units {
    /// The whole units within `region`, at multiples of their size. `grain_bytes` is a power of
    /// two. The error is the number of units, if there are too many of them or if a single one is
    /// larger than a request can name.
    pub fn of(region: &Region, grain_bytes: u64) -> Result<Self, u64> {
        let unit_bytes = region.block_bytes.max(grain_bytes);
        let blocks_in_unit = unit_bytes / region.block_bytes;
        let start_bytes =
            region.start_bytes.checked_next_multiple_of(unit_bytes).unwrap_or(u64::MAX);
        let units = region.end_bytes().saturating_sub(start_bytes) / unit_bytes;
        let count = u32::try_from(units).ok().filter(|&count| count <= MOST_UNITS);
        match count {
            Some(count) if blocks_in_unit <= MOST_BLOCKS => {
                Ok(Self { start_bytes, unit_bytes, count, blocks_in_unit })
            }
            _ => Err(units),
        }
    }

    /// The number of whole units in this many bytes.
    pub fn of_bytes(&self, bytes: u64) -> u32 {
        u32::try_from(bytes / self.unit_bytes).unwrap_or(self.count).min(self.count)
    }

    /// The number of units before an address.
    pub fn before(&self, address: u64) -> u32 {
        self.of_bytes(address.saturating_sub(self.start_bytes))
    }

    /// The size of this many units.
    pub fn bytes(&self, units: u32) -> u64 {
        // The region does not wrap, and no number of units exceeds it.
        u64::from(units).saturating_mul(self.unit_bytes)
    }

    /// The first address of a run.
    pub fn address(&self, run: Run) -> u64 {
        self.start_bytes.saturating_add(self.bytes(run.first))
    }

    /// The run at this address, if it consists of whole units of the region.
    pub fn run(&self, start_bytes: u64, size_bytes: u64) -> Option<Run> {
        let offset = start_bytes.checked_sub(self.start_bytes)?;
        if !(offset | size_bytes).is_multiple_of(self.unit_bytes) {
            return None;
        }
        let first = u32::try_from(offset / self.unit_bytes).ok()?;
        let count = u32::try_from(size_bytes / self.unit_bytes).ok()?;
        let end = first.checked_add(count)?;
        (count > 0 && end <= self.count).then_some(Run { first, count })
    }

    /// The most units in one request.
    pub fn most(&self) -> u32 {
        u32::try_from(MOST_BLOCKS / self.blocks_in_unit).unwrap_or(u32::MAX)
    }

    /// The number of the device's blocks in a run.
    pub fn blocks(&self, run: Run) -> u16 {
        u16::try_from(u64::from(run.count) * self.blocks_in_unit).unwrap_or(u16::MAX)
    }
}
