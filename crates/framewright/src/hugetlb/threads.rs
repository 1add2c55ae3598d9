//! How many threads a resize is worth: a pure function of numbers, for the manager and for programs
//! that predict what it does.

use crate::units::PAGES_PER_BLOCK;
use crate::units::PoolSize;

/// The number of 2 MiB blocks that is worth a thread. They take about 40 us, twice the cost of
/// starting a helper.
const BLOCKS_OF_A_THREAD: u64 = 32 << 10;
/// The number of blocks that is worth a thread if descriptors are rebuilt, which takes some
/// microseconds per block.
pub(crate) const BLOCKS_OF_A_THREAD_WITH_MAPS: u64 = 64;

/// Returns the number of threads, including the caller, for a resize by `pages` pages on `nodes`
/// nodes: at most `most`, at least 1. `with_vmemmap` says that descriptors take more work than the
/// blocks: they are rebuilt, or a hook handles them. Giving descriptors up is little work in a
/// kernel; in a process it is one system call, which several threads at once do not speed up.
#[must_use]
pub fn resize_threads(
    size: PoolSize,
    pages: u64,
    nodes: u32,
    with_vmemmap: bool,
    most: u32,
) -> u32 {
    let blocks = pages.saturating_mul(size.frames() / PAGES_PER_BLOCK);
    let worth = if with_vmemmap {
        blocks / BLOCKS_OF_A_THREAD_WITH_MAPS
    } else {
        // Nearly all of the work holds a zone lock, so two threads on one node are slower than one.
        (blocks / BLOCKS_OF_A_THREAD).min(nodes.into())
    };
    most.min(u32::try_from(worth).unwrap_or(u32::MAX)).max(1)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn few_pages_are_one_threads_business() {
        use PoolSize::{OneGib, TwoMib};
        let threads =
            |size, pages, nodes, with_vmemmap| resize_threads(size, pages, nodes, with_vmemmap, 8);
        assert_eq!(
            [0, 127, 128, 192, 1 << 20].map(|pages| threads(TwoMib, pages, 1, true)),
            [1, 1, 2, 3, 8]
        );
        assert_eq!(
            [1, 64, 128, 1 << 20].map(|pages| threads(OneGib, pages, 4, false)),
            [1, 1, 2, 4]
        );
        assert_eq!(threads(TwoMib, u64::MAX, 1, false), 1);
        assert_eq!(resize_threads(OneGib, u64::MAX, 64, true, 0), 1);
    }
}
