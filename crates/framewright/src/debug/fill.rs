//! Fills frames with a pattern and finds bytes that differ from it.
//!
//! Orders of memory: Relaxed: the caller has the memory alone; how it got the memory orders what it
//! finds there.

use crate::platform::Platform;
use crate::sync::table_atomic::{AtomicU64, Ordering};
use crate::units::{PAGE_SIZE, PfnRange};

/// The byte that fills poisoned memory, as in Linux (`include/linux/poison.h`, `PAGE_POISON`).
pub const POISON: u8 = 0xaa;

const WORDS_PER_PAGE: usize = 512;
const WORDS_PER_LINE: usize = 8;

const _: () = assert!(WORDS_PER_PAGE as u64 * 8 == PAGE_SIZE);

/// Fills frames with `byte`. The frames lie below the direct limit and belong to the caller: they
/// were just allocated, or are about to become free.
pub(crate) fn fill<P: Platform>(platform: &P, frames: PfnRange, byte: u8) {
    for pfn in frames.start.0..frames.end.0 {
        let pointer = platform.direct(pfn * PAGE_SIZE);
        // SAFETY: one frame of managed memory below the direct limit that the caller alone has
        // (invariants 1 and 19).
        unsafe { pointer.write_bytes(byte, 4096) };
    }
}

/// Returns the address and the value of the first byte in `frames` that is not `byte`. The frames
/// are as for [`fill`].
pub(crate) fn first_other<P: Platform>(
    platform: &P,
    frames: PfnRange,
    byte: u8,
) -> Option<(u64, u8)> {
    let pattern = u64::from_ne_bytes([byte; 8]);
    for pfn in frames.start.0..frames.end.0 {
        let page = pfn * PAGE_SIZE;
        let first = platform.direct(page).cast::<[AtomicU64; WORDS_PER_PAGE]>();
        // SAFETY: one frame of managed memory below the direct limit: it is aligned, any bits are
        // integers, and code that writes to free memory by mistake meanwhile races with an atomic
        // (invariants 1, 4 and 19).
        let words = unsafe { first.as_ref() };
        if let Some((index, found)) = first_other_word(words, pattern) {
            let bytes = found.to_ne_bytes();
            let at = bytes.iter().position(|&other| other != byte).unwrap_or(0);
            return Some((page + (index * 8 + at) as u64, bytes[at]));
        }
    }
    None
}

/// Returns the index and the value of the first word of a frame that is not `pattern`. It compares
/// a cache line at a time: one branch for eight loads.
fn first_other_word(words: &[AtomicU64; WORDS_PER_PAGE], pattern: u64) -> Option<(usize, u64)> {
    let (lines, _) = words.as_chunks::<WORDS_PER_LINE>();
    for (number, line) in lines.iter().enumerate() {
        let found = line.each_ref().map(|word| word.load(Ordering::Relaxed));
        if found != [pattern; WORDS_PER_LINE] {
            let at = found.iter().position(|&word| word != pattern).unwrap_or(0);
            return Some((number * WORDS_PER_LINE + at, found[at]));
        }
    }
    None
}
