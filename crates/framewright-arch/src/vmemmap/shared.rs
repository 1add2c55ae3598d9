//! What all sections share: the zero frame, the absent table, the kinds of entries, and the
//! counters.

use super::counts::Counters;
use crate::paging::table::Table;
use crate::x86_64::entry::{Access, Entry, PageSize};
use framewright::Platform;
use framewright::units::Pfn;

/// See the module documentation.
pub(super) struct Shared<P: Platform> {
    pub(super) platform: &'static P,
    /// Whether translations are global and survive a change of tables.
    pub(super) global: bool,
    /// The zero frame.
    pub(super) zero: Pfn,
    /// The table that absent sections share.
    pub(super) absent: Pfn,
    pub(super) counters: Counters,
}

impl<P: Platform> Shared<P> {
    /// The table in `frame`, which belongs to the vmemmap.
    pub(super) fn table(&self, frame: Pfn) -> Table<'_> {
        // SAFETY: only the root is passed here, and frames that the vmemmap took and has not freed
        // yet. Frames of descriptors are only read as words, or written before anything else can
        // see them (invariant 39).
        unsafe { Table::at(self.platform, frame) }
    }

    const fn access(&self, write: bool) -> Access {
        Access { write, execute: false, global: self.global, device: false }
    }

    /// Maps 4 KiB of descriptors.
    pub(super) const fn page_entry(&self, frame: Pfn) -> Entry {
        Entry::page(frame.address(), PageSize::Small, self.access(true))
    }

    /// Maps the zero frame.
    pub(super) const fn zero_entry(&self) -> Entry {
        Entry::page(self.zero.address(), PageSize::Small, self.access(false))
    }

    /// Maps 2 MiB of descriptors.
    pub(super) const fn large_entry(&self, start: Pfn) -> Entry {
        Entry::page(start.address(), PageSize::Medium, self.access(true))
    }

    /// The directory entry of an absent section.
    pub(super) const fn absent_entry(&self) -> Entry {
        Entry::read_only_table(self.absent.address())
    }

    /// Copies the descriptors in `from` to `to`, which is in no table yet.
    pub(super) fn copy(&self, from: Pfn, to: Pfn) {
        // Both frames are accessed like tables: as words that other CPUs may read at the same time.
        let from = self.table(from);
        self.table(to).fill(|index| from.get(index));
    }
}
