//! Decides when to ask again for memory that should be removed.

/// The state after nothing could be taken out of use. Asking again means looking at all of the
/// memory, so the next attempt waits until the free memory has grown by one unit above its lowest
/// amount since.
///
/// ```text
///   none ──note(true)──> stuck ──may_go_on: asked again──> stuck, by what is free now, or none
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Standstill {
    unit_pages: u64,
    /// The fewest free pages since the last attempt; `None` if nothing is stuck.
    least_pages: Option<u64>,
}

impl Standstill {
    /// Not stuck yet; memory is removed in units of this many pages.
    #[must_use]
    pub const fn new(unit_pages: u64) -> Self {
        Self { unit_pages, least_pages: None }
    }

    /// Whether a unit that can be removed may have become free, so that
    /// [`memory_changed`](crate::VirtioMem::memory_changed) should be called.
    #[must_use]
    pub fn may_go_on(&self, free_pages: u64) -> bool {
        self.least_pages.is_some_and(|least| free_pages >= least.saturating_add(self.unit_pages))
    }

    /// Records the result of a step: `is_stuck` says that nothing could be taken out of use, and
    /// `free_pages` were free before the step.
    pub fn note(&mut self, is_stuck: bool, free_pages: u64) {
        // This much free memory has now been tried, so the old minimum does not count any more.
        let old = self.least_pages.filter(|_| !self.may_go_on(free_pages));
        self.least_pages = is_stuck.then(|| old.map_or(free_pages, |old| old.min(free_pages)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_asked_again_once_for_each_unit_that_becomes_free() {
        let mut standstill = Standstill::new(512);
        assert!(!standstill.may_go_on(u64::MAX), "nothing is stuck");
        standstill.note(true, 1000);
        assert!(!standstill.may_go_on(1511) && standstill.may_go_on(1512));
        // In vain: no new attempt at each look from now on.
        standstill.note(true, 1600);
        assert!(!standstill.may_go_on(1600) && !standstill.may_go_on(2111));
        assert!(standstill.may_go_on(2112));
        // Less memory is free for a while.
        standstill.note(true, 1300);
        standstill.note(true, 1700);
        assert!(!standstill.may_go_on(1811) && standstill.may_go_on(1812));
        standstill.note(false, 1812);
        assert!(!standstill.may_go_on(u64::MAX));
        standstill.note(true, u64::MAX);
        standstill.note(true, 5);
        assert!(standstill.may_go_on(517));
    }
}
