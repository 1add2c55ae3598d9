//! Errors of control files, with Linux's names and numbers.

use core::fmt;

/// Why a control file was not read or written. A failed write has changed nothing, with one
/// exception: a memory block that could not be brought online may be online in part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileError {
    /// There is no such file (ENOENT).
    NotFound,
    /// The file cannot be read, or cannot be written (EACCES).
    NotPermitted,
    /// The text that was written means nothing to the file (EINVAL).
    Invalid,
    /// Another caller is using it (EBUSY).
    Busy,
    /// There is not enough memory (ENOMEM).
    NoMemory,
    /// The path names a folder (EISDIR).
    IsFolder,
    /// A part of the path that should be a folder is a file (ENOTDIR).
    NotFolder,
    /// The writer that takes the text failed (EIO).
    Output,
}

impl FileError {
    /// Linux's number for the error.
    #[must_use]
    pub const fn errno(self) -> i32 {
        match self {
            Self::NotFound => 2,
            Self::Output => 5,
            Self::NoMemory => 12,
            Self::NotPermitted => 13,
            Self::Busy => 16,
            Self::NotFolder => 20,
            Self::IsFolder => 21,
            Self::Invalid => 22,
        }
    }

    /// Linux's name for the error.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotFound => "ENOENT",
            Self::Output => "EIO",
            Self::NoMemory => "ENOMEM",
            Self::NotPermitted => "EACCES",
            Self::Busy => "EBUSY",
            Self::NotFolder => "ENOTDIR",
            Self::IsFolder => "EISDIR",
            Self::Invalid => "EINVAL",
        }
    }
}

/// Linux's message for the error, as a shell shows it.
impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotFound => "No such file or directory",
            Self::Output => "Input/output error",
            Self::NoMemory => "Cannot allocate memory",
            Self::NotPermitted => "Permission denied",
            Self::Busy => "Device or resource busy",
            Self::NotFolder => "Not a directory",
            Self::IsFolder => "Is a directory",
            Self::Invalid => "Invalid argument",
        })
    }
}

impl core::error::Error for FileError {}

impl From<fmt::Error> for FileError {
    fn from(_: fmt::Error) -> Self {
        Self::Output
    }
}
