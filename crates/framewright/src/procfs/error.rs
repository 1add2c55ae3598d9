//! What can go wrong with a control file, in Linux's words and numbers.

use core::fmt;

/// Why a control file was not read or written. A write has then changed nothing, but
/// for parts of a memory block that are online before one that is not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileError {
    /// There is no such file (ENOENT).
    NotFound,
    /// The file cannot be read, or cannot be written (EACCES).
    NotPermitted,
    /// What was written means nothing to the file (EINVAL).
    Invalid,
    /// Somebody else is at it (EBUSY).
    Busy,
    /// There is not enough memory for it (ENOMEM).
    NoMemory,
    /// It is a folder (EISDIR).
    IsFolder,
    /// A part of the path that should be a folder is a file (ENOTDIR).
    NotFolder,
    /// Whoever takes the text has failed (EIO).
    Output,
}

impl FileError {
    /// Linux's number for it.
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

    /// Linux's name for the number.
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

/// As people know it from a shell.
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
