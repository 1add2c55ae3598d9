//! Memory that is added when the manager is up.
//!
//! At bring-up, all memory between two ranges was treated in one of three ways: as a gap that was
//! adopted, as a gap that stayed reserved, or as memory that the manager does not know.

use super::AddError;
use super::ranges::Ranges;
use crate::manager::{Manager, ReleaseError};
use crate::platform::Platform;
use crate::units::{BLOCK_ORDER, NodeId, Order, Pfn, PfnRange};
use crate::zone::{Grade, ZoneKind};
use core::panic::Location;

/// Adds `frames`, which are not empty, and returns how many of their pages the manager has from now
/// on, its tables among them. An error means none of them.
///
/// # Safety
/// As for [`LazyManager::add`](super::LazyManager::add).
pub(super) unsafe fn add<P: Platform, const RANGES: usize>(
    manager: &Manager<P>,
    ranges: &mut Ranges<RANGES>,
    frames: PfnRange,
) -> Result<u64, AddError> {
    // Checks the whole range before any part of it is added. The part that touches a known range
    // comes first, so that the next part touches that one.
    let is_downwards = ranges.place_of(frames)?.joins_behind;
    let (mut pages, mut failed) = (0, None);
    let mut rest = frames;
    while !rest.is_empty() {
        // A gap may lie in two zones; each part of it goes to its own zone.
        let part = if is_downwards {
            let zone = ZoneKind::of(Pfn(rest.end.0 - 1)).frames();
            PfnRange { start: rest.start.max(zone.start), end: rest.end }
        } else {
            let zone = ZoneKind::of(rest.start).frames();
            PfnRange { start: rest.start, end: rest.end.min(zone.end) }
        };
        if is_downwards {
            rest.end = part.start;
        } else {
            rest.start = part.end;
        }
        // SAFETY: passed on to the caller.
        match unsafe { add_of_zone(manager, ranges, part) } {
            Ok(added) => pages += added,
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    match failed {
        Some(error) if pages == 0 => Err(error),
        _ => Ok(pages),
    }
}

/// # Safety
/// As for [`add`].
unsafe fn add_of_zone<P: Platform, const RANGES: usize>(
    manager: &Manager<P>,
    ranges: &mut Ranges<RANGES>,
    frames: PfnRange,
) -> Result<u64, AddError> {
    let place = ranges.place_of(frames)?;
    // The caller promises that nobody uses the frames. If they are frames of an adopted gap, they
    // belong to the caller now (invariant 42). The free bypasses the caches, which would accept
    // frames that only their zone knows not to be allocated.
    let freed = manager.free_uncached(frames, Location::caller());
    let is_taken = if freed.is_err_and(|error| error.concerns(frames)) {
        // SAFETY: the caller promises that nobody uses the frames.
        match unsafe { manager.hotplug().release(frames) } {
            Err(ReleaseError::Busy) => return Err(AddError::Busy),
            released => released.is_ok(),
        }
    } else {
        true
    };
    if is_taken {
        ranges.insert(place, frames);
        return Ok(frames.pages());
    }
    let blocks = whole_blocks(frames).ok_or(AddError::NoBlock(frames))?;
    let place = ranges.place_of(blocks)?;
    // SAFETY: the caller promises that nobody uses the memory and that the platform maps it. The
    // manager does not know it, or refuses it.
    unsafe { manager.hotplug().add(blocks.to_phys(), NodeId::ZERO, Grade::Any) }?;
    ranges.insert(place, blocks);
    Ok(blocks.pages())
}

/// Returns the whole blocks of a range, without the block of frame 0, which is never handed out.
fn whole_blocks(frames: PfnRange) -> Option<PfnRange> {
    let pages = Order::BLOCK.pages();
    let start = frames.start.0.next_multiple_of(pages).max(pages);
    let blocks =
        PfnRange { start: Pfn(start), end: Pfn(frames.end.0 >> BLOCK_ORDER << BLOCK_ORDER) };
    (!blocks.is_empty()).then_some(blocks)
}
