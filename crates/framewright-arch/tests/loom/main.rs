//! Models of calls between CPUs and of flushes that wait for them.
#![cfg(loom)]

mod ipi;
mod ipi_waiters;
mod lazy_flush;
