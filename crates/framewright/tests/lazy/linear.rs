//! Platforms written in safe code.

use framewright::platform::{Cpu, LinearMap, OneAtATime, Undo};
use framewright::units::{Order, PhysRange};
use framewright::{IrqState, LazyManager, PinnedCpu, Platform};
use std::alloc::{Layout, alloc_zeroed};
use std::sync::atomic::{AtomicUsize, Ordering};

const BYTES: usize = 32 << 20;

/// Memory of the process, which shows physical address 0 at its start.
fn memory() -> usize {
    let layout = Layout::from_size_align(BYTES, 2 << 20).expect("a layout");
    // SAFETY: of some size.
    unsafe { alloc_zeroed(layout) }.expose_provenance()
}

/// Counts how deeply the platform is pinned and how often interrupts are off.
#[derive(Default)]
struct Counting {
    pinned: AtomicUsize,
    off: AtomicUsize,
    calls: AtomicUsize,
}

impl Cpu for Counting {
    fn pin(&self) -> PinnedCpu {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.pinned.fetch_add(1, Ordering::Relaxed);
        PinnedCpu::new(0)
    }
    fn unpin(&self, cpu: Undo<PinnedCpu>) {
        assert_eq!(cpu.into_inner().index(), 0);
        assert!(self.pinned.fetch_sub(1, Ordering::Relaxed) > 0);
    }
    fn irq_save(&self) -> IrqState {
        IrqState(self.off.fetch_add(1, Ordering::Relaxed))
    }
    fn irq_restore(&self, state: Undo<IrqState>) {
        let depth = state.into_inner().0;
        assert_eq!(self.off.swap(depth, Ordering::Relaxed), depth + 1, "in turn");
    }
}

#[test]
fn a_cpu_in_safe_code_is_asked_in_turn() {
    // SAFETY: the memory is the test's for ever, and one thread uses it.
    let map: &'static _ =
        Box::leak(Box::new(unsafe { LinearMap::new(memory(), Counting::default()) }));
    let lazy: LazyManager<_> = LazyManager::new(map);
    // SAFETY: as above.
    unsafe { lazy.add(PhysRange::new(0x1000, BYTES as u64)) }.expect("there is room");
    let mut held = Vec::new();
    for pages in (1..40).cycle().take(1000) {
        held.extend(lazy.allocate_pages(pages, Order::PAGE));
        if held.len() > 20 {
            let range = held.swap_remove(usize::try_from(pages).expect("small") % 20);
            // SAFETY: allocated above.
            unsafe { lazy.free_pages(range.start, range.pages()) }.expect("ours");
        }
    }
    let cpu = map.cpu();
    assert!(cpu.calls.load(Ordering::Relaxed) > 100);
    assert_eq!(cpu.pinned.load(Ordering::Relaxed), 0);
    assert_eq!(cpu.off.load(Ordering::Relaxed), 0);
    lazy.get().expect("it is up").verify().expect("all is well");
}

#[test]
fn the_map_begins_and_ends_where_it_says() {
    let base = memory();
    // SAFETY: the memory is the test's for ever, and one thread uses it.
    let map = unsafe { LinearMap::new(base, OneAtATime) }.ending_at(16 << 20);
    assert_eq!(map.direct(0x1234).addr().get(), base + 0x1234);
    assert_eq!(map.direct_limit(), 16 << 20);
    assert_eq!((map.cpus(), map.can_wait(), map.pin().index()), (1, false, 0));
    let map: &'static _ = Box::leak(Box::new(map));
    let lazy: LazyManager<_> = LazyManager::new(map);
    // SAFETY: as above; nobody writes where nothing is seen.
    unsafe { lazy.add(PhysRange::new(0x1000, BYTES as u64)) }.expect("there is room");
    lazy.bring_up().expect("tables are below the end").verify().expect("all is well");
}
