//! The units of memory management: frames, blocks, orders, nodes, and ranges of them.
//!
//! Everything that counts frames is a [`Pfn`] or a `u64` whose name ends in `_pages`. Everything
//! that counts bytes is a [`PhysRange`] or a `u64` whose name says bytes. The two never mix
//! silently.

mod node;
mod node_list;
mod number;
mod order;
mod pool_size;
mod range;
mod sizes;
mod sort;

pub use node::{NodeId, NodeMask};
pub use node_list::NodeListError;
pub(crate) use number::{parse_decimal, parse_radix};
pub use order::Order;
pub use pool_size::PoolSize;
pub use range::{Pfn, PfnRange, PhysRange};
pub use sizes::{
    BLOCK_ORDER, BLOCK_SHIFT, BLOCK_SIZE, MAX_NODES, MAX_ORDER, PAGE_SHIFT, PAGE_SIZE,
    PAGES_PER_BLOCK, PAGES_PER_SECTION, PHYSICAL_ADDRESS_BITS, PHYSICAL_ADDRESS_END,
};
pub(crate) use sort::sort;
