//! Huge-page pools: pages of 2 MiB and 1 GiB that are set aside, counted by node, and reserved
//! before they are used (Linux: `mm/hugetlb.c`).
//!
//! Here is what pools are made of: sizes, sets of nodes, errors, boot parameters (`parameters`),
//! free pages as chains through the block table (`chain`), two a list (`list`), the counters with
//! their rules (`accounting`), and how numbers are dealt out over nodes (`spread`). What happens to
//! memory is in `manager::hugetlb`: [`Manager::pool`](crate::Manager::pool) is the way in.

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
