//! Runs tests of other files again, with page descriptors in an array that is written later.
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

const HERE: Descriptors = Descriptors::Deferred;
