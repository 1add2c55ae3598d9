//! Page tables in memory, seen through the direct map.
//!
//! Orders of memory: Entries have one writer (invariant 39), which reads them Relaxed. Release when
//! one is set has its partner in the page walk of the processor, which reads what an entry leads to
//! after the entry. A new table is filled Relaxed before an entry names it.

use crate::x86_64::entry::Entry;
use core::sync::atomic::{AtomicU64, Ordering};
use framewright::Platform;
use framewright::units::Pfn;

/// Entries of a table.
pub(crate) const ENTRIES: usize = 512;

/// A table. The CPUs walk it meanwhile, so its entries are atomics.
#[derive(Clone, Copy)]
pub(crate) struct Table<'a>(&'a [AtomicU64; ENTRIES]);

impl<'a> Table<'a> {
    /// The table in `frame`.
    ///
    /// # Safety
    /// The frame belongs to the vmemmap as a table as long as the value lives: it came from a
    /// `FrameSource` or is the root, is below the direct limit, and is reached as atomics only.
    pub(crate) unsafe fn at<P: Platform>(platform: &'a P, frame: Pfn) -> Self {
        let start = platform.direct(frame.address()).cast::<[AtomicU64; ENTRIES]>();
        // SAFETY: a whole frame of the direct map, aligned to 4096, used by nobody else but through
        // atomics by the caller's promise (invariants 1 and 39), and every bit pattern is a value.
        Self(unsafe { start.as_ref() })
    }

    /// `index` is taken modulo the size of a table, as the CPU does with addresses.
    fn slot(self, index: usize) -> &'a AtomicU64 {
        &self.0[index % ENTRIES]
    }

    pub(crate) fn get(self, index: usize) -> Entry {
        Entry(self.slot(index).load(Ordering::Relaxed))
    }

    /// What the entry names must be written before: a CPU that sees the entry sees that, too.
    pub(crate) fn set(self, index: usize, entry: Entry) {
        self.slot(index).store(entry.0, Ordering::Release);
    }

    pub(crate) fn fill(self, entry: impl Fn(usize) -> Entry) {
        for (index, slot) in self.0.iter().enumerate() {
            slot.store(entry(index).0, Ordering::Relaxed);
        }
    }
}
