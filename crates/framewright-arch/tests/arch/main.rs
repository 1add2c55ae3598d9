//! Firmware tables, page tables, the vmemmap, and calls between CPUs.
#![cfg(not(loom))]

mod common;

mod acpi;
mod address_space;
mod ipi;
mod paging;
mod pvh;
mod vmemmap;
