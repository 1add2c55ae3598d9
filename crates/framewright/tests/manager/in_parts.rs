//! Runs tests of other files again, with zones in four parts.
#![expect(clippy::duplicate_mod, reason = "each copy has its own value of `HERE`")]

use crate::common::Descriptors;

#[path = "cached.rs"]
mod cached;
#[path = "cpus.rs"]
mod cpus;
#[path = "references.rs"]
mod references;
#[path = "threads.rs"]
mod threads;

const HERE: Descriptors = Descriptors::InParts;
