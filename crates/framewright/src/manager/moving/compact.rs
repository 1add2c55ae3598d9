//! Compaction: the emptiest split blocks are emptied into the fullest ones, so that they become
//! whole.
//!
//! Linux moves pages from one end of a zone to the other until two scanners meet
//! (`mm/compaction.c`). Here the blocks' counts say which blocks are worth emptying. With *n*(u)
//! blocks that have u frames in use, the emptiest are taken as long as what they hold fits into
//! what is free in all others: no choice makes more blocks whole or moves less for as many.
//!
//! ```text
//!   1 count     n(u), without the lock             4 KiB on the stack
//!   2 choose    u <= limit are sources, the others targets
//!   3 move      source by source, ascending; targets from the other end of the zone
//! ```
//!
//! Nothing is isolated: requests prefer the fullest blocks anyway, and what somebody takes out of a
//! source meanwhile is moved with the rest or makes the block no whole one.

use super::runs::{Block, Mission, Next};
use super::targets::{Targets, alignment_of};
use super::vacate::{Budget, Vacated};
use crate::block::MigrateType;
use crate::manager::facets::Moving;
use crate::manager::parts::Piece;
use crate::manager::state::Manager;
use crate::manager::state::moving::{Mover, MovingEvents};
use crate::manager::state::pressure::count;
use crate::platform::Platform;
use crate::units::{NodeId, Order, PAGES_PER_BLOCK, Pfn, PfnRange};
use crate::vmemmap_space::VMEMMAP_PAGES_PER_BLOCK;
use crate::zone::{Fullness, InBlock, Occupied, Segment, Zone};
use core::fmt;
use core::ops::Range;

/// Numbers of frames in use of a block: 0 to 512.
const COUNTS: usize = 513;
const _: () = assert!(COUNTS as u64 == PAGES_PER_BLOCK + 1);
/// Single frames that are taken for targets under one hold of the lock.
const TARGETS_AT_ONCE: usize = 64;
/// Types whose contents move.
const MOVABLE: [MigrateType; 3] =
    [MigrateType::Movable, MigrateType::MovableOnly, MigrateType::Cma];

/// What compaction did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Compacted {
    /// What was moved.
    pub moved: Vacated,
    /// Frames in use that were looked at.
    pub scanned_pages: u64,
    /// Runs that could not be moved.
    pub refused_runs: u64,
    /// Blocks that were emptied: each is free as a whole, unless somebody has taken of it since.
    pub blocks: u64,
    /// Whether the budget was used up before all was done that could be.
    pub is_cut_short: bool,
}

/// Why nothing was compacted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CompactError {
    /// Nobody moves contents of this manager ([`Moving::set_mover`]).
    NoMover,
    /// There is no such node.
    NoNode(NodeId),
    /// Not from a context that may not wait ([`Platform::can_wait`]).
    CannotWait,
}

impl fmt::Display for CompactError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMover => f.write_str("nobody moves the contents of memory: there is no mover"),
            Self::NoNode(node) => write!(f, "there is no node {node}"),
            Self::CannotWait => f.write_str("memory cannot be compacted from here"),
        }
    }
}

impl core::error::Error for CompactError {}

