//! Compaction: moves the contents of the emptiest split blocks into the fullest ones, so that the
//! emptied blocks become whole.
//!
//! Linux moves pages from one end of a zone to the other until two scanners meet
//! (`mm/compaction.c`). Here the blocks' counters say which blocks are worth emptying. With *n*(u)
//! blocks that have u frames in use, the emptiest blocks are chosen as long as their contents fit
//! into the free frames of all others: no other choice makes more blocks whole, or moves fewer
//! pages for the same number of blocks.
//!
//! ```text
//!   1 count     n(u), without the lock             4 KiB on the stack
//!   2 choose    u <= limit are sources, the others targets
//!   3 move      source by source, ascending; targets from the other end of the zone
//! ```
//!
//! A source becomes whole or is left alone: owners are asked about all of its contents before
//! anything moves. For sources that were left alone, at least as many of the next emptiest blocks
//! are chosen, so a pinned page in the emptiest block does not stop compaction.
//!
//! Nothing is isolated: requests prefer the fullest blocks anyway. Frames that others allocate in a
//! source meanwhile are moved with the rest, or the block does not become whole.

use super::outcome::{Budget, Vacated};
use super::runs::{Block, Mission, Next, Purpose};
use super::targets::{Targets, alignment_of};
use crate::block::MigrateType;
use crate::manager::facets::Moving;
use crate::manager::parts::Piece;
use crate::manager::state::Manager;
use crate::manager::state::moving::{Mover, MovingEvents};
use crate::manager::state::pressure::count;
use crate::platform::Platform;
use crate::units::{NodeId, Order, PAGES_PER_BLOCK, Pfn, PfnRange};
use crate::vmemmap_space::{BlockNumber, VMEMMAP_PAGES_PER_BLOCK};
use crate::zone::{Fullness, InBlock, Occupied, Segment, Zone};
use core::fmt;
use core::ops::Range;

/// How many values the number of a block's frames in use can have: 0 to 512.
const COUNTS: usize = 513;
const _: () = assert!(COUNTS as u64 == PAGES_PER_BLOCK + 1);
/// Single frames that are allocated as targets under one hold of the lock.
const TARGETS_AT_ONCE: usize = 64;
/// The migrate types whose contents can move; only movable requests may have what becomes whole of
/// the last two.
const MOVABLE: [MigrateType; 3] =
    [MigrateType::Movable, MigrateType::MovableOnly, MigrateType::Cma];

/// What compaction did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Compacted {
    /// The frames that were moved.
    pub moved: Vacated,
    /// Frames in use that were examined.
    pub scanned_pages: u64,
    /// Runs that could not be moved.
    pub refused_runs: u64,
    /// Blocks that were emptied: each is free as a whole, unless part of it was allocated since.
    pub blocks: u64,
    /// Whether the budget was used up before all possible work was done.
    pub is_cut_short: bool,
}

/// Why nothing was compacted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CompactError {
    /// The manager has no mover ([`Moving::set_mover`]).
    NoMover,
    /// There is no such node.
    NoNode(NodeId),
    /// The context may not wait ([`Platform::can_wait`]).
    CannotWait,
}

impl fmt::Display for CompactError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMover => f.write_str("memory cannot be moved: there is no mover"),
            Self::NoNode(node) => write!(f, "there is no node {node}"),
            Self::CannotWait => f.write_str("this context cannot compact memory"),
        }
    }
}

impl core::error::Error for CompactError {}

