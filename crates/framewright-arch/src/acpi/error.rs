//! What can be wrong with an ACPI table, and where.

use core::fmt;
use framewright::firmware::TopologyError;

/// The four letters that name a table.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Signature(pub [u8; 4]);

impl Signature {
    /// The root pointer (its own signature is eight letters).
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
    /// Fixed hardware, the power-management timer among it.
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
    /// Physical address of the table.
    pub address: u64,
    /// Byte in the table at which the fault was found.
    pub offset: usize,
    /// What is wrong.
    pub fault: Fault,
}

/// What is wrong with a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It lies, in whole or in part, at addresses that cannot be read.
    Unreadable {
        /// Bytes that were asked for.
        length: usize,
    },
    /// The storage for copies is too small for it.
    NoRoom {
        /// Bytes that it takes.
        length: usize,
        /// Bytes that were left.
        left: usize,
    },
    /// It begins with other letters than it should.
    WrongSignature,
    /// Its bytes do not sum to zero.
    WrongChecksum {
        /// What they sum to.
        sum: u8,
    },
    /// Its length cannot be.
    WrongLength {
        /// As given.
        length: u64,
        /// Least that holds what must be in it.
        least: usize,
        /// Most that is believed.
        most: usize,
    },
    /// An entry is shorter than its kind must be, or reaches beyond the table.
    WrongEntryLength {
        /// Kind of the entry.
        kind: u8,
        /// As given.
        length: usize,
        /// Least that an entry of the kind has.
        least: usize,
        /// Bytes that the table has left.
        left: usize,
    },
    /// There are more entries of one sort than are believed.
    TooManyEntries {
        /// How many are.
        most: usize,
    },
    /// A memory range wraps around the end of the address space.
    MemoryWraps {
        /// First byte.
        start: u64,
        /// Bytes.
        size_bytes: u64,
    },
    /// The table is well formed, but what it says contradicts itself.
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
                write!(f, "a length of {length} bytes cannot be (it must be {least} to {most})")
            }
            Fault::WrongEntryLength { kind, length, least, left } => {
                write!(
                    f,
                    "an entry of kind {kind} has {length} bytes (it must have {least} to {left})"
                )
            }
            Fault::TooManyEntries { most } => write!(f, "more than {most} entries of one sort"),
            Fault::MemoryWraps { start, size_bytes } => {
                write!(f, "memory of {size_bytes:#x} bytes at {start:#x} wraps around")
            }
            Fault::Contradiction(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for AcpiError {}
