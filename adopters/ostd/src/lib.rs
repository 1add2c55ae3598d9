//! Framewright as the frame allocator of a kernel on OSTD.
//!
//! ```ignore
//! #[ostd::global_frame_allocator]
//! static FRAMES: framewright_ostd::Framewright = framewright_ostd::Framewright;
//! ```
//!
//! OSTD adds memory range by range and never says which was the last: the first call that is not an
//! addition ends it, and brings the manager up. What comes later is released or added one by one.
#![no_std]

mod platform;

use core::alloc::Layout;
use core::sync::atomic::{AtomicU64, Ordering};
use framewright::firmware::{MapBuilder, MapRange, MemoryAffinity, MemoryKind, Topology};
use framewright::memblock::{Memblock, MemblockStorage};
use framewright::units::{Pfn, PhysRange};
use framewright::{BringUp, Manager, Parameters};
use ostd::mm::{PAGE_SIZE, Paddr, frame::GlobalFrameAllocator};
use platform::Ostd;

/// Ranges that can be added before the first allocation, with what lies between them.
const MOST_RANGES: usize = 128;
/// What lies between two ranges and is no larger is memory that OSTD had in use when it added them.
const LARGEST_GAP: u64 = 512 << 20;

struct Added {
    ranges: [PhysRange; MOST_RANGES],
    len: usize,
}

static ADDED: spin::Mutex<Added> =
    spin::Mutex::new(Added { ranges: [PhysRange::with_size(0, 0); MOST_RANGES], len: 0 });
static MANAGER: spin::Once<Manager<Ostd>> = spin::Once::new();
static LOST_PAGES: AtomicU64 = AtomicU64::new(0);

/// The allocator; there is one, whatever the number of these.
#[derive(Clone, Copy, Debug)]
pub struct Framewright;

impl Framewright {
    /// Frames that were given back and that the manager could not take.
    pub fn lost_pages(self) -> u64 {
        LOST_PAGES.load(Ordering::Relaxed)
    }

    /// Frames that are free, caches of CPUs included.
    pub fn free_pages(self) -> u64 {
        let _pinned = ostd::task::disable_preempt();
        let manager = manager();
        manager.views().map(|zone| zone.free_pages()).sum::<u64>() + manager.caches().pages()
    }
}

impl GlobalFrameAllocator for Framewright {
    fn alloc(&self, layout: Layout) -> Option<Paddr> {
        let _pinned = ostd::task::disable_preempt();
        Some(manager().allocate_layout(layout).ok()?.start.address() as Paddr)
    }

    fn dealloc(&self, addr: Paddr, size: usize) {
        let _pinned = ostd::task::disable_preempt();
        let (start, pages) = (Pfn::containing(addr as u64), (size / PAGE_SIZE) as u64);
        // SAFETY: OSTD gives back what nobody uses any more (invariant 42).
        if unsafe { manager().free_pages(start, pages) }.is_err() {
            release(start, pages);
        }
    }

    fn add_free_memory(&self, addr: Paddr, size: usize) {
        let _pinned = ostd::task::disable_preempt();
        if MANAGER.is_completed() {
            return release(Pfn::containing(addr as u64), (size / PAGE_SIZE) as u64);
        }
        let mut added = ADDED.lock();
        let len = added.len;
        match added.ranges.get_mut(len) {
            Some(place) => {
                *place = PhysRange::with_size(addr as u64, size as u64);
                added.len += 1;
            }
            None => lose((size / PAGE_SIZE) as u64),
        }
    }
}

fn manager() -> &'static Manager<Ostd> {
    MANAGER.call_once(bring_up)
}

/// What OSTD had before there was an allocator.
#[cold]
fn release(start: Pfn, pages: u64) {
    let range = framewright::units::PfnRange { start, end: start.add(pages) };
    // SAFETY: OSTD gives back what nobody uses any more (invariant 42).
    if unsafe { manager().hotplug().release(range) }.is_err() {
        lose(pages);
    }
}

fn lose(pages: u64) {
    LOST_PAGES.fetch_add(pages, Ordering::Relaxed);
}

#[cold]
fn bring_up() -> Manager<Ostd> {
    let mut added = ADDED.lock();
    let len = added.len;
    let given = &mut added.ranges[..len];
    given.sort_unstable_by_key(|range| range.start);
    let (mut ranges, mut claims) =
        ([MapRange::EMPTY; 2 * MOST_RANGES + 5], [MemoryAffinity::EMPTY; 1]);
    let mut builder = MapBuilder::new(&mut ranges);
    let (mut gaps, mut count) = ([PhysRange::with_size(0, 0); MOST_RANGES], 0);
    for (index, range) in given.iter().enumerate() {
        let end = if index == 0 { range.start } else { given[index - 1].end };
        let gap = PhysRange { start: end, end: range.start };
        if gap.size() != 0 && gap.size() <= LARGEST_GAP {
            gaps[count] = gap;
            count += 1;
            let _ = builder.add(gap.start, gap.size(), MemoryKind::Conventional);
        }
        builder.add(range.start, range.size(), MemoryKind::Conventional).expect("room was made");
    }
    let map = builder.finish().expect("OSTD adds each range once");
    let topology = Topology::new(&mut claims);
    let mut storage = MemblockStorage::new();
    // SAFETY: OSTD has added what nobody uses; what it did not add is reserved.
    let early =
        unsafe { Memblock::with_reserved(&Ostd, &mut storage, map, &topology, &gaps[..count]) };
    let parameters = Parameters::default();
    let input = BringUp { parameters: &parameters, started_ns: None };
    match Manager::bring_up(early.expect("the ranges are few"), &input) {
        Ok(manager) => manager,
        Err(failed) => panic!("{}", failed.error),
    }
}
