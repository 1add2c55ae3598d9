//! Targets of moves: memory for one run, or for several single pages at once.

use crate::manager::request::Request;
use crate::manager::state::Manager;
use crate::manager::state::moving::Begun;
use crate::memblock::NodeChoice;
use crate::platform::Platform;
use crate::units::{Order, Pfn, PfnRange};
use core::ops::Range;
use core::panic::Location;

/// How many moves are settled together: a user that touches a run waits for this many copies.
pub(super) const BATCH: usize = 32;

/// A source of targets.
pub(super) trait Targets<P: Platform> {
    /// Allocates memory for a run, as [`Mover`](crate::Mover) promises it, and returns its first
    /// frame.
    fn take(&mut self, manager: &Manager<P>, run: PfnRange) -> Option<Pfn>;

    /// Allocates targets for runs of one page, at most as many as `pages` has room for; returns how
    /// many.
    fn take_singles(&mut self, _manager: &Manager<P>, _pages: &mut [Pfn]) -> usize {
        0
    }
}

/// Targets anywhere on a node or near it, as the allocator chooses.
pub(super) struct Anywhere(pub(super) NodeChoice);

impl<P: Platform> Targets<P> for Anywhere {
    fn take(&mut self, manager: &Manager<P>, run: PfnRange) -> Option<Pfn> {
        let request = Request {
            align: alignment_of(run),
            node: self.0,
            fail_fast: true,
            ..Request::pages(run.pages())
        };
        manager.allocate_any(&request, Location::caller()).ok().map(|to| to.start)
    }

    fn take_singles(&mut self, manager: &Manager<P>, pages: &mut [Pfn]) -> usize {
        let request = Request { node: self.0, fail_fast: true, ..Request::new(Order::PAGE) };
        manager.allocate_bulk(&request, pages).unwrap_or(0)
    }
}

/// Targets for the single-page runs of a batch. They are allocated together, as each by itself
/// would cost a hold of the zone's lock. Unused pages are freed, also if the mover panics.
pub(super) struct Stock<'m, P: Platform> {
    manager: &'m Manager<P>,
    pages: [Pfn; BATCH],
    /// Which of the pages are left.
    left: Range<usize>,
}

impl<'m, P: Platform> Stock<'m, P> {
    pub(super) fn of(
        manager: &'m Manager<P>,
        begun: &[Begun],
        targets: &mut dyn Targets<P>,
    ) -> Self {
        let mut pages = [Pfn(0); BATCH];
        let wanted = begun.iter().filter(|begun| begun.run.pages() == 1).count().min(BATCH);
        let taken =
            if wanted > 1 { targets.take_singles(manager, &mut pages[..wanted]) } else { 0 };
        Self { manager, pages, left: 0..taken.min(wanted) }
    }

    /// Returns a target for a run, if the run is a single page and a target is left.
    #[inline]
    pub(super) fn take(&mut self, run: PfnRange) -> Option<Pfn> {
        if run.pages() != 1 {
            return None;
        }
        self.pages.get(self.left.next()?).copied()
    }
}

impl<P: Platform> Drop for Stock<'_, P> {
    fn drop(&mut self) {
        for &start in &self.pages[self.left.clone()] {
            // This cannot fail: the page was allocated for this batch and nobody else has it.
            let run = PfnRange::of_order(start, Order::PAGE);
            let _ = self.manager.free_uncached(run, Location::caller());
        }
    }
}

/// Returns the largest order that divides both a run's first frame and its length.
pub(super) fn alignment_of(run: PfnRange) -> Order {
    let level = (run.start.0 | run.pages()).trailing_zeros().min(u32::from(Order::MAX.get()));
    u8::try_from(level).ok().and_then(Order::new).unwrap_or(Order::PAGE)
}
