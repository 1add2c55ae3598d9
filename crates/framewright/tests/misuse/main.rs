//! What callers do wrong, and what is not as it should be: found where the documentation says so.
//!
//! A program of its own, because `cargo xtask test` runs it once more without debug assertions, as
//! release builds are.
#![cfg(not(any(loom, shuttle)))]

#[path = "../common/mod.rs"]
mod common;

mod dirty;
mod isolation_holes;
mod wrong_calls;
