//! Inter-processor interrupts: CPUs have each other call functions, and wait for one another.

mod awaited;
mod cross_calls;

pub use awaited::Awaited;
pub use cross_calls::{CrossCalls, Function, MAX_CPUS};
