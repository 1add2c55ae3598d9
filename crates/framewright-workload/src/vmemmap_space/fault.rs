//! Why an access to the vmemmap failed.

use core::fmt;
use framewright::units::Pfn;

/// Why an access to the array failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessFault {
    /// An access used a translation whose frame is free or has another use: the frame was freed
    /// before the flush.
    Stale {
        /// The CPU whose TLB had the translation.
        cpu: u32,
        /// The address that was accessed.
        address: usize,
        /// The frame, which was part of the array or a page table.
        frame: Pfn,
    },
    /// A write to a page that is mapped read-only.
    ReadOnly {
        /// The CPU that wrote.
        cpu: u32,
        /// The address that was accessed.
        address: usize,
        /// The frame that is mapped there.
        frame: Pfn,
    },
    /// The address is not in the array.
    Beyond {
        /// The CPU that accessed it.
        cpu: u32,
        /// The address that was accessed.
        address: usize,
    },
}

impl fmt::Display for AccessFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stale { cpu, address, frame } => write!(
                f,
                "stale translation: CPU {cpu} reached {address:#x} through frame {frame}, which \
                 was freed since it was cached"
            ),
            Self::ReadOnly { cpu, address, frame } => {
                write!(f, "CPU {cpu} wrote to {address:#x}, mapped read-only to frame {frame}")
            }
            Self::Beyond { cpu, address } => {
                write!(f, "CPU {cpu} accessed {address:#x}, outside the array")
            }
        }
    }
}

impl core::error::Error for AccessFault {}
