//! Where a machine's memory map, nodes and CPUs come from.
//!
//! A [`Machine`] holds what a source said, raw: ranges may overlap and be in any order, and node
//! numbers may have gaps. [`Machine::load`] hands it to the library's intake, which makes it
//! trustworthy or refuses it.
//!
//! | source | function |
//! |---|---|
//! | the running machine | [`Machine::this`] |
//! | a file: boot log, `/proc/iomem`, or our own text format | [`Machine::from_file`], [`Machine::parse`] |
//! | a copied `/proc` and `/sys` tree | [`Machine::from_system`] |
//! | a size | [`Machine::synthetic`] |

mod boot_log;
mod e820_line;
mod error;
mod iomem;
mod kinds;
mod load;
mod log_line;
mod nodes;
mod reader;
mod reshape;
pub(crate) mod size;
mod split;
mod srat_line;
mod synthetic;
pub(crate) mod system;
mod text;

pub use error::{Place, SizeError, SourceError};
pub use size::parse_size;

use framewright::firmware::MapRange;
use framewright::units::{NodeId, PhysRange};
use std::io::Read;
use std::path::Path;

/// Most CPUs that a machine may have; as many as Linux can be built for.
pub const MAX_CPUS: u32 = 8192;
/// Largest file that is read as a machine, in bytes. Boot logs are far smaller; a device file has
/// no end.
pub const MAX_FILE_BYTES: u64 = 64 << 20;

/// What is known of a machine before anything is made of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// What it is and where that was read, in one line.
    pub name: String,
    /// Memory and reservations as firmware gave them: unsorted, possibly overlapping.
    pub ranges: Vec<MapRange>,
    /// Which addresses belong to which node. Empty on a machine with one node.
    pub affinities: Vec<Affinity>,
    /// CPUs and their nodes. Empty when the source names none.
    pub cpus: Vec<CpuAffinity>,
    /// Distances `(from, to, distance)` between nodes in units of ACPI's SLIT; a pair that is not
    /// listed has the usual distance.
    pub distances: Vec<(u32, u32, u8)>,
    /// What a reader should know about how this came to be, a line each.
    pub notes: Vec<String>,
}

/// Addresses that belong to one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Affinity {
    /// The addresses, in bytes; they need not all be memory.
    pub range: PhysRange,
    /// The node, as the source numbers it.
    pub node: u32,
    /// Whether the memory there may be taken out later.
    pub hot_pluggable: bool,
}

/// The node of one CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuAffinity {
    /// The CPU's number. Numbers may have gaps where CPUs are offline.
    pub cpu: u32,
    /// The node, as the source numbers it.
    pub node: u32,
}

impl Machine {
    /// The running machine, without needing any privilege. The notes say which source was used and
    /// why others were not.
    ///
    /// # Errors
    /// [`SourceError::NoSource`] when the machine says nothing about its memory, or the error of
    /// the file that could not be read.
    pub fn this() -> Result<Self, SourceError> {
        Self::from_system(Path::new("/"))
    }

    /// The machine whose `proc` and `sys` trees lie under `root`: `/` for the running one, or a
    /// folder with copies.
    ///
    /// # Errors
    /// As [`Machine::this`].
    pub fn from_system(root: &Path) -> Result<Self, SourceError> {
        system::read(root)
    }

    /// The machine that a file describes; the format is recognised by its content. A folder is
    /// taken for copied `proc` and `sys` trees.
    ///
    /// # Errors
    /// [`SourceError::Io`], [`SourceError::FileTooLarge`], or what [`Machine::parse`] says.
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
        // A boot log may hold stray bytes; they become replacement characters in lines that are
        // skipped anyway.
        Self::parse(&path.display().to_string(), &String::from_utf8_lossy(&bytes))
    }

    /// The machine that `text` describes: a Linux boot log, `/proc/iomem`, or our own format.
    /// `name` is used in messages and becomes the machine's name unless the text gives one.
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

    /// The machine in our own text format; [`Machine::parse`] gives it back unchanged.
    #[must_use]
    pub fn to_text(&self) -> String {
        text::write(self)
    }

    /// Number of CPUs, at least 1: a source that names none leaves the one that booted.
    #[must_use]
    pub fn cpu_count(&self) -> u32 {
        u32::try_from(self.cpus.len()).unwrap_or(u32::MAX).max(1)
    }

    /// The nodes of the CPUs, as many as [`Machine::cpu_count`] says, as [`Machine::load`] gives
    /// them to the library: CPU i of a platform is the i-th here, whatever its number. A node
    /// beyond the limit, which `load` refuses, counts as node 0.
    #[must_use]
    pub fn cpu_nodes(&self) -> Vec<NodeId> {
        let lowest = self.affinities.iter().map(|affinity| affinity.node).min().unwrap_or(0);
        let named = self.cpus.iter().map(|cpu| cpu.node);
        let nodes = named.chain(self.cpus.is_empty().then_some(lowest));
        nodes.map(|node| NodeId::new(node as usize).unwrap_or_default()).collect()
    }
}
