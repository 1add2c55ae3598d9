//! Early allocators for tests, which own the machines that they make.

use crate::machine::FakeMachine;
use framewright::Platform;
use framewright::firmware::{MemoryMap, Topology};
use framewright::memblock::{Memblock, MemblockError, MemblockStorage};
use framewright::units::PhysRange;

/// An memblock allocator over a platform of a test that knows the memory of `map`. Its storage lives
/// for ever, as fake machines do.
///
/// A test that asks twice for one machine is done with the first allocator, and with the manager
/// that was made of it.
///
/// # Errors
/// Those of [`Memblock::with_reserved`].
pub fn memblock_of<P: Platform>(
    platform: &'static P,
    map: MemoryMap<'_>,
    topology: &'static Topology<'static>,
    reserved: &[PhysRange],
) -> Result<Memblock<'static, P>, MemblockError> {
    let storage = Box::leak(Box::new(MemblockStorage::new()));
    // SAFETY: the memory of a fake machine is there for the machine alone, and the test plays its
    // only kernel (invariant 1).
    unsafe { Memblock::with_reserved(platform, storage, map, topology, reserved) }
}

impl FakeMachine {
    /// An memblock allocator that knows all memory of the machine, with `reserved` reserved. A test
    /// that asks again is done with what it made of the one before.
    ///
    /// # Panics
    /// When there is no room for its arrays.
    #[must_use]
    pub fn early(&'static self, reserved: &[PhysRange]) -> Memblock<'static, Self> {
        memblock_of(self, self.map(), self.topology(), reserved)
            .unwrap_or_else(|error| panic!("{error}"))
    }
}
