//! A kernel heap on top of the manager, in use: it grows block by block, serves small, large and
//! strictly aligned pieces, and gives all of it back at once. The heap itself is in `heap.rs`, to
//! be taken along.

mod heap;

use framewright::firmware::{MapBuilder, MapRange, MemoryAffinity, MemoryKind, Topology};
use framewright::memblock::{Memblock, MemblockStorage};
use framewright::{BringUp, IrqState, Manager, Parameters, PinnedCpu, Platform};
use heap::BumpHeap;
use std::alloc::Layout;
use std::cell::UnsafeCell;
use std::error::Error;
use std::ptr::NonNull;

/// Where the board's RAM begins, and how much there is.
const RAM_START: u64 = 1 << 30;
const RAM_BYTES: usize = 64 << 20;

#[repr(align(4096))]
struct Ram(UnsafeCell<[u8; RAM_BYTES]>);
// SAFETY: only the owner of a frame touches it.
unsafe impl Sync for Ram {}
static RAM: Ram = Ram(UnsafeCell::new([0; RAM_BYTES]));

/// One CPU without interrupts; `smallest_adopter` explains the methods.
struct Board;

// SAFETY: the map names only frames of `RAM`, which nobody else uses and which `direct` shows at
// one offset; there is one CPU, and no interrupt handler on it.
unsafe impl Platform for Board {
    fn direct(&self, pa: u64) -> NonNull<u8> {
        let offset = usize::try_from(pa - RAM_START).expect("the manager asks for RAM only");
        NonNull::new(RAM.0.get().cast::<u8>().wrapping_add(offset)).expect("RAM is not at 0")
    }
    fn pin(&self) -> PinnedCpu {
        PinnedCpu::new(0)
    }
    fn irq_save(&self) -> IrqState {
        IrqState(0)
    }
    unsafe fn irq_restore(&self, _: IrqState) {}
}

fn bring_up() -> Result<Manager<Board>, Box<dyn Error>> {
    let (mut ranges, mut claims) = ([MapRange::EMPTY; 16], [MemoryAffinity::EMPTY; 1]);
    let mut builder = MapBuilder::new(&mut ranges);
    builder.add(RAM_START, RAM_BYTES as u64, MemoryKind::Conventional)?;
    let map = builder.finish()?;
    let topology = Topology::new(&mut claims);
    let mut storage = MemblockStorage::new();
    // SAFETY: the map names the board's RAM, which nobody else uses; bring-up happens once.
    let early = unsafe { Memblock::new(&Board, &mut storage, map, &topology) }?;
    let input = BringUp { parameters: &Parameters::default(), started_ns: None };
    Ok(Manager::bring_up(early, &input).map_err(|failed| failed.error)?)
}

/// What a kernel would keep in such a heap.
struct Thread {
    number: u32,
    stack: NonNull<u8>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let manager = bring_up()?;
    let before = manager.totals();
    let mut heap = BumpHeap::new(&manager);
    assert_eq!(manager.totals(), before, "an empty heap holds nothing");

    // Many small pieces, all alive at once: they fill several blocks, and none overlaps another.
    const THREADS: u32 = 500;
    const STACK: Layout = match Layout::from_size_align(16 << 10, 4096) {
        Ok(layout) => layout,
        Err(_) => panic!("a stack is a few aligned pages"),
    };
    let threads = heap.slice::<Thread>(THREADS as usize)?;
    for (number, place) in (0..THREADS).zip(threads.iter_mut()) {
        let stack = heap.raw(STACK)?;
        // SAFETY: the piece is ours and as large as STACK says.
        unsafe { stack.write_bytes(number.to_le_bytes()[0], STACK.size()) };
        place.write(Thread { number, stack });
    }
    for place in threads.iter() {
        // SAFETY: all of them were written above.
        let thread = unsafe { place.assume_init_ref() };
        assert!(thread.stack.addr().get().is_multiple_of(STACK.align()));
        // SAFETY: stacks were written whole, and stay until the heap is reset.
        let stack = unsafe { std::slice::from_raw_parts(thread.stack.as_ptr(), STACK.size()) };
        assert!(
            stack.iter().all(|&byte| byte == thread.number.to_le_bytes()[0]),
            "stack {} was written over",
            thread.number
        );
    }
    println!("{THREADS} threads with stacks: {} chunks, {} pages", heap.chunks(), used(&manager));

    // A piece larger than a block is a chunk of its own.
    let frame_buffer = heap.slice::<u32>(1920 * 1080)?;
    frame_buffer.iter_mut().for_each(|pixel| _ = pixel.write(0x00ff_00ff));
    *heap.value::<u64>()? = std::mem::MaybeUninit::new(1);
    println!("and a frame buffer:       {} chunks, {} pages", heap.chunks(), used(&manager));

    // What does not fit is refused, and nothing is lost.
    let refusal = heap
        .raw(Layout::from_size_align(RAM_BYTES, 1)?)
        .expect_err("all of RAM is more than there is");
    println!("all of RAM:               {refusal}");

    heap.reset();
    assert_eq!(manager.verify()?, before, "everything is back");
    println!("after the reset:          {} chunks, {} pages", heap.chunks(), used(&manager));
    Ok(())
}

fn used(manager: &Manager<Board>) -> u64 {
    manager.totals().allocated_pages
}
