//! Bring-up: from the firmware's memory map to memory that can be handed out.
//!
//! Allocating the tables comes first and is the only step that can fail; on failure, bring-up gives
//! back everything that it obtained. Then it fills the directory, initialises the zones in one pass
//! over free memory (`zones`) and sets the watermarks. Nothing is logged here, so that a slow
//! console does not count as bring-up time.

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

pub use check::PlatformFault;
pub use error::{BringUpError, BringUpFailed};
pub use frame::BringUp;
pub use seed::ShuffleSeed;
