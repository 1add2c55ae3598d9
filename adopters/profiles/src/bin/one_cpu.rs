//! One CPU, pages only.
#![no_std]
#![no_main]

use core::ptr::NonNull;
use framewright::firmware::{MapBuilder, MapRange, MemoryAffinity, MemoryKind, Topology};
use framewright::memblock::{Memblock, MemblockStorage};
use framewright::units::{Order, PhysRange};
use framewright::{BringUp, IrqState, Manager, MigrateType, Parameters, PinnedCpu, Platform};
use framewright_profiles::{Failed, MEMORY_BYTES, check, direct};

framewright_profiles::program!(profile);

struct Kernel;

// SAFETY: memory is mapped at one offset, there is one CPU, and there are no interrupts.
unsafe impl Platform for Kernel {
    fn direct(&self, pa: u64) -> NonNull<u8> {
        direct(pa)
    }
    fn pin(&self) -> PinnedCpu {
        PinnedCpu::new(0)
    }
    fn irq_save(&self) -> IrqState {
        IrqState(0)
    }
    unsafe fn irq_restore(&self, _: IrqState) {}
}

fn profile() -> Result<u64, Failed> {
    let (mut ranges, mut claims) = ([MapRange::EMPTY; 32], [MemoryAffinity::EMPTY; 1]);
    let mut builder = MapBuilder::new(&mut ranges);
    builder.add(0, 0x9_fc00, MemoryKind::Conventional)?;
    builder.add(0x10_0000, MEMORY_BYTES - 0x10_0000, MemoryKind::Conventional)?;
    let map = builder.finish()?;
    let topology = Topology::new(&mut claims);
    let used = [PhysRange::new(0, 0x1_0000), PhysRange::new(0x20_0000, 0x24_1234)];
    static mut STORAGE: MemblockStorage = MemblockStorage::new();
    // SAFETY: this runs once, and no other code names the static.
    let storage = unsafe { &mut *(&raw mut STORAGE) };
    // SAFETY: nobody uses memory that is not among `used`, and this runs once.
    let early = unsafe { Memblock::with_reserved(&Kernel, storage, map, &topology, &used) }?;
    let parameters = Parameters::default();
    let input = BringUp { parameters: &parameters, started_ns: None };
    let manager = Manager::bring_up(early, &input).map_err(|failed| failed.error)?;
    use_pages(&manager)?;
    Ok(manager.metadata_bytes())
}

fn use_pages(manager: &Manager<Kernel>) -> Result<(), Failed> {
    let before = manager.totals().free_pages;
    let page = manager.allocate_order(Order::PAGE, MigrateType::Unmovable)?;
    let run = manager.allocate_pages(3, Order::PAGE)?;
    let block = manager.allocate_order(Order::BLOCK, MigrateType::Movable)?;
    // SAFETY: allocated above, and nobody uses it.
    unsafe {
        manager.free_order(page, Order::PAGE)?;
        manager.free(run)?;
        manager.free_order(block, Order::BLOCK)?;
    }
    manager.drain()?;
    check(manager.totals().free_pages == before)
}
