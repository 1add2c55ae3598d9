//! Debug aids that are chosen on the command line: who allocated each page, patterns in free
//! memory, clearing, and placement that nobody can rely on.
//!
//! Linux's names where it has them: `page_owner`, `page_poison`, `init_on_alloc`, `init_on_free`.
//! `careful` is all that finds mistakes, made cheap enough for every test run. Off, they cost
//! nothing but the branch that an operation makes anyway (`sync::DrainEpoch`); their tables exist
//! only while on.
//!
//! `owner` keeps the records of pages and `places` the source lines in them; `fill` writes and
//! compares memory, `filled` knows which free pages hold the pattern; `placement` throws coins.
//! What calls them is `manager::debug`.

mod aids;
mod fill;
mod filled;
mod history;
mod owner;
mod places;

pub use aids::Aids;
pub use fill::POISON;
pub use history::{Damage, PageHistory};

pub(crate) use fill::{fill, first_other};
pub(crate) use filled::Filled;
pub(crate) use owner::{Allocation, Event, Misuse, Owners, PageRecord};
pub(crate) use places::{PLACES, Place, Places};
