//! ACPI tables: which CPUs exist (MADT), which memory and CPUs are close to each other (SRAT), how
//! far apart nodes are (SLIT), and which clocks have a known rate (HPET, FADT).
//!
//! [`Tables::open`] starts at the root pointer and copies the tables that it finds, each byte once,
//! because memory that firmware wrote may change while it is read. [`read_topology`] builds a
//! [`framewright::firmware::Topology`] from them. Firmware is not trusted: lengths, counts and
//! checksums are checked, every loop is bounded by a checked length, and an error says which table
//! is wrong, where in the table, and how.

mod domains;
mod entries;
mod error;
mod madt;
mod slit;
mod srat;
mod table;
mod tables;
mod timers;
mod topology;

pub use domains::MAX_CPUS;
pub use entries::{Entries, Entry};
pub use error::{AcpiError, Fault, Signature};
pub use madt::{Cpu, cpus};
pub use slit::Slit;
pub use srat::{Affinity, affinities};
pub use table::{MAX_TABLE_BYTES, Table};
pub use tables::Tables;
pub use timers::{PowerTimer, hpet_address, power_timer};
pub use topology::{count_cpus, read_topology, visit_cpus};
