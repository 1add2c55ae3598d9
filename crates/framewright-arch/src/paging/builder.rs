//! Builds page tables that map physical ranges with the largest pages that fit.

use super::walk::allowed_below;
use crate::x86_64::entry::{Access, Entry, PageSize, index_of};
use core::fmt;
use framewright::units::{PAGE_SIZE, PHYSICAL_ADDRESS_END, PhysRange};

const ROOT_LEVEL: u32 = 4;
const ENTRIES: usize = 512;
/// One past the highest byte offset in either half of the 48-bit virtual address space.
const HALF_BYTES: u64 = 1 << 47;

/// The memory in which tables live. A table is named by its physical address, which is a multiple
/// of 4096.
pub trait TableMemory {
    /// Allocates a zeroed frame that nothing else uses. The frame stays unused if the call itself
    /// maps what it was wanted for.
    fn allocate(&mut self) -> Option<u64>;
    /// Reads entry `index` (below 512) of a table.
    fn read(&self, table: u64, index: usize) -> Entry;
    /// Replaces entry `index` (below 512) of a table.
    fn write(&mut self, table: u64, index: usize, entry: Entry);
}

/// Why a range could not be mapped. Pages below the named address are mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapFault {
    /// No frame was left for a table.
    OutOfFrames {
        /// The virtual address that needed it.
        address: u64,
    },
    /// Something is already mapped there.
    Occupied {
        /// The virtual address that is mapped.
        address: u64,
    },
    /// A table that was there already forbids, for all that is below it, writing or execution that
    /// was asked for.
    Forbidden {
        /// The virtual address that could not be accessed as was asked for.
        address: u64,
    },
    /// An address or the size is not a multiple of 4096, or the range leaves its half of the
    /// address space.
    BadRange {
        /// The virtual address as given.
        address: u64,
        /// The physical range as given.
        range: PhysRange,
    },
}

impl fmt::Display for MapFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfFrames { address } => {
                write!(f, "no frame for a page table that maps {address:#x}")
            }
            Self::Occupied { address } => {
                write!(f, "virtual address {address:#x} is mapped already")
            }
            Self::Forbidden { address } => {
                write!(f, "a table forbids the access that was asked for at {address:#x}")
            }
            Self::BadRange { address, range } => write!(f, "cannot map {range} at {address:#x}"),
        }
    }
}

impl core::error::Error for MapFault {}

/// What is to be mapped, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapRequest {
    /// The first virtual address.
    pub address: u64,
    /// The physical memory.
    pub range: PhysRange,
    /// What may be done with it.
    pub access: Access,
}

/// How much was mapped, by page size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Mapped {
    /// Pages of 4 KiB.
    pub small: u64,
    /// Pages of 2 MiB.
    pub medium: u64,
    /// Pages of 1 GiB.
    pub large: u64,
    /// Tables that were created.
    pub tables: u64,
}

impl Mapped {
    /// The number of bytes in all pages.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.small * PageSize::Small.bytes()
            + self.medium * PageSize::Medium.bytes()
            + self.large * PageSize::Large.bytes()
    }

    const fn pages_mut(&mut self, size: PageSize) -> &mut u64 {
        match size {
            PageSize::Small => &mut self.small,
            PageSize::Medium => &mut self.medium,
            PageSize::Large => &mut self.large,
        }
    }
}

/// Page tables of four levels.
#[derive(Clone, Copy, Debug)]
pub struct PageTable {
    root: u64,
    largest: PageSize,
}

impl PageTable {
    /// Creates empty tables that will use pages of up to `largest`; `None` if there is no frame for
    /// the root.
    pub fn new(memory: &mut impl TableMemory, largest: PageSize) -> Option<Self> {
        Some(Self { root: memory.allocate()?, largest })
    }

    /// Refers to existing tables, which will be extended with pages of up to `largest`.
    #[must_use]
    pub const fn at(root: u64, largest: PageSize) -> Self {
        Self { root, largest }
    }

    /// The physical address of the root.
    #[must_use]
    pub const fn root(&self) -> u64 {
        self.root
    }

