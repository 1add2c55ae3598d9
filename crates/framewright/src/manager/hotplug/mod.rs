//! Memory that comes and goes while the machine runs.
//!
//! ```text
//!              add                           remove, offline
//!   nothing ──────────> free, in use ... ──────────────────────> nothing, or offline
//!      │ add_offline                       vacated first           │ online
//!      └────────────> offline ──────────────────────────────────> free
//! ```
//!
//! New memory lies in a *window*: a part of a zone with tables of its own, which stay when the
//! memory goes, so that the memory finds its place when it comes back. A small window has its
//! tables in existing memory. A large one has them in itself, at its start, and takes only some 24
//! bytes for each GiB from existing memory. There can be as many windows as `hotplug_windows=`
//! says.
//!
//! Blocks that bring-up knew can go and come back, too. `add` decides and obtains everything before
//! it changes anything; after that nothing can fail. `remove` takes the range as
//! [`allocate_range`](crate::manager::Moving::allocate_range) does, and undoes that if it cannot
//! have all of it.

mod accept;
mod add;
mod error;
mod homes;
mod policy;
mod release;
mod remove;
mod window;

pub use add::Added;
pub use error::HotplugError;
pub use policy::{GroupError, MovableRatio, Shares, memory_block_bytes};
pub use release::{ReleaseError, Released};
pub use remove::{Removal, Removed};

use crate::manager::Fallback;
use crate::manager::facets::Moving;
use crate::manager::moving::Mover;
use crate::manager::state::Manager;
use crate::manager::state::hotplug::{Changing, HotplugEvent, HotplugNotifier, Veto};
use crate::memblock::NodeChoice;
use crate::platform::Platform;
use crate::units::{NodeId, PfnRange, PhysRange};
use crate::vmemmap_space::{BlockNumber, BlockRange};
use crate::zone::Presence;
use crate::zone::{Segment, Zone};

/// Memory that comes and goes; see [`Manager::hotplug`].
pub struct Hotplug<'m, P: Platform> {
    pub(crate) manager: &'m Manager<P>,
    by: Option<&'m dyn Mover>,
}

impl<P: Platform> Clone for Hotplug<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform> Copy for Hotplug<'_, P> {}

impl<P: Platform> Manager<P> {
    /// Returns the interface to memory that comes and goes while the machine runs, and to frames
    /// that were reserved for boot.
    #[cfg(feature = "hotplug")]
    #[must_use]
    pub const fn hotplug(&self) -> Hotplug<'_, P> {
        Hotplug { manager: self, by: None }
    }
}

/// Blocks of one zone part.
#[derive(Clone, Copy)]
struct Piece {
    zone: &'static Zone,
    segment: &'static Segment,
    blocks: BlockRange,
}

impl Piece {
    const fn indices(&self) -> core::ops::Range<u32> {
        self.segment.index_of(self.blocks.start)
            ..self.segment.index_of(self.blocks.start) + self.blocks.blocks()
    }
}

const fn bytes_of(blocks: BlockRange) -> PhysRange {
    PhysRange::new(blocks.start.start().address(), blocks.end.start().address())
}

const fn pages_of(blocks: BlockRange) -> PfnRange {
    PfnRange { start: blocks.start.start(), end: blocks.end.start() }
}

/// Returns the blocks that overlap a range of bytes; `None` for an empty range.
fn blocks_around(range: PhysRange) -> Option<BlockRange> {
    const BLOCK: u64 = crate::units::BLOCK_SIZE;
    if range.is_empty() {
        return None;
    }
    let end = range.end.min(crate::units::PHYSICAL_ADDRESS_END);
    blocks_of(PhysRange::new(range.start / BLOCK * BLOCK, end.next_multiple_of(BLOCK))).ok()
}

