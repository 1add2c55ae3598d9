//! A huge page from reservation to free (step 13 of `docs/porting.md`).

use framewright::hugetlb::{NodeMask, PoolError, PoolSize};
use framewright::memblock::NodeChoice;
use framewright::{Manager, Platform};
use framewright_jobs::NoHelpers;

/// What `mmap`, a page fault and the end of a mapping do.
///
/// # Errors
/// No page that could be reserved.
pub fn huge<P: Platform>(manager: &Manager<P>) -> Result<(), PoolError> {
    let pool = manager.pool(PoolSize::TwoMib);
    let resized = pool.resize(16, &NoHelpers)?; // nr_hugepages; too little memory is no error
    if !resized.is_short() {
        pool.reserve(1, NodeMask::ALL)?; // at mmap
        let page = pool.allocate(NodeChoice::Any, true)?; // at the fault
        pool.commit(page.start)?; // mapped
        // SAFETY: nobody has it mapped any more.
        unsafe { pool.free(page.start) }?;
    }
    Ok(())
}
