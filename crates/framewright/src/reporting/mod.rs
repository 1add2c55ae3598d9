//! Free page reporting: a guest's free memory goes back to its host by itself (Linux:
//! `mm/page_reporting.c`).
//!
//! [`Manager::register_reporting`](crate::Manager::register_reporting) takes a [`ReportDevice`] and
//! gives a [`Reporter`], which the adopter polls: it takes free memory out of circulation, at most
//! 64 MiB at a time, hands it to the device, and puts it back when the device has answered. Nothing
//! runs by itself and nothing waits. What anybody may see and set meanwhile is in [`Reporting`].
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
//! * Marks of what was reported stay with blocks through split and merge, so that nothing is
//!   reported twice while it is free (`block::reported`). Isolation alone ends them: what is put
//!   back is reported again.
//! * What was not reported is handed out first. A larger free block that was reported in part
//!   counts as not reported: pieces come out of its unreported part as long as there is one, and
//!   only that part is reported later. Migrate types come first: a request takes reported memory of
//!   its own type before it takes from another.
//! * Amounts count 2 MiB units, whatever the order: capacity, budget, and the 64 MiB that are out
//!   at most.
//! * [`Pace::Adaptive`]: what stayed free for a tick is reported in the next, much at once; what
//!   comes and goes is left alone. [`Pace::Fixed`] is Linux's.
//! * An error is followed by another attempt, later each time, with what lies behind: a range that
//!   the device refuses each time does not keep others. A device that does not answer keeps what it
//!   has until it answers or was reset.
//! * Where the device promises zeros, memory that was not handed out since needs no clearing.

mod device;
mod event;
mod pass;
mod reporter;

pub use crate::manager::{Reporting, ReportingCounters};
pub use crate::parameters::{Pace, ReportingParameters};
pub use device::{Acknowledged, Content, Progress, ReportDevice, SubmitError};
pub use event::{Event, RegisterError};
pub use reporter::{Phase, Reporter};
