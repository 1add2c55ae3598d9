//! Hand-over: memory that is still free goes to the manager, then the allocator ends.

use super::Memblock;
use super::pieces::largest_pieces;
use super::region::RegionFlags;
use super::search::FreeRuns;
use crate::platform::Platform;
use crate::units::{NodeId, Order, PHYSICAL_ADDRESS_END, Pfn, PfnRange, PhysRange};

impl<P: Platform> Memblock<'_, P> {
    /// Calls `sink` for every run of free whole frames (accepted memory minus reserved), ascending,
    /// with its node. A frame with one reserved byte is not free. Runs that touch are separate
    /// where node or flags change. Nothing after [`discard`](Self::discard).
    // One copy for all walks: at boot most of the cost of code is that it runs for the first time.
    #[inline(never)]
    pub fn for_each_free(&self, sink: &mut dyn FnMut(PfnRange, NodeId)) {
        self.find_left(false, &mut |range, node| {
            sink(range, node);
            false
        });
    }

    /// Returns the first frame of [`for_each_free`](Self::for_each_free).
    pub(crate) fn first_free(&self) -> Option<Pfn> {
        let mut first = None;
        self.find_left(false, &mut |range, _| {
            first = Some(range.start);
            true
        });
        first
    }

    /// Returns whether `is_it` is true for a run of [`for_each_free`](Self::for_each_free) or, with
    /// `unaccepted`, for a run of unaccepted memory.
    #[inline(never)]
    fn find_left(&self, unaccepted: bool, is_it: &mut dyn FnMut(PfnRange, NodeId) -> bool) -> bool {
        let window = PhysRange::new(0, PHYSICAL_ADDRESS_END);
        let mut runs = FreeRuns::new(self.memory.regions(), self.reserved.regions(), window);
        runs.any(|run| {
            let frames = run.range.whole_frames();
            let is_left = unaccepted || !run.flags.contains(RegionFlags::UNACCEPTED);
            is_left && !frames.is_empty() && is_it(frames, run.node.unwrap_or(NodeId::ZERO))
        })
    }

    /// Returns whether `is_it` is true for a run of [`for_each_left`](Self::for_each_left).
    pub(crate) fn any_left(&self, is_it: &mut dyn FnMut(PfnRange) -> bool) -> bool {
        self.find_left(self.platform.accept_memory().is_some(), &mut |range, _| is_it(range))
    }

    /// [`for_each_free`](Self::for_each_free) and, where the platform can accept memory, all
    /// unaccepted memory that is not reserved.
    #[inline(never)]
    pub(crate) fn for_each_left(&self, sink: &mut dyn FnMut(PfnRange, NodeId)) {
        self.find_left(self.platform.accept_memory().is_some(), &mut |range, node| {
            sink(range, node);
            false
        });
    }

    /// Calls `sink` for the runs of [`for_each_free`](Self::for_each_free), cut into the largest
    /// naturally aligned pieces, as [`largest_pieces`] does.
    pub fn for_each_free_piece(&self, sink: &mut dyn FnMut(Pfn, Order, NodeId)) {
        self.for_each_free(&mut |run, node| {
            for (pfn, order) in largest_pieces(run) {
                sink(pfn, order, node);
            }
        });
    }

    /// Ends the allocator after hand-over: both sets are empty, and later calls fail with
    /// [`MemblockError::Discarded`](super::MemblockError::Discarded). Returns the frames of its own
    /// grown arrays (the memory set's, then the reserved set's; empty where it did not grow), which
    /// were reserved until now and are free from now on. An array that lies in a range that the
    /// adopter reserved too is not free and not returned.
    pub fn discard(&mut self) -> [PhysRange; 2] {
        self.discarded = true;
        [self.memory.clear(), self.reserved.clear()]
    }
}
