//! Where runs are moved to: memory for each, or for several single pages at once.

use crate::manager::request::Request;
use crate::manager::state::Manager;
use crate::manager::state::moving::Begun;
use crate::memblock::NodeChoice;
use crate::platform::Platform;
use crate::units::{Order, Pfn, PfnRange};
use core::ops::Range;
use core::panic::Location;

/// Moves that are settled together: who touches a run waits for the copies of so many.
pub(super) const BATCH: usize = 32;

/// Where runs are moved to.
pub(super) trait Targets<P: Platform> {
    /// Memory for a run, as [`Mover`](crate::Mover) promises it: the first frame of as many.
    fn take(&mut self, manager: &Manager<P>, run: PfnRange) -> Option<Pfn>;

    /// Memory for runs of one page, as many as there is room for or fewer; how many.
    fn take_singles(&mut self, _manager: &Manager<P>, _pages: &mut [Pfn]) -> usize {
        0
    }
}

/// Anywhere on a node, as the allocator sees fit, or near it.
pub(super) struct Anywhere(pub(super) NodeChoice);

impl<P: Platform> Targets<P> for Anywhere {
    fn take(&mut self, manager: &Manager<P>, run: PfnRange) -> Option<Pfn> {
        let request = Request {
            align: alignment_of(run),
            node: self.0,
            fail_fast: true,
            ..Request::pages(run.pages())
        };
        manager.allocate(&request).ok().map(|to| to.start)
    }

    fn take_singles(&mut self, manager: &Manager<P>, pages: &mut [Pfn]) -> usize {
        let request = Request { node: self.0, fail_fast: true, ..Request::new(Order::PAGE) };
        manager.allocate_bulk(&request, pages).unwrap_or(0)
    }
}

/// Where the runs of a batch go that are a page each: taken together, as each by itself would cost
/// a hold of the zone's lock. What nobody went to goes back, be it that the mover panics.
pub(super) struct Stock<'m, P: Platform> {
    manager: &'m Manager<P>,
    pages: [Pfn; BATCH],
    /// Which of them are left.
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

    /// A place for a run, if it is a page and there is one.
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
            // Allocated for this batch and nobody else's, so that it cannot fail.
            let run = PfnRange::of_order(start, Order::PAGE);
            let _ = self.manager.free_uncached(run, Location::caller());
        }
    }
}

/// The largest order by which a run's first frame and its length can be divided.
pub(super) fn alignment_of(run: PfnRange) -> Order {
    let level = (run.start.0 | run.pages()).trailing_zeros().min(u32::from(Order::MAX.get()));
    u8::try_from(level).ok().and_then(Order::new).unwrap_or(Order::PAGE)
}