impl<P: Platform> Moving<'_, P> {
    /// Sets the mover; `None`, as at first, means that there is none. May be changed at any time;
    /// places that are already being vacated are completed with the mover that they began with.
    ///
    /// Without a mover nothing is moved: requests and pools that find too little make no room, and
    /// writing to `/proc/sys/vm/compact_memory` succeeds and does nothing, as in a Linux where
    /// nothing can be moved. [`compact`](Self::compact) returns [`NoMover`](CompactError::NoMover);
    /// calls that vacate memory name the obstacles.
    pub fn set_mover(self, mover: Option<&'static dyn Mover>) {
        self.manager.moving.set_mover(self.manager.platform, mover);
        // Requests that failed without a mover may succeed now.
        self.manager.pressure.epoch.end();
    }

    /// Returns what was and was not moved since bring-up.
    #[must_use]
    pub fn events(self) -> MovingEvents {
        self.manager.moving.events()
    }

    /// Makes up to `blocks` split blocks of one node, or of all nodes, whole by moving their
    /// contents into other blocks (Linux: `compact_node` in `mm/compaction.c`).
    ///
    /// # Errors
    /// [`CompactError`]; nothing was moved.
    pub fn compact(
        self,
        node: Option<NodeId>,
        blocks: u64,
        budget: Budget,
    ) -> Result<Compacted, CompactError> {
        let manager = self.manager;
        if node.is_some_and(|node| node.index() >= manager.nodes.len()) {
            return Err(CompactError::NoNode(node.unwrap_or_default()));
        }
        if !manager.platform.can_wait() {
            return Err(CompactError::CannotWait);
        }
        if self.mover().is_none() {
            return Err(CompactError::NoMover);
        }
        let extent = Extent { blocks, most_pages: u64::MAX, in_pieces: false, is_movable: true };
        let is_meant = |zone: &Zone| node.is_none_or(|node| zone.id().node == node);
        Ok(self.compact_where(&is_meant, extent, budget))
    }

    /// Does the work of [`compact`](Self::compact) for the zones for which `is_meant` returns true.
    /// The caller has checked that the context may compact.
    pub(super) fn compact_where(
        self,
        is_meant: &dyn Fn(&Zone) -> bool,
        extent: Extent,
        budget: Budget,
    ) -> Compacted {
        let manager = self.manager;
        // Frames in CPU caches would look like frames to move that nobody owns.
        manager.drain_for_more();
        let mut ignored = |_| {};
        let purpose = Purpose::Compact { most_pages: extent.most_pages };
        let mut mission = Mission::new(self, purpose, budget, &mut ignored);
        let mut done = Compacted::default();
        'zones: for zone in manager.zones().iter().filter(|zone| is_meant(zone)) {
            let types = if extent.is_movable { &MOVABLE[..] } else { &MOVABLE[..1] };
            for &migrate_type in types {
                let left = Extent { blocks: extent.blocks - done.blocks, ..extent };
                let made = empty_some(zone, migrate_type, left, &mut mission);
                done.blocks += made.blocks;
                if made.is_cut_short || made.pieces != 0 || done.blocks >= extent.blocks {
                    done.is_cut_short = made.is_cut_short;
                    break 'zones;
                }
            }
        }
        count(&manager.moving.counters.compacted_blocks, done.blocks);
        done.scanned_pages = mission.scanned_pages();
        let (moved, obstacles) = mission.end();
        (done.moved, done.refused_runs) = (moved, obstacles.map_or(0, |all| all.count));
        done
    }
}

/// How much to compact.
#[derive(Clone, Copy)]
pub(super) struct Extent {
    /// The most blocks to make whole.
    pub(super) blocks: u64,
    /// About how many pages to move at most.
    pub(super) most_pages: u64,
    /// For runs below a block: also move what can be moved out of blocks that do not become whole.
    /// These blocks count towards `blocks`.
    pub(super) in_pieces: bool,
    /// Whether it is for movable requests alone, so that any memory that can be moved may become
    /// whole.
    pub(super) is_movable: bool,
}

/// Makes blocks of one migrate type of a zone whole, beginning with the emptiest. If some of these
/// cannot become whole, the next emptiest follow, twice as many as failed.
fn empty_some<P: Platform>(
    zone: &'static Zone,
    migrate_type: MigrateType,
    extent: Extent,
    mission: &mut Mission<'_, P>,
) -> Made {
    let platform = mission.manager().platform;
    let mut all = Made::default();
    let (mut after, mut wanted) = (None, extent.blocks);
    while let Some(plan) = Plan::of(platform, zone, migrate_type, after, wanted) {
        let left = Extent { blocks: extent.blocks - all.blocks, ..extent };
        let made = plan.carry_out(platform, left, mission);
        all.blocks += made.blocks;
        (all.pieces, all.is_cut_short) = (made.pieces, made.is_cut_short);
        let is_enough = all.pieces != 0 || all.blocks >= extent.blocks;
        if is_enough || made.is_cut_short || made.stayed == 0 {
            break;
        }
        after = Some(plan.last);
        wanted = (extent.blocks - all.blocks).max(made.stayed.saturating_mul(2));
    }
    all
}

