//! Models of what is done at once, in every order that the atomics of `sync` allow: locks, owners
//! of caches, drains, references, what is made once. Some bound the preemptions. Counters and
//! tables that are read without a lock are the processor's own, and no model looks into these.
//!
//! `cargo xtask test --only loom` runs them.
#![cfg(loom)]

#[path = "../model/mod.rs"]
mod model;

mod caches;
mod drain_epoch;
mod hotplug;
mod made;
mod ownership;
mod page_tier;
mod references;
mod spin;
mod unaccepted;
