//! Models of calls between CPUs and of flushes that wait for them.
//!
//! `cargo xtask test --only loom` runs them.
#![cfg(loom)]

mod ipi;
mod ipi_waiters;
mod lazy_flush;
