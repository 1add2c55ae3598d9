//! Why a process cannot stand in for a machine.

use framewright::units::PhysRange;
use std::fmt;

/// Why a hosted platform could not be made or used.
#[derive(Debug)]
pub enum HostedError {
    /// The map has no present memory.
    NoMemory,
    /// A number of CPUs is zero or beyond the limit.
    CpuCount {
        /// The number that was given.
        cpus: u32,
    },
    /// The process cannot reserve as many addresses as the machine has memory.
    CannotReserve {
        /// Addresses that the machine's memory needs, in bytes.
        needed_bytes: u64,
        /// The most that the process can reserve in one piece now, in bytes.
        limit_bytes: u64,
        /// What the operating system said.
        error: std::io::Error,
    },
    /// Reserved addresses could not be made usable.
    CannotOpen {
        /// The memory. If the addresses are for its vmemmap, all that the vmemmap describes.
        range: PhysRange,
        /// What the operating system said.
        error: std::io::Error,
    },
    /// The system has no way to make every CPU execute a barrier.
    NoBarrier {
        /// What the operating system said.
        error: std::io::Error,
    },
    /// There is no CPU with that number.
    NoSuchCpu {
        /// The number that was given.
        cpu: u32,
        /// How many CPUs there are.
        cpus: u32,
    },
    /// Another thread is this CPU.
    CpuTaken {
        /// The CPU.
        cpu: u32,
    },
    /// The calling thread is a CPU of this machine already, or is pinned to one.
    AlreadyCpu {
        /// Its number.
        cpu: u32,
    },
    /// Not all of the range is memory of this machine.
    NotMemory {
        /// The range.
        range: PhysRange,
    },
    /// The range does not begin and end at a page.
    Unaligned {
        /// The range.
        range: PhysRange,
    },
    /// Memory could not be given back to the operating system.
    CannotDiscard {
        /// The memory.
        range: PhysRange,
        /// What the operating system said.
        error: std::io::Error,
    },
    /// This advice does not discard memory of this kind.
    AdviceDoesNotFit {
        /// The advice.
        advice: &'static str,
        /// Whether the machine's memory is shared.
        shared: bool,
    },
    /// The operating system does not tell how much memory is resident.
    CannotMeasure {
        /// What the operating system said.
        error: std::io::Error,
    },
}

impl fmt::Display for HostedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMemory => f.write_str("the memory map has no present memory"),
            Self::CpuCount { cpus } => {
                write!(f, "{cpus} CPUs: expected 1 to {}", crate::source::MAX_CPUS)
            }
            Self::CannotReserve { needed_bytes, limit_bytes, error } => write!(
                f,
                "the machine's memory needs {} MiB of addresses, but this process can reserve at \
                 most {} MiB in one piece ({error}); the limits are the size of the address space, \
                 `ulimit -v`, `ulimit -l` after mlockall(MCL_FUTURE), and for shared memory with \
                 vm.overcommit_memory=2 the system's commit limit",
                needed_bytes.div_ceil(1 << 20),
                limit_bytes >> 20
            ),
            Self::CannotOpen { range, error } => write!(
                f,
                "cannot make memory of {range:?} usable: {error}; all of it must fit `ulimit -d` \
                 and, with vm.overcommit_memory=2, the system's commit limit"
            ),
            Self::NoBarrier { error } => {
                write!(
                    f,
                    "the membarrier system call is missing ({error}): without it a machine can \
                     have only one CPU"
                )
            }
            Self::NoSuchCpu { cpu, cpus } => {
                write!(f, "there is no CPU {cpu}: the machine has {cpus}, counted from 0")
            }
            Self::CpuTaken { cpu } => write!(f, "another thread is CPU {cpu} already"),
            Self::AlreadyCpu { cpu } => write!(f, "this thread is CPU {cpu} already"),
            Self::NotMemory { range } => {
                write!(f, "not all of {range:?} is memory of this machine")
            }
            Self::Unaligned { range } => {
                write!(f, "{range:?} does not begin and end at page boundaries")
            }
            Self::CannotDiscard { range, error } => {
                write!(f, "cannot give {range:?} back: {error}")
            }
            Self::AdviceDoesNotFit { advice, shared } => {
                write!(
                    f,
                    "{advice} does not discard {} memory",
                    if *shared { "shared" } else { "private" }
                )
            }
            Self::CannotMeasure { error } => {
                write!(f, "cannot read how much memory is resident: {error}")
            }
        }
    }
}

impl std::error::Error for HostedError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::CannotReserve { error, .. }
            | Self::CannotOpen { error, .. }
            | Self::NoBarrier { error }
            | Self::CannotDiscard { error, .. }
            | Self::CannotMeasure { error } => Some(error),
            _ => None,
        }
    }
}
