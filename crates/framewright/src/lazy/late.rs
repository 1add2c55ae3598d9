//! Memory that comes when the manager is up.
//!
//! What lies between two ranges was one of three things at bring-up, and all of it the same: a gap
//! that was adopted, a gap that stayed reserved, or nothing that the manager knows.

use super::AddError;
use super::ranges::Ranges;
use crate::manager::{Manager, ReleaseError};
use crate::platform::Platform;
use crate::units::{BLOCK_ORDER, NodeId, Order, Pfn, PfnRange};
use crate::zone::{Grade, ZoneKind};
use core::panic::Location;

/// Pages that can be had of `frames` from now on, which are not empty. An error means none of them.
///
/// # Safety
/// As of [`LazyManager::add`](super::LazyManager::add).
pub(super) unsafe fn add<P: Platform, const RANGES: usize>(
    manager: &Manager<P>,
    ranges: &mut Ranges<RANGES>,
    frames: PfnRange,
) -> Result<u64, AddError> {
    // Of all of it, before any is taken. The part that touches what is there is first, so that the
    // next touches that.
    let is_downwards = ranges.place_of(frames)?.joins_behind;
    let (mut pages, mut failed) = (0, None);
    let mut rest = frames;
    while !rest.is_empty() {
        // A gap may lie in two zones, and each part of it goes to its own.
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
/// As of [`add`].
unsafe fn add_of_zone<P: Platform, const RANGES: usize>(
    manager: &Manager<P>,
    ranges: &mut Ranges<RANGES>,
    frames: PfnRange,
) -> Result<u64, AddError> {
    let place = ranges.place_of(frames)?;
    // Nobody uses them, says the caller; as frames of a gap they were whose they are now (invariant
    // 42). Past the caches, which take what only their zone knows not to be allocated.
    let freed = manager.free_uncached(frames, Location::caller());
    let is_taken = if freed.is_err_and(|error| error.concerns(frames)) {
        // SAFETY: the same.
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
    // SAFETY: memory that nobody uses and the platform shows, says the caller; the manager does not
    // know it, or this is refused.
    unsafe { manager.hotplug().add(blocks.to_phys(), NodeId::ZERO, Grade::Any) }?;
    ranges.insert(place, blocks);
    Ok(blocks.pages())
}

/// But for the block of frame 0, which is never handed out.
fn whole_blocks(frames: PfnRange) -> Option<PfnRange> {
    let pages = Order::BLOCK.pages();
    let start = frames.start.0.next_multiple_of(pages).max(pages);
    let blocks =
        PfnRange { start: Pfn(start), end: Pfn(frames.end.0 >> BLOCK_ORDER << BLOCK_ORDER) };
    (!blocks.is_empty()).then_some(blocks)
}
