//! The only unsafe code of the crate: a borrowed job in the hands of other threads, and the cell of
//! the first error.

mod first;
mod slot;

pub(crate) use first::FirstError;
pub use slot::WorkerSlot;
pub(crate) use slot::{Ended, JobSlots, Work, with_job_slots};
