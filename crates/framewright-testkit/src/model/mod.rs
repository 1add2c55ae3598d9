//! Reference models: what the manager should do, said as simply as possible and as slowly as need
//! be.

mod block;
mod page;
mod reference;

pub use block::{BlockModel, FrameCounts, Wanted, ZoneId};
pub use page::{PageModel, PageOwner, ZoneKind, ZoneTotals};
pub use reference::ReferenceModel;
