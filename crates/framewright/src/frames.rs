//! Writing into frames that nobody else has: with `debug::fill` the only code that touches memory
//! which is handed out.

use crate::platform::Platform;
use crate::units::{BLOCK_SIZE, PfnRange};

/// Clears frames that were just allocated and that nobody else knows of yet.
pub(crate) fn zero<P: Platform>(platform: &P, frames: PfnRange) {
    let (mut position, end) = (frames.start.address(), frames.end.address());
    while position < end {
        // A piece at a time, as a pointer's width may hold no more.
        let bytes = (end - position).min(BLOCK_SIZE);
        let pointer = platform.direct(position);
        // SAFETY: the frames are managed memory below the direct limit that the allocator just took
        // for this caller, so nobody else has them; an allocation lies in present memory without a
        // hole, so they are linear (invariants 1, 3 and 15).
        unsafe { pointer.write_bytes(0, usize::try_from(bytes).unwrap_or(0)) };
        position += bytes;
    }
}
