//! One half of a barrier whose other half a drainer has all CPUs execute
//! ([`Platform::cpu_barrier`](crate::Platform::cpu_barrier)).
//!
//! Orders of memory: SeqCst, for the compiler or in a model; the partner is `Platform::cpu_barrier`
//! of the drainer.

/// Keeps a store before a load that follows. The compiler must not swap them; that the processor
/// may is what the drainer's barrier is for.
#[cfg(not(loom))]
#[inline]
pub(super) fn order_store_before_load() {
    core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
}

/// The model has no barrier on other CPUs, so there everybody has his own.
#[cfg(loom)]
pub(super) fn order_store_before_load() {
    loom::sync::atomic::fence(loom::sync::atomic::Ordering::SeqCst);
}
