//! Tests of other files once more, with page descriptors inside the blocks: `common::bring_up` sees
//! to that.
#![cfg(not(loom))]
#![expect(
    clippy::duplicate_mod,
    reason = "both files have the common part as a module of their own"
)]

#[path = "manager_cached.rs"]
mod cached;
#[path = "manager_threads.rs"]
mod threads;
