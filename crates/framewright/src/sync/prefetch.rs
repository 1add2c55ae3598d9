//! Telling the processor what will be needed.

use core::ptr::NonNull;

/// So many lines start the processor's own prefetcher.
const LINES: usize = 8;

/// Asks for the first lines of memory that is read soon, from there on.
#[inline]
pub(crate) fn prefetch_first_lines(at: NonNull<u8>) {
    for line in 0..LINES {
        let at = at.as_ptr().wrapping_add(line * 64);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as below; every processor has this one.
        unsafe {
            core::arch::asm!(
                "prefetcht0 [{}]",
                in(reg) at,
                options(nostack, preserves_flags, readonly)
            );
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }
}

/// Asks for the cache line of `value`, to be written soon: for its own use, so that a line that
/// another CPU wrote last is fetched once and not twice.
#[inline]
pub(crate) fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads and writes nothing and cannot fault; processors without this one
    // take it for no operation.
    unsafe {
        core::arch::asm!(
            "prefetchw [{}]",
            in(reg) value,
            options(nostack, preserves_flags, readonly)
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}
