//! The only unsafe code of the crate: a borrowed job that is handed to other threads, the cell for
//! the first error, and slices that are lent out in parts.

mod disjoint;
mod first;
mod slot;

pub(crate) use disjoint::{on_parts, with_states};
pub(crate) use first::FirstError;
pub use slot::WorkerSlot;
pub(crate) use slot::{Ended, JobSlots, Work, with_job_slots};
