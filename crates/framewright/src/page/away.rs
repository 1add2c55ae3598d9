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
//! What is in the cache then is used up, or goes back when it is freed: frames of zones that are
//! not its own, those that a refill brought for once included, are *strays*, and while there may be
//! any, each free looks where it belongs.
//!
//! They are only told from others here. Where their blocks are the directory knows, as they are
//! kept too seldom to earn a table that every free looks at.
//!
//! Orders of memory: Relaxed, as whoever has the cache reads and changes it (invariant 16).

use super::cache::CpuCache;
use crate::sync::table_atomic::Ordering;
use crate::units::PfnRange;

impl CpuCache {
    /// Keeps frames of a zone of another node, too, until it [comes home](Self::come_home).
    pub(crate) fn keep_away(&self, range: PfnRange) {
        self.contents.touch();
        self.away.set(range);
    }

    /// Whether it keeps frames of another node.
    #[inline]
    pub(crate) fn is_away(&self) -> bool {
        self.contents.touch();
        !self.away.is_none()
    }

    /// Told when its own node has memory, and before what is kept changes: it keeps no frames of
    /// another any more.
    pub(crate) fn come_home(&self) {
        if self.is_away() {
            self.away.set(PfnRange::new(0, 0));
        }
    }

    /// Whether frames that are not of its own zones may be in it.
    #[inline(always)]
    pub(crate) fn has_strays(&self) -> bool {
        self.contents.touch();
        self.strays.load(Ordering::Relaxed)
    }

    /// Told when frames of a zone came in.
    pub(crate) fn note_source(&self, range: PfnRange) {
        if !self.is_own(range) {
            self.strays.store(true, Ordering::Relaxed);
        }
    }

    /// Told before frames come in.
    pub(crate) fn forget_strays_if_empty(&self) {
        if self.has_strays() && self.is_empty() {
            self.strays.store(false, Ordering::Relaxed);
        }
    }
}
