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
//! Whoever has the cache changes it (invariant 16).

use super::cache::CpuCache;
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
}
