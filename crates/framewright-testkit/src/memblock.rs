//! Memblock allocators for tests, which own the machines that they make.

use crate::machine::FakeMachine;
use framewright::Platform;
use framewright::firmware::{MemoryMap, Topology};
use framewright::memblock::{Memblock, MemblockError, MemblockStorage};
use framewright::units::PhysRange;

/// Makes a memblock allocator over a test's platform that knows the memory of `map`. Its storage
/// lives for ever, as fake machines do.
///
/// A test that calls this twice for one machine no longer uses the first allocator, nor the manager
/// that was made from it.
///
/// # Errors
/// The errors of [`Memblock::with_reserved`].
pub fn memblock_of<P: Platform>(
    platform: &'static P,
    map: MemoryMap<'_>,
    topology: &'static Topology<'static>,
    reserved: &[PhysRange],
) -> Result<Memblock<'static, P>, MemblockError> {
    let storage = Box::leak(Box::new(MemblockStorage::new()));
    // SAFETY: only the machine uses the memory of a fake machine, and the test acts as its only
    // kernel (invariant 1).
    unsafe { Memblock::with_reserved(platform, storage, map, topology, reserved) }
}

impl FakeMachine {
    /// Makes a memblock allocator that knows all memory of the machine, with `reserved` reserved. A
    /// test that calls this again must no longer use what it made from the first allocator.
    ///
    /// # Panics
    /// If there is no room for its arrays.
    #[must_use]
    pub fn memblock(&'static self, reserved: &[PhysRange]) -> Memblock<'static, Self> {
        memblock_of(self, self.map(), self.topology(), reserved)
            .unwrap_or_else(|error| panic!("{error}"))
    }
}
