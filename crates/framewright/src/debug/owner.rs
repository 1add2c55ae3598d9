//! A record for each page: which code allocated it, as what, and which code freed it last.
//!
//! A record takes two words per page. Records are changed page by page with atomics, so that if two
//! frees of a page race, one of them finds the page free.
//!
//! Orders of memory: Relaxed: a page's record is changed by the owner of the page; what orders the
//! page's owners also orders the record. If two callers free one page at once, the exchange decides
//! between them and nothing else is read.

use super::history::PageHistory;
use super::places::{Place, Places};
use crate::carve::AnyContent;
use crate::sync::table_atomic::{AtomicU64, Ordering};
use crate::units::Order;
use core::ops::Range;

/// See the module documentation. A zero record means that the page was never allocated.
///
/// | word | bits | |
/// |---|---|---|
/// | allocation | 0 | allocated now |
/// | | 1..6 | order |
/// | | 6..16 | CPU number plus one |
/// | | 16..32 | place |
/// | | 32..64 | serial number, the same in all pages of an allocation, never 0 |
/// | event | 0..16 | place of the last free |
/// | | 16..26 | CPU number plus one |
/// | | 26..64 | time of the last event plus one, in 2^16 ns (208 days) |
#[repr(C)]
pub(crate) struct PageRecord {
    allocation: AtomicU64,
    event: AtomicU64,
}

const _: () = assert!(size_of::<PageRecord>() == 16);

// SAFETY: two integers without padding (invariant 4).
unsafe impl AnyContent for PageRecord {}

const ALLOCATED: u64 = 1;
/// The bits of order, CPU and place.
const OWNER: u64 = 0xffff_fffe;
const TIME_SHIFT: u32 = 16;
const CPU_LIMIT: u32 = 1023;

/// The place, the CPU and the time of an event.
#[derive(Clone, Copy)]
pub(crate) struct Event {
    pub(crate) place: Place,
    pub(crate) cpu: u32,
    pub(crate) now_ns: Option<u64>,
}

/// What is recorded about an allocation.
#[derive(Clone, Copy)]
pub(crate) struct Allocation {
    pub(crate) event: Event,
    pub(crate) order: Order,
    pub(crate) serial: u32,
}

/// Why pages are not freed, with the index of the page, counted as records are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Misuse {
    /// The page is not allocated.
    NotAllocated(usize),
    /// The page belongs to another allocation than the first page.
    OtherAllocation(usize),
}

/// The records of one segment; empty when they are off. Pages are counted from the segment's first
/// block.
#[derive(Clone, Copy)]
pub(crate) struct Owners {
    pub(crate) records: &'static [PageRecord],
    pub(crate) places: Places,
}

impl PageRecord {
    /// The owner of the page, as one word; zero where it is not known.
    pub(crate) fn owner(&self) -> u64 {
        self.allocation.load(Ordering::Relaxed)
    }

    /// Makes the page, which the caller has alone, look as if `owner`'s line and CPU had allocated
    /// it, with `owner`'s order; returns the previous owner. The serial number stays.
    pub(crate) fn set_owner(&self, owner: u64) -> u64 {
        let before = self.owner();
        if owner != 0 {
            let word = before & !OWNER | owner & OWNER;
            self.allocation.store(word, Ordering::Relaxed);
        }
        before
    }
}

fn cpu_bits(cpu: u32) -> u64 {
    u64::from(if cpu < CPU_LIMIT { cpu + 1 } else { 0 })
}

fn cpu_of(bits: u64) -> Option<u32> {
    u32::try_from(bits & 0x3ff).ok()?.checked_sub(1)
}

fn number(word: u64, shift: u32) -> u16 {
    u16::try_from(word >> shift & 0xffff).unwrap_or(0)
}

fn serial(allocation: u64) -> u64 {
    allocation >> 32
}

/// The place number in an allocation word.
fn place(allocation: u64) -> u16 {
    number(allocation, 16)
}

impl Owners {
    fn of(&self, pages: Range<usize>) -> &'static [PageRecord] {
        self.records.get(pages).unwrap_or(&[])
    }

    fn time(now_ns: Option<u64>) -> u64 {
        now_ns.map_or(0, |ns| (ns >> TIME_SHIFT) + 1) << 26
    }

    /// Records pages as allocated.
    pub(crate) fn allocate(&self, pages: Range<usize>, allocation: &Allocation) {
        let Allocation { event, order, serial } = *allocation;
        let word = ALLOCATED
            | u64::from(order.get()) << 1
            | cpu_bits(event.cpu) << 6
            | u64::from(self.places.number(event.place)) << 16
            | u64::from(serial) << 32;
        let time = Self::time(event.now_ns);
        for record in self.of(pages) {
            let before = record.allocation.swap(word, Ordering::Relaxed);
            debug_assert!(before & ALLOCATED == 0, "a page was handed out twice");
            let freed = record.event.load(Ordering::Relaxed) & ((1 << 26) - 1);
            record.event.store(freed | time, Ordering::Relaxed);
        }
    }

    /// Records pages as freed: all or none. All must be allocated and belong to one allocation, or,
    /// with `neighbours`, to several that were made at one place.
    pub(crate) fn free(
        &self,
        pages: Range<usize>,
        neighbours: bool,
        event: &Event,
    ) -> Result<(), Misuse> {
        let records = self.of(pages.clone());
        let first = records.first().map_or(0, |record| record.allocation.load(Ordering::Relaxed));
        for (index, record) in records.iter().enumerate() {
            let word = record.allocation.load(Ordering::Relaxed);
            if word & ALLOCATED == 0 {
                return Err(Misuse::NotAllocated(pages.start + index));
            }
            if serial(word) != serial(first) && !(neighbours && place(word) == place(first)) {
                return Err(Misuse::OtherAllocation(pages.start + index));
            }
        }
        for (index, record) in records.iter().enumerate() {
            if record.allocation.fetch_and(!ALLOCATED, Ordering::Relaxed) & ALLOCATED == 0 {
                // Another caller frees this page at the moment. Pages that it freed stay free;
                // pages that this call marked as free become allocated again.
                for record in &records[..index] {
                    record.allocation.fetch_or(ALLOCATED, Ordering::Relaxed);
                }
                return Err(Misuse::NotAllocated(pages.start + index));
            }
        }
        let word = u64::from(self.places.number(event.place))
            | cpu_bits(event.cpu) << 16
            | Self::time(event.now_ns);
        for record in records {
            record.event.store(word, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Undoes [`free`](Self::free).
    pub(crate) fn take_back(&self, pages: Range<usize>) {
        for record in self.of(pages) {
            record.allocation.fetch_or(ALLOCATED, Ordering::Relaxed);
        }
    }

    /// The history of a page; `None` when it was never allocated.
    pub(crate) fn history(&self, page: usize) -> Option<PageHistory> {
        let record = self.records.get(page)?;
        let (word, event) =
            (record.allocation.load(Ordering::Relaxed), record.event.load(Ordering::Relaxed));
        if word == 0 {
            return None;
        }
        Some(PageHistory {
            allocated: word & ALLOCATED != 0,
            order: u8::try_from(word >> 1 & 31).ok().and_then(Order::new).unwrap_or(Order::PAGE),
            allocated_at: self.places.place(place(word)),
            allocated_on: cpu_of(word >> 6),
            freed_at: self.places.place(number(event, 0)),
            freed_on: cpu_of(event >> 16),
            last_ns: (event >> 26).checked_sub(1).map(|time| time << TIME_SHIFT),
        })
    }
}
