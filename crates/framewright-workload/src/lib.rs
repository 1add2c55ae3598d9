//! Random traffic on a [`Manager`] that checks itself.
//!
//! A [`Worker`] is one CPU's share: it allocates and frees in every way that the manager has,
//! stamps what it gets and looks at the stamps before it gives anything back, so that a frame that
//! two have is found. Workers swap runs through the [`Shared`] part, so that one CPU frees what
//! another allocated. When all stand still, [`Shared::account`] holds every page against the
//! tables.
//!
//! There is no heap, no thread and no clock in it: whoever runs it brings the memory for what is
//! held, one worker a CPU, and decides when it ends. A failure is returned and leaves everything as
//! it was found.
//!
//! A [`Pile`] holds any number of runs without room for a list, and can be used through a
//! [`Window`]. [`vmemmap_space`] is a suite for the page tables of the vmemmap.
//!
//! ```
//! # use framewright::{Manager, Platform};
//! use framewright_workload::{Failure, Held, Shared, Tally, Worker};
//!
//! fn stress<P: Platform>(manager: &Manager<P>, operations: u64) -> Result<Tally, Failure> {
//!     let shared = Shared::new(manager);
//!     let mut held = [Held::NOTHING; 64];
//!     let mut worker = Worker::new(manager, &shared, &mut held, 1);
//!     worker.run(operations)?;
//!     shared.account(manager, worker.pages())?;
//!     let tally = worker.finish()?;
//!     shared.settle(manager)?;
//!     Ok(tally)
//! }
//! ```
#![no_std]

mod check;
mod failure;
mod pile;
mod random;
mod shared;
mod stamp;
mod tally;
pub mod vmemmap_space;
mod window;
mod worker;

pub use failure::Failure;
pub use pile::{Pile, PileError};
pub use random::Random;
pub use shared::Shared;
pub use stamp::Held;
pub use tally::Tally;
pub use window::{Window, WindowError};
pub use worker::Worker;

#[cfg(doc)]
use framewright::Manager;
