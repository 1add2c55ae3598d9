//! Models of everything concurrent, checked in every order in which they can happen.
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
