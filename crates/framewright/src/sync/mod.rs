//! The one place that names atomics, so that the model checkers can put their own in their stead.

mod barrier;
mod exclusive;
mod ownership;
mod prefetch;
mod quiet;
mod readers;
pub(crate) mod references;
mod spin;

#[cfg(loom)]
pub(crate) use loom::{cell::UnsafeCell, sync::atomic};

#[cfg(shuttle)]
pub(crate) use shuttle::sync::atomic;

#[cfg(not(any(loom, shuttle)))]
pub(crate) use core::sync::atomic;

pub(crate) use exclusive::Exclusive;
pub use ownership::Ownership;
pub(crate) use prefetch::prefetch;
pub use quiet::Quiet;
pub use readers::{Readers, Reading};
pub use references::{CountWord, NoReference, ReferenceCount};
pub use spin::{SpinGuard, SpinLock};

/// Atomics that stand in tables over raw memory: always the processor's own, because the model
/// checkers' have another size.
pub(crate) use core::sync::atomic as table_atomic;
