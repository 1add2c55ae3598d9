//! Page tables: a builder that maps with the largest pages that fit, walks over mapped ranges,
//! windows in which huge pages are mapped, and TLB flushes.

mod address_space;
mod builder;
pub(crate) mod flush;
pub(crate) mod frame_stack;
mod lazy_flush;
mod local;
pub(crate) mod table;
mod walk;

pub use crate::x86_64::entry::{Access, Entry, PageSize, index_of};
pub use address_space::{AddressSpace, SpaceError};
pub use builder::{MapFault, MapRequest, Mapped, PageTable, TableMemory};
pub use flush::{FlushRequest, FlushTlb, MAX_RANGES, VirtualRange};
pub use lazy_flush::LazyFlush;
pub use local::{LocalFlush, LocalTlb};
pub use walk::{Mapping, Visitor, translate, walk};
