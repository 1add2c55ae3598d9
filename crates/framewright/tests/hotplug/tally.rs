//! Counts what succeeded, for tests that accept any outcome of their calls: such a test proves
//! nothing if every call is refused.

use std::sync::atomic::{AtomicU64, Ordering};

/// The number of successes of each kind.
pub struct Tally(Vec<(&'static str, AtomicU64)>);

impl Tally {
    /// These kinds are wanted.
    pub fn new(kinds: &[&'static str]) -> Self {
        Self(kinds.iter().map(|&kind| (kind, AtomicU64::new(0))).collect())
    }

    /// Counts a success; kinds that are not wanted are not counted.
    pub fn count(&self, kind: &str) {
        if let Some((_, count)) = self.0.iter().find(|(known, _)| *known == kind) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The kinds of which nothing has succeeded so far.
    pub fn missing(&self) -> Vec<&'static str> {
        let never = self.0.iter().filter(|(_, count)| count.load(Ordering::Relaxed) == 0);
        never.map(|(kind, _)| *kind).collect()
    }
}
