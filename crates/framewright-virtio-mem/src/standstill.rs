//! When it makes sense to ask again for memory that is to go.

/// Nothing could be taken out of use. Asking again costs a look at all of it, so that it is put off
/// until a unit more is free than at the least since.
///
/// ```text
///   none ──note(true)──> stuck ──may_go_on: asked again──> stuck, by what is free now, or none
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Standstill {
    unit_pages: u64,
    /// The fewest pages that were free since it was asked last; `None` where nothing is stuck.
    least_pages: Option<u64>,
}

impl Standstill {
    /// None yet, of memory that goes by units of so many pages.
    #[must_use]
    pub const fn new(unit_pages: u64) -> Self {
        Self { unit_pages, least_pages: None }
    }

    /// Whether a unit that can go may have become free:
    /// [`memory_changed`](crate::VirtioMem::memory_changed).
    #[must_use]
    pub fn may_go_on(&self, free_pages: u64) -> bool {
        self.least_pages.is_some_and(|least| free_pages >= least.saturating_add(self.unit_pages))
    }

    /// What came of a step before which so many pages were free: whether nothing could be taken
    /// out of use.
    pub fn note(&mut self, is_stuck: bool, free_pages: u64) {
        // What was more has been tried.
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
        // In vain: not at each look from now on.
        standstill.note(true, 1600);
        assert!(!standstill.may_go_on(1600) && !standstill.may_go_on(2111));
        assert!(standstill.may_go_on(2112));
        // Less is free for a while.
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
