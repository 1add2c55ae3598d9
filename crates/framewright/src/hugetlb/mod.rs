//! Huge-page pools: pages of 2 MiB and 1 GiB that are set aside, counted by node, and reserved
//! before they are used (Linux: `mm/hugetlb.c`).
//!
//! This module has the parts of pools: sizes, sets of nodes, errors, boot parameters
//! (`parameters`), the counters with their rules (`accounting`), the way numbers are dealt out over
//! nodes (`spread`), pages that are in no list (`taken`), and the number of threads for a resize
//! (`threads`). Free pages are in lists of chains, which are in `block`. What happens to memory is
//! in `manager::hugetlb`; the way in is [`Manager::pool`](crate::Manager::pool).

mod accounting;
mod error;
mod spread;
mod taken;
mod threads;

pub use crate::parameters::{HugePageParameters, Requested};
pub use crate::units::{NodeMask, PoolSize};
pub use accounting::{NodeCounts, PoolCounts, PoolFault};
pub use error::{PoolError, parse_count};
pub(crate) use threads::BLOCKS_OF_A_THREAD_WITH_MAPS;
pub use threads::resize_threads;

pub(crate) use accounting::{Accounting, NodeAccounts, Suspect};
pub(crate) use spread::{Shares, spread};
pub(crate) use taken::Taken;
