//! Statistics for the host (virtio 1.2, 5.5.6, "Memory Statistics").

use framewright_virtio::DmaPage;
use virtio_drivers::Hal;

/// What the host may ask for. The number is the tag in the specification; amounts of memory are in
/// bytes, and everything else is a count since boot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum Statistic {
    /// Memory read back from swap.
    SwapIn = 0,
    /// Memory written to swap.
    SwapOut = 1,
    /// Page faults that needed I/O.
    MajorFaults = 2,
    /// Page faults that needed none.
    MinorFaults = 3,
    /// Memory that is not in use.
    Free = 4,
    /// All memory that the guest can use.
    Total = 5,
    /// Memory that could be made available without swapping.
    Available = 6,
    /// Memory in caches that could be dropped.
    Caches = 7,
    /// Huge pages allocated.
    HugeAllocated = 8,
    /// Huge pages that could not be allocated.
    HugeFailed = 9,
    /// Processes killed because memory ran out.
    OutOfMemoryKills = 10,
    /// Allocations that had to wait for memory.
    AllocationStalls = 11,
    /// Pages scanned by background reclaim.
    BackgroundScanned = 12,
    /// Pages scanned by allocations that had to wait.
    DirectScanned = 13,
    /// Pages reclaimed in the background.
    BackgroundReclaimed = 14,
    /// Pages reclaimed by allocations that had to wait.
    DirectReclaimed = 15,
}

impl Statistic {
    /// All statistics, by tag.
    pub const ALL: [Self; 16] = [
        Self::SwapIn,
        Self::SwapOut,
        Self::MajorFaults,
        Self::MinorFaults,
        Self::Free,
        Self::Total,
        Self::Available,
        Self::Caches,
        Self::HugeAllocated,
        Self::HugeFailed,
        Self::OutOfMemoryKills,
        Self::AllocationStalls,
        Self::BackgroundScanned,
        Self::DirectScanned,
        Self::BackgroundReclaimed,
        Self::DirectReclaimed,
    ];
}

/// A tag of 16 bits, then a value of 64 bits, without a gap.
const ENTRY_BYTES: u32 = 10;

/// Writes what `value` returns into `page`, and returns the length in bytes. A buffer must not be
/// empty, so without any value it holds one count of zero.
pub fn write<H: Hal>(page: &DmaPage<H>, value: &mut dyn FnMut(Statistic) -> Option<u64>) -> u32 {
    let mut length = 0;
    let mut put = |tag: Statistic, value: u64| {
        let bytes = (tag as u16).to_le_bytes().into_iter().chain(value.to_le_bytes());
        for (offset, byte) in (length..).zip(bytes) {
            page.store_u8(offset as usize, byte);
        }
        length += ENTRY_BYTES;
    };
    let mut any = false;
    for tag in Statistic::ALL {
        if let Some(value) = value(tag) {
            put(tag, value);
            any = true;
        }
    }
    if !any {
        put(Statistic::SwapIn, 0);
    }
    length
}
