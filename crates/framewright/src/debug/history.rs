//! Describes a page's past in one line.

use super::fill::POISON;
use crate::units::Order;
use core::fmt;
use core::panic::Location;

/// Which code allocated a page last and which freed it (`page_owner=on`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageHistory {
    /// Whether the page is allocated now.
    pub allocated: bool,
    /// The smallest order that holds the allocation that the page was part of.
    pub order: Order,
    /// The source line that allocated it; unknown when there are too many lines to remember.
    pub allocated_at: Option<&'static Location<'static>>,
    /// The CPU that allocated it; unknown from CPU 1023 on.
    pub allocated_on: Option<u32>,
    /// The source line that freed it last; for an allocated page, the free before the allocation.
    pub freed_at: Option<&'static Location<'static>>,
    /// The CPU that freed it.
    pub freed_on: Option<u32>,
    /// The time of the later of the two events, on the platform's clock, to 65 microseconds.
    pub last_ns: Option<u64>,
}

/// Prints a place, such as "by src/a.rs:1:2 on CPU 3".
struct By(Option<&'static Location<'static>>, Option<u32>);

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(place) => write!(f, "by {place}")?,
            None => f.write_str("somewhere")?,
        }
        self.1.map_or(Ok(()), |cpu| write!(f, " on CPU {cpu}"))
    }
}

impl fmt::Display for PageHistory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "allocated as {:?} {}", self.order, By(self.allocated_at, self.allocated_on))?;
        if !self.allocated {
            write!(f, ", freed {}", By(self.freed_at, self.freed_on))?;
        }
        self.last_ns.map_or(Ok(()), |ns| {
            let ms = ns / 1_000_000;
            write!(f, " at {}.{:03} s", ms / 1000, ms % 1000)
        })
    }
}

/// Free memory that somebody wrote to (`page_poison=1`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Damage {
    /// The first byte that is not poison.
    pub address: u64,
    /// The value of that byte.
    pub found: u8,
    /// Which code had the page and which freed it, with `page_owner=on`.
    pub history: Option<PageHistory>,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, found, history } = self;
        write!(
            f,
            "free memory was written to at {address:#x}: {found:#04x} in place of {:#04x}",
            POISON
        )?;
        history.map_or(Ok(()), |history| write!(f, "; the page was {history}"))
    }
}
