//! Several CPUs and nodes, with page descriptors in an array that CPUs initialise together.
#![no_std]
#![no_main]

use core::num::NonZeroU64;
use core::ptr::NonNull;
use core::sync::atomic::{Ordering, fence};
use framewright::firmware::{MapBuilder, MapRange, MemoryAffinity, MemoryKind, Topology};
use framewright::hugetlb::NodeMask;
use framewright::manager::{InterleaveCursor, NumaPolicy, Shortage};
use framewright::memblock::{Memblock, MemblockStorage};
use framewright::units::{NodeId, Order, Pfn, PhysRange};
use framewright::vmemmap_space::{BlockRange, FrameList, FrameSource, OutOfFrames};
use framewright::vmemmap_space::{Unflushed, VmemmapSpace};
use framewright::{BringUp, IrqState, Manager, MigrateType, Parameters, PinnedCpu, Platform};
use framewright::{Reclaim, Request};
use framewright_jobs::{Helpers, SchedulerState, WorkerSlot, Workers};
use framewright_profiles::{Failed, MEMORY_BYTES, check, descriptors, direct};

framewright_profiles::program!(profile);

struct Kernel;

// SAFETY: memory is mapped at one offset, only one of the four CPUs runs, and there are no
// interrupts.
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
    fn cpus(&self) -> u32 {
        4
    }
    fn cpu_node(&self, cpu: u32) -> NodeId {
        if cpu < 2 { NodeId::ZERO } else { NodeId::new(1).unwrap_or_default() }
    }
    fn cpu_barrier(&self) {
        fence(Ordering::SeqCst);
    }
    fn can_wait(&self) -> bool {
        true
    }
    fn vmemmap_space(&self) -> Option<&dyn VmemmapSpace> {
        Some(&Array)
    }
    fn current_task(&self) -> Option<NonZeroU64> {
        NonZeroU64::new(1)
    }
}

/// An array in memory of its own, all of which is always present. A kernel has
/// `framewright_arch::vmemmap::Vmemmap` here.
struct Array;

// SAFETY: the array is readable and writable, no other code names it, and no translation ever
// changes.
unsafe impl VmemmapSpace for Array {
    fn base(&self) -> NonNull<u8> {
        descriptors()
    }
    fn takes_frames(&self) -> bool {
        false
    }
    unsafe fn populate(
        &self,
        _: BlockRange,
        _: &mut dyn FrameSource,
        _: &mut Unflushed,
    ) -> Result<(), OutOfFrames> {
        Ok(())
    }
    unsafe fn prepare(
        &self,
        _: BlockRange,
        _: &mut dyn FrameSource,
        _: &mut Unflushed,
    ) -> Result<(), OutOfFrames> {
        Ok(())
    }
    unsafe fn evict(&self, _: BlockRange, _: &mut Unflushed) -> u32 {
        0
    }
    unsafe fn flush(&self, unflushed: Unflushed) -> FrameList {
        // SAFETY: no translation has changed.
        unsafe { unflushed.into_flushed() }
    }
}

static SLOTS: [WorkerSlot; 3] = [const { WorkerSlot::new() }; 3];
static SCHEDULER: SchedulerState = SchedulerState::new();

/// CPU `i + 1` is helper `i`. In this program they never come.
struct IdleCpus;

impl Helpers for IdleCpus {
    fn workers(&self) -> Option<Workers<'_>> {
        Some(Workers { slots: &SLOTS, scheduler: &SCHEDULER })
    }
    fn wake(&self, _: usize) {}
}

/// A reclaim hook that has nothing to free.
struct Cold;

impl Reclaim for Cold {
    fn reclaim(&self, _: &Shortage) -> u64 {
        0
    }
}

fn profile() -> Result<u64, Failed> {
    let (mut ranges, mut claims) = ([MapRange::EMPTY; 32], [MemoryAffinity::EMPTY; 2]);
    let mut builder = MapBuilder::new(&mut ranges);
    builder.add(0, 0x9_fc00, MemoryKind::Conventional)?;
    builder.add(0x10_0000, MEMORY_BYTES - 0x10_0000, MemoryKind::Conventional)?;
    let map = builder.finish()?;
    let mut topology = Topology::new(&mut claims);
    for (domain, start) in [(0, 0), (1, MEMORY_BYTES / 2)] {
        let node = topology.node_of_domain(domain)?;
        let half = PhysRange::with_size(start, MEMORY_BYTES / 2);
        topology.add_memory(half, node, false)?;
        topology.add_cpu(node)?;
        topology.add_cpu(node)?;
    }
    let used = [PhysRange::new(0, 0x1_0000), PhysRange::new(0x20_0000, 0x24_1234)];
    static mut STORAGE: MemblockStorage = MemblockStorage::new();
    // SAFETY: this runs once, and no other code names the static.
    let storage = unsafe { &mut *(&raw mut STORAGE) };
    // SAFETY: nobody uses memory that is not among `used`, and this runs once.
    let early = unsafe { Memblock::with_reserved(&Kernel, storage, map, &topology, &used) }?;
    let parameters = Parameters::default();
    let input = BringUp { parameters: &parameters, started_ns: None };
    let manager = Manager::bring_up(early, &input).map_err(|failed| failed.error)?;
    manager.pressure().set_reclaim(Some(&Cold));
    manager.vmemmap().initialise_deferred(&IdleCpus);
    use_pages(&manager)?;
    use_nodes(&manager)?;
    use_descriptors(&manager)?;
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

fn use_nodes(manager: &Manager<Kernel>) -> Result<(), Failed> {
    let (request, mut cursor) = (Request::new(Order::PAGE), InterleaveCursor::default());
    let everywhere = NumaPolicy::interleave(NodeMask::ALL);
    let first = manager.numa().allocate(&request, &everywhere, &mut cursor)?;
    let second = manager.numa().allocate(&request, &everywhere, &mut cursor)?;
    let mut pages = [Pfn(0); 64];
    let got = manager.allocate_bulk(&request, &mut pages)?;
    // SAFETY: allocated above, and nobody uses it.
    unsafe {
        manager.free(first.range)?;
        manager.free(second.range)?;
        manager.free_bulk(&pages[..got])?;
    }
    manager.caches().age()?;
    check(manager.pressure().background().is_none())
}

fn use_descriptors(manager: &Manager<Kernel>) -> Result<(), Failed> {
    let page = manager.allocate(&Request::new(Order::PAGE))?;
    let references = manager.references();
    // SAFETY: allocated above, and nobody uses it. Each of the two references is put once.
    unsafe {
        references.start(page)?;
        references.try_get(page.start)?;
        check(manager.vmemmap().page(page.start).is_some())?;
        references.put(page.start)?;
        references.put(page.start)?;
    }
    Ok(())
}