impl<P: Platform> Moving<'_, P> {
    /// Says who moves contents; `None` for nobody, as at first. May be changed at any time; places
    /// that somebody has begun to vacate end with the mover that they began with.
    ///
    /// Without a mover nothing moves by itself: requests and pools that find too little make no
    /// room, and writing to `/proc/sys/vm/compact_memory` succeeds and does nothing, as in Linux
    /// where nothing can be moved. [`compact`](Self::compact) answers
    /// [`NoMover`](CompactError::NoMover); what is vacated names what is in the way.
    pub fn set_mover(self, mover: Option<&'static dyn Mover>) {
        self.manager.moving.set_mover(self.manager.platform, mover);
        // Requests that failed without it may succeed.
        self.manager.pressure.epoch.note_free();
    }

    /// What was moved and what was not, since bring-up.
    #[must_use]
    pub fn events(self) -> MovingEvents {
        self.manager.moving.events()
    }

    /// Makes up to `blocks` split blocks of a node, or of all, whole by moving what is in them into
    /// others (Linux: `compact_node` in `mm/compaction.c`).
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
        // What CPUs keep would look like something to move that nobody owns.
        manager.drain_for_more();
        let mut ignored = |_| {};
        let mut mission = Mission::new(self, budget, &mut ignored);
        let mut done = Compacted::default();
        let zones =
            manager.zones().iter().filter(|zone| node.is_none_or(|node| zone.id().node == node));
        'zones: for zone in zones {
            for migrate_type in MOVABLE {
                let left = blocks - done.blocks;
                let Some(plan) = Plan::of(manager.platform, zone, migrate_type, left) else {
                    continue;
                };
                let made = plan.carry_out(manager.platform, &mut mission);
                done.blocks += made.blocks;
                if made.is_cut_short || done.blocks >= blocks {
                    done.is_cut_short = made.is_cut_short;
                    break 'zones;
                }
            }
        }
        count(&manager.moving.counters.compacted_blocks, done.blocks);
        done.scanned_pages = mission.scanned_pages();
        let (moved, obstacles) = mission.end();
        (done.moved, done.refused_runs) = (moved, obstacles.map_or(0, |all| all.count));
        Ok(done)
    }
}

/// Which blocks of a zone are emptied: those with fewer than `limit` frames in use, and of those
/// with as many the ones up to `border`.
struct Plan {
    zone: &'static Zone,
    migrate_type: MigrateType,
    limit: u64,
    border: u32,
}

impl Plan {
    const fn is_source(&self, found: Fullness) -> bool {
        found.in_use < self.limit || found.in_use == self.limit && found.index <= self.border
    }
}

/// Blocks with as many frames in use. Small, as there are 513 of it on the stack.
#[derive(Clone, Copy, Default)]
struct Alike {
    blocks: u32,
    /// Of these, those that hold descriptors inside and so have less free.
    described: u32,
}

impl Alike {
    fn note(&mut self, found: Fullness) {
        self.blocks += 1;
        self.described += u32::from(found.in_use + found.free != PAGES_PER_BLOCK);
    }

    /// What is free in one, rounded up.
    fn free(self, used: u64) -> u64 {
        let all = self.described == self.blocks;
        PAGES_PER_BLOCK - used - if all { VMEMMAP_PAGES_PER_BLOCK } else { 0 }
    }
}

/// What came of a plan.
#[derive(Default)]
struct Made {
    blocks: u64,
    is_cut_short: bool,
}

impl Plan {
    /// The one that makes most blocks whole, `most` at most; nothing where none can be.
    fn of<P: Platform>(
        platform: &P,
        zone: &'static Zone,
        migrate_type: MigrateType,
        most: u64,
    ) -> Option<Self> {
        // Blocks by frames in use, and what is free in all of them.
        let mut alike = [Alike::default(); COUNTS];
        let mut room = 0;
        for segment in zone.segments() {
            zone.for_each_split(
                platform,
                segment.indices(),
                migrate_type,
                &mut |found: Fullness| {
                    let used = usize::try_from(found.in_use).unwrap_or(usize::MAX);
                    if let Some(alike) = alike.get_mut(used) {
                        alike.note(found);
                        room += found.free;
                    }
                    true
                },
            );
        }
        // What is free in the blocks that are left is where all goes.
        let (mut to_move, mut chosen) = (0_u64, 0_u64);
        let mut plan = Self { zone, migrate_type, limit: 0, border: 0 };
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
                // One that is empty already becomes whole when somebody wants it.
                chosen += u64::from(used != 0);
                (plan.limit, at_limit) = (used, number + 1);
            }
        }
        for segment in zone.segments() {
            zone.for_each_split(
                platform,
                segment.indices(),
                migrate_type,
                &mut |found: Fullness| {
                    if found.in_use == plan.limit && at_limit != 0 {
                        (plan.border, at_limit) = (found.index, at_limit - 1);
                    }
                    at_limit != 0
                },
            );
        }
        (chosen != 0).then_some(plan)
    }

    fn carry_out<P: Platform>(&self, platform: &P, mission: &mut Mission<'_, P>) -> Made {
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
                if found.in_use == 0 || !self.is_source(found) {
                    return true;
                }
                targets.source = found.index;
                match mission.empty(self.zone, segment, found.index, &mut targets) {
                    Some(is_empty) => made.blocks += u64::from(is_empty),
                    None => made.is_cut_short = true,
                }
                !made.is_cut_short
            });
            if made.is_cut_short {
                break;
            }
        }
        made
    }
}

