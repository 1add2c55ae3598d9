//! Runs tests of other files again, with page descriptors inside the blocks.
#![expect(clippy::duplicate_mod, reason = "each copy has its own value of `HERE`")]

use crate::common::Descriptors;

#[path = "cached.rs"]
mod cached;
#[path = "threads.rs"]
mod threads;

const HERE: Descriptors = Descriptors::Inside;
