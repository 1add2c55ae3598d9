//! What the suites need from a space under test: [`VmemmapSpaceFixture`].

use super::fault::AccessFault;
use super::trial::TrialSpace;
use framewright::units::PfnRange;
use framewright::vmemmap_space::{FrameSource, VmemmapSpace};

/// A [`VmemmapSpace`] together with what the suites need to check it from outside. It describes at
/// least the first 2 GiB.
///
/// # Safety
/// While a suite runs, no other code calls the space, no Rust reference leads into its addresses,
/// and `load` and `store` cope with whatever is mapped there. [`free`](Self::free) does not touch
/// frames that the space still owns.
pub unsafe trait VmemmapSpaceFixture {
    /// The space under test.
    fn space(&self) -> &dyn VmemmapSpace;
    /// The space under test, for calling what only its owner may call.
    fn trial(&self) -> TrialSpace<'_>
    where
        Self: Sized,
    {
        TrialSpace::of(self)
    }
    /// The source of the space's frames.
    fn frames(&self) -> impl FrameSource;
    /// Takes back frames that came out of a flush.
    fn free(&self, run: PfnRange);
    /// How many frames are in use.
    fn outstanding(&self) -> u64;
    /// How many CPUs access the space. With one CPU, translations that other CPUs cached are not
    /// tested.
    fn cpus(&self) -> u32;
    /// Reads 64 bits through the TLB of `cpu`.
    ///
    /// # Errors
    /// See [`AccessFault`].
    fn load(&self, cpu: u32, address: usize) -> Result<u64, AccessFault>;
    /// Writes 64 bits through the TLB of `cpu`.
    ///
    /// # Errors
    /// See [`AccessFault`].
    fn store(&self, cpu: u32, address: usize, value: u64) -> Result<(), AccessFault>;
}

// SAFETY: the promises are those of the fixture that this refers to.
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
