//! Page tables: entries, a builder that maps with the largest pages that fit, and walks over what
//! is mapped.

mod builder;
mod entry;
mod walk;

pub use builder::{MapFault, Mapped, PageTable, TableMemory};
pub use entry::{Access, PageSize};
pub use entry::{Entry, index_of};
pub use walk::{Mapping, Visitor, translate, walk};
