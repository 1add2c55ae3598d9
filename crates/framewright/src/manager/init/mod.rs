//! Bring-up: from firmware's word to memory that can be handed out.
//!
//! Allocation comes first and is all that can fail; what it obtained is given back on failure. Then
//! the directory is filled, zones are painted in one pass over free memory (`paint`), and marks are
//! set. Nothing is logged here, so that a slow console does not count as bring-up.

mod bring_up;
pub(super) mod chance;
mod check;
pub(super) mod error;
mod frame;
mod node_clock;
pub(super) mod obtained;
mod paint;
mod plan;
mod vmemmap;

pub use chance::ShuffleSeed;
pub use check::PlatformFault;
pub use error::{BringUpError, BringUpFailed};
pub use frame::BringUp;
