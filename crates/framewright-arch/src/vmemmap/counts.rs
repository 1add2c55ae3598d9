//! Counters of flushes, and of what became present and absent.
//!
//! Orders of memory: Relaxed everywhere: each counter stands alone, and nothing else is read
//! because of its value.

use core::sync::atomic::{AtomicU64, Ordering};

macro_rules! counts {
    ($($(#[$text:meta])* $name:ident = $shown:literal,)*) => {
        /// What a [`Vmemmap`](super::Vmemmap) has done since it was made, and what it uses.
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        pub struct VmemmapCounts {
            $($(#[$text])* pub $name: u64,)*
        }

        impl VmemmapCounts {
            /// Name and value of each, in the style of `/proc/vmstat`.
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
    /// Those of them that flushed everything.
    full_flushes = "memmap_flush_all",
    /// Ranges in the others.
    flushed_ranges = "memmap_flush_ranges",
    /// Pages of 4 KiB in those ranges.
    flushed_pages = "memmap_flush_pages",
    /// Time that all flushes took, in cycles of the time-stamp counter, waiting for other CPUs
    /// included.
    flush_cycles = "memmap_flush_cycles",
    /// Pages of the vmemmap that became present.
    populated_pages = "memmap_populated",
    /// Pages of the vmemmap that became absent.
    evicted_pages = "memmap_evicted",
    /// Sections that became absent by one store.
    evicted_sections = "memmap_evicted_sections",
    /// Mappings of 2 MiB that were split.
    splits = "memmap_split",
    /// Mappings of 2 MiB that were made of small ones.
    merges = "memmap_merge",
    /// Page tables that sections have of their own, now.
    tables = "nr_memmap_tables",
    /// Sections that are mapped by 2 MiB, now.
    large = "nr_memmap_large",
}

/// Adds to a counter.
pub(super) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

/// Takes one from a counter of what there is now.
pub(super) fn subtract_one(counter: &AtomicU64) {
    counter.fetch_sub(1, Ordering::Relaxed);
}
