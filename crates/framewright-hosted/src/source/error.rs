//! What can be wrong with a description of a machine.

use framewright::firmware::{MapError, TopologyError};
use std::fmt;
use std::path::{Path, PathBuf};

/// A line of a text, for error messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file, or the name that was given for the text.
    pub name: String,
    /// Line number, from 1.
    pub line: usize,
    /// The line, without its end.
    pub text: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 120;
        let short: String = self.text.chars().take(SHOWN).collect();
        let more = if short.len() < self.text.len() { "..." } else { "" };
        write!(f, "{}, line {}: {:?}{more}", self.name, self.line, short)
    }
}

/// Why a machine could not be read, changed or loaded.
#[derive(Debug)]
pub enum SourceError {
    /// A file could not be read.
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        error: std::io::Error,
    },
    /// A file is larger than any description of a machine.
    FileTooLarge {
        /// The file.
        path: PathBuf,
        /// The most that is read, in bytes.
        limit_bytes: u64,
    },
    /// A line cannot be read.
    Unreadable {
        /// The line.
        place: Place,
        /// What was expected instead.
        expected: String,
    },
    /// The text describes no memory at all.
    NoMemory {
        /// The file, or the name that was given for the text.
        name: String,
    },
    /// Every address is zero, because the kernel hides addresses from unprivileged users.
    HiddenAddresses {
        /// The file, or the name that was given for the text.
        name: String,
    },
    /// Nothing under this root tells how much memory the machine has.
    NoSource {
        /// The folder that should hold `proc` and `sys`.
        root: PathBuf,
        /// The reason for each source that was tried.
        reasons: Vec<String>,
    },
    /// The memory map was refused.
    Map {
        /// The machine.
        name: String,
        /// Why.
        error: MapError,
    },
    /// The nodes were refused.
    Topology {
        /// The machine.
        name: String,
        /// Why.
        error: TopologyError,
    },
    /// More nodes were asked for than the memory can be split into.
    MoreNodesThanMemory {
        /// Nodes asked for.
        nodes: u32,
        /// Least memory of a node, in bytes.
        node_bytes: u64,
        /// Memory of the machine, in bytes.
        memory_bytes: u64,
    },
    /// A number of nodes is zero or beyond the limit.
    NodeCount {
        /// The number that was given.
        nodes: u32,
    },
    /// A number of CPUs is zero or beyond the limit.
    CpuCount {
        /// The number that was given.
        cpus: u32,
    },
    /// A memory size is too small or too large for a machine.
    MemorySize {
        /// The size that was given, in bytes.
        memory_bytes: u64,
        /// The smallest size that is accepted, in bytes.
        least_bytes: u64,
        /// The largest size that is accepted, in bytes.
        most_bytes: u64,
    },
}

impl SourceError {
    pub(super) fn io(path: &Path, error: std::io::Error) -> Self {
        Self::Io { path: path.to_path_buf(), error }
    }

    /// The line at fault, if there is one.
    #[must_use]
    pub fn place(&self) -> Option<&Place> {
        match self {
            Self::Unreadable { place, .. } => Some(place),
            _ => None,
        }
    }
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { path, error } => write!(f, "cannot read {}: {error}", path.display()),
            Self::FileTooLarge { path, limit_bytes } => {
                write!(
                    f,
                    "{} is larger than {} MiB; is it a boot log?",
                    path.display(),
                    limit_bytes >> 20
                )
            }
            Self::Unreadable { place, expected } => write!(f, "{place}: expected {expected}"),
            Self::NoMemory { name } => write!(
                f,
                "{name} names no memory: expected a boot log with BIOS-e820 lines, the content of \
                 /proc/iomem, or lines such as \"memory 0x100000 +2G usable\""
            ),
            Self::HiddenAddresses { name } => write!(
                f,
                "{name}: every address is zero because the kernel hides them from this user; read \
                 it as root, or use a boot log"
            ),
            Self::NoSource { root, reasons } => {
                write!(f, "nothing under {} says how much memory there is", root.display())?;
                reasons.iter().try_for_each(|reason| write!(f, "; {reason}"))
            }
            Self::Map { name, error } => write!(f, "{name}: {error}"),
            Self::Topology { name, error } => write!(f, "{name}: {error}"),
            Self::MoreNodesThanMemory { nodes, node_bytes, memory_bytes } => write!(
                f,
                "too many nodes: {nodes} nodes of at least {} MiB need {} MiB, but the machine has \
                 {} MiB",
                node_bytes >> 20,
                (u64::from(*nodes) * node_bytes) >> 20,
                memory_bytes >> 20
            ),
            Self::NodeCount { nodes } => {
                write!(f, "{nodes} nodes: expected 1 to {}", framewright::units::MAX_NODES)
            }
            Self::CpuCount { cpus } => {
                write!(f, "{cpus} CPUs: expected 1 to {}", super::machine::MAX_CPUS)
            }
            Self::MemorySize { memory_bytes, least_bytes, most_bytes } => write!(
                f,
                "{memory_bytes} byte{} of memory: expected at least {} MiB and at most {} TiB",
                if *memory_bytes == 1 { "" } else { "s" },
                least_bytes >> 20,
                most_bytes >> 40
            ),
        }
    }
}

impl std::error::Error for SourceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { error, .. } => Some(error),
            Self::Map { error, .. } => Some(error),
            Self::Topology { error, .. } => Some(error),
            _ => None,
        }
    }
}

/// A text that is not a size, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeError {
    /// The text.
    pub text: String,
    /// What is wrong with it.
    pub reason: framewright::parameters::SizeError,
}

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not a size: {}", self.text, self.reason)
    }
}

impl std::error::Error for SizeError {}
