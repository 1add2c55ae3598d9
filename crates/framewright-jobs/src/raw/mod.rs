//! The only unsafe code of the crate: a borrowed job in the hands of other threads, the cell of the
//! first error, and slices that are lent in parts.

mod disjoint;
mod first;
mod slot;

pub(crate) use disjoint::{on_parts, with_states};
pub(crate) use first::FirstError;
pub use slot::WorkerSlot;
pub(crate) use slot::{Ended, JobSlots, Work, with_job_slots};
