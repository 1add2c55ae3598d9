//! Debug aids that the command line turns on: a record of who allocated each page, patterns in free
//! memory, clearing, and random placement that nobody can rely on.
//!
//! They have Linux's names where Linux has such an aid: `page_owner`, `page_poison`,
//! `init_on_alloc`, `init_on_free`. `careful` turns on every aid that finds mistakes, in variants
//! cheap enough for every test run. Aids that are off cost only the branch that an operation takes
//! anyway (`sync::DrainEpoch`); their tables exist only while they are on.
//!
//! `owner` keeps the records of pages and `places` the source lines in them; `fill` writes and
//! compares memory, and `filled` knows which free pages hold the pattern. Random placement is in
//! `block::placement`. The callers of the aids are in `manager::debug`.

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
