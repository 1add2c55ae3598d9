//! Reference models: what the manager should do, as simply as possible, however slow.

mod block;
mod page;
mod reference;

pub use block::{BlockModel, FrameCounts, Wanted, ZoneId};
pub use page::{PageModel, PageOwner, ZoneKind, ZoneTotals};
pub use reference::ReferenceModel;
