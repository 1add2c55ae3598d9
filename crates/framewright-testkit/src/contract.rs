//! The fake page tables as a fixture for the contract of [`VmemmapSpace`].

use crate::frames::FramePool;
use crate::machine::FakeMachine;
use crate::paging::{AccessFault, FakePaging};
use framewright::units::{Order, PfnRange, PhysRange};
use framewright::vmemmap_space::{FrameSource, VmemmapSpace};
pub use framewright_workload::vmemmap_space::{VmemmapSpaceFixture, vmemmap_space_contract};

/// [`FakePaging`] over a pool of its own.
#[derive(Debug)]
pub struct FakeFixture {
    /// The tables.
    pub paging: FakePaging,
    /// The frames of the tables.
    pub pool: FramePool,
}

impl FakeFixture {
    /// Makes empty tables over `pool`.
    ///
    /// # Panics
    /// If the pool has fewer than two frames.
    #[must_use]
    pub fn new(pool: FramePool) -> Self {
        let paging = FakePaging::new(pool.machine(), pool.ledger().clone(), &mut &pool)
            .expect("two frames for the shared page");
        Self { paging, pool }
    }
}

// SAFETY: the tables are a model whose array only `load` and `store` read and write, and the pool
// checks the frames that it takes back.
unsafe impl VmemmapSpaceFixture for FakeFixture {
    fn space(&self) -> &dyn VmemmapSpace {
        &self.paging
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
        self.paging.cpus()
    }
    fn load(&self, cpu: u32, address: usize) -> Result<u64, AccessFault> {
        self.paging.load(cpu, address)
    }
    fn store(&self, cpu: u32, address: usize, value: u64) -> Result<(), AccessFault> {
        self.paging.store(cpu, address, value)
    }
}

/// Makes a pool for a fixture: as large as the suite needs, with frames of every order up to
/// `largest`.
///
/// # Panics
/// If the machine has no usable memory from 64 MiB to 96 MiB.
#[must_use]
pub fn contract_pool(largest: Order) -> FramePool {
    let machine = FakeMachine::builder().ram(PhysRange::new(0, 96 << 20)).cpus(3).build();
    // SAFETY: the machine was made here and has no other user.
    unsafe { FramePool::new(machine, PfnRange::new(0x4000, 0x6000)) }.up_to(largest)
}
