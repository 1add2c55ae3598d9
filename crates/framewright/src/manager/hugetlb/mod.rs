//! Operations on huge-page pools: [`Pool`].
//!
//! `pool` is one pool, `resize` grows and shrinks, `take` moves pages between zones and pools,
//! `allocate` gives pages to users and takes them back, `reserve` reserves, `demote` makes 2 MiB
//! pages out of 1 GiB pages, `poison` removes pages with memory errors, `vacate` removes pages from
//! memory that is to be emptied, `resizing` tells when pages are on their way, `reporting` lends
//! free pages to the hypervisor, `boot` fills pools as the command line says, `cma` takes pages
//! from reserve areas and gives them back, `check` recounts. The rules and the counters are in
//! `hugetlb::accounting`.
//!
//! One lock guards the accounting of all pools, as in Linux. It is never taken inside a zone's
//! lock. A zone's lock is taken inside it only to look at a table that may go away (invariant 11).
//! Resizes and demotions run one after another, each holding [`Resizing`]; users of pages do not
//! wait for them.

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
