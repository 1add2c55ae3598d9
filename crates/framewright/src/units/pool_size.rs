//! The huge-page sizes that have a pool.

use super::order::Order;
use super::sizes::PAGE_SIZE;
use core::fmt;

/// A huge-page size that has a pool.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(u8)]
pub enum PoolSize {
    /// 2 MiB, the default size of Linux on x86-64.
    #[default]
    TwoMib = 0,
    /// 1 GiB: *gigantic*. Its pool has no overcommit, because so large a page can hardly be
    /// allocated on demand.
    OneGib = 1,
}

impl PoolSize {
    /// The number of sizes.
    pub const COUNT: usize = 2;
    /// All sizes, ascending.
    pub const ALL: [Self; Self::COUNT] = [Self::TwoMib, Self::OneGib];

    /// The size of `bytes` bytes, if it has a pool.
    #[must_use]
    pub const fn of_bytes(bytes: u64) -> Option<Self> {
        match bytes {
            0x20_0000 => Some(Self::TwoMib),
            0x4000_0000 => Some(Self::OneGib),
            _ => None,
        }
    }

    /// The order of a page of this size.
    #[must_use]
    pub const fn order(self) -> Order {
        match self {
            Self::TwoMib => Order::BLOCK,
            Self::OneGib => Order::MAX,
        }
    }

    /// The number of 4 KiB frames in a page of this size.
    #[must_use]
    pub const fn frames(self) -> u64 {
        self.order().pages()
    }

    /// The size in KiB, as Linux's directories name it (`hugepages-2048kB`).
    #[must_use]
    pub const fn kbytes(self) -> u64 {
        self.frames() * PAGE_SIZE / 1024
    }

    /// Whether a page is larger than Linux's buddy allocator can provide: no surplus, no
    /// overcommit.
    #[must_use]
    pub const fn is_gigantic(self) -> bool {
        matches!(self, Self::OneGib)
    }

    /// The size to which pages of this size can be demoted.
    #[must_use]
    pub const fn smaller(self) -> Option<Self> {
        match self {
            Self::TwoMib => None,
            Self::OneGib => Some(Self::TwoMib),
        }
    }

    pub(crate) const fn index(self) -> usize {
        self as usize
    }
}

/// Prints the size as Linux does in its log: `2.00 MiB`.
impl fmt::Display for PoolSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TwoMib => "2.00 MiB",
            Self::OneGib => "1.00 GiB",
        })
    }
}