/// Returns the blocks of a range of bytes.
fn blocks_of(range: PhysRange) -> Result<BlockRange, HotplugError> {
    const BLOCK_BYTES: u64 = crate::units::BLOCK_SIZE;
    if range.start >= range.end {
        return Err(HotplugError::Empty(range));
    }
    if !range.start.is_multiple_of(BLOCK_BYTES) || !range.end.is_multiple_of(BLOCK_BYTES) {
        return Err(HotplugError::NotAligned(range));
    }
    if range.end > crate::units::PHYSICAL_ADDRESS_END {
        return Err(HotplugError::TooHigh(range));
    }
    let block = |address: u64| BlockNumber::containing(crate::units::Pfn::containing(address));
    Ok(BlockRange { start: block(range.start), end: block(range.end) })
}

impl<'m, P: Platform> Hotplug<'m, P> {
    /// Registers the only notifier, which is told of all changes from now on and may refuse them;
    /// `None` removes it.
    pub fn set_notifier(self, notifier: Option<&'static dyn HotplugNotifier>) {
        *self.manager.hotplug.notifier.lock(self.manager.platform) = notifier;
    }

    /// Lets `mover` move contents in calls on the returned value, as
    /// [`Moving::by`](crate::manager::Moving::by) does.
    #[must_use]
    pub const fn by(self, mover: &'m dyn Mover) -> Self {
        Self { by: Some(mover), ..self }
    }

