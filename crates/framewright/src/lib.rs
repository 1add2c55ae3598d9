//! A physical memory manager for kernels, unikernels and VM guests.
#![no_std]

#[cfg(test)]
extern crate std;

pub mod early;
pub mod firmware;
pub mod map_space;
pub mod platform;
pub mod sync;
pub mod units;

pub use platform::{IrqState, PinnedCpu, Platform};
