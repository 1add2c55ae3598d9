//! Random traffic on a [`Manager`] that checks itself.
//!
//! A [`Worker`] is one CPU's share: it allocates and frees in every way that the manager has,
//! stamps what it gets, and checks the stamps before it frees, so that a frame with two owners is
//! found. Workers swap runs through [`Shared`], so that one CPU frees what another allocated. When
//! no worker runs, [`Shared::account`] compares every page with the tables.
//!
//! It uses no heap, thread or clock: whoever runs it provides memory for the runs that are held,
//! makes a worker for each CPU, and decides when to stop. A failure is returned and leaves
//! everything as it was then.
//!
//! [`Handles`] are memory that can be moved while it is used, [`CleanPages`] such as is given up
//! when it is short; a [`Relay`] is their mover, or their hook, for ever.
//! A [`Pile`] holds any number of runs without memory for a list, and can be accessed through a
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
mod handles;
mod link;
mod owners;
mod pages;
mod pile;
mod random;
mod relay;
mod shared;
mod stamp;
mod tally;
pub mod vmemmap_space;
mod window;
mod worker;

pub use failure::Failure;
pub use handles::{Habits, Handle, HandleError, Handles};
pub use pages::CleanPages;
pub use pile::{Pile, PileError};
pub use random::Random;
pub use relay::{Opened, Placed, Relay};
pub use shared::Shared;
pub use stamp::Held;
pub use tally::Tally;
pub use window::{Window, WindowError};
pub use worker::Worker;

#[cfg(doc)]
use framewright::Manager;
