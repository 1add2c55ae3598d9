//! No profile: the smallest library under traffic that checks it. All memory is handed out and
//! comes back, twenty thousand requests and frees of all sizes alternate, and the tables are
//! recounted many times.
#![no_std]
#![no_main]

use core::ptr::NonNull;
use framewright::firmware::{MapBuilder, MapRange, MemoryAffinity, MemoryKind, Topology};
use framewright::memblock::{Memblock, MemblockStorage};
use framewright::units::{Order, PfnRange, PhysRange};
use framewright::{AllocateError, BringUp, IrqState, Manager, MigrateType, Parameters, PinnedCpu};
use framewright::{Platform, Request};
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
    #[cfg(feature = "later")]
    fn accept_memory(&self) -> Option<&dyn framewright::platform::AcceptMemory> {
        Some(&later::ACCEPTS)
    }
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
    let before = manager.verify()?;
    exhaust(&manager)?;
    check(manager.verify()? == before)?;
    mix(&manager)?;
    check(manager.verify()? == before)?;
    #[cfg(feature = "later")]
    later::comes_and_goes(&manager)?;
    Ok(manager.metadata_bytes())
}

/// Memory that is added later. Each of its frames is accepted once before it is used.
#[cfg(feature = "later")]
mod later {
    use super::{Kernel, exhaust};
    use core::sync::atomic::{AtomicU64, Ordering};
    use framewright::manager::Budget;
    use framewright::platform::{AcceptError, AcceptMemory};
    use framewright::units::{NodeId, Order, Pfn, PfnRange, PhysRange};
    use framewright::zone::Grade;
    use framewright::{Manager, MigrateType};
    use framewright_profiles::{Failed, LATER_BYTES, MEMORY_BYTES, check};

    pub struct Accepts(AtomicU64);

    pub static ACCEPTS: Accepts = Accepts(AtomicU64::new(0));

    // SAFETY: there is nothing to accept; this only counts how much is requested.
    unsafe impl AcceptMemory for Accepts {
        fn accept(&self, range: PfnRange) -> Result<(), AcceptError> {
            self.0.fetch_add(range.pages(), Ordering::Relaxed);
            Ok(())
        }
    }

    pub fn comes_and_goes(manager: &Manager<Kernel>) -> Result<(), Failed> {
        let later = PhysRange::new(MEMORY_BYTES, MEMORY_BYTES + LATER_BYTES);
        let (before, mut free_pages) = (manager.verify()?, None);
        for _ in 0..3 {
            // SAFETY: nobody else uses this memory, and the platform maps it.
            let added = unsafe { manager.hotplug().add(later, NodeId::ZERO, Grade::Any) }?;
            check(added.pages + added.table_bytes / 4096 == LATER_BYTES / 4096)?;
            manager.verify()?;
            exhaust(manager)?;
            let after = manager.verify()?;
            check(after.free_pages > before.free_pages + added.pages / 2)?;
            // Some of the memory is in use when it is to be removed.
            let last = Pfn(later.end / 4096 - Order::BLOCK.pages());
            let held = manager.allocate_at(last, Order::BLOCK, MigrateType::Movable)?;
            // SAFETY: nobody uses the memory any more once it is removed.
            let remove = || unsafe { manager.hotplug().remove(later, Budget::UNLIMITED) };
            check(remove().is_err())?;
            manager.verify()?;
            // SAFETY: this run is held only here.
            unsafe { manager.free(held) }?;
            remove()?;
            manager.verify()?;
            let accepted_pages = ACCEPTS.0.load(Ordering::Relaxed);
            check(accepted_pages <= LATER_BYTES / 4096)?;
            check(accepted_pages > LATER_BYTES / 4096 / 2)?;
            // The tables of the first round stay for the next ones.
            let left = manager.totals().free_pages;
            check(left == *free_pages.get_or_insert(left))?;
        }
        Ok(())
    }
}