/// The order of blocks from the emptiest: by frames in use, then by place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    in_use: u64,
    index: u32,
}

impl Rank {
    const fn of(found: Fullness) -> Self {
        Self { in_use: found.in_use, index: found.index }
    }
}

/// Which blocks of a zone to empty: those after `after` and up to `last`, or the emptiest up to
/// `last` if there is no `after`.
struct Plan {
    zone: &'static Zone,
    migrate_type: MigrateType,
    after: Option<Rank>,
    last: Rank,
}

impl Plan {
    /// Returns whether this plan or one before it empties the block, rather than fills it.
    fn is_emptier(&self, found: Fullness) -> bool {
        Rank::of(found) <= self.last
    }

    fn is_source(&self, found: Fullness) -> bool {
        self.is_emptier(found) && found.in_use != 0 && Some(Rank::of(found)) > self.after
    }
}

/// Blocks with equally many frames in use. Small, because there are 513 of these on the stack.
#[derive(Clone, Copy, Default)]
struct Alike {
    blocks: u32,
    /// Those of them that hold page descriptors inside and so have fewer free frames.
    described: u32,
}

impl Alike {
    fn note(&mut self, found: Fullness) {
        self.blocks += 1;
        self.described += u32::from(found.in_use + found.free != PAGES_PER_BLOCK);
    }

    /// Returns how many frames are free in one of these blocks, rounded up.
    fn free(self, used: u64) -> u64 {
        let all = self.described == self.blocks;
        PAGES_PER_BLOCK - used - if all { VMEMMAP_PAGES_PER_BLOCK } else { 0 }
    }
}

/// The result of a plan.
#[derive(Default)]
struct Made {
    /// Blocks that are empty now.
    blocks: u64,
    /// Blocks that keep something that cannot be moved.
    stayed: u64,
    /// Those of them that something was moved out of, if that is of use.
    pieces: u64,
    is_cut_short: bool,
}

/// The result for one block.
enum Emptied {
    Whole,
    /// Something cannot be moved, but other frames were moved.
    Partly,
    /// Something cannot be moved, and nothing was moved.
    Not,
    /// There was no room for the rest, or the block was allocated as a whole meanwhile. Neither is
    /// a reason to try another block instead.
    Else,
    CutShort,
}

impl Plan {
    /// Returns the plan that makes the most blocks whole, up to `most`, among those after `after`;
    /// `None` if no block can become whole.
    fn of<P: Platform>(
        platform: &P,
        zone: &'static Zone,
        migrate_type: MigrateType,
        after: Option<Rank>,
        most: u64,
    ) -> Option<Self> {
        // The blocks by frames in use, and the free frames of all of them.
        let mut alike = [Alike::default(); COUNTS];
        let mut room = 0;
        for segment in zone.segments() {
            zone.for_each_split(
                platform,
                segment.indices(),
                migrate_type,
                &mut |found: Fullness| {
                    if Some(Rank::of(found)) <= after {
                        return true;
                    }
                    let used = usize::try_from(found.in_use).unwrap_or(usize::MAX);
                    if let Some(alike) = alike.get_mut(used) {
                        alike.note(found);
                        room += found.free;
                    }
                    true
                },
            );
        }
        // Everything moves into the free frames of the blocks that are not chosen.
        let (mut to_move, mut chosen) = (0_u64, 0_u64);
        let mut last = Rank { in_use: 0, index: 0 };
        let mut at_limit = 0;
        'chosen: for (used, alike) in (0_u64..).zip(&alike) {
            if alike.blocks == 0 {
                continue;
            }
            let free = alike.free(used);
            for number in 0..u64::from(alike.blocks) {
                let left = room.saturating_sub(free);
                if chosen == most || to_move + used > left {
                    break 'chosen;
                }
                (room, to_move) = (left, to_move + used);
                // A block that is empty already does not count: it becomes whole when a request
                // needs it.
                chosen += u64::from(used != 0);
                (last.in_use, at_limit) = (used, number + 1);
            }
        }
        for segment in zone.segments() {
            zone.for_each_split(
                platform,
                segment.indices(),
                migrate_type,
                &mut |found: Fullness| {
                    let is_next = found.in_use == last.in_use && Some(Rank::of(found)) > after;
                    if is_next && at_limit != 0 {
                        (last.index, at_limit) = (found.index, at_limit - 1);
                    }
                    at_limit != 0
                },
            );
        }
        (chosen != 0).then_some(Self { zone, migrate_type, after, last })
    }

    /// Empties the sources until enough blocks are empty.
    fn carry_out<P: Platform>(
        &self,
        platform: &P,
        extent: Extent,
        mission: &mut Mission<'_, P>,
    ) -> Made {
        let mut made = Made::default();
        let mut targets = Fullest {
            manager: mission.manager(),
            plan: self,
            places: core::array::from_fn(|_| Place::at_the_end(self.zone)),
            ready: [Pfn(0); TARGETS_AT_ONCE],
            count: 0,
            source: 0,
        };
        for segment in self.zone.segments() {
            let indices = segment.indices();
            self.zone.for_each_split(platform, indices, self.migrate_type, &mut |found| {
                if !self.is_source(found) {
                    return true;
                }
                targets.source = found.index;
                let place = (self.zone, segment, found.index);
                match mission.empty(place, extent.in_pieces, &mut targets) {
                    Emptied::Whole => made.blocks += 1,
                    Emptied::Partly => {
                        made.stayed += 1;
                        made.pieces += u64::from(extent.in_pieces);
                    }
                    Emptied::Not => made.stayed += 1,
                    Emptied::Else => {}
                    Emptied::CutShort => made.is_cut_short = true,
                }
                !made.is_cut_short && made.blocks + made.pieces < extent.blocks
            });
            if made.is_cut_short || made.blocks + made.pieces >= extent.blocks {
                break;
            }
        }
        made
    }
}

