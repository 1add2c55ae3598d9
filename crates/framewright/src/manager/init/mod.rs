//! Bring-up: from firmware's word to memory that can be handed out.
//!
//! Allocation comes first and is all that can fail; what it obtained is given back on failure. Then
//! the directory is filled, zones are initialised in one pass over free memory (`zones`), and marks
//! are set. Nothing is logged here, so that a slow console does not count as bring-up.

mod bring_up;
mod check;
pub(super) mod error;
mod frame;
mod homes;
mod node_clock;
pub(super) mod obtained;
pub(super) mod plan;
pub(super) mod seed;
pub(super) mod tables;
mod vmemmap;
mod zones;

pub(super) use bring_up::adopts_at_once;
pub use check::PlatformFault;
pub use error::{BringUpError, BringUpFailed};
pub use frame::BringUp;
pub use seed::ShuffleSeed;
