//! The vmemmap in page tables of x86-64 (step 10 of `docs/porting.md`).

use framewright::Platform;
use framewright::memblock::{Memblock, MemblockRequest};
use framewright::units::{Order, PAGE_SIZE, Pfn, PhysRange};
use framewright::vmemmap_space::FrameSource;
use framewright_arch::paging::LocalTlb;
use framewright_arch::vmemmap::{Vmemmap, VmemmapError, VmemmapLayout};
use framewright_arch::x86_64::registers::page_table_root;

/// Frames for tables, from the memblock allocator.
struct EarlyFrames<'a, 'b, P: Platform>(&'a mut Memblock<'b, P>);

// SAFETY: what the memblock allocator gives is reserved for this alone (invariant 3).
unsafe impl<P: Platform> FrameSource for EarlyFrames<'_, '_, P> {
    fn take(&mut self, order: Order) -> Option<Pfn> {
        let bytes = order.pages() * PAGE_SIZE;
        let range = self.0.allocate(&MemblockRequest::new(bytes, bytes)).ok()?;
        Some(Pfn::containing(range.start))
    }
    unsafe fn put_back(&mut self, start: Pfn, order: Order) {
        let bytes = order.pages() * PAGE_SIZE;
        // SAFETY: whoever got the frames from `take` puts them back and uses them no more.
        let _ = unsafe { self.0.free(PhysRange::with_size(start.address(), bytes)) };
    }
}

/// Before bring-up, which populates the array. `vmemmap_space` returns it from then on.
///
/// # Errors
/// No frames for tables, or a place that page tables cannot have.
pub fn make_array<P: Platform>(
    kernel: &'static P,
    early: &mut Memblock<'_, P>,
    memory_end: u64,
) -> Result<Vmemmap<P, LocalTlb>, VmemmapError> {
    let place = VmemmapLayout {
        root: page_table_root() & !(PAGE_SIZE - 1),
        base: 0xffff_ea00_0000_0000,
        frames_end: Pfn(memory_end.div_ceil(PAGE_SIZE)),
        global: false,
    };
    // SAFETY: one CPU uses these tables.
    let tlb = unsafe { LocalTlb::new(place.global) };
    // SAFETY: the root stays, and nobody else maps anything at the base (invariant 39). Boot
    // code set EFER.NXE and CR0.WP, as that of each further CPU has to.
    unsafe { Vmemmap::new(kernel, tlb, place, &mut EarlyFrames(early)) }
}
