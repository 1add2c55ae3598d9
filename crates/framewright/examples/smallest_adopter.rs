//! The least that a kernel writes to have its memory managed: four methods, a map of one range, and
//! bring-up.
//!
//! One CPU, no interrupts, 32 MiB of RAM. Here a static array is the RAM; on hardware it is simply
//! there.

use framewright::firmware::{MapBuilder, MapRange, MemoryAffinity, MemoryKind, Topology};
use framewright::memblock::{Memblock, MemblockStorage};
use framewright::units::{Order, PAGE_SIZE, PhysRange};
use framewright::{BringUp, IrqState, Manager, Parameters, PinnedCpu, Platform, Request};
use std::cell::UnsafeCell;
use std::error::Error;
use std::ptr::NonNull;

/// Where the board's RAM begins, as boards have it.
const RAM_START: u64 = 1 << 30;
const RAM_BYTES: usize = 32 << 20;

#[repr(align(4096))]
struct Ram(UnsafeCell<[u8; RAM_BYTES]>);
// SAFETY: only the owner of a frame touches it.
unsafe impl Sync for Ram {}
static RAM: Ram = Ram(UnsafeCell::new([0; RAM_BYTES]));

struct Board;

// SAFETY: the map below names only frames of `RAM`, which nobody else uses and which `direct` shows
// at one offset; there is one CPU, and no interrupt handler on it.
unsafe impl Platform for Board {
    fn direct(&self, pa: u64) -> NonNull<u8> {
        let offset = usize::try_from(pa - RAM_START).expect("the manager asks for RAM only");
        NonNull::new(RAM.0.get().cast::<u8>().wrapping_add(offset)).expect("RAM is not at 0")
    }
    fn pin(&self) -> PinnedCpu {
        PinnedCpu::new(0)
    }
    // With interrupts these two would be `pushf; cli` and `popf`.
    fn irq_save(&self) -> IrqState {
        IrqState(0)
    }
    unsafe fn irq_restore(&self, _: IrqState) {}
}

fn main() -> Result<(), Box<dyn Error>> {
    // What firmware says. The arrays are the caller's: there is no heap yet.
    let (mut ranges, mut claims) = ([MapRange::EMPTY; 16], [MemoryAffinity::EMPTY; 1]);
    let mut builder = MapBuilder::new(&mut ranges);
    builder.add(RAM_START, RAM_BYTES as u64, MemoryKind::Conventional)?;
    let map = builder.finish()?;
    let topology = Topology::new(&mut claims);

    // What is in use already: say that the kernel's image fills the first MiB.
    let image = PhysRange::with_size(RAM_START, 1 << 20);
    let mut storage = MemblockStorage::new();
    // SAFETY: `RAM` beyond the image is used by nobody but who gets it from here.
    let early = unsafe { Memblock::with_reserved(&Board, &mut storage, map, &topology, &[image]) }?;

    let parameters = Parameters::default();
    let input = BringUp { parameters: &parameters, started_ns: None };
    let manager = Manager::bring_up(early, &input).map_err(|failed| failed.error)?;
    let before = manager.totals();
    println!("up: {} of {} pages are free", before.free_pages, before.present_pages);

    for (what, order) in [("page", Order::PAGE), ("2 MiB block", Order::BLOCK)] {
        // Whoever has this owns the frames; where it ends they are free again.
        let frames = manager.frames(&Request::new(order))?;
        let range = frames.range();
        assert_eq!(range.to_phys().size(), PAGE_SIZE << order.get());
        assert!(range.start.is_aligned(order) && range.start.address() >= image.end);
        println!("a {what}: {}", range.to_phys());
    }

    // The page is in the CPU's cache for the next request; without that everything is back, and the
    // tables agree.
    manager.drain()?;
    assert_eq!(manager.verify()?, before);
    println!("down: {} pages are free", manager.totals().free_pages);
    Ok(())
}
