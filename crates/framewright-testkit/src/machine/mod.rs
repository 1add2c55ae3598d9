//! A NUMA machine in this process that checks how it is used.
//!
//! ```
//! use framewright::Platform;
//! use framewright::units::PhysRange;
//! use framewright_testkit::FakeMachine;
//!
//! let machine = FakeMachine::builder().ram(PhysRange::new(0, 64 << 20)).cpus(2).build();
//! assert_eq!(machine.cpus(), 2);
//! let frame = machine.direct(0x10_0000);
//! // SAFETY: the machine's memory has no other user.
//! assert_eq!(unsafe { frame.read() }, machine.pattern());
//! ```

mod accept;
mod builder;
mod cpu;
mod fake;
mod memory;
mod vmemmap;

pub use accept::FakeAccept;
pub use builder::Builder;
pub use fake::{Calls, FakeMachine};
pub use memory::PATTERNS;
pub use vmemmap::{FakeVmemmap, VmemmapCounts};
