//! Frames of another node's zone that a CPU's cache keeps while its own node has no memory left.
//!
//! ```text
//!          own node refuses, this zone serves
//!     none ----------------------------------> frames of one zone
//!       ^                                        |
//!       +----------------------------------------+
//!          own node serves or has memory again; a drain; what is isolated changes
//! ```
//!
//! When that ends, the frames still in the cache are used up, or go back when they are freed or
//! when a request that prefers the own node meets them.
//! Frames of zones that are not the cache's own, including those that a single refill brought, are
//! *strays*. While there may be any, each free checks where its frames belong.
//!
//! This module only tells such frames from others. Their blocks are looked up in the directory:
//! they are kept too seldom to justify a table that every free consults.
//!
//! Orders of memory: Relaxed, because only the CPU that has the cache reads and changes it
//! (invariant 16).

use super::cache::CpuCache;
use crate::sync::table_atomic::Ordering;
use crate::units::PfnRange;

impl CpuCache {
    /// Makes the cache keep frames of a zone of another node, too, until it [comes
    /// home](Self::come_home).
    pub(crate) fn keep_away(&self, range: PfnRange) {
        self.contents.touch();
        self.away.set(range);
    }

    /// Returns whether the cache keeps frames of another node.
    #[inline]
    pub(crate) fn is_away(&self) -> bool {
        self.contents.touch();
        !self.away.is_none()
    }

    /// Called when the cache's own node has memory, and before the kept frames change: the cache
    /// stops keeping frames of another node.
    pub(crate) fn come_home(&self) {
        if self.is_away() {
            self.away.set(PfnRange::new(0, 0));
        }
    }

    /// Returns whether the cache may hold frames that are not of its own zones.
    #[inline(always)]
    pub(crate) fn has_strays(&self) -> bool {
        self.contents.touch();
        self.strays.load(Ordering::Relaxed)
    }

    /// Called when frames of a zone came in.
    pub(crate) fn note_source(&self, range: PfnRange) {
        if !self.is_own(range) {
            self.strays.store(true, Ordering::Relaxed);
        }
    }

    /// Called before frames come in.
    pub(crate) fn forget_strays_if_empty(&self) {
        if self.has_strays() && self.is_empty() {
            self.strays.store(false, Ordering::Relaxed);
        }
    }
}
