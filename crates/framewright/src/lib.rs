//! A physical memory manager for kernels, unikernels and VM guests.
#![no_std]

#[cfg(test)]
extern crate std;

pub mod block;
mod carve;
pub mod early;
pub mod firmware;
pub mod manager;
pub mod map_space;
pub mod parameters;
pub mod platform;
pub mod report;
pub mod sync;
pub mod units;
pub mod zone;

pub use manager::{AllocateError, BlockRequest, BringUp, BringUpError, Manager};
pub use parameters::Parameters;
pub use platform::{IrqState, PinnedCpu, Platform};
