//! Memory that comes when the manager is up.
//!
//! What lies between two ranges was one of three things at bring-up, and all of it the same: a gap
//! that was adopted, a gap that stayed reserved, or nothing that the manager knows.

use super::AddError;
use super::ranges::Ranges;
use crate::manager::Manager;
use crate::platform::Platform;
use crate::units::{BLOCK_ORDER, NodeId, Order, Pfn, PfnRange};
use crate::zone::Grade;

/// Pages that can be had of `frames` from now on, which are not empty.
///
/// # Safety
/// As of [`LazyManager::add`](super::LazyManager::add).
pub(super) unsafe fn add<P: Platform, const RANGES: usize>(
    manager: &Manager<P>,
    ranges: &mut Ranges<RANGES>,
    frames: PfnRange,
) -> Result<u64, AddError> {
    let place = ranges.place_of(frames)?;
    // SAFETY: nobody uses them, says the caller; as frames of a gap they were whose they are now
    // (invariant 42).
    let freed = unsafe { manager.free(frames) };
    let is_taken = !freed.is_err_and(|error| error.concerns(frames))
        // SAFETY: the same.
        || unsafe { manager.hotplug().release(frames) }.is_ok();
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
