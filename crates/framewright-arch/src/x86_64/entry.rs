//! Entries of page tables, and the sizes of pages.

use core::fmt;
use framewright::units::PHYSICAL_ADDRESS_BITS;

const PRESENT: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
/// The CPU sets these itself when it uses an entry, by a locked operation, unless they are set
/// already.
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const WRITE_THROUGH: u64 = 1 << 3;
const UNCACHED: u64 = 1 << 4;
const LARGE: u64 = 1 << 7;
const GLOBAL: u64 = 1 << 8;
const NO_EXECUTE: u64 = 1 << 63;
const ADDRESS: u64 = (1 << PHYSICAL_ADDRESS_BITS) - (1 << 12);

/// What may be done with a page. It may always be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Access {
    /// It may be written.
    pub write: bool,
    /// It may be executed.
    pub execute: bool,
    /// It is the same in all tables, so its translation survives a change of tables.
    pub global: bool,
    /// Registers of a device: never cached.
    pub device: bool,
}

impl Access {
    /// Code.
    pub const CODE: Self = Self { write: false, execute: true, global: true, device: false };
    /// Constants.
    pub const CONSTANTS: Self = Self { write: false, execute: false, global: true, device: false };
    /// Data.
    pub const DATA: Self = Self { write: true, execute: false, global: true, device: false };
    /// Registers of a device.
    pub const DEVICE: Self = Self { write: true, execute: false, global: true, device: true };

    /// What is left where both this and `other` are asked. Uncached is what either asks for.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            write: self.write && other.write,
            execute: self.execute && other.execute,
            global: self.global && other.global,
            device: self.device || other.device,
        }
    }

    /// Dirty only where it may be written: dirty and read-only is a shadow stack where the CPU has
    /// such.
    const fn bits(self) -> u64 {
        (if self.write { WRITABLE | DIRTY } else { 0 })
            | (if self.execute { 0 } else { NO_EXECUTE })
            | (if self.global { GLOBAL } else { 0 })
            | (if self.device { UNCACHED | WRITE_THROUGH } else { 0 })
    }
}

/// The size of a page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PageSize {
    /// 4 KiB.
    Small,
    /// 2 MiB.
    Medium,
    /// 1 GiB, where the CPU has it.
    Large,
}

impl PageSize {
    /// From the largest down.
    pub const DESCENDING: [Self; 3] = [Self::Large, Self::Medium, Self::Small];

    /// The level of the table whose entries map such pages: 1 is the lowest, 4 the root.
    #[must_use]
    pub const fn level(self) -> u32 {
        match self {
            Self::Small => 1,
            Self::Medium => 2,
            Self::Large => 3,
        }
    }

    /// The page size of a level.
    #[must_use]
    pub const fn of_level(level: u32) -> Option<Self> {
        match level {
            1 => Some(Self::Small),
            2 => Some(Self::Medium),
            3 => Some(Self::Large),
            _ => None,
        }
    }

    /// Bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        1 << (3 + 9 * self.level())
    }
}

/// Which entry of a table of level `level` an address goes through.
#[must_use]
pub const fn index_of(address: u64, level: u32) -> usize {
    (address >> (3 + 9 * level) & 511) as usize
}

/// One entry of a table.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct Entry(pub u64);

impl Entry {
    /// Maps the page at `physical`.
    #[must_use]
    pub const fn page(physical: u64, size: PageSize, access: Access) -> Self {
        let large = if matches!(size, PageSize::Small) { 0 } else { LARGE };
        Self(physical & ADDRESS | PRESENT | ACCESSED | large | access.bits())
    }

    /// Leads to the table at `physical`. What may be done is decided by the entries below.
    #[must_use]
    pub const fn table(physical: u64) -> Self {
        Self(physical & ADDRESS | PRESENT | ACCESSED | WRITABLE)
    }

    /// Leads to the table at `physical`, below which nothing may be written or executed.
    #[must_use]
    pub const fn read_only_table(physical: u64) -> Self {
        Self(physical & ADDRESS | PRESENT | ACCESSED | NO_EXECUTE)
    }

    /// Whether it leads anywhere.
    #[must_use]
    pub const fn is_present(self) -> bool {
        self.0 & PRESENT != 0
    }

    /// Whether, in a table of level `level`, it maps a page rather than leading to a table.
    #[must_use]
    pub const fn is_page(self, level: u32) -> bool {
        self.is_present() && (level == 1 || self.0 & LARGE != 0)
    }

    /// Where it leads.
    #[must_use]
    pub const fn address(self) -> u64 {
        self.0 & ADDRESS
    }

    /// What may be done with the page that it maps, or at most with those below the table that it
    /// leads to.
    #[must_use]
    pub const fn access(self) -> Access {
        Access {
            write: self.0 & WRITABLE != 0,
            execute: self.0 & NO_EXECUTE == 0,
            global: self.0 & GLOBAL != 0,
            device: self.0 & UNCACHED != 0,
        }
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "entry {:#x}", self.0)
    }
}
