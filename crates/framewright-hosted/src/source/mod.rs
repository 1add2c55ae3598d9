//! Where a machine's memory map, nodes and CPUs come from.
//!
//! A [`Machine`] holds what a source said, unprocessed: ranges may overlap and be in any order, and
//! node numbers may have gaps. [`Machine::load`] hands it to the library's intake, which normalises
//! it or refuses it.
//!
//! | source | function |
//! |---|---|
//! | the running machine | [`Machine::this`] |
//! | a file: boot log, `/proc/iomem` or this crate's text format | [`Machine::from_file`] |
//! | the text of such a file | [`Machine::parse`] |
//! | a copied `/proc` and `/sys` tree | [`Machine::from_system`] |
//! | a size | [`Machine::synthetic`] |

mod boot_log;
mod e820_line;
mod error;
mod iomem;
mod kinds;
mod linux;
mod load;
mod log_line;
mod machine;
mod nodes;
mod reader;
mod reshape;
pub(crate) mod size;
mod split;
mod srat_line;
mod synthetic;
pub(crate) mod sysfs;
mod text;

pub use error::{Place, SizeError, SourceError};
pub use machine::{Affinity, CpuAffinity, MAX_CPUS, Machine};
pub use size::parse_size;

use std::io::Read;
use std::path::Path;

/// Size limit of a file that is read as a machine, in bytes. Boot logs are far smaller, but a
/// device file has no end.
pub const MAX_FILE_BYTES: u64 = 64 << 20;

impl Machine {
    /// Reads the running machine; needs no privilege. The notes say which source was used and why
    /// others were not.
    ///
    /// # Errors
    /// [`SourceError::NoSource`] if the machine says nothing about its memory, or the error of the
    /// file that could not be read.
    pub fn this() -> Result<Self, SourceError> {
        Self::from_system(Path::new("/"))
    }

    /// Reads the machine whose `proc` and `sys` trees lie under `root`: `/` for the running one, or
    /// a folder with copies.
    ///
    /// # Errors
    /// As for [`Machine::this`].
    pub fn from_system(root: &Path) -> Result<Self, SourceError> {
        linux::read(root)
    }

    /// Reads the machine that a file describes; the content shows the format. A folder is taken for
    /// copied `proc` and `sys` trees.
    ///
    /// # Errors
    /// [`SourceError::Io`], [`SourceError::FileTooLarge`], or the errors of [`Machine::parse`].
    pub fn from_file(path: &Path) -> Result<Self, SourceError> {
        if path.is_dir() {
            return Self::from_system(path);
        }
        let io_error = |error| SourceError::io(path, error);
        let mut bytes = Vec::new();
        let file = std::fs::File::open(path).map_err(io_error)?;
        file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(io_error)?;
        if bytes.len() as u64 > MAX_FILE_BYTES {
            return Err(SourceError::FileTooLarge {
                path: path.to_path_buf(),
                limit_bytes: MAX_FILE_BYTES,
            });
        }
        // A boot log may contain stray bytes. They become replacement characters, in lines that are
        // skipped anyway.
        Self::parse(&path.display().to_string(), &String::from_utf8_lossy(&bytes))
    }

    /// Reads the machine that `text` describes: a Linux boot log, `/proc/iomem`, or this crate's
    /// text format. `name` is used in messages and becomes the machine's name unless the text gives
    /// one.
    ///
    /// # Errors
    /// [`SourceError::Unreadable`] names the line; [`SourceError::NoMemory`] and
    /// [`SourceError::HiddenAddresses`] mean that the text as a whole is of no use.
    pub fn parse(name: &str, text: &str) -> Result<Self, SourceError> {
        if boot_log::recognise(text) {
            boot_log::parse(name, text)
        } else if iomem::recognise(text) {
            iomem::parse(name, text)
        } else {
            text::parse(name, text)
        }
    }

    /// Writes the machine in this crate's text format. [`Machine::parse`] reads it back unchanged.
    #[must_use]
    pub fn to_text(&self) -> String {
        text::write(self)
    }
}
