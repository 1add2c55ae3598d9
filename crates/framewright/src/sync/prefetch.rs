//! Telling the processor what will be needed.

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
