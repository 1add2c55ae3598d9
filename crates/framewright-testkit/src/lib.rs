//! What tests of the manager need: a fake machine, reference models and fault injection.
//!
//! * [`FakeMachine`] is a NUMA machine of any memory map in this process. It checks how it is used: an address that is not
//!   usable memory, interrupts restored out of order, a CPU left pinned.

pub mod machine;

pub use machine::{Builder, Calls, FakeMachine};
