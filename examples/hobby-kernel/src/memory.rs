//! Framewright in this kernel: the platform that it needs, the memory that it gets, and the heap on
//! top of it.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{NonNull, null_mut, with_exposed_provenance_mut};
use framewright::adapters::multiboot2::add;
use framewright::firmware::{MapBuilder, MapRange, MemoryAffinity, Topology};
use framewright::memblock::{Memblock, MemblockStorage};
use framewright::units::{Order, PAGE_SIZE, Pfn, PhysRange};
use framewright::{
    BringUp, IrqState, Manager, MigrateType, Parameters, PinnedCpu, Platform, Request,
};
use multiboot2::BootInformation;
use spin::{Mutex, Once};
use talc::{TalcLock, source::GlobalAllocSource};
use x86_64::instructions::interrupts;

/// Where `boot.s` maps physical memory, and how much of it.
pub const DIRECT_MAP: usize = 0xffff_8000_0000_0000;
const DIRECT_BYTES: u64 = 512 << 30;

/// The machine, as the manager sees it.
pub struct Kernel;

// SAFETY: `boot.s` maps all memory below `DIRECT_BYTES` at one offset, the map is cut there, and
// memory in use is reserved (invariants 1 and 15). There is one CPU, without tasks.
unsafe impl Platform for Kernel {
    fn direct(&self, pa: u64) -> NonNull<u8> {
        let offset = usize::try_from(pa).expect("addresses have 64 bits");
        NonNull::new(with_exposed_provenance_mut(DIRECT_MAP + offset))
            .expect("the direct map is not at 0")
    }
    fn pin(&self) -> PinnedCpu {
        PinnedCpu::new(0)
    }
    fn irq_save(&self) -> IrqState {
        let were_on = interrupts::are_enabled();
        interrupts::disable();
        IrqState(were_on.into())
    }
    unsafe fn irq_restore(&self, state: IrqState) {
        if state.0 != 0 {
            interrupts::enable();
        }
    }
}

static MANAGER: Once<Manager<Kernel>> = Once::new();

/// Hands all unused memory to the manager.
///
/// # Safety
/// The boot loader gave `info`, and nothing has been allocated.
pub unsafe fn bring_up(info: &BootInformation<'_>) -> &'static Manager<Kernel> {
    unsafe extern "C" {
        static image_start: u8;
        static image_end: u8;
    }
    let (mut ranges, mut claims) = ([MapRange::EMPTY; 256], [MemoryAffinity::EMPTY; 1]);
    let mut builder = MapBuilder::new(&mut ranges);
    let areas = info.memory_map_tag().expect("the boot loader leaves a memory map").memory_areas();
    add(&mut builder, areas).expect("the memory map has few ranges");
    builder.limit(DIRECT_BYTES).expect("the memory map has few ranges");
    let map = builder.finish().expect("there is memory");
    // In use: the BIOS's data, this image with its stack and page tables, and the boot information.
    let left = (info.start_address() - DIRECT_MAP) as u64;
    let used = [
        PhysRange::new(0, 1 << 20),
        PhysRange::new(
            (&raw const image_start).addr() as u64,
            (&raw const image_end).addr() as u64,
        ),
        PhysRange::with_size(left, info.total_size() as u64),
    ];
    let (topology, mut storage) = (Topology::new(&mut claims), MemblockStorage::new());
    // SAFETY: nobody uses memory that the boot loader calls usable and that is not among `used`.
    let early = unsafe { Memblock::with_reserved(&Kernel, &mut storage, map, &topology, &used) };
    let parameters = Parameters::default();
    let input = BringUp { parameters: &parameters, started_ns: None };
    MANAGER.call_once(|| match Manager::bring_up(early.expect("ranges are few"), &input) {
        Ok(manager) => manager,
        Err(failed) => panic!("{}", failed.error),
    })
}

/// Whole pages for the heap, which takes them as it needs them and gives empty ones back.
#[derive(Debug)]
pub struct Pages;

// SAFETY: pages belong to their taker alone until the taker gives them back, and are aligned as
// requested.
unsafe impl GlobalAlloc for Pages {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let whole_pages = |bytes: usize| (bytes as u64).div_ceil(PAGE_SIZE).max(1);
        let pages = MANAGER.get().and_then(|manager| {
            // What is on the heap stays where it is.
            let align = Order::for_pages(whole_pages(layout.align()))?;
            let pages = Request::pages(whole_pages(layout.size()));
            manager.allocate(&Request { align, migrate_type: MigrateType::Unmovable, ..pages }).ok()
        });
        pages.map_or(null_mut(), |pages| Kernel.direct(pages.start.address()).as_ptr())
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        let start = Pfn::containing((at.addr() - DIRECT_MAP) as u64);
        let manager = MANAGER.get().expect("it was allocated");
        // SAFETY: the heap gives back what it took (invariant 42).
        unsafe { manager.free_bytes(start, layout.size() as u64) }.expect("the heap took it once");
    }
}

#[global_allocator]
static HEAP: TalcLock<Mutex<()>, GlobalAllocSource<Pages>> =
    TalcLock::new(GlobalAllocSource::with_block_size(Pages, 64 << 10));