impl<P: Platform> Mission<'_, P> {
    /// Moves everything out of a split block if all of it can be moved, or if `in_pieces` allows
    /// that some stays.
    fn empty(
        &mut self,
        (zone, segment, index): (&'static Zone, &'static Segment, u32),
        in_pieces: bool,
        targets: &mut Fullest<'_, P>,
    ) -> Emptied {
        let platform = self.manager().platform;
        let Occupied::Frames(frames) = zone.occupied(platform, segment, index) else {
            return Emptied::Else;
        };
        let start = segment.block_of(index).start();
        let part = PfnRange { start, end: start.add(PAGES_PER_BLOCK) };
        let block = Block { piece: Piece { zone, segment, range: part }, index, part };
        if !in_pieces && !self.can_empty(&block, &frames.in_use) {
            return if self.may_go_on() { Emptied::Not } else { Emptied::CutShort };
        }
        let before = self.moved_runs();
        let lacked_room = match self.move_frames(&block, &frames.in_use, targets) {
            Next::Stop => return Emptied::CutShort,
            Next::From(_) => self.lacked_room(),
        };
        let is_empty = match zone.occupied(platform, segment, index) {
            Occupied::Frames(frames) => frames.in_use == [0; 8],
            Occupied::Nothing => true,
            Occupied::Whole(_) | Occupied::Held(_) => false,
        };
        match (is_empty, lacked_room) {
            (true, _) => Emptied::Whole,
            (false, true) => Emptied::Else,
            (false, false) if self.moved_runs() != before => Emptied::Partly,
            (false, false) => Emptied::Not,
        }
    }
}

/// How far a search for targets has come, from the end of the zone downwards.
#[derive(Clone)]
struct Place {
    /// How many segments are left, and the blocks left in the last of them.
    segments: usize,
    indices: Range<u32>,
}

impl Place {
    fn at_the_end(zone: &Zone) -> Self {
        let segments = zone.segments();
        Self { segments: segments.len(), indices: segments.last().map_or(0..0, Segment::indices) }
    }

    fn segment<'z>(&self, zone: &'z Zone) -> Option<&'z Segment> {
        zone.segments().get(self.segments.checked_sub(1)?)
    }

    /// Moves on to the next lower block; returns false at the end.
    fn advance(&mut self, zone: &Zone) -> bool {
        if self.indices.end > self.indices.start {
            self.indices.end -= 1;
        }
        while self.indices.is_empty() {
            let Some(left) = self.segments.checked_sub(1) else { return false };
            self.segments = left;
            let Some(segment) = self.segment(zone) else { return false };
            self.indices = segment.indices();
        }
        true
    }
}

