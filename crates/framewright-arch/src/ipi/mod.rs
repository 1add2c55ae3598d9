//! Calls between CPUs: [`CrossCalls`] makes other CPUs call a function, and [`Waiters`] is a set of
//! CPUs that sleep until they are woken. Sending the interrupts is up to the kernel.

mod cross_calls;
mod waiters;

pub use cross_calls::{Caller, CrossCalls, Function, MAX_CPUS};
pub use waiters::Waiters;
