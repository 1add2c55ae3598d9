//! What can be wrong with an ACPI table, and where.

use core::fmt;
use framewright::firmware::TopologyError;

/// The four letters that name a table.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Signature(pub [u8; 4]);

impl Signature {
    /// The root pointer (whose own signature has eight letters).
    pub const RSDP: Self = Self(*b"RSDP");
    /// The root table with 32-bit addresses.
    pub const RSDT: Self = Self(*b"RSDT");
    /// The root table with 64-bit addresses.
    pub const XSDT: Self = Self(*b"XSDT");
    /// CPUs and interrupt controllers.
    pub const MADT: Self = Self(*b"APIC");
    /// Affinities.
    pub const SRAT: Self = Self(*b"SRAT");
    /// Distances.
    pub const SLIT: Self = Self(*b"SLIT");
    /// The high precision event timer.
    pub const HPET: Self = Self(*b"HPET");
    /// Fixed hardware, including the power-management timer.
    pub const FADT: Self = Self(*b"FACP");
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0 {
            write!(f, "{}", char::from(if byte.is_ascii_graphic() { byte } else { b'?' }))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A table that cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AcpiError {
    /// Which table.
    pub table: Signature,
    /// The physical address of the table.
    pub address: u64,
    /// The offset in the table at which the fault was found.
    pub offset: usize,
    /// What is wrong.
    pub fault: Fault,
}

/// What is wrong with a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The table lies, in whole or in part, at addresses that cannot be read.
    Unreadable {
        /// The number of bytes that were to be read.
        length: usize,
    },
    /// The storage for copies is too small for the table.
    NoRoom {
        /// The number of bytes that it takes.
        length: usize,
        /// The number of bytes that were left.
        left: usize,
    },
    /// The table does not begin with the expected signature.
    WrongSignature,
    /// The bytes of the table do not sum to zero.
    WrongChecksum {
        /// Their sum.
        sum: u8,
    },
    /// The length of the table is impossible.
    WrongLength {
        /// As given.
        length: u64,
        /// The smallest length that holds the mandatory parts.
        least: usize,
        /// The largest length that is accepted.
        most: usize,
    },
    /// An entry is shorter than its kind requires, or extends beyond the table.
    WrongEntryLength {
        /// The kind of the entry.
        kind: u8,
        /// As given.
        length: usize,
        /// The smallest length of an entry of this kind.
        least: usize,
        /// The number of bytes left in the table.
        left: usize,
    },
    /// There are more entries of one sort than are accepted.
    TooManyEntries {
        /// The largest number that is accepted.
        most: usize,
    },
    /// A memory range wraps around the end of the address space.
    MemoryWraps {
        /// The first byte of the range.
        start: u64,
        /// The size of the range in bytes.
        size_bytes: u64,
    },
    /// The table is well formed, but its contents contradict each other.
    Contradiction(TopologyError),
}

impl fmt::Display for AcpiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ACPI: {} at {:#x}", self.table, self.address)?;
        if self.offset != 0 {
            write!(f, ", byte {}", self.offset)?;
        }
        f.write_str(": ")?;
        match self.fault {
            Fault::Unreadable { length } => write!(f, "{length} bytes cannot be read"),
            Fault::NoRoom { length, left } => {
                write!(f, "there is no room to copy {length} bytes ({left} are left)")
            }
            Fault::WrongSignature => f.write_str("wrong signature"),
            Fault::WrongChecksum { sum } => {
                write!(f, "the checksum is wrong (the bytes sum to {sum:#04x} instead of 0)")
            }
            Fault::WrongLength { length, least, most } => {
                write!(f, "a length of {length} bytes is invalid (it must be {least} to {most})")
            }
            Fault::WrongEntryLength { kind, length, least, left } => {
                write!(
                    f,
                    "an entry of kind {kind} has {length} bytes (it must have {least} to {left})"
                )
            }
            Fault::TooManyEntries { most } => write!(f, "more than {most} entries of one kind"),
            Fault::MemoryWraps { start, size_bytes } => {
                write!(f, "memory of {size_bytes:#x} bytes at {start:#x} wraps around")
            }
            Fault::Contradiction(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for AcpiError {}
