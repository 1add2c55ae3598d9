//! The crate name under which ArceOS looks for its allocators.
#![no_std]

pub use framewright_arceos::*;
