//! A virtio-mem driver for kernels: it has no heap, it does not wait, and errors are values.
//!
//! A virtio-mem device has a region of physical addresses; the host says how much of it should
//! currently be memory. [`VirtioMem`] takes bounded steps towards that size ([`VirtioMem::work`]),
//! one request at a time. Each request covers the longest possible run, up to 65535 of the device's
//! blocks. Memory goes to a [`PluggableMemory`], called the adopter, and comes back from it. The
//! driver uses the transports and [`Hal`](virtio_drivers::Hal) of the crate `virtio-drivers` and
//! the queues of `framewright-virtio`. It records what is plugged in pages that no device can
//! access ([`PrivateMemory`]), and checks whatever a device says.
//!
//! ```text
//!        the host wants more                        the adopter took less: goes back
//!      +---------------------> PLUG ----- done ----> add -------------------+
//!      |                        |                                           v
//!   settled                     +-- NACK: until something changes        UNPLUG
//!      |
//!      +---------------------> remove ----> UNPLUG ----- done: gone
//!        the host wants less                  |
//!                                             +-- BUSY: put_back, again after a while
//! ```
//!
//! * Memory that is plugged at the start belongs to a previous user: the driver first sends
//!   UNPLUG_ALL until that is done.
//! * After BUSY, after an adopter could remove nothing, and after it took less than it was given
//!   but may take more ([`PluggableMemory::may_take_more`]), the driver tries again: after 100 ms,
//!   then after twice as long, up to 10 s. It tries at once if something happened
//!   ([`VirtioMem::config_changed`], [`VirtioMem::memory_changed`], or the host wants another
//!   size). [`Progress`] names the obstacle.
//! * After NACK, and if an adopter will take no more, the driver tries again only when something
//!   happened.
//! * After ERROR, or if the configuration breaks a rule, the device is broken for ever. Memory in
//!   use stays in use.
//! * If the device does not answer, the obstacle is [`Obstacle::Silent`]. Nobody uses the memory of
//!   that request. After a [reset](VirtioMem::try_reset) the driver asks the device what became of
//!   the request (STATE).
//! * If the host wants another size while a request is in flight, that request ends first, and the
//!   next one follows the new size.
//!
//! ```
//! use framewright_testkit::virtio_mem::{FakeHal, FakeVirtioMem};
//! use framewright_virtio_mem::{PluggableMemory, Removal, Settings, VirtioMem};
//!
//! /// Memory in use, of which all is free: runs from the lowest address on.
//! #[derive(Default)]
//! struct Memory(Vec<(u64, u64)>);
//!
//! // SAFETY: what is removed is not in the list any more, and nobody else uses these addresses.
//! unsafe impl PluggableMemory for Memory {
//!     unsafe fn add(&mut self, start: u64, size: u64) -> u64 {
//!         self.0.push((start, size));
//!         size
//!     }
//!     fn remove(&mut self, most: u64, _unit: u64) -> Removal {
//!         let Some((start, size)) = self.0.pop() else {
//!             return Removal::Nothing { obstacles: 0 };
//!         };
//!         let taken = size.min(most);
//!         if taken < size {
//!             self.0.push((start, size - taken));
//!         }
//!         Removal::Run { start_bytes: start + size - taken, size_bytes: taken }
//!     }
//!     unsafe fn put_back(&mut self, start: u64, size: u64) -> bool {
//!         self.0.push((start, size));
//!         true
//!     }
//! }
//!
//! let host = FakeVirtioMem::new(); // in a kernel: virtio_drivers::transport::pci::PciTransport
//! let mut nothing_else = |_first: u64, _last: u64| false; // in a kernel: the memory map
//! let settings = Settings::default();
//! let mut device = VirtioMem::<FakeHal, _>::new(host.transport(), settings, &mut nothing_else)?;
//! let mut memory = Memory::default();
//! let mut now_ns = 0; // in a kernel: a clock
//!
//! let mut settle = |device: &mut VirtioMem<FakeHal, _>, memory: &mut Memory| loop {
//!     now_ns += 1_000_000;
//!     // SAFETY: there is one memory, and nothing else is at the device's addresses.
//!     let progress = unsafe { device.work(memory, now_ns)? };
//!     if progress.is_settled() {
//!         return Ok::<_, framewright_virtio_mem::DeviceFault>(progress);
//!     }
//! };
//! host.set_requested(2 << 30);
//! assert_eq!(settle(&mut device, &mut memory)?.plugged_bytes, 2 << 30);
//! assert_eq!(memory.0, [(4 << 30, 2 << 30)]); // in one request
//! host.set_requested(64 << 20);
//! assert_eq!(settle(&mut device, &mut memory)?.plugged_bytes, 64 << 20);
//! assert_eq!(memory.0, [(4 << 30, 64 << 20)]);
//! assert_eq!((device.counters().plug, device.counters().unplug), (1, 1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![no_std]

mod configuration;
mod driver;
mod error;
mod features;
#[cfg(feature = "manager")]
mod managed;
mod map;
mod memory;
mod misuse;
pub mod pci;
mod plan;
mod progress;
mod request;
mod settings;
mod standstill;
mod units;

pub use configuration::Region;
pub use driver::VirtioMem;
pub use error::{DeviceFault, Rule, StartError};
pub use features::Features;
pub use framewright_virtio::{HandshakeError, PRIVATE_PAGE_BYTES, PrivateMemory, RingFault};
#[cfg(feature = "manager")]
pub use managed::{ManagedError, ManagedMemory};
pub use memory::{PluggableMemory, Removal};
pub use progress::{Counters, Obstacle, Progress};
pub use request::RequestKind;
pub use settings::Settings;
pub use standstill::Standstill;
