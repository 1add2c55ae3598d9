//! Calls between CPUs: [`CrossCalls`] has other CPUs call a function, and [`Waiters`] is a set of
//! CPUs that sleep until somebody wakes them. Sending the interrupts is the kernel's business.

mod cross_calls;
mod waiters;

pub use cross_calls::{Caller, CrossCalls, Function, MAX_CPUS};
pub use waiters::Waiters;
