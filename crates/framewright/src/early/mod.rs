//! The early allocator (SPEC 8).

use crate::firmware::{MemoryMap, Topology};
use crate::platform::Platform;
use crate::units::{NodeId, Order, Pfn, PfnRange, PhysRange};

/// Placeholder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EarlyError {
    /// Placeholder.
    OutOfMemory,
}

/// Which node an allocation wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum NodeChoice {
    /// Any.
    #[default]
    Any,
    /// This one, else any within the same limits.
    Preferred(NodeId),
    /// This one or fail.
    Exact(NodeId),
}

/// What to allocate. Start from [`EarlyRequest::new`] and change what differs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EarlyRequest {
    /// Bytes.
    pub size_bytes: u64,
    /// A power of two; 0 means a cache line (64).
    pub align_bytes: u64,
    /// Lowest address (tried first, then dropped: SPEC 8.1).
    pub min_address: u64,
    /// One past the highest address.
    pub max_address: u64,
    /// Where.
    pub node: NodeChoice,
    /// False leaves the content undefined.
    pub zeroed: bool,
    /// Marks the reservation so that the memory map skips it (SPEC 6.6).
    pub no_init: bool,
    /// Also memory that may be taken out later.
    pub hot_pluggable: bool,
}

impl EarlyRequest {
    /// `size_bytes`, aligned to `align_bytes`, anywhere, zeroed.
    #[must_use]
    pub const fn new(size_bytes: u64, align_bytes: u64) -> Self {
        Self {
            size_bytes,
            align_bytes,
            min_address: 0,
            max_address: u64::MAX,
            node: NodeChoice::Any,
            zeroed: true,
            no_init: false,
            hot_pluggable: false,
        }
    }
}

/// See the module documentation.
pub struct EarlyAllocator<P: Platform> {
    #[expect(dead_code, reason = "placeholder")]
    platform: &'static P,
}

impl<P: Platform> EarlyAllocator<P> {
    /// Knows all present memory of `map`, each range with its node; reserves nothing but frame 0.
    ///
    /// # Errors
    /// See [`EarlyError`].
    pub fn new(_platform: &'static P, _map: MemoryMap<'_>, _topology: &Topology<'_>) -> Result<Self, EarlyError> {
        unimplemented!()
    }

    /// Reserves bytes, known memory or not. Already reserved parts stay as they are.
    ///
    /// # Errors
    /// See [`EarlyError`].
    pub fn reserve(&mut self, _range: PhysRange) -> Result<(), EarlyError> {
        unimplemented!()
    }

    /// Allocates.
    ///
    /// # Errors
    /// See [`EarlyError`].
    pub fn allocate(&mut self, _request: &EarlyRequest) -> Result<PhysRange, EarlyError> {
        unimplemented!()
    }

    /// Ends a reservation or an allocation, or a part of one.
    ///
    /// # Errors
    /// See [`EarlyError`].
    pub fn free(&mut self, _range: PhysRange) -> Result<(), EarlyError> {
        unimplemented!()
    }

    /// Allocate from low addresses up, rather than from high ones down.
    pub fn set_bottom_up(&mut self, _bottom_up: bool) {
        unimplemented!()
    }

    /// Calls `sink` for every run of free whole frames (accepted memory minus reserved), ascending, with its node.
    pub fn for_each_free(&self, _sink: &mut dyn FnMut(PfnRange, NodeId)) {
        unimplemented!()
    }

    /// The same, cut into the largest naturally aligned pieces.
    pub fn for_each_free_piece(&self, _sink: &mut dyn FnMut(Pfn, Order, NodeId)) {
        unimplemented!()
    }

    /// Ends the allocator after hand-over: later calls fail with an error. Returns the memory of its own grown storage (whole frames, still
    /// reserved until now), which is free from now on.
    pub fn discard(&mut self) -> [PhysRange; 2] {
        unimplemented!()
    }
}
