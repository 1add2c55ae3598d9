//! Machines in this process, brought up any number of times.
//!
//! The manager is generic over its platform, so it is compiled where it is used. The code that the
//! program `framewright` times is compiled here, in a crate that is fully optimised. The program
//! itself is not, which saves nearly a third of the time to build it (`profile.release` in
//! `Cargo.toml`).

mod background;
mod error;
mod log;
mod reporting;
mod session;

pub use background::{Quiet, with_background};
pub use error::Error;
pub use log::{Lines, Silent};
pub use reporting::with_reports;
pub use session::{Pass, Session, available_bytes, cpu_seconds};
