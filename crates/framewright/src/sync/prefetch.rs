//! Tells the processor which memory will be needed soon.

use core::ptr::NonNull;

/// This many lines are enough to start the processor's own prefetcher.
const LINES: usize = 8;

/// Prefetches the first lines of memory that will soon be read from `at` on.
#[inline]
pub(crate) fn prefetch_first_lines(at: NonNull<u8>) {
    for line in 0..LINES {
        let at = at.as_ptr().wrapping_add(line * 64);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: see `prefetch`; every x86-64 processor has this instruction.
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

/// Prefetches the cache line of `value` for writing, in exclusive state, so that a line that
/// another CPU wrote last is fetched once and not twice.
#[inline]
pub(crate) fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads and writes nothing and cannot fault; processors without this
    // instruction treat it as a no-op.
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
