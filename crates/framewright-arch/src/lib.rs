//! What a kernel needs between the boot protocol and Framewright's memory manager.
//!
//! * [`acpi`] reads the tables that firmware left in memory: CPUs, memory affinities, distances and
//!   timers.
//! * [`ipi`] lets CPUs call functions on each other; how they are interrupted is the kernel's
//!   business.
//! * [`paging`] builds, walks and changes page tables, and says what a TLB flush is.
//! * [`vmemmap`] maps the vmemmap with such tables: descriptors by 2 MiB, given back where they are
//!   not needed, and shared where there is no memory.
//! * [`x86_64`] is the only processor so far: its registers, page-table entries, interrupts and
//!   clocks, the PVH boot protocol and the serial port.
//!
//! Parsers copy what firmware wrote through [`PhysicalMemory`], each byte once, because a host may
//! change it meanwhile. They contain no unsafe code, and every malformed input is an error that
//! names the place.
//!
//! Modules use only what is above them in this picture:
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
