//! `framewright shell`, and commands that run after a boot.

mod hosted;
mod qemu;

pub use hosted::execute;

use crate::args::{Target, Where};
use crate::error::Error;
use crate::target;

/// Brings the machine up and runs commands until there are no more. Returns the last one's status.
///
/// # Errors
/// Fails if options contradict one another, or with anything that can go wrong on the way.
pub fn run(target: &Target) -> Result<u8, Error> {
    target::check(target)?;
    match target.on {
        Where::Hosted => hosted::run(target),
        Where::Qemu => qemu::run(target),
    }
}
