//! The manager's state of the vmemmap, and the results of changing it.

use crate::parameters::{Parameters, Policy};
use crate::platform::Platform;
use crate::sync::add_fields::add_fields;
use crate::sync::table_atomic::{AtomicU64, Ordering};
use crate::units::{NodeId, Pfn};
use crate::vmemmap_space::VMEMMAP_PAGES_PER_BLOCK;
use core::fmt;

/// How the withheld memory of a node became available.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeferredNode {
    /// The node.
    pub node: NodeId,
    /// Pages that were withheld at bring-up.
    pub pages: u64,
    /// Those of them that became available because a request found too little.
    pub grown_pages: u64,
    /// How long the node's job took; the slowest node's time is what deferral costs the boot.
    /// `None` without a clock, and before the job.
    pub elapsed_ns: Option<u64>,
    /// How many threads worked in the job, including those that came from other nodes to help; 0
    /// before the job.
    pub threads: u32,
}

/// The memory map as bring-up made it.
pub(crate) struct VmemmapState {
    pub(crate) policy: Policy,
    /// Bytes of the array at bring-up.
    pub(crate) bytes: u64,
    /// Blocks whose part of the array was never made.
    pub(crate) without_vmemmap: u64,
    /// Frames that reclaiming the map set free, or that were never taken for pages that pools got
    /// at boot, less the frames that reclaiming spent; wraps if negative.
    pub(crate) saved_pages: AtomicU64,
    /// Blocks that the array does not describe because their map was given back.
    pub(crate) reclaimed_blocks: AtomicU64,
    pub(crate) threads: Option<u32>,
    pub(crate) started_ns: Option<u64>,
    /// When the last withheld page became available, in nanoseconds after `started_ns`, plus one;
    /// 0: not yet.
    pub(crate) all_memory_ns: AtomicU64,
}

impl VmemmapState {
    pub(crate) fn new(
        policy: Policy,
        bytes: u64,
        without_vmemmap: u64,
        parameters: &Parameters,
        started_ns: Option<u64>,
    ) -> Self {
        let threads = parameters.memmap_init_threads;
        let saved_pages = AtomicU64::new(without_vmemmap * VMEMMAP_PAGES_PER_BLOCK);
        let reclaimed_blocks = AtomicU64::new(without_vmemmap);
        let all_memory_ns = AtomicU64::new(0);
        Self {
            policy,
            bytes,
            without_vmemmap,
            saved_pages,
            reclaimed_blocks,
            threads,
            started_ns,
            all_memory_ns,
        }
    }

    /// Returns whether there is an array.
    pub(crate) const fn is_array(&self) -> bool {
        self.bytes != 0
    }

    pub(crate) fn note_reclaimed(&self, change: &VmemmapChange) {
        self.note_pages(change);
        // Relaxed: a counter, here and below.
        self.reclaimed_blocks.fetch_add(change.blocks, Ordering::Relaxed);
    }

    pub(crate) fn note_restored(&self, change: &VmemmapChange) {
        self.note_pages(change);
        let less = |blocks: u64| Some(blocks.saturating_sub(change.blocks));
        let _ = self.reclaimed_blocks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    pub(crate) fn note_pages(&self, change: &VmemmapChange) {
        self.saved_pages
            .fetch_add(change.freed_pages.wrapping_sub(change.spent_pages), Ordering::Relaxed);
    }
}

/// What a call did to the memory map.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct VmemmapChange {
    /// Blocks whose part of the array is absent now, or present again.
    pub blocks: u64,
    /// Frames that became free.
    pub freed_pages: u64,
    /// Frames that were spent, on page tables or on the array.
    pub spent_pages: u64,
    /// TLB flushes of all CPUs.
    pub flushes: u64,
    /// Blocks that stayed as they were because no frame was left for a page table.
    pub out_of_frames: u64,
}

impl core::ops::AddAssign for VmemmapChange {
    #[inline(never)]
    fn add_assign(&mut self, other: Self) {
        add_fields!(self += other, blocks, freed_pages, spent_pages, flushes, out_of_frames);
    }
}

/// Why the memory map cannot be changed. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VmemmapError {
    /// The platform has no array.
    NoArray,
    /// The calling context may not wait for other CPUs, which a TLB flush has to do.
    CannotWait,
    /// These frames lie in no zone, or in several.
    NotManaged(Pfn),
}

impl fmt::Display for VmemmapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoArray => f.write_str("there is no vmemmap"),
            Self::CannotWait => f.write_str(
                "this context cannot change the memory map: it cannot wait for other CPUs",
            ),
            Self::NotManaged(pfn) => write!(f, "pfn {pfn} is not managed"),
        }
    }
}

impl core::error::Error for VmemmapError {}

/// Locks that let one caller at a time change a section's translations, as
/// [`VmemmapSpace`](crate::vmemmap_space::VmemmapSpace) requires. Bit n of the word is the lock of
/// every section whose number is n modulo 64.
///
/// The holder of a bit may lose its CPU, as [`VmemmapSpace`](crate::vmemmap_space::VmemmapSpace)
/// may sleep; so a waiter lets other tasks run.
pub(crate) struct SectionLocks(AtomicU64);

impl SectionLocks {
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    pub(crate) fn with<P: Platform, R>(
        &self,
        platform: &P,
        section: u32,
        work: impl FnOnce() -> R,
    ) -> R {
        let bit = 1 << (section % 64);
        // Acquire pairs with the Release below, through the changes of other bits: the next holder
        // sees the tables.
        while self.0.fetch_or(bit, Ordering::Acquire) & bit != 0 {
            platform.yield_now();
        }
        let result = work();
        self.0.fetch_and(!bit, Ordering::Release);
        result
    }
}