    /// Moves contents to this node or, if it has no memory left, to others.
    const fn moving_to(self, node: NodeId) -> Moving<'m, P> {
        let to = Some(NodeChoice::Preferred(node));
        Moving { manager: self.manager, by: self.by, to }
    }

    /// Returns the nearest other node with memory; the node itself if there is none.
    #[inline(never)]
    fn other_than(self, node: NodeId) -> NodeId {
        let list = self.manager.nodes.get(node.index()).map_or(Fallback::NONE, |own| own.fallback);
        list.iter().find(|&other| other != node && self.has_memory(other)).unwrap_or(node)
    }

    /// Returns how many more windows there can be.
    #[must_use]
    pub fn windows_left(self) -> usize {
        self.manager.hotplug.segments.room()
    }

    fn notify(self, event: HotplugEvent) -> Result<(), Veto> {
        let notifier = *self.manager.hotplug.notifier.lock(self.manager.platform);
        notifier.map_or(Ok(()), |notifier| notifier.notify(event))
    }

    fn begin(self) -> Result<Changing<'m>, HotplugError> {
        let platform = self.manager.platform;
        let can_wait = platform.can_wait();
        let task = if can_wait { platform.current_task() } else { None };
        loop {
            let is_ours = match self.manager.hotplug.begin(task) {
                Ok(changing) => {
                    // This waits for the CPU that accepts a block next to the range, which must not
                    // be the one that was interrupted.
                    let is_accepting = || self.manager.zones().iter().any(Zone::is_accepting);
                    if !can_wait && is_accepting() {
                        return Err(HotplugError::Busy);
                    }
                    return Ok(changing);
                }
                Err(is_ours) => is_ours,
            };
            if !can_wait || is_ours {
                return Err(HotplugError::Busy);
            }
            platform.yield_now();
        }
    }

    /// Returns whether the calling task is adding or removing memory, so that this call comes from
    /// a hook inside that operation.
    pub(crate) fn is_done_by_caller(self) -> bool {
        let task = self.manager.platform.current_task();
        task.is_some_and(|task| self.manager.hotplug.is_done_by(task))
    }

    /// Returns whether a node has memory.
    fn has_memory(self, node: NodeId) -> bool {
        self.memory_pages(node) != 0
    }

    /// Returns how many pages of a node are memory, without the tables of windows that lie in
    /// themselves: these tables stay until everything else has gone, and nobody could get them.
    fn memory_pages(self, node: NodeId) -> u64 {
        let zones = self.manager.zones().iter().filter(|zone| zone.id().node == node);
        let pages = zones.map(|zone| {
            let tables = if zone.has_own_tables() { zone.kept_pages() } else { 0 };
            zone.present_pages().saturating_sub(tables)
        });
        pages.sum()
    }

    /// Returns the blocks of a range that the manager has places for, piece by piece, ascending;
    /// leaves out all other blocks.
    fn known(self, blocks: BlockRange) -> impl Iterator<Item = Piece> + use<'m, P> {
        let all = self.manager.segments_in(blocks);
        all.map(|(zone, segment, blocks)| Piece { zone, segment, blocks })
    }

    /// Returns the runs of blocks within a piece that have the same presence.
    fn runs_of(self, piece: Piece) -> impl Iterator<Item = (Presence, Piece)> + use<'m, P> {
        let platform = self.manager.platform;
        let mut next = piece.indices();
        core::iter::from_fn(move || {
            if next.is_empty() {
                return None;
            }
            let (place, end) = piece.zone.place_of(platform, &next);
            let start = piece.segment.block_of(next.start);
            let blocks = BlockRange { start, end: BlockNumber(start.0 + (end - next.start)) };
            next.start = end;
            Some((place, Piece { blocks, ..piece }))
        })
    }

    /// Returns the presence of an address's block: available memory, offline memory, or none.
    #[must_use]
    pub fn presence_of(self, address: u64) -> Presence {
        if address >= crate::units::PHYSICAL_ADDRESS_END {
            return Presence::Absent;
        }
        let block = BlockNumber::containing(crate::units::Pfn::containing(address));
        let one = BlockRange { start: block, end: BlockNumber(block.0.saturating_add(1)) };
        self.known(one).next().map_or(Presence::Absent, |piece| {
            piece.zone.place_of(self.manager.platform, &piece.indices()).0
        })
    }

    /// Calls `visit` for all runs of blocks that the manager has places for, ascending in each zone
    /// part, with their addresses, presence and node.
    pub fn for_each_run(self, visit: &mut dyn FnMut(PhysRange, Presence, NodeId)) {
        let end = crate::units::PHYSICAL_ADDRESS_END;
        self.for_each_run_in(PhysRange::new(0, end), visit);
    }

    /// Does [`for_each_run`](Self::for_each_run) for a range, which is widened to whole blocks.
    pub fn for_each_run_in(
        self,
        range: PhysRange,
        visit: &mut dyn FnMut(PhysRange, Presence, NodeId),
    ) {
        let Some(blocks) = blocks_around(range) else { return };
        for piece in self.known(blocks) {
            let node = piece.zone.id().node;
            for (presence, run) in self.runs_of(piece) {
                visit(bytes_of(run.blocks), presence, node);
            }
        }
    }

    /// Returns the lowest run of blocks with this presence in a range, which is widened to whole
    /// blocks, and the run's node.
    #[must_use]
    pub fn first_run_in(self, range: PhysRange, presence: Presence) -> Option<(PhysRange, NodeId)> {
        let mut first = None::<(PhysRange, NodeId)>;
        self.for_each_run_in(range, &mut |run, its, node| {
            if its == presence && first.is_none_or(|(first, _)| run.start < first.start) {
                first = Some((run, node));
            }
        });
        first
    }

    /// Returns the memory that holds the tables of the window at an address, if they lie in the
    /// window itself.
    pub(crate) fn tables_at(self, address: u64) -> PhysRange {
        let block = BlockNumber::containing(crate::units::Pfn::containing(address));
        let window = self.manager.window_segment(block);
        window.map_or(PhysRange::new(0, 0), |window| bytes_of(self.tables_of(window)))
    }

    /// Updates the watermarks, the reserves and everything else that depends on the amount of
    /// memory.
    fn after_change(self) {
        let manager = self.manager;
        let tunables = manager.follow_fixed_memory();
        manager.numa().follow_memory();
        drop(tunables);
        manager.settle_caches();
        // Watermarks have changed without a zone's lock.
        manager.pressure.epoch.end();
    }
}
