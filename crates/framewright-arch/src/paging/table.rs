//! Page tables in memory, seen through the direct map.
//!
//! Orders of memory: Entries have one writer (invariant 39), which reads them Relaxed. The Release
//! store that sets an entry has its partner in the processor's page walk, which reads the entry
//! before it reads what the entry points to. A new table is filled Relaxed before an entry names
//! it.

use crate::x86_64::entry::Entry;
use core::sync::atomic::{AtomicU64, Ordering};
use framewright::Platform;
use framewright::units::Pfn;

/// The number of entries in a table.
pub(crate) const ENTRIES: usize = 512;

/// A page table. CPUs walk it at the same time, so its entries are atomics.
#[derive(Clone, Copy)]
pub(crate) struct Table<'a>(&'a [AtomicU64; ENTRIES]);

impl<'a> Table<'a> {
    /// The table in `frame`.
    ///
    /// # Safety
    /// While the value lives, the frame belongs to the vmemmap as a table: it came from a
    /// `FrameSource` or is the root, is below the direct limit, and is accessed only as atomics.
    pub(crate) unsafe fn at<P: Platform>(platform: &'a P, frame: Pfn) -> Self {
        let start = platform.direct(frame.address()).cast::<[AtomicU64; ENTRIES]>();
        // SAFETY: this is a whole frame of the direct map, aligned to 4096. By the caller's promise
        // it is accessed only as atomics (invariants 1 and 39), and every bit pattern is a valid
        // value.
        Self(unsafe { start.as_ref() })
    }

    /// `index` is taken modulo the size of a table, as the CPU does with addresses.
    fn slot(self, index: usize) -> &'a AtomicU64 {
        &self.0[index % ENTRIES]
    }

    pub(crate) fn get(self, index: usize) -> Entry {
        Entry(self.slot(index).load(Ordering::Relaxed))
    }

    /// What the entry points to must be written before this: a CPU that sees the entry sees that
    /// data too.
    pub(crate) fn set(self, index: usize, entry: Entry) {
        self.slot(index).store(entry.0, Ordering::Release);
    }

    pub(crate) fn fill(self, entry: impl Fn(usize) -> Entry) {
        for (index, slot) in self.0.iter().enumerate() {
            slot.store(entry(index).0, Ordering::Relaxed);
        }
    }
}