impl<P: Platform> Mission<'_, P> {
    /// Moves all that is in a split block; whether nothing is left in it, or nothing when the
    /// budget was used up.
    fn empty(
        &mut self,
        zone: &'static Zone,
        segment: &'static Segment,
        index: u32,
        targets: &mut Fullest<'_, P>,
    ) -> Option<bool> {
        let platform = self.manager().platform;
        let Occupied::Frames(frames) = zone.occupied(platform, segment, index) else {
            return Some(false);
        };
        let start = segment.block_of(index).start();
        let part = PfnRange { start, end: start.add(PAGES_PER_BLOCK) };
        let block = Block { piece: Piece { zone, segment, range: part }, index, part };
        match self.move_frames(&block, &frames.in_use, targets) {
            Next::Stop => None,
            Next::From(_) => {
                let left = zone.occupied(platform, segment, index);
                Some(match left {
                    Occupied::Frames(frames) => frames.in_use == [0; 8],
                    Occupied::Nothing => true,
                    Occupied::Whole(_) | Occupied::Held(_) => false,
                })
            }
        }
    }
}

/// How far a search for targets has come, from the end of the zone down.
#[derive(Clone)]
struct Place {
    /// Segments that are left, and blocks of the last of them.
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

    /// Goes on to the next block down; false at the end.
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

/// The split blocks with more frames in use than the sources: each order goes through them once.
struct Fullest<'p, P: Platform> {
    manager: &'p Manager<P>,
    plan: &'p Plan,
    places: [Place; Order::BLOCK.get() as usize],
    /// Single frames that were taken and are not used yet.
    ready: [Pfn; TARGETS_AT_ONCE],
    count: usize,
    /// The block that is emptied at this moment.
    source: u32,
}

impl<P: Platform> Fullest<'_, P> {
    /// Takes runs of `order` in the next block that has one.
    fn fill(&mut self, order: Order, out: &mut [Pfn]) -> usize {
        let platform = self.manager.platform;
        let Some(place) = self.places.get_mut(usize::from(order.get())) else { return 0 };
        loop {
            if let Some(segment) = place.segment(self.plan.zone)
                && let Some(index) = place.indices.clone().next_back()
                && index != self.source
                && let Some(found) =
                    self.plan.zone.fullness(platform, index, self.plan.migrate_type)
                && !self.plan.is_source(found)
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
    /// Frees what was taken and not used, be it that the mover panics.
    fn drop(&mut self) {
        for &pfn in &self.ready[..self.count] {
            let frame = PfnRange::of_order(pfn, Order::PAGE);
            // Just taken and nobody else's, so that this cannot fail.
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
            if self.count == 0 {
                let mut ready = [Pfn(0); TARGETS_AT_ONCE];
                self.count = self.fill(order, &mut ready);
                // The lowest is used first.
                ready[..self.count].reverse();
                self.ready = ready;
            }
            self.count = self.count.checked_sub(1)?;
            self.ready[self.count]
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
