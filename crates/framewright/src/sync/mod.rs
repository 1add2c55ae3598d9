//! The one place that names atomics, so that the model checker can put its own in their stead.

mod ownership;
mod prefetch;
mod quiet;
mod readers;
pub(crate) mod references;
mod spin;

#[cfg(loom)]
pub(crate) use loom::{cell::UnsafeCell, sync::atomic};

#[cfg(not(loom))]
pub(crate) use core::sync::atomic;

pub use ownership::Ownership;
pub(crate) use prefetch::prefetch;
pub use quiet::Quiet;
pub use readers::{Readers, Reading};
pub use references::{CountWord, NoReference, ReferenceCount};
pub use spin::{SpinGuard, SpinLock};

/// Atomics that stand in tables over raw memory: always the processor's own, because the model checker's have another size.
pub(crate) use core::sync::atomic as table_atomic;
