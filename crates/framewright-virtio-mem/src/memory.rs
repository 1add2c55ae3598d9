//! What the driver asks of whoever manages memory.

/// Memory that grows and shrinks: the side of whoever manages it.
///
/// # Safety
/// After [`remove`](Self::remove) has returned a run, nobody accesses it, by CPU or by device,
/// until it comes back through [`add`](Self::add) or [`put_back`](Self::put_back): its content is
/// gone at any time. What these do not accept nobody accesses either.
pub unsafe trait PluggableMemory {
    /// Memory appeared. Returns how many bytes of it, from its start on, are in use now, a multiple
    /// of the unit; the driver gives the rest back to the device, and asks for no more memory for a
    /// while, or until something changes ([`may_take_more`](Self::may_take_more)).
    ///
    /// # Safety
    /// There is memory at these addresses, a whole number of units. It is nobody's, nothing but
    /// this driver takes it away, and its content is undefined.
    unsafe fn add(&mut self, start_bytes: u64, size_bytes: u64) -> u64;

    /// Asked after [`add`](Self::add) took less than it was given: whether it may take more after a
    /// while, without anything having happened that the driver is told of. Then the driver tries
    /// again, as where the device is busy. Unless it is said otherwise, it may.
    fn may_take_more(&self) -> bool {
        true
    }

    /// Takes a run out of use, at most `most_bytes` of what was added, of whole units of
    /// `unit_bytes` at multiples of that. Free memory should go first, in the largest and highest
    /// runs, because that takes one request and moves nothing; then what can be vacated in as much
    /// time as the implementor likes to spend in one call.
    fn remove(&mut self, most_bytes: u64, unit_bytes: u64) -> Removal;

    /// The device did not take what [`remove`](Self::remove) gave: it is memory again. Its content
    /// is undefined. False where it cannot be used any more: then nobody does, and the driver gives
    /// it to the device once that takes it.
    ///
    /// # Safety
    /// [`remove`](Self::remove) returned exactly this run, and it comes back once.
    unsafe fn put_back(&mut self, start_bytes: u64, size_bytes: u64) -> bool;
}

/// What [`PluggableMemory::remove`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Removal {
    /// This run is out of use.
    Run {
        /// Its first address.
        start_bytes: u64,
        /// Its size.
        size_bytes: u64,
    },
    /// Nothing can be taken out of use at the moment.
    Nothing {
        /// How many things are in the way that cannot be moved, as far as is known.
        obstacles: u64,
    },
}
