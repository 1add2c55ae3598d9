//! Multithreaded jobs without a heap: a range of units, a function, and helpers if some are idle.
//!
#![doc = include_str!("../README.md")]
#![no_std]
#![deny(unsafe_code)]

#[cfg(test)]
extern crate std;

mod cost;
mod engine;
mod error;
mod helpers;
mod job;
#[cfg(doctest)]
mod misuse;
mod nodes;
pub mod plan;
#[expect(unsafe_code, reason = "the one place where a borrowed job is handed to other threads")]
mod raw;
mod scheduler;
mod sync;
mod token;
mod worker;

pub use cost::UnitCost;
pub use error::{InvalidJob, JobError, Summary};
pub use helpers::{Helpers, NoHelpers};
pub use job::{Job, Placement};
pub use nodes::{MAX_NODES, MAX_PARTS, NodeSet, Part};
pub use raw::WorkerSlot;
pub use scheduler::{MAX_HELPERS, SchedulerState, Workers};
pub use token::{Cancel, DoneCount, WorkerStats};
pub use worker::Worker;
