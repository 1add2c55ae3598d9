//! Counters of flushes, and of pages and sections that became present or absent.
//!
//! Orders of memory: Relaxed everywhere, because each counter stands alone and its value does not
//! decide what else is read.

use core::sync::atomic::{AtomicU64, Ordering};

macro_rules! counts {
    ($($(#[$text:meta])* $name:ident = $shown:literal,)*) => {
        /// What a [`Vmemmap`](super::Vmemmap) has done since it was created, and what it uses now.
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        pub struct VmemmapCounts {
            $($(#[$text])* pub $name: u64,)*
        }

        impl VmemmapCounts {
            /// The name and value of each counter, in the style of `/proc/vmstat`.
            pub fn vmstat(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$(($shown, self.$name),)*].into_iter()
            }
        }

        #[derive(Default)]
        pub(super) struct Counters {
            $(pub(super) $name: AtomicU64,)*
        }

        impl Counters {
            pub(super) const fn new() -> Self {
                Self { $($name: AtomicU64::new(0),)* }
            }

            pub(super) fn read(&self) -> VmemmapCounts {
                VmemmapCounts { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counts! {
    /// Flushes that were needed.
    flushes = "memmap_flush",
    /// Flushes that flushed everything.
    full_flushes = "memmap_flush_all",
    /// Ranges in the other flushes.
    flushed_ranges = "memmap_flush_ranges",
    /// Pages of 4 KiB in those ranges.
    flushed_pages = "memmap_flush_pages",
    /// The time that all flushes took, in cycles of the time-stamp counter, including the wait for
    /// other CPUs.
    flush_cycles = "memmap_flush_cycles",
    /// Pages of the vmemmap that became present.
    populated_pages = "memmap_populated",
    /// Pages of the vmemmap that became absent.
    evicted_pages = "memmap_evicted",
    /// Sections that became absent by one store.
    evicted_sections = "memmap_evicted_sections",
    /// Mappings of 2 MiB that were split.
    splits = "memmap_split",
    /// Mappings of 2 MiB that replaced a table of small ones.
    merges = "memmap_merge",
    /// Page tables that belong to single sections now.
    tables = "nr_memmap_tables",
    /// Sections that are mapped by a 2 MiB page now.
    large = "nr_memmap_large",
}

/// Adds to a counter.
pub(super) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

/// Subtracts one from a counter of things that exist now.
pub(super) fn subtract_one(counter: &AtomicU64) {
    counter.fetch_sub(1, Ordering::Relaxed);
}
