//! Tests of other files once more, with page descriptors in an array that is written later:
//! `common::bring_up` sees to that.
#![cfg(not(loom))]
#![expect(
    clippy::duplicate_mod,
    reason = "all files have the common part as a module of their own"
)]

#[path = "manager_cached.rs"]
mod cached;
#[path = "manager_cpus.rs"]
mod cpus;
#[path = "manager_references.rs"]
mod references;
#[path = "manager_threads.rs"]
mod threads;
