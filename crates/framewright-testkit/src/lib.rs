//! Tools for tests of the manager: a fake machine, reference models and fault injection.
//!
//! * [`FakeMachine`] is a NUMA machine in this process, with any memory map. It detects misuse: an
//!   address that is not usable memory, interrupts restored out of order, a CPU left pinned.
//! * [`memblock_of`] and [`FakeMachine::memblock`] make memblock allocators over such machines.
//! * [`FakePaging`] is the vmemmap's address range on such a machine, with a TLB for each CPU that
//!   catches the use of stale translations. Every implementation of that range must pass
//!   [`vmemmap_space_contract`].
//! * [`FramePool`] and [`FaultyFrames`] hand out frames, poison them when they come back, and fail
//!   on demand.
//! * [`careful`] says whether this run looks for reliance on things that no interface promises.
//! * [`SteppedMachine`] interrupts an operation between any two of its instructions.
//! * [`Traffic`] is random traffic from several threads on a manager, on machines of several
//!   [`shapes`].
//! * [`FakeHost`] takes reports of free memory and discards it, late, in part or not at all, and
//!   detects uses of memory that it may still discard.
//! * [`HelperPool`] has threads that help with jobs; they can be late, starved, or on simulated
//!   nodes.
//! * [`on_painted_stack`] measures how much of the stack a call takes.
//! * [`Owner`] frees memory in tests, which own all of it.
//! * [`balloon`] is a virtio balloon, [`virtio_mem`] a virtio-mem device: the host, a transport to
//!   the device, and memory for the driver.
//! * [`PageModel`] and [`BlockModel`] are reference models of the firmware intake and of allocated
//!   and free frames.

pub mod balloon;
mod careful;
pub mod contract;
pub mod frames;
pub mod helper_pool;
mod lock;
pub mod machine;
pub mod memblock;
pub mod model;
pub mod owner;
pub mod paging;
pub mod painted_stack;
pub mod reporting;
pub mod stepped;
pub mod traffic;
mod virtio;
pub mod virtio_mem;

pub use careful::{CAREFUL, careful};
pub use contract::{VmemmapSpaceFixture, vmemmap_space_contract};
pub use frames::{FaultyFrames, FrameLedger, FramePool};
pub use framewright_workload as workload;
pub use helper_pool::HelperPool;
pub use machine::{Builder, Calls, FakeAccept, FakeMachine, FakeVmemmap, VmemmapCounts};
pub use memblock::memblock_of;
pub use model::{BlockModel, PageModel};
pub use owner::{Owner, PoolOwner};
pub use paging::{AccessFault, FakePaging, PagingCounts};
pub use painted_stack::{PaintedStack, on_painted_stack};
pub use reporting::{Answer, FakeHost, FakeReportDevice};
pub use stepped::{SteppedMachine, Steps, count_instructions, count_steps};
pub use traffic::{Shape, Traffic, bring_up, shapes};
