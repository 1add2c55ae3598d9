//! The vmemmap of this machine: an address range of its own, in tables from the memblock allocator.

use crate::console::log;
use crate::platform::{EarlyMemory, GuestPlatform, PLATFORM, set_vmemmap_space};
use crate::smp::TlbShootdown;
use crate::storage::Settled;
use framewright::firmware::MemoryMap;
use framewright::memblock::MemblockRequest;
use framewright::stores::Line;
use framewright::units::{Order, PAGE_SIZE, Pfn, PhysRange};
use framewright::vmemmap_space::{FrameSource, VmemmapSpace};
use framewright_arch::vmemmap::{Vmemmap, VmemmapError, VmemmapLayout};
use framewright_arch::x86_64::registers::page_table_root;

/// Where the vmemmap begins. Linux has its vmemmap at the same address.
pub const BASE: u64 = 0xffff_ea00_0000_0000;
/// Bits of the root's address in CR3; the others are flags.
const ROOT: u64 = (1 << 52) - PAGE_SIZE;

/// This machine's vmemmap, which flushes the TLBs of all CPUs.
pub type GuestVmemmap = Vmemmap<GuestPlatform, TlbShootdown>;

static VMEMMAP: Settled<GuestVmemmap> = Settled::new();

/// Takes frames from the memblock allocator.
struct EarlyFrames<'a, 'b>(&'a mut EarlyMemory<'b>);

// SAFETY: frames from the memblock allocator are reserved for this and nothing else (invariant 3),
// and are memory below the direct limit.
unsafe impl FrameSource for EarlyFrames<'_, '_> {
    fn take(&mut self, order: Order) -> Option<Pfn> {
        let bytes = order.pages() * PAGE_SIZE;
        let request = MemblockRequest { zeroed: false, ..MemblockRequest::new(bytes, bytes) };
        self.0.allocate(&request).ok().map(|range| Pfn::containing(range.start))
    }

    unsafe fn put_back(&mut self, start: Pfn, order: Order) {
        let frames = PhysRange::with_size(start.address(), order.pages() * PAGE_SIZE);
        // Frames that were just allocated can be freed. If not, they stay reserved.
        // SAFETY: the caller got the frames from `take` and does not use them any more.
        let _ = unsafe { self.0.free(frames) };
    }
}

/// Makes a vmemmap at `base` in the tables in use.
///
/// # Safety
/// Nobody maps anything from `base` on.
pub unsafe fn make(
    base: u64,
    end: u64,
    frames: &mut dyn FrameSource,
) -> Result<GuestVmemmap, VmemmapError> {
    let layout = VmemmapLayout {
        root: page_table_root() & ROOT,
        base,
        frames_end: Pfn(end.div_ceil(PAGE_SIZE)),
        global: false,
    };
    let tlb = TlbShootdown { global: layout.global };
    // SAFETY: the root is that of `direct_map`, in memory from the memblock allocator that stays
    // reserved. The caller promises the range. `boot.s` has set NXE and WP on every CPU.
    unsafe { Vmemmap::new(&PLATFORM, tlb, layout, frames) }
}

/// Makes the vmemmap, with everything absent. If there is no memory for its tables, there is none.
pub fn build(
    early: &mut EarlyMemory<'_>,
    map: MemoryMap<'_>,
) -> Result<&'static GuestVmemmap, VmemmapError> {
    // SAFETY: the direct map and the image are elsewhere, and nothing else is mapped yet.
    let vmemmap = unsafe { make(BASE, map.present_end(), &mut EarlyFrames(early)) }?;
    let vmemmap = VMEMMAP.settle(vmemmap);
    set_vmemmap_space(vmemmap);
    Ok(vmemmap)
}

/// Logs where the vmemmap is.
pub fn report(vmemmap: &Result<&'static GuestVmemmap, VmemmapError>) {
    match vmemmap {
        Ok(vmemmap) => {
            let store = vmemmap.store(&Line::ZERO).name();
            log!("vmemmap at {:?}, written with {store}", vmemmap.range());
        }
        Err(error) => log!("{error}; going on without one"),
    }
}

/// The vmemmap, if there is one.
pub fn get() -> Option<&'static GuestVmemmap> {
    VMEMMAP.get()
}
