//! Page tables: a builder that maps with the largest pages that fit, walks over what is mapped,
//! windows in which huge pages are mapped, and TLB flushes.

mod address_space;
mod builder;
pub(crate) mod flush;
mod lazy_flush;
mod local;
pub(crate) mod table;
pub(crate) mod taken;
mod walk;

pub use crate::x86_64::entry::{Access, Entry, PageSize, index_of};
pub use address_space::{AddressSpace, SpaceError};
pub use builder::{MapFault, Mapped, PageTable, TableMemory};
pub use flush::{FlushRequest, FlushTlb, MAX_RANGES, VirtualRange};
pub use lazy_flush::PutOff;
pub use local::{LocalTlb, Means};
pub use walk::{Mapping, Visitor, translate, walk};
