//! What takes a zone's lock: reached through the manager, so that it always goes with the zone's
//! own platform.

use crate::block::BLOCK_ORDERS;
use crate::manager::state::Manager;
use crate::platform::Platform;
use crate::zone::{
    BlockRun, Counts, Fault, FreeAreas, Shuffled, Zone, ZoneEvents, ZoneFlow, ZoneId,
};
use core::ops::Deref;

/// A zone and the platform that its memory is seen through.
///
/// A zone alone does not know its platform, and another one has other memory where its tables lead:
///
/// ```compile_fail,E0624
/// fn count<P: framewright::Platform>(manager: &framewright::Manager<P>, other: &P) {
///     let _ = manager.zones()[0].free_blocks(other);
/// }
/// ```
/// ```
/// fn count<P: framewright::Platform>(manager: &framewright::Manager<P>) {
///     for zone in manager.views() {
///         let _ = zone.free_blocks();
///     }
/// }
/// ```
pub struct ZoneView<'a, P: Platform> {
    zone: &'a Zone,
    platform: &'static P,
}

impl<P: Platform> Manager<P> {
    /// All zones with memory, as [`zones`](Self::zones), for what takes a zone's lock.
    pub fn views(&self) -> impl ExactSizeIterator<Item = ZoneView<'_, P>> + Clone {
        self.zones.iter().map(|zone| ZoneView { zone, platform: self.platform })
    }

    /// A zone, unless it has no memory, for what takes the zone's lock.
    #[must_use]
    pub fn view(&self, id: ZoneId) -> Option<ZoneView<'_, P>> {
        Some(ZoneView { zone: self.zone(id)?, platform: self.platform })
    }
}

impl<P: Platform> Deref for ZoneView<'_, P> {
    type Target = Zone;

    fn deref(&self) -> &Zone {
        self.zone
    }
}

impl<P: Platform> ZoneView<'_, P> {
    /// What the zone did since bring-up, as far as that is counted.
    #[must_use]
    pub fn events(&self) -> ZoneEvents {
        self.zone.events(self.platform)
    }

    /// Free blocks by order, 9 first, over all migrate types.
    #[must_use]
    pub fn free_blocks(&self) -> [u32; BLOCK_ORDERS] {
        self.zone.free_blocks(self.platform)
    }

    /// Frames in free blocks that are whole, without those that are isolated. Unlike
    /// [`free_areas`](Self::free_areas) this is one look at a counter, and a split block all of
    /// whose pages are free does not count.
    #[must_use]
    pub fn free_block_pages(&self) -> u64 {
        self.zone.free_block_pages(self.platform)
    }

    /// Free memory by order and type. The lock is held for a few blocks at a time, so that it takes
    /// long only for whoever asks; exact when nobody allocates meanwhile.
    #[must_use]
    pub fn free_areas(&self) -> FreeAreas {
        self.zone.free_areas(self.platform)
    }

    /// Calls `visit` for all blocks of the zone's segments in ascending order, as runs without a
    /// gap or an overlap inside a segment; neighbouring runs may be alike. The lock is held for at
    /// most 128 heads at a time and never while `visit` works, which may be slow.
    ///
    /// Others may allocate and free meanwhile. What is said of blocks that were looked at under one
    /// hold of the lock was true at one moment; between holds time passes, so that memory which
    /// moves from one end of the zone to the other may be seen twice or not at all. When nobody
    /// does anything it is exact. What CPUs have in their caches counts as used, as in all tables.
    pub fn for_each_block_run(&self, visit: &mut dyn FnMut(BlockRun)) {
        self.zone.for_each_block_run(self.platform, visit);
    }

    /// Pages that were handed out and came back. Exact at the zone; what goes to and fro between a
    /// caller and its CPU's cache stays out of it.
    #[must_use]
    pub fn flow(&self) -> ZoneFlow {
        self.zone.flow(self.platform)
    }

    /// Shuffles its free blocks once more, where the shuffle is on (`page_alloc.shuffle=1`).
    /// Bring-up has done so once. Each exchanges places with another that chance chooses, 16 under
    /// each hold of the zone's lock. False, and nothing changed, where the shuffle is off.
    pub fn shuffle(&self) -> bool {
        self.zone.shuffle(self.platform)
    }

    /// How shuffled its free blocks are.
    #[must_use]
    pub fn shuffled(&self) -> Shuffled {
        self.zone.shuffled(self.platform)
    }

    /// Walks all entries and lists with the lock held, recounts, and compares. A debugging aid:
    /// interrupts stay off meanwhile.
    ///
    /// # Errors
    /// The first [`Fault`] found.
    pub fn verify(&self) -> Result<Counts, Fault> {
        self.zone.verify(self.platform)
    }
}