/// Takes all memory in blocks and then in pages, links the pieces by a word at both ends of each,
/// and gives everything back.
fn exhaust(manager: &Manager<Kernel>) -> Result<(), Failed> {
    let mut last = None;
    for order in [Order::BLOCK, Order::PAGE] {
        loop {
            match manager.allocate_order(order, MigrateType::Movable) {
                Ok(start) => {
                    stamp(PfnRange { start, end: start.add(order.pages()) }, last);
                    last = Some((start, order));
                }
                Err(AllocateError::OutOfMemory { .. }) => break,
                Err(error) => return Err(error.into()),
            }
        }
    }
    check(manager.totals().free_pages < MEMORY_BYTES / 4096 / 16)?;
    manager.verify()?;
    while let Some((start, order)) = last {
        let range = PfnRange { start, end: start.add(order.pages()) };
        last = read(range)?;
        // SAFETY: allocated above, and nobody uses it any more.
        unsafe { manager.free_order(start, order) }?;
    }
    manager.drain()?;
    Ok(())
}

type Piece = (framewright::units::Pfn, Order);

/// Writes into the first and the last word of a piece which piece was taken before it.
fn stamp(range: PfnRange, before: Option<Piece>) {
    let word = before.map_or(0, |(start, order)| start.0 << 8 | u64::from(order.get()) | 1 << 7);
    for address in ends(range) {
        // SAFETY: the word is in memory that the caller owns.
        unsafe { direct(address).cast::<u64>().write(word) };
    }
}

/// Reads what `stamp` wrote, if both ends still agree.
fn read(range: PfnRange) -> Result<Option<Piece>, Failed> {
    // SAFETY: the words are in memory that the caller owns and has stamped.
    let [first, last] = ends(range).map(|address| unsafe { direct(address).cast::<u64>().read() });
    check(first == last)?;
    let order = Order::new((first & 0x7f) as u8).ok_or(Failed::here())?;
    Ok((first != 0).then_some((framewright::units::Pfn(first >> 8), order)))
}

fn ends(range: PfnRange) -> [u64; 2] {
    [range.start.address(), range.end.address() - 8]
}

const HELD: usize = 300;

/// Makes requests and frees of all kinds.
fn mix(manager: &Manager<Kernel>) -> Result<(), Failed> {
    let mut held = [None::<PfnRange>; HELD];
    let mut random = 1_u64;
    let mut below = |limit: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99_991);
        (random >> 33) % limit
    };
    for turn in 0..20_000 {
        let place = &mut held[below(HELD as u64) as usize];
        match *place {
            Some(range) => {
                read(range)?;
                // Now and then frees only a part of the run.
                let pages = if below(4) == 0 { 1 + below(range.pages()) } else { range.pages() };
                let part = PfnRange { end: range.start.add(pages), ..range };
                *place = None;
                // SAFETY: the run is held only here.
                unsafe { manager.free(part) }?;
                if part.end < range.end {
                    let rest = PfnRange { start: part.end, ..range };
                    stamp(rest, None);
                    *place = Some(rest);
                }
            }
            None => {
                let most = 1 << below(12);
                let pages = 1 + below(most);
                let request = Request {
                    zeroed: pages < 64 && below(3) == 0,
                    max_address: if below(5) == 0 { 512 << 20 } else { u64::MAX },
                    migrate_type: MigrateType::ALL[below(3) as usize],
                    ..Request::pages(pages)
                };
                let range = match below(3) {
                    0 => manager.allocate_pages(pages, Order::PAGE),
                    _ => manager.allocate(&request),
                }?;
                check(range.pages() == pages)?;
                stamp(range, None);
                *place = Some(range);
            }
        }
        if turn % 1000 == 0 {
            manager.verify()?;
        }
    }
    for range in held.into_iter().flatten() {
        // SAFETY: the run is held only here.
        unsafe { manager.free(range) }?;
    }
    manager.drain()?;
    Ok(())
}
