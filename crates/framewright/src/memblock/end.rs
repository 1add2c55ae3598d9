//! The last use of the memblock allocator: its free memory, its own arrays included, goes to the
//! manager in one ascending walk.

use super::Memblock;
use crate::platform::Platform;
use crate::units::{NodeId, PfnRange};

impl<P: Platform> Memblock<'_, P> {
    /// Returns the platform whose memory the allocator hands out.
    #[must_use]
    pub const fn platform(&self) -> &'static P {
        self.platform
    }

    /// Calls `sink` for the frames of both [`for_each_left`](Self::for_each_left) and
    /// [`discard`](Self::discard) in one ascending walk, which can be repeated until `discard`. The
    /// walk reads the arrays, so `sink` must not write into the frames that it gets. The allocator
    /// allocates nothing meanwhile.
    pub(crate) fn for_each_in_the_end(&self, sink: &mut dyn FnMut(PfnRange, NodeId)) {
        if !cfg!(feature = "large-maps") {
            return self.for_each_left(sink);
        }
        let mut arrays =
            [&self.memory, &self.reserved].map(|set| set.free_storage().whole_frames());
        if arrays.iter().all(|array| array.is_empty()) {
            return self.for_each_left(sink);
        }
        if arrays[1].start < arrays[0].start {
            arrays.swap(0, 1);
        }
        let mut arrays = arrays.into_iter().filter(|array| !array.is_empty()).peekable();
        let node_of = |frames: PfnRange| {
            let regions = self.memory();
            let after =
                regions.partition_point(|region| region.range.start <= frames.start.address());
            regions[..after].last().and_then(|region| region.node).unwrap_or(NodeId::ZERO)
        };
        self.for_each_left(&mut |run, node| {
            while let Some(array) = arrays.next_if(|array| array.start < run.start) {
                sink(array, node_of(array));
            }
            sink(run, node);
        });
        arrays.for_each(|array| sink(array, node_of(array)));
    }
}
