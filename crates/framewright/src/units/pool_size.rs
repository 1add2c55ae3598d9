//! Sizes of huge pages that have a pool.

use super::order::Order;
use super::sizes::PAGE_SIZE;
use core::fmt;

/// A size that has a pool.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(u8)]
pub enum PoolSize {
    /// 2 MiB, the default size of Linux on x86-64.
    #[default]
    TwoMib = 0,
    /// 1 GiB: *gigantic*. Its pool has no overcommit, for nobody could be given so large a page on
    /// demand.
    OneGib = 1,
}

impl PoolSize {
    /// How many there are.
    pub const COUNT: usize = 2;
    /// All, ascending.
    pub const ALL: [Self; Self::COUNT] = [Self::TwoMib, Self::OneGib];

    /// The size of so many bytes, if there is a pool of it.
    #[must_use]
    pub const fn of_bytes(bytes: u64) -> Option<Self> {
        match bytes {
            0x20_0000 => Some(Self::TwoMib),
            0x4000_0000 => Some(Self::OneGib),
            _ => None,
        }
    }

    /// The order of its pages.
    #[must_use]
    pub const fn order(self) -> Order {
        match self {
            Self::TwoMib => Order::BLOCK,
            Self::OneGib => Order::MAX,
        }
    }

    /// Frames of 4 KiB in one of its pages.
    #[must_use]
    pub const fn frames(self) -> u64 {
        self.order().pages()
    }

    /// Its size as Linux's folders name it (`hugepages-2048kB`).
    #[must_use]
    pub const fn kbytes(self) -> u64 {
        self.frames() * PAGE_SIZE / 1024
    }

    /// Whether it is larger than what Linux's buddy allocator can give: no surplus, no overcommit.
    #[must_use]
    pub const fn is_gigantic(self) -> bool {
        matches!(self, Self::OneGib)
    }

    /// What its pages can be demoted to.
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

/// As Linux prints sizes in its log: `2.00 MiB`.
impl fmt::Display for PoolSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TwoMib => "2.00 MiB",
            Self::OneGib => "1.00 GiB",
        })
    }
}
