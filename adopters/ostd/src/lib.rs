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

pub use platform::Ostd;

use core::alloc::Layout;
use core::sync::atomic::{AtomicU64, Ordering};
use framewright::firmware::{MapBuilder, MapRange, MemoryAffinity, MemoryKind, Topology};
use framewright::memblock::{Memblock, MemblockStorage};
use framewright::units::{Pfn, PfnRange, PhysRange};
use framewright::{BringUp, Manager, Parameters};
use ostd::mm::{Paddr, frame::GlobalFrameAllocator};

/// Ranges that can be added before the first allocation.
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
static LOST: AtomicU64 = AtomicU64::new(0);

/// The allocator; there is one, whatever the number of these.
#[derive(Clone, Copy, Debug)]
pub struct Framewright;

impl Framewright {
    /// How often memory was given back that the manager could not take.
    pub fn lost(self) -> u64 {
        LOST.load(Ordering::Relaxed)
    }

    /// The manager, once something has been allocated.
    pub fn manager(self) -> Option<&'static Manager<Ostd>> {
        MANAGER.get()
    }
}

impl GlobalFrameAllocator for Framewright {
    #[inline]
    fn alloc(&self, layout: Layout) -> Option<Paddr> {
        let Some(manager) = MANAGER.get() else { return alloc_first(layout) };
        Some(manager.allocate_layout(layout).ok()?.start.address() as Paddr)
    }

    #[inline]
    fn dealloc(&self, addr: Paddr, size: usize) {
        let Some(manager) = MANAGER.get() else { return lose() };
        let (start, size) = (Pfn::containing(addr as u64), size as u64);
        // SAFETY: OSTD gives back what nobody uses any more (invariant 42).
        if unsafe { manager.free_bytes(start, size) }.is_err() {
            lose();
        }
    }

    fn add_free_memory(&self, addr: Paddr, size: usize) {
        let mut added = ADDED.lock();
        let len = added.len;
        match added.ranges.get_mut(len) {
            Some(place) if !MANAGER.is_completed() => {
                *place = PhysRange::with_size(addr as u64, size as u64);
                added.len += 1;
            }
            _ => lose(),
        }
    }
}

/// The first allocation says that all memory has been added.
#[cold]
#[inline(never)]
fn alloc_first(layout: Layout) -> Option<Paddr> {
    let manager = MANAGER.call_once(bring_up);
    Some(manager.allocate_layout(layout).ok()?.start.address() as Paddr)
}

#[cold]
fn lose() {
    LOST.fetch_add(1, Ordering::Relaxed);
}

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
    let manager = match Manager::bring_up(early.expect("the ranges are few"), &input) {
        Ok(manager) => manager,
        Err(failed) => panic!("{}", failed.error),
    };
    for gap in &gaps[..count] {
        // OSTD frees of it what it has, like anything else. Devices' addresses are refused.
        let gap = PfnRange { start: Pfn::containing(gap.start), end: Pfn::containing(gap.end) };
        let _ = manager.hotplug().adopt(gap);
    }
    manager
}
