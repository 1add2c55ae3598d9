//! Callers' mistakes and corrupted state are detected where the documentation says so.
//!
//! This is a test program of its own because `cargo xtask test` runs it a second time without debug
//! assertions, the way release builds are compiled.
#![cfg(not(any(loom, shuttle)))]

#[path = "../common/mod.rs"]
mod common;

mod dirty;
mod isolation_holes;
mod wrong_calls;

// Tests of other programs, which run with debug assertions only, that say what builds without do.
#[cfg(not(debug_assertions))]
#[path = "../manager/aids.rs"]
mod aids;
#[cfg(not(debug_assertions))]
#[path = "../manager/cached.rs"]
mod cached;
#[cfg(not(debug_assertions))]
#[path = "../manager/deferred_merge.rs"]
mod deferred_merge;
#[cfg(not(debug_assertions))]
#[path = "../manager/halves.rs"]
mod halves;
#[cfg(not(debug_assertions))]
#[path = "../manager/reporting_faults.rs"]
mod reporting_faults;
#[cfg(all(feature = "x86_64", not(debug_assertions)))]
#[path = "../interfaces/adapters/x86_64.rs"]
mod x86_64_frames;

#[cfg(not(debug_assertions))]
const HERE: common::Descriptors = common::Descriptors::None;
