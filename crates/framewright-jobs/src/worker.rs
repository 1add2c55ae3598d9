//! What a chunk function is told about the worker that calls it.
//!
//! Memory ordering: Relaxed, because the flag that stops a job carries no data.

use crate::sync::atomic::{AtomicBool, Ordering};
use crate::token::Cancel;

/// The worker that calls a chunk.
pub struct Worker<'a> {
    pub(crate) index: u32,
    pub(crate) node: &'a (dyn Fn() -> u32 + 'a),
    pub(crate) stop: &'a AtomicBool,
    pub(crate) cancel: Option<&'a Cancel>,
}

impl Worker<'_> {
    /// The worker's number: 0 for the job's caller, and below the job's `max_threads` for the
    /// others. No two workers of a job have the same number at the same time, and what a worker
    /// wrote is visible to the next worker with its number.
    #[must_use]
    pub const fn index(&self) -> u32 {
        self.index
    }

    /// The node of the CPU on which the worker now runs.
    #[must_use]
    pub fn node(&self) -> u32 {
        (self.node)()
    }

    /// Whether another chunk failed or the job was cancelled. A long chunk may then return early
    /// with an error of its own, but need not.
    #[must_use]
    pub fn should_stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.cancel.is_some_and(Cancel::is_cancelled)
    }
}
