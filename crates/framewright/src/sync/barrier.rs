//! The owner's half of an asymmetric barrier: a drainer makes all CPUs execute the other half
//! ([`Platform::cpu_barrier`](crate::Platform::cpu_barrier)).
//!
//! Orders of memory: SeqCst, for the compiler, or for the processor in a model; it pairs with the
//! drainer's `Platform::cpu_barrier`.

/// Keeps a store before a load that follows it. This stops only the compiler from swapping them;
/// the drainer's barrier deals with the processor, which may swap them.
#[cfg(not(loom))]
#[inline]
pub(super) fn order_store_before_load() {
    core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
}

/// The model cannot execute a barrier on other CPUs, so here every thread executes its own.
#[cfg(loom)]
pub(super) fn order_store_before_load() {
    loom::sync::atomic::fence(loom::sync::atomic::Ordering::SeqCst);
}
