//! Framewright on x86-64: what a kernel needs between the boot protocol and the memory manager.
//!
//! * [`acpi`] and [`pvh`] read what firmware left in memory. They copy it through
//!   [`PhysicalMemory`], each byte once, because a host may change it; they contain no unsafe code,
//!   and give an error that names the place for every malformed input.
//! * [`page_table`] builds translations over tables that it reaches through a trait, so it runs on
//!   the host too.
//! * [`vmemmap`] is the vmemmap's range: descriptors of pages mapped by 2 MiB, given back,
//!   and shared where there are none.
//! * [`cross_calls`] lets CPUs have each other call functions; how they are interrupted is the
//!   kernel's business.
//! * [`awaited`] is who sleeps until a helper has ended.
//! * [`cpu`], [`serial`] and [`clock`] touch the hardware.
#![no_std]

#[cfg(test)]
extern crate std;

pub mod acpi;
pub mod address_space;
pub mod awaited;
mod bytes;
pub mod clock;
pub mod cpu;
pub mod cross_calls;
pub mod page_table;
mod physical;
pub mod put_off;
pub mod pvh;
pub mod serial;
mod sync;
pub mod vmemmap;

pub use physical::PhysicalMemory;
