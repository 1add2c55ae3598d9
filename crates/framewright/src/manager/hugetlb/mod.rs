//! Huge-page pools at work: [`Pool`], what people ask of one.
//!
//! `resize` grows and shrinks, `take` moves pages between zones and pools, `allocate` gives pages
//! to users and takes them back, `reserve` reserves, `demote` makes 2 MiB pages out of 1 GiB pages,
//! `poison` takes pages with memory errors out, `vacate` those in memory that goes, `resizing` says
//! when pages are on their way, `reporting` lends free pages to the hypervisor, `boot` fills pools
//! as the command line says, `check` recounts. The rules and the counters are in
//! `hugetlb::accounting`.
//!
//! One lock guards the accounting of all pools, as in Linux. It is taken inside no zone's, and
//! inside it a zone's is taken only to look at a table that may go (invariant 11). Resizes and
//! demotions follow one another, each holding [`Resizing`]; users of pages do not wait for them.

mod allocate;
pub(super) mod boot;
mod check;
mod cma;
mod demote;
mod poison;
mod pool;
mod reporting;
mod reserve;
mod resize;
mod resizing;
mod take;
mod vacate;

pub use boot::{BootFill, BootPool};
pub use poison::Poisoned;
pub use pool::Pool;
pub(crate) use reporting::Loan;
pub use resize::Resized;
