//! ACPI tables: which CPUs there are (MADT), which memory and CPUs are near one another (SRAT), how
//! far nodes are apart (SLIT), and which clocks have a known rate (HPET, FADT).
//!
//! [`Tables::open`] walks from the root pointer and copies what it meets, each byte once, because
//! memory that firmware wrote may change while it is read; [`read_topology`] makes a
//! [`framewright::firmware::Topology`] of what it finds. Firmware is not trusted: lengths, counts
//! and checksums are checked, every loop is bounded by a checked length, and an error says which
//! table is wrong, where in it, and how.

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
