//! What a kernel needs between the boot protocol and Framewright's memory manager.
//!
//! * [`acpi`] reads the tables that firmware left in memory: CPUs, memory affinities, distances and
//!   timers.
//! * [`ipi`] lets CPUs call functions on each other; how they are interrupted is up to the kernel.
//! * [`paging`] builds, walks and changes page tables, and defines what a TLB flush is.
//! * [`vmemmap`] maps the vmemmap with such tables. It maps descriptors in 2 MiB pages, frees those
//!   that are not needed, and shares one zero frame where there is no memory.
//! * [`x86_64`] is the only processor so far: its registers, page-table entries, interrupts and
//!   clocks, the PVH boot protocol and the serial port.
//!
//! Parsers copy what firmware wrote through [`PhysicalMemory`], each byte once, because a host may
//! change it at any time. They contain no unsafe code, and any malformed input yields an error that
//! names the place.
//!
//! Modules use only modules above them in this picture:
//!
//! ```text
//! physical memory, bytes, atomics
//!   |          |           |
//!  acpi     x86_64        ipi
//!   |        |   |
//!   +-> x86_64::clock
//!            |
//!          paging
//!            |
//!         vmemmap
//! ```
#![no_std]

#[cfg(test)]
extern crate std;

pub mod acpi;
mod bytes;
pub mod ipi;
pub mod paging;
mod physical;
mod sync;
pub mod vmemmap;
pub mod x86_64;

pub use physical::PhysicalMemory;
