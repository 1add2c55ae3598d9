//! Models of calls between CPUs and of deferred flushes.
//!
//! `cargo xtask test --only loom` runs them.
#![cfg(loom)]

mod ipi;
mod ipi_waiters;
mod lazy_flush;