    /// Maps `request` with the largest pages that alignment, size and CPU allow, and adds the pages
    /// and tables to `mapped`.
    ///
    /// Only entries that were empty change, so tables in use can be extended without a flush. Where
    /// a table is already, smaller pages go into it: a call that failed may have left empty ones.
    ///
    /// If something must not be executed, the CPU must have EFER.NXE set
    /// ([`Features::no_execute`](crate::x86_64::features::Features::no_execute)); otherwise every
    /// access to that range faults. CR0.WP keeps the kernel, too, from writing to ranges that are
    /// not writable.
    ///
    /// # Errors
    /// See [`MapFault`].
    pub fn map(
        &self,
        memory: &mut impl TableMemory,
        request: &MapRequest,
        mapped: &mut Mapped,
    ) -> Result<(), MapFault> {
        let &MapRequest { address, range, access } = request;
        let offset = address & (HALF_BYTES - 1);
        let canonical = matches!(address >> 47, 0 | 0x1_ffff);
        let aligned = (address | range.start | range.end).is_multiple_of(PAGE_SIZE);
        if !canonical
            || !aligned
            || range.end > PHYSICAL_ADDRESS_END
            || range.size() > HALF_BYTES - offset
        {
            return Err(MapFault::BadRange { address, range });
        }
        let (mut virtual_address, mut physical) = (address, range.start);
        while physical < range.end {
            let largest = self.page_size(virtual_address, physical, range.end - physical);
            let place = Place { address: virtual_address, access };
            let (table, size) = self.table_for(memory, place, largest, mapped)?;
            // Map as many consecutive pages of this size as this table holds.
            let mut index = index_of(virtual_address, size.level());
            while index < ENTRIES
                && self.page_size(virtual_address, physical, range.end - physical) >= size
            {
                let entry = memory.read(table, index);
                if entry.is_page(size.level()) {
                    return Err(MapFault::Occupied { address: virtual_address });
                }
                if entry.is_present() {
                    // A table, into which the next pages go.
                    break;
                }
                memory.write(table, index, Entry::page(physical, size, access));
                *mapped.pages_mut(size) += 1;
                // Wrapping, because the end of the last page of a half is not a valid address.
                virtual_address = virtual_address.wrapping_add(size.bytes());
                physical += size.bytes();
                index += 1;
                if physical == range.end {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// The largest page that begins at both addresses and is not longer than `left`.
    fn page_size(&self, virtual_address: u64, physical: u64, left: u64) -> PageSize {
        let fits = |size: &PageSize| {
            *size <= self.largest
                && left >= size.bytes()
                && (virtual_address | physical).is_multiple_of(size.bytes())
        };
        PageSize::DESCENDING.into_iter().find(fits).unwrap_or(PageSize::Small)
    }

    /// The table for a page of up to `largest` at `place`, created if it is missing, and the page's
    /// size, which is less if a table is already where the page would be.
    fn table_for(
        &self,
        memory: &mut impl TableMemory,
        place: Place,
        largest: PageSize,
        mapped: &mut Mapped,
    ) -> Result<(u64, PageSize), MapFault> {
        let (mut table, mut level) = (self.root, ROOT_LEVEL);
        loop {
            let index = index_of(place.address, level);
            let entry = memory.read(table, index);
            // In the lowest table every entry that is present is a page.
            let is_table = entry.is_present() && !entry.is_page(level);
            if let Some(size) = PageSize::of_level(level).filter(|&size| size <= largest)
                && !is_table
            {
                return Ok((table, size));
            }
            table = match place.follow(entry, level)? {
                Some(below) => below,
                None => {
                    let fault = MapFault::OutOfFrames { address: place.address };
                    let new = memory.allocate().ok_or(fault)?;
                    // `allocate` may have had to map the new frame itself, in this very table.
                    match place.follow(memory.read(table, index), level)? {
                        Some(below) => below,
                        None => {
                            memory.write(table, index, Entry::table(new));
                            mapped.tables += 1;
                            new
                        }
                    }
                }
            };
            level -= 1;
        }
    }
}

/// A page that is to be mapped.
#[derive(Clone, Copy)]
struct Place {
    address: u64,
    access: Access,
}

impl Place {
    /// The table to which an entry of level `level` leads, or `None` if the entry is empty.
    fn follow(self, entry: Entry, level: u32) -> Result<Option<u64>, MapFault> {
        let Self { address, access } = self;
        if entry.is_page(level) {
            return Err(MapFault::Occupied { address });
        }
        if entry.is_present() && access.and(allowed_below(entry)) != access {
            return Err(MapFault::Forbidden { address });
        }
        Ok(entry.is_present().then(|| entry.address()))
    }
}
