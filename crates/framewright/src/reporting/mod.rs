//! Free page reporting: a guest's free memory goes back to its host on its own (Linux:
//! `mm/page_reporting.c`).
//!
//! [`Manager::register_reporting`](crate::Manager::register_reporting) takes a [`ReportDevice`] and
//! returns a [`Reporter`], which the adopter polls. The reporter takes free memory out of
//! circulation, at most 64 MiB at a time, hands it to the device, and puts it back when the device
//! has answered. Nothing runs in the background and nothing waits. [`Reporting`] has what anybody
//! may read and set meanwhile.
//!
//! ```
//! # use framewright::reporting::{Acknowledged, Content, Progress, ReportDevice, SubmitError};
//! # use framewright::units::PhysRange;
//! struct Discard;
//! // SAFETY: nothing is ever discarded.
//! unsafe impl ReportDevice for Discard {
//!     fn capacity(&self) -> usize { 32 }
//!     unsafe fn submit(&mut self, ranges: &[PhysRange]) -> Result<(), SubmitError> { Ok(()) }
//!     fn poll(&mut self) -> Progress { Progress::Done(Acknowledged::ALL) }
//!     fn reset(&mut self) -> bool { true }
//! }
//! # fn example<P: framewright::Platform>(
//! #     manager: &framewright::Manager<P>,
//! #     clock: impl Fn() -> u64,
//! #     sleep_until: impl Fn(u64),
//! # ) {
//! let Ok(mut reporter) = manager.register_reporting(Discard) else { return };
//! while let Some(deadline_ns) = reporter.poll(clock()) {
//!     while let Some(event) = reporter.event() {
//!         // A kernel logs it: println!("page_reporting: {event}");
//!         # let _ = event;
//!     }
//!     sleep_until(deadline_ns);
//! }
//! # }
//! ```
//!
//! # What differs from Linux
//!
//! * The mark that a block was reported stays with it through splits and merges, so nothing is
//!   reported twice while it is free (`block::reported`). Only isolation clears the mark: blocks
//!   that come back from it are reported again.
//! * Unreported memory is handed out first. A larger free block that was only partly reported
//!   counts as not reported: pieces come from its unreported part as long as there is one, and only
//!   that part is reported later. Migrate types take precedence: a request takes reported memory of
//!   its own type before it falls back on another type.
//! * Amounts count in units of 2 MiB, whatever the order: the capacity, the budget, and the limit
//!   of 64 MiB that are out at a time.
//! * [`Pace::Adaptive`]: memory that stayed free for a tick is reported in the next, in large
//!   amounts; memory that comes and goes is left alone. [`Pace::Fixed`] is Linux's, but as nothing
//!   tells of memory that became free, a pass may begin up to a quarter of the delay, at least
//!   4 ms, later.
//! * After an error the reporter tries again, later each time, with the memory after what was
//!   refused: a range that the device refuses each time does not hold up others. A device that does
//!   not answer keeps its memory until it answers or is reset.
//! * If the device promises zeros, reported memory that was not handed out since needs no clearing.

mod device;
mod event;
mod pass;
mod reporter;

pub use crate::manager::{Reporting, ReportingCounters};
pub use crate::parameters::{Pace, ReportingParameters};
pub use device::{Acknowledged, Content, Progress, ReportDevice, SubmitError};
pub use event::{Event, RegisterError};
pub use reporter::{Phase, Reporter};
