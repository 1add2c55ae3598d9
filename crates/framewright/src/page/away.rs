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
//! No free of a frame that the cache's own zones have looks among these frames: they are kept too
//! seldom to justify a table that every free consults. Only while there may be strays does each.
//!
//! Orders of memory: Relaxed, because only the CPU that has the cache reads and changes it
//! (invariant 16).

use super::cache::CpuCache;
use super::near::Near;
use crate::block::Lot;
use crate::sync::table_atomic::Ordering;
use crate::units::{Order, Pfn, PfnRange};

/// Of so many frees, at least one looks whether the own node has memory.
const FREES_PER_LOOK: u32 = 16;

impl CpuCache {
    /// Makes the cache keep those frames of a zone of another node that are in `range`, too, until
    /// it [comes home](Self::come_home).
    pub(crate) fn keep_away(&self, near: &Near<'_>, range: PfnRange) {
        self.contents.touch();
        self.away.replace(near);
        self.away.set(range);
    }

    /// Returns the lot for `order` of a run of `pages` pages in one block, if it is of another
    /// node's frames that the cache keeps. Nothing if the directory has to be asked.
    #[inline(always)]
    pub(crate) fn lot_away(&self, start: Pfn, pages: u64, order: Order) -> Option<Lot> {
        self.contents.touch();
        self.away.lot_of_seen(start, pages, order)
    }

    /// Returns whether the cache keeps frames of another node.
    #[inline]
    pub(crate) fn is_away(&self) -> bool {
        self.contents.touch();
        !self.away.is_nothing()
    }

    /// Called at each free of a kind that is frequent. Returns at one of a few whether the cache
    /// keeps frames of another node, which is worth a look at its own node.
    #[inline]
    pub(crate) fn is_away_now_and_then(&self) -> bool {
        if !self.is_away() {
            return false;
        }
        let frees = self.frees_away.load(Ordering::Relaxed).wrapping_add(1);
        self.frees_away.store(frees, Ordering::Relaxed);
        frees.is_multiple_of(FREES_PER_LOOK)
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

    /// Called before frames come in. A cache that keeps another node's frames may get some back at
    /// any free.
    pub(crate) fn forget_strays_if_empty(&self) {
        if self.has_strays() && !self.is_away() && self.is_empty() {
            self.strays.store(false, Ordering::Relaxed);
        }
    }
}
