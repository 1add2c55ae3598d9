//! Clears frames that nobody else has. With `debug::fill`, this is the only code that writes to
//! memory that is handed out.

use crate::platform::Platform;
use crate::units::{BLOCK_SIZE, PfnRange};

/// Clears frames that were just allocated, before anybody else knows of them.
pub(crate) fn zero<P: Platform>(platform: &P, frames: PfnRange) {
    let (mut position, end) = (frames.start.address(), frames.end.address());
    while position < end {
        // One piece at a time, because a pointer-sized integer may not hold the whole size.
        let bytes = (end - position).min(BLOCK_SIZE);
        let pointer = platform.direct(position);
        // SAFETY: the frames are managed memory below the direct limit that the allocator just took
        // for this caller, so nobody else has them. An allocation lies in present memory without a
        // hole, so the frames are linear in the direct map (invariants 1, 3 and 15).
        unsafe { pointer.write_bytes(0, usize::try_from(bytes).unwrap_or(0)) };
        position += bytes;
    }
}
