//! What the driver needs from the memory manager.

/// Memory that grows and shrinks, as seen by its manager, the adopter.
///
/// # Safety
/// After [`remove`](Self::remove) has returned a run, nobody accesses it, by CPU or by device,
/// until it comes back through [`add`](Self::add) or [`put_back`](Self::put_back): its content may
/// vanish at any time. Nobody accesses memory that these functions do not accept either.
pub unsafe trait PluggableMemory {
    /// Adds memory that has appeared. Returns how many bytes of it, from its start on, are now in
    /// use, a multiple of the unit. The driver gives the rest back to the device, and plugs no more
    /// memory for a while, or until something changes ([`may_take_more`](Self::may_take_more)).
    ///
    /// # Safety
    /// There is memory at these addresses, a whole number of units. Nobody uses it, nothing but
    /// this driver takes it away, and its content is undefined.
    unsafe fn add(&mut self, start_bytes: u64, size_bytes: u64) -> u64;

    /// Whether the adopter may take more after a while, even if nothing happens that the driver is
    /// told of. Called after [`add`](Self::add) took less than it was given. If true, the driver
    /// tries again later, as it does if the device is busy. True by default.
    fn may_take_more(&self) -> bool {
        true
    }

    /// Takes a run out of use: at most `most_bytes` of what was added, in whole units of
    /// `unit_bytes`, at a multiple of that. Free memory should go first, in the largest and highest
    /// runs, because that takes one request and moves nothing. Then comes memory that can be
    /// vacated in the time that the implementor is willing to spend in one call.
    fn remove(&mut self, most_bytes: u64, unit_bytes: u64) -> Removal;

    /// Takes a run back that [`remove`](Self::remove) returned and the device did not accept: it is
    /// memory again. Its content is undefined. Returns false if the run cannot be used any more:
    /// then nobody uses it, and the driver gives it to the device once the device accepts it.
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
    /// Nothing can be taken out of use now.
    Nothing {
        /// How many immovable things are in the way, as far as is known; there may be more.
        obstacles: u64,
    },
}
