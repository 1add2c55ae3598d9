//! Models of concurrent operations, run in every order that the atomics of `sync` allow: locks,
//! owners of caches, drains, references, values that are made once. Some models bound the
//! preemptions. Counters and tables that are read without a lock use the processor's own atomics,
//! which no model covers.
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
