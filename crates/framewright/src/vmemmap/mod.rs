//! The memory map in its *array* form: 64 bytes for every page, addressed by frame number, in a
//! virtual range of its own ([`crate::vmemmap_space`]).
//!
//! `memmap_init=` says when descriptors get their first value. *Eager*: the boot CPU writes all of
//! them. *Deferred* (Linux: `mm/mm_init.c`): of the last zone of each node only a first part comes
//! up, the rest is withheld by the section until jobs on the node's CPUs, or a request that finds
//! too little, bring it up. *On demand* there is no array. `plan` finds the array's own memory, on
//! the node that it describes; `boot_pages` what need not be described at all.

mod boot_pages;
mod plan;
mod sections;

pub(crate) use boot_pages::{BootPages, BootRange, most_frames};
pub(crate) use plan::{ArrayMemory, Part, SegmentsOfNodes};
pub use plan::{VmemmapFallback, deferred_sections};
pub use sections::SectionState;
pub(crate) use sections::{DeferredInit, SECTION_PAGES, Sections};
