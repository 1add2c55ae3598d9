//! Errors of a machine in this process.

use std::fmt;

/// What went wrong, as a line for the user.
#[derive(Debug)]
pub enum Error {
    /// The user asked for something impossible.
    Usage(String),
    /// Something that should have worked has failed.
    Failed(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Usage(message) | Self::Failed(message)) = self;
        f.write_str(message)
    }
}

impl std::error::Error for Error {}
