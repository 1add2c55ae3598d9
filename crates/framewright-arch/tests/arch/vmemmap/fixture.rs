//! Real page tables in a fake machine's memory, and CPUs that access memory through them.

use super::cpus::{Forgets, SoftwareCpus};
use crate::common::table_memory::Memory;
use framewright::units::{Order, Pfn, PfnRange};
use framewright::vmemmap_space::{BlockRange, FrameSource, Unflushed, VmemmapSpace};
use framewright_arch::paging::{Access, PageSize, translate};
use framewright_arch::vmemmap::{Vmemmap, VmemmapLayout};
use framewright_testkit::workload::vmemmap_space::{Translation, Walkable};
use framewright_testkit::{AccessFault, FakeMachine, FramePool, VmemmapSpaceFixture};

/// The address of Linux's vmemmap.
pub const BASE: u64 = 0xffff_ea00_0000_0000;
/// Bytes of the vmemmap for one block.
pub const BLOCK_BYTES: u64 = 512 * 64;

/// A vmemmap, its frames and its CPUs.
pub struct Fixture {
    pub vmemmap: Vmemmap<FakeMachine, &'static SoftwareCpus>,
    pub cpus: &'static SoftwareCpus,
    pub pool: FramePool,
    /// Frames in use when nothing is present, including the root.
    pub resting: usize,
}

/// Takes an empty root table from the pool.
pub fn root(pool: &FramePool) -> u64 {
    let root = (&mut { pool }).take(Order::PAGE).expect("a frame for the root").address();
    for word in 0..512 {
        // SAFETY: the frame was just taken for this.
        unsafe { pool.machine().store(root + 8 * word, 0) };
    }
    root
}

impl Fixture {
    pub fn new(pool: FramePool) -> Self {
        Self::with(pool, 32, Forgets::Nothing)
    }

    /// Creates one with a limit for ranged flushes, and CPUs that may flush too little.
    pub fn with(pool: FramePool, ranged_flush_pages: u64, forgets: Forgets) -> Self {
        let root = root(&pool);
        let cpus = SoftwareCpus::new(pool.machine(), pool.ledger().clone(), root, forgets);
        Self::of(
            pool,
            cpus,
            VmemmapLayout { root, base: BASE, frames_end: Pfn(4 << 18), global: false },
            ranged_flush_pages,
        )
    }

    /// Creates one with global pages, on CPUs with this many contexts.
    pub fn in_contexts(pool: FramePool, ranged_flush_pages: u64, contexts: usize) -> Self {
        let root = root(&pool);
        let cpus = SoftwareCpus::new(pool.machine(), pool.ledger().clone(), root, Forgets::Nothing);
        let layout = VmemmapLayout { root, base: BASE, frames_end: Pfn(4 << 18), global: true };
        Self::of(pool, cpus.with_contexts(contexts), layout, ranged_flush_pages)
    }

    fn of(
        pool: FramePool,
        cpus: SoftwareCpus,
        layout: VmemmapLayout,
        ranged_flush_pages: u64,
    ) -> Self {
        let cpus: &'static SoftwareCpus = Box::leak(Box::new(cpus));
        // SAFETY: the root is of this fixture alone, and so is the vmemmap's range; only the CPUs
        // access it.
        let vmemmap = unsafe { Vmemmap::new(pool.machine(), cpus, layout, &mut &pool) }
            .expect("frames for the vmemmap");
        let resting = pool.outstanding();
        let vmemmap = vmemmap.with_ranged_flush_pages(ranged_flush_pages);
        Self { vmemmap, cpus, pool, resting }
    }

    /// Populates and flushes.
    pub fn populate(&self, blocks: BlockRange) {
        let mut unflushed = Unflushed::new();
        self.trial().populate(blocks, &mut &self.pool, &mut unflushed).expect("the pool is large");
        self.pool.free(self.trial().flush(unflushed));
    }

    /// Prepares and flushes.
    pub fn prepare(&self, blocks: BlockRange) {
        let mut unflushed = Unflushed::new();
        self.trial().prepare(blocks, &mut &self.pool, &mut unflushed).expect("the pool is large");
        self.pool.free(self.trial().flush(unflushed));
    }

    /// Evicts all of `blocks`, flushes, and returns how many frames were freed.
    pub fn evict(&self, blocks: BlockRange) -> u64 {
        let mut unflushed = Unflushed::new();
        assert_eq!(self.trial().evict(blocks, &mut unflushed), 0);
        let list = self.trial().flush(unflushed);
        let pages = list.pages();
        self.pool.free(list);
        pages
    }

    /// Returns the translation in the tables now, whatever CPUs have cached.
    pub fn translate(&self, address: u64) -> Option<(u64, PageSize, Access)> {
        translate(&Memory(self.pool.machine()), self.vmemmap.layout().root, address)
    }
}

// SAFETY: the tables are this fixture's, only simulated CPUs access the vmemmap, and the pool
// checks what it takes back.
unsafe impl VmemmapSpaceFixture for Fixture {
    fn space(&self) -> &dyn VmemmapSpace {
        &self.vmemmap
    }
    fn frames(&self) -> impl FrameSource {
        &self.pool
    }
    fn free(&self, run: PfnRange) {
        self.pool.free_runs(&[run]);
    }
    fn outstanding(&self) -> u64 {
        self.pool.outstanding() as u64
    }
    fn cpus(&self) -> u32 {
        framewright::Platform::cpus(self.pool.machine())
    }
    fn load(&self, cpu: u32, address: usize) -> Result<u64, AccessFault> {
        self.cpus.load(cpu, address)
    }
    fn store(&self, cpu: u32, address: usize, value: u64) -> Result<(), AccessFault> {
        self.cpus.store(cpu, address, value)
    }
}

impl Walkable for Fixture {
    fn translate(&self, address: usize) -> Option<Translation> {
        let (physical, _, access) = Fixture::translate(self, address as u64)?;
        Some(Translation { physical, write: access.write, execute: access.execute })
    }
    fn zero_frame(&self) -> u64 {
        self.vmemmap.zero_frame().address()
    }
    fn tables(&self) -> u64 {
        self.vmemmap.counts().tables
    }
}
