//! Page-table entries, and the sizes of pages.

use core::fmt;
use framewright::units::PHYSICAL_ADDRESS_BITS;

const PRESENT: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
/// The CPU sets these two bits itself, with a locked operation, when it uses an entry in which they
/// are not yet set.
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const WRITE_THROUGH: u64 = 1 << 3;
const UNCACHED: u64 = 1 << 4;
const LARGE: u64 = 1 << 7;
const GLOBAL: u64 = 1 << 8;
const NO_EXECUTE: u64 = 1 << 63;
const ADDRESS: u64 = (1 << PHYSICAL_ADDRESS_BITS) - (1 << 12);

/// The permitted access to a page. Reading is always permitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Access {
    /// Whether the page may be written.
    pub write: bool,
    /// Whether it may be executed.
    pub execute: bool,
    /// Whether the page is mapped alike in all tables, so that its translation survives a change of
    /// tables.
    pub global: bool,
    /// Whether the page contains registers of a device, which must not be cached.
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

    /// The access that remains if both this and `other` apply. It is uncached if either of them is.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            write: self.write && other.write,
            execute: self.execute && other.execute,
            global: self.global && other.global,
            device: self.device || other.device,
        }
    }

    /// Dirty only if it may be written: a dirty, read-only entry is a shadow stack on CPUs that
    /// have these.
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
    /// 1 GiB, if the CPU has such pages.
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

    /// The size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        1 << (3 + 9 * self.level())
    }
}

/// The index of the entry that maps `address` in a table of level `level`.
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

    /// Points to the table at `physical`. The entries below decide what may be done.
    #[must_use]
    pub const fn table(physical: u64) -> Self {
        Self(physical & ADDRESS | PRESENT | ACCESSED | WRITABLE)
    }

    /// Points to the table at `physical`, below which nothing may be written or executed.
    #[must_use]
    pub const fn read_only_table(physical: u64) -> Self {
        Self(physical & ADDRESS | PRESENT | ACCESSED | NO_EXECUTE)
    }

    /// Whether it maps a page or points to a table.
    #[must_use]
    pub const fn is_present(self) -> bool {
        self.0 & PRESENT != 0
    }

    /// Whether, in a table of level `level`, it maps a page rather than pointing to a table.
    #[must_use]
    pub const fn is_page(self, level: u32) -> bool {
        self.is_present() && (level == 1 || self.0 & LARGE != 0)
    }

    /// The address of its page or table.
    #[must_use]
    pub const fn address(self) -> u64 {
        self.0 & ADDRESS
    }

    /// The permitted access to the page that it maps, or the most that is permitted for pages below
    /// the table that it points to.
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
