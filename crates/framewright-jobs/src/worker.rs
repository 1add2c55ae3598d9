//! What a chunk function is told about the worker that calls it.
//!
//! Orders of memory: Relaxed: that a job stops is a wish, which carries no data.

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
    /// Which worker: 0 is the job's caller, the others are below the job's `max_threads`. No two
    /// workers of a job that run at once have one number, and what one wrote is visible to the next
    /// that has its number.
    #[must_use]
    pub const fn index(&self) -> u32 {
        self.index
    }

    /// The node of the CPU on which it runs.
    #[must_use]
    pub fn node(&self) -> u32 {
        (self.node)()
    }

    /// Whether the job is over for a reason: another chunk failed, or it was cancelled. A long
    /// chunk may then return an error of its own early; one that goes on does no harm.
    #[must_use]
    pub fn should_stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.cancel.is_some_and(Cancel::is_cancelled)
    }
}
