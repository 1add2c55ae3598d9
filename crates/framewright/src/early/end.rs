//! The last use of the early allocator: its free memory, its own arrays included, goes to the manager in one ascending walk.

use super::EarlyAllocator;
use crate::platform::Platform;
use crate::units::{NodeId, PfnRange};

impl<P: Platform> EarlyAllocator<P> {
    /// The platform whose memory it hands out.
    #[must_use]
    pub const fn platform(&self) -> &'static P {
        self.platform
    }

    /// What [`for_each_free`](Self::for_each_free) and [`discard`](Self::discard) give, in one ascending walk; then it ends. The walk reads
    /// the arrays, so `sink` must not write into the frames that it gets.
    pub(crate) fn discard_into(&mut self, sink: &mut dyn FnMut(PfnRange, NodeId)) {
        let mut arrays = [&self.memory, &self.reserved].map(|set| set.free_storage().whole_frames());
        arrays.sort_unstable_by_key(|array| array.start);
        let mut next = 0;
        let node_of = |frames: PfnRange| {
            let regions = self.memory();
            let after = regions.partition_point(|region| region.range.start <= frames.start.address());
            regions[..after].last().and_then(|region| region.node).unwrap_or(NodeId::ZERO)
        };
        self.for_each_free(&mut |run, node| {
            while let Some(&array) = arrays.get(next).filter(|array| array.start < run.start) {
                if !array.is_empty() {
                    sink(array, node_of(array));
                }
                next += 1;
            }
            sink(run, node);
        });
        for &array in arrays[next..].iter().filter(|array| !array.is_empty()) {
            sink(array, node_of(array));
        }
        self.discard();
    }
}
