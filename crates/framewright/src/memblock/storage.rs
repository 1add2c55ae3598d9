//! Region arrays in managed memory, and clearing: everything that the memblock allocator does
//! through pointers.
//!
//! A [`Place`] is free memory that only its holder knows of; the functions here take it as proof
//! that nobody else has the memory.

use super::error::MemblockError;
use super::region::Region;
use super::search::Place;
use crate::platform::Platform;
use crate::units::{NodeId, PAGE_SIZE, PhysRange};
use core::mem::MaybeUninit;
use core::slice;

/// An array of regions in managed memory.
pub(super) struct GrownArray {
    /// The entries, all of them initialised.
    pub entries: &'static mut [Region],
    /// The whole frames that hold them.
    pub range: PhysRange,
    /// The node of these frames.
    pub node: Option<NodeId>,
    /// Whether the adopter also reserved some of these bytes, so that they stay reserved when the
    /// array is gone.
    pub kept: bool,
}

impl GrownArray {
    /// Returns the bytes, in whole frames, of an array with `capacity` entries.
    pub fn bytes(capacity: usize) -> u64 {
        let bytes = capacity.saturating_mul(size_of::<Region>());
        u64::try_from(bytes)
            .map_or(u64::MAX, |bytes| bytes.checked_next_multiple_of(PAGE_SIZE).unwrap_or(u64::MAX))
    }

    /// Makes as many empty entries as fit in `place`, which was searched for below the direct
    /// limit, in whole frames. The caller reserves the place before it searches again.
    pub fn new<P: Platform>(platform: &P, place: Place) -> Result<Self, MemblockError> {
        let range = place.range();
        let capacity = usize::try_from(range.size()).map_or(0, |bytes| bytes / size_of::<Region>());
        let pointer = platform.direct(range.start).cast::<MaybeUninit<Region>>();
        if !pointer.is_aligned() {
            return Err(MemblockError::MisalignedDirectMap { address: range.start });
        }
        // SAFETY: the place is unused RAM below the direct limit (invariant 1), linear because it
        // lies inside one memory region (15), aligned as checked and long enough by division. It is
        // free now and reserved before anything else can be given it, so the slice has no alias
        // until the owner drops it and only then frees the range (3). Any content will do: entries
        // are uninitialised until written below (4 does not hold for regions).
        let raw: &'static mut [MaybeUninit<Region>] =
            unsafe { slice::from_raw_parts_mut(pointer.as_ptr(), capacity) };
        for entry in raw.iter_mut() {
            entry.write(Region::EMPTY);
        }
        // SAFETY: every entry was written in the loop above; invariant 4 is not needed.
        let entries = unsafe { raw.assume_init_mut() };
        Ok(Self { entries, range, node: place.node(), kept: false })
    }
}

/// Clears `place`, which was searched for below the direct limit.
pub(super) fn zero<P: Platform>(platform: &P, place: &Place) {
    /// The bytes cleared at a time: a count that fits every pointer width.
    const STEP: usize = 1 << 30;
    let PhysRange { start: mut position, end } = place.range();
    while position < end {
        let bytes = usize::try_from(end - position).map_or(STEP, |left| left.min(STEP));
        let pointer = platform.direct(position);
        // SAFETY: the bytes are unused RAM below the direct limit (invariant 1), in one memory
        // region and so linear (15), and nobody else was given them (3). Bytes have any value.
        unsafe { pointer.write_bytes(0, bytes) };
        position += bytes as u64;
    }
}
