//! A virtio-balloon driver for kernels: it has no heap, it does not wait, and errors are values.
//!
//! It uses the transport and [`Hal`](virtio_drivers::Hal) of the crate `virtio-drivers`, the queues
//! of `framewright-virtio`, and now and then a page that no device can access ([`PrivateMemory`]).
//! Whatever a device says or writes is checked: no host can make the driver give back a frame that
//! was not in the balloon. [`Balloon`] supports
//! * free page reporting: the device is given ranges and polled later: [`Balloon::capacity`],
//!   [`submit`](Balloon::submit), [`poll`](Balloon::poll), [`reset`](Balloon::reset);
//! * inflation and deflation towards the host's target, and statistics, one bounded step per call:
//!   [`Balloon::work`]. Memory comes from a [`BalloonMemory`], 2 MiB at a time where possible.
//!
//! The device's state, as the driver sees it:
//!
//! ```text
//!            new                  the device breaks a rule
//! (reset) --------> running ---------------------------------> faulty
//!                    ^   |                                       |
//!                    |   +--- reset, try_reset, stop --+---------+
//!                    |                                 v
//!                    +-- reset, try_reset -- stopped <- resetting (all memory stays the device's)
//! ```
//!
//! Free page hinting (a mechanism for migration that the host drives) is not implemented. The
//! feature is accepted if it is offered, because devices number their queues by it; its queue stays
//! empty.
//!
//! ```
//! use framewright_balloon::{Balloon, BalloonMemory, Settings};
//! use framewright_testkit::balloon::{FakeBalloon, FakeHal};
//!
//! struct Frames(Vec<u64>); // frames of 4 KiB that are free, by number
//!
//! // SAFETY: what is taken is not in the list any more, and nothing else hands these frames out.
//! unsafe impl BalloonMemory for Frames {
//!     fn take(&mut self, order: u32, end_pfn: u64) -> Option<u64> {
//!         if order == 0 { self.0.pop().filter(|&pfn| pfn < end_pfn) } else { None }
//!     }
//!     unsafe fn give_back(&mut self, first_pfn: u64, pages: u32) {
//!         self.0.extend(first_pfn..first_pfn + u64::from(pages));
//!     }
//! }
//!
//! let host = FakeBalloon::new(); // in a kernel: virtio_drivers::transport::pci::PciTransport
//! let mut balloon = Balloon::<FakeHal, _>::new(host.transport(), Settings::default())?;
//! let mut frames = Frames((0x1000..0x1100).collect());
//!
//! host.set_target(100);
//! // SAFETY: there is one memory, and the balloon's frames come from it.
//! while unsafe { balloon.work(&mut frames, &mut |_| None)? }.held_pages < 100 {}
//! assert_eq!(frames.0.len(), 156);
//!
//! // SAFETY: the frame is ours, and nobody accesses it before the device has answered.
//! let token = unsafe { balloon.submit(&[(frames.0[0] << 12, 4096)])? };
//! let answer = balloon.poll()?.expect("this host answers at once");
//! assert_eq!((answer.token, answer.result), (token, Ok(())));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![no_std]

mod driver;
mod error;
mod features;
mod inflation;
mod ledger;
#[cfg(feature = "reporting")]
mod managed;
pub mod pci;
mod queue_kind;
mod report;
mod statistics;

pub use driver::{Balloon, Progress, Settings};
pub use error::{DeviceFault, StartError};
pub use features::{Features, FreeContent};
pub use framewright_virtio::{PAGE_SIZE, PRIVATE_PAGE_BYTES, PrivateMemory};
pub use inflation::BalloonMemory;
#[cfg(feature = "reporting")]
pub use managed::{ManagedFrames, ReportingBalloon};
pub use queue_kind::QueueKind;
pub use report::{BadAnswer, Completion, MOST_RANGES, SubmitError, Token};
pub use statistics::Statistic;
