//! Frames of another node's zone that a CPU's cache keeps while its own node has none left.
//!
//! ```text
//!          own node refuses, this zone serves
//!     none ----------------------------------> frames of one zone
//!       ^                                        |
//!       +----------------------------------------+
//!          own node serves or has memory again; a drain; what is isolated changes
//! ```
//!
//! What is in the cache then is used up, or goes back when it leaves.
//!
//! They are only told from others here. Where their blocks are the directory knows, as they are
//! kept too seldom to earn a table that every free looks at.
//!
//! Orders of memory: Relaxed: whoever has the cache touches them (invariant 16).

use crate::sync::table_atomic::{AtomicU64, Ordering};
use crate::units::PfnRange;

/// See the module documentation: the first frame, and one past the last.
pub(super) struct Away([AtomicU64; 2]);

impl Away {
    /// No frames.
    pub(super) fn none() -> Self {
        Self(core::array::from_fn(|_| AtomicU64::new(0)))
    }

    pub(super) fn set(&self, range: PfnRange) {
        let [first, end] = &self.0;
        first.store(range.start.0, Ordering::Relaxed);
        end.store(range.end.0, Ordering::Relaxed);
    }

    pub(super) fn is_none(&self) -> bool {
        let [_, end] = &self.0;
        end.load(Ordering::Relaxed) == 0
    }

    /// Whether all frames of a range, which is not empty, are among them.
    pub(super) fn covers(&self, range: PfnRange) -> bool {
        let [first, end] = &self.0;
        first.load(Ordering::Relaxed) <= range.start.0 && range.end.0 <= end.load(Ordering::Relaxed)
    }
}
