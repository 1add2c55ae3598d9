//! The memory map in its *array* form: 64 bytes for every page, indexed by frame number, in a
//! virtual address range of its own ([`crate::vmemmap_space`]).
//!
//! `memmap_init=` says when descriptors get their first value. *Eager*: the boot CPU writes all of
//! them. *Deferred* (Linux: `mm/mm_init.c`): only the first part of each node's last zone is
//! initialised at bring-up. The rest is withheld in sections until jobs on the node's CPUs, or a
//! request that finds too little memory, initialise them. *On demand*: there is no array. `plan`
//! finds the memory for the array, on the node that it describes; `boot_pages` has what need not be
//! described at all.

mod boot_pages;
mod plan;
mod sections;

pub(crate) use boot_pages::{BootPages, BootRange, most_frames};
pub(crate) use plan::{ArrayMemory, Part, SegmentsOfNodes};
pub use plan::{VmemmapFallback, deferred_sections};
pub use sections::SectionState;
pub(crate) use sections::{DeferredInit, SECTION_PAGES, Sections};
