//! Locks, ownership, readers and counts, over atomics that model checkers can replace
//! (`atomics`).

pub(crate) mod add_fields;
mod atomics;
mod barrier;
mod drain_epoch;
mod exclusive;
mod growing;
pub(crate) mod in_place;
mod made;
mod ownership;
mod prefetch;
mod readers;
pub(crate) mod references;
mod spin;

pub(crate) use atomics::{atomic, table_atomic};
pub use drain_epoch::DrainEpoch;
pub(crate) use exclusive::Exclusive;
pub(crate) use growing::Growing;
pub use made::{Claim, Made};
pub use ownership::Ownership;
pub(crate) use prefetch::{prefetch, prefetch_first_lines};
pub use readers::{Readers, Reading};
pub use references::{CountWord, NoReference, ReferenceCount};
pub(crate) use spin::SpinGuard;
pub use spin::SpinLock;
