//! What every [`VmemmapSpace`] must do, as a suite that needs neither heap nor threads: it runs in a
//! test and on a machine. And a random history for those whose tables can be read.

mod contract;
mod fault;
mod faulty;
mod history;
mod trial;

pub use contract::vmemmap_space_contract;
pub use fault::AccessFault;
pub use faulty::FaultyFrames;
pub use history::{Translation, Walkable, vmemmap_space_history};
pub use trial::TrialSpace;

use framewright::units::PfnRange;
use framewright::vmemmap_space::{FrameSource, VmemmapSpace};

/// A [`VmemmapSpace`] together with what the suite needs to look at it from outside. It describes at
/// least the first 2 GiB.
///
/// # Safety
/// The implementer promises that the space is there for the suite: nobody else calls for it while a
/// suite runs, no Rust reference leads into its array, and `load` and `store` cope with whatever is
/// mapped there; and that [`free`](Self::free) leaves alone what it is not owed.
pub unsafe trait VmemmapSpaceFixture {
    /// What is tested.
    fn space(&self) -> &dyn VmemmapSpace;
    /// The same, to call what only its owner may call.
    fn trial(&self) -> TrialSpace<'_>
    where
        Self: Sized,
    {
        TrialSpace::of(self)
    }
    /// Where its frames come from.
    fn frames(&self) -> impl FrameSource;
    /// Takes back frames that came out of a flush.
    fn free(&self, run: PfnRange);
    /// Frames that are out.
    fn outstanding(&self) -> u64;
    /// How many CPUs look at it. With one, what other CPUs may have cached is not tested.
    fn cpus(&self) -> u32;
    /// Reads 64 bits of the array through the TLB of `cpu`.
    ///
    /// # Errors
    /// See [`AccessFault`].
    fn load(&self, cpu: u32, address: usize) -> Result<u64, AccessFault>;
    /// Writes 64 bits of the array through the TLB of `cpu`.
    ///
    /// # Errors
    /// See [`AccessFault`].
    fn store(&self, cpu: u32, address: usize, value: u64) -> Result<(), AccessFault>;
}

impl<T: Walkable> Walkable for &T {
    fn translate(&self, address: usize) -> Option<Translation> {
        (**self).translate(address)
    }
    fn zero_frame(&self) -> u64 {
        (**self).zero_frame()
    }
    fn tables(&self) -> u64 {
        (**self).tables()
    }
}

// SAFETY: the promises of what is referred to.
unsafe impl<T: VmemmapSpaceFixture> VmemmapSpaceFixture for &T {
    fn space(&self) -> &dyn VmemmapSpace {
        (**self).space()
    }
    fn frames(&self) -> impl FrameSource {
        (**self).frames()
    }
    fn free(&self, run: PfnRange) {
        (**self).free(run);
    }
    fn outstanding(&self) -> u64 {
        (**self).outstanding()
    }
    fn cpus(&self) -> u32 {
        (**self).cpus()
    }
    fn load(&self, cpu: u32, address: usize) -> Result<u64, AccessFault> {
        (**self).load(cpu, address)
    }
    fn store(&self, cpu: u32, address: usize, value: u64) -> Result<(), AccessFault> {
        (**self).store(cpu, address, value)
    }
}
