//! Frees the vmemmap of huge pages (HVO), and checks the real page tables after each step.

use crate::console::log;
use crate::platform::GuestPlatform;
use crate::tables;
use crate::vmemmap::GuestVmemmap;
use framewright::firmware::MemoryMap;
use framewright::units::{Order, PfnRange};
use framewright::vmemmap_space::BLOCKS_PER_CALL;
use framewright::{Manager, Request};

/// How many 2 MiB pages are used besides a whole section.
const HUGE_PAGES: usize = 8;
/// A section: 128 MiB.
const SECTION_ORDER: u8 = 15;
/// Frames of the vmemmap for one block.
const MAP_PAGES: u64 = framewright::vmemmap_space::VMEMMAP_PAGES_PER_BLOCK;

/// Reclaims, restores and frees the vmemmap of huge pages. Returns false if something is wrong,
/// which the log then says. Without a vmemmap, or if memory is short, there is nothing to do.
pub fn run(manager: &Manager<GuestPlatform>, map: MemoryMap<'_>, vmemmap: &GuestVmemmap) -> bool {
    let mut runs = [PfnRange::new(0, 0); HUGE_PAGES + 1];
    let section = Order::new(SECTION_ORDER).unwrap_or(Order::BLOCK);
    let orders = core::iter::once(section).chain(core::iter::repeat(Order::BLOCK));
    for (run, order) in runs.iter_mut().zip(orders) {
        *run = manager.allocate(&Request::new(order)).unwrap_or(*run);
    }
    let blocks: u64 = runs.iter().map(|run| run.pages() >> Order::BLOCK.get()).sum();
    let result = steps(manager, map, vmemmap, &runs, blocks);
    for run in runs.into_iter().filter(|run| !run.is_empty()) {
        // The runs are freed whether they have their part of the vmemmap or not. SAFETY: allocated
        // above, and its memory was never used (invariant 42).
        if let Err(error) = unsafe { manager.free(run) } {
            log!("map_space_test: huge pages without a memory map cannot be freed: {error}");
            return false;
        }
    }
    if let Err(fault) = manager.verify() {
        log!("map_space_test: after the huge pages were freed: {fault}");
        return false;
    }
    match result {
        Ok(Some(flushes)) => {
            log!(
                "map_space_test: {blocks} huge pages gave back their memory map with {flushes} \
                 flush{}, got part of it again, and were freed",
                if flushes == 1 { "" } else { "es" }
            );
            true
        }
        Ok(None) => true,
        Err(what) => {
            log!("map_space_test: {what}");
            false
        }
    }
}

/// Returns how many flushes the reclaim took, or `None` without a vmemmap.
fn steps(
    manager: &Manager<GuestPlatform>,
    map: MemoryMap<'_>,
    vmemmap: &GuestVmemmap,
    runs: &[PfnRange],
    blocks: u64,
) -> Result<Option<u64>, &'static str> {
    let before = vmemmap.counts();
    // SAFETY: the caller has allocated the runs, and nobody asked for a descriptor of theirs
    // (invariant 42).
    let Ok(change) = (unsafe { manager.vmemmap().optimize(runs) }) else { return Ok(None) };
    let look = |what| {
        tables::inspect(map, vmemmap, manager).map(|_| ()).map_err(|fault| {
            log!("map_space_test: {fault}");
            what
        })
    };
    look("the tables are wrong after a reclaim")?;
    let after = vmemmap.counts();
    let evicted = after.evicted_pages - before.evicted_pages;
    if change.blocks != blocks || evicted != blocks * MAP_PAGES || change.flushes > 2 {
        log!("map_space_test: {change:?} of {blocks} blocks, {evicted} pages evicted");
        return Err("a reclaim was incomplete or flushed more than twice");
    }
    if runs[0].pages() >> Order::BLOCK.get() == u64::from(BLOCKS_PER_CALL)
        && after.evicted_sections == before.evicted_sections
    {
        return Err("a whole section was not evicted at once");
    }
    let part = &runs[..runs.len() / 2];
    // SAFETY: as for `optimize` above (invariant 42).
    let restored = unsafe { manager.vmemmap().restore(part) }
        .map_err(|_| "the memory map cannot be restored")?;
    let expected: u64 = part.iter().map(|run| run.pages() >> Order::BLOCK.get()).sum();
    if restored.blocks + restored.out_of_frames != expected {
        return Err("a restore forgot blocks");
    }
    look("the tables are wrong after a restore")?;
    Ok(Some(change.flushes))
}
