//! Random traffic on a [`Manager`] that checks itself.
//!
//! A [`Worker`] is one CPU's share. It allocates and frees in every way that the manager has,
//! stamps what it gets, and checks the stamps before it frees, so that a frame with two owners is
//! found. Workers swap runs through [`Shared`], so that one CPU frees what another allocated. When
//! no worker runs, [`Shared::account`] compares every page with the tables.
//!
//! The crate uses no heap, thread or clock: the caller provides memory for the list of held runs,
//! makes a worker for each CPU, and decides when to stop. A worker that detects a failure returns
//! it and leaves everything as it is.
//!
//! [`Handles`] are memory that can be moved while it is used, and [`CleanPages`] are pages that are
//! given up when memory is short. A [`Relay`] is a permanent mover or reclaim hook that passes
//! calls on to them. A [`Pile`] holds any number of runs without memory for a list, and can be
//! accessed through a [`Window`]. [`vmemmap_space`] is a test suite for the page tables of the
//! vmemmap.
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
