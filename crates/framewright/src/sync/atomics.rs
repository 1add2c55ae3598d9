//! The one place that names atomics, so that the model checkers can substitute their own.

#[cfg(loom)]
pub(crate) use loom::{cell::UnsafeCell, sync::atomic};

#[cfg(shuttle)]
pub(crate) use shuttle::sync::atomic;

#[cfg(not(any(loom, shuttle)))]
pub(crate) use core::sync::atomic;

/// Atomics that lie in tables over raw memory: always the processor's own, because the model
/// checkers' have another size.
pub(crate) use core::sync::atomic as table_atomic;
