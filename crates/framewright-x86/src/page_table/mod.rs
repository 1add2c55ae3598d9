//! Page tables: entries, and a builder that maps with the largest pages that fit.

mod builder;
mod entry;

pub use builder::{MapFault, Mapped, PageTable, TableMemory, translate};
pub use entry::{Access, PageSize};
pub use entry::{Entry, index_of};