/// Targets in the split blocks that are fuller than the sources. Each order goes through these
/// blocks once.
struct Fullest<'p, P: Platform> {
    manager: &'p Manager<P>,
    plan: &'p Plan,
    places: [Place; Order::BLOCK.get() as usize],
    /// Single frames that are allocated and not used yet.
    ready: [Pfn; TARGETS_AT_ONCE],
    count: usize,
    /// The block that is being emptied.
    source: u32,
}

impl<P: Platform> Fullest<'_, P> {
    /// Returns a single frame. Frees ready frames whose block was isolated in the meantime, as the
    /// thread that vacates this block would find the moved contents there. Also frees frames of the
    /// source block, which can be in it if other threads emptied a target this far.
    fn next_ready(&mut self) -> Option<Pfn> {
        loop {
            if self.count == 0 {
                let mut ready = [Pfn(0); TARGETS_AT_ONCE];
                self.count = self.fill(Order::PAGE, &mut ready);
                // The lowest frame is used first.
                ready[..self.count].reverse();
                self.ready = ready;
            }
            self.count = self.count.checked_sub(1)?;
            let pfn = self.ready[self.count];
            let block = BlockNumber::containing(pfn);
            let segments = self.plan.zone.segments().iter();
            let segment = segments.rev().find(|segment| segment.start <= block)?;
            let index = segment.index_of(block);
            let (zone, platform) = (self.plan.zone, self.manager.platform);
            if index != self.source
                && zone.fullness(platform, index, self.plan.migrate_type).is_some()
            {
                return Some(pfn);
            }
            // This cannot fail: the frame was just allocated and nobody else has it.
            let _ = self.manager.free_bare(PfnRange::of_order(pfn, Order::PAGE));
        }
    }

    /// Allocates runs of `order` in the next block that has any.
    fn fill(&mut self, order: Order, out: &mut [Pfn]) -> usize {
        let platform = self.manager.platform;
        let Some(place) = self.places.get_mut(usize::from(order.get())) else { return 0 };
        loop {
            if let Some(segment) = place.segment(self.plan.zone)
                && let Some(index) = place.indices.clone().next_back()
                && index != self.source
                && let Some(found) =
                    self.plan.zone.fullness(platform, index, self.plan.migrate_type)
                && !self.plan.is_emptier(found)
                && found.free >= order.pages()
            {
                let migrate_type = self.plan.migrate_type;
                let wanted = InBlock { segment, index, migrate_type, order };
                let taken = self.plan.zone.take_in_block(platform, &wanted, out);
                if taken != 0 {
                    return taken;
                }
            }
            if !place.advance(self.plan.zone) {
                return 0;
            }
        }
    }
}

impl<P: Platform> Drop for Fullest<'_, P> {
    /// Frees the unused frames, also if the mover panics.
    fn drop(&mut self) {
        for &pfn in &self.ready[..self.count] {
            let frame = PfnRange::of_order(pfn, Order::PAGE);
            // This cannot fail: the frame was just allocated and nobody else has it.
            let _ = self.manager.free_bare(frame);
        }
    }
}

impl<P: Platform> Targets<P> for Fullest<'_, P> {
    fn take(&mut self, manager: &Manager<P>, run: PfnRange) -> Option<Pfn> {
        let order = Order::for_pages(run.pages())?.max(alignment_of(run));
        if order >= Order::BLOCK {
            return None;
        }
        let start = if order == Order::PAGE {
            self.next_ready()?
        } else {
            let mut one = [Pfn(0)];
            if self.fill(order, &mut one) == 0 {
                return None;
            }
            one[0]
        };
        let to = PfnRange { start, end: start.add(run.pages()) };
        let rest = PfnRange { start: to.end, end: start.add(order.pages()) };
        if !rest.is_empty() {
            let _ = manager.free_bare(rest);
        }
        if manager.pressure.epoch.wants_attention()
            && manager
                .after_allocation(core::iter::once(to), false, core::panic::Location::caller())
                .is_err()
        {
            return None;
        }
        Some(start)
    }
}
