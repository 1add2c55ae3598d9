//! Grades of blocks: which requests may have a block.
//!
//! Linux divides memory at boot into a zone for movable pages and the rest. Here each block has a
//! grade, which may change at any time: no zone border has to be guessed, and metadata follows the
//! use of a block.
//!
//! ```text
//!   Any          ──> movable, unmovable, reclaimable: whoever asks (the type follows the use)
//!   MovableOnly  ──> movable requests alone, which take it first     (Linux: ZONE_MOVABLE)
//!   Removable    ──> movable requests alone, by the half rule        (Linux: MIGRATE_CMA)
//! ```
//!
//! A grade is a migrate type that a block keeps whatever is allocated from it, and that merges with
//! no other type. Free memory of a grade is counted separately: requests that may not have it do
//! not see it above their watermarks.

use super::Zone;
use super::isolate::is_managed;
use super::locked::LockedZone;
use super::reserve::takes_reserve_first;
use super::unaccepted::is_listed;
use crate::block::buddy::GRADES;
use crate::block::heads::HeadIn;
use crate::block::list::ListId;
use crate::block::split::divide_whole;
use crate::block::table::blocks_of;
use crate::block::{BlockState, MigrateType, Segment, State};
use crate::platform::Platform;
use crate::units::{BLOCK_ORDER, MAX_ORDER, Order, PAGES_PER_BLOCK, Pfn, PfnRange};
use core::ops::Range;

/// Which requests may have the memory of a block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Grade {
    /// Any request.
    #[default]
    Any,
    /// Only movable requests, which take this memory first.
    MovableOnly,
    /// Only movable requests, which take it if more than half of the free memory is of this grade,
    /// or if nothing else is left. For memory that is to be had back as one piece, or to be
    /// removed.
    Removable,
}

impl Grade {
    /// The grade of blocks of a migrate type.
    #[must_use]
    pub const fn of(migrate_type: MigrateType) -> Self {
        match migrate_type {
            MigrateType::MovableOnly => Self::MovableOnly,
            MigrateType::Cma => Self::Removable,
            _ => Self::Any,
        }
    }

    /// The migrate type of free blocks of this grade.
    #[must_use]
    pub const fn migrate_type(self) -> MigrateType {
        match self {
            Self::Any => MigrateType::Movable,
            Self::MovableOnly => MigrateType::MovableOnly,
            Self::Removable => MigrateType::Cma,
        }
    }
}

/// The blocks of a grade in a zone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GradedMemory {
    /// From the first frame of the lowest block to the end of the highest; empty if there are none.
    pub span: PfnRange,
    /// Frames of the blocks that are memory.
    pub present_pages: u64,
    /// Present pages that the allocator was given.
    pub managed_pages: u64,
    /// Managed pages that are unaccepted, as [`Zone::unaccepted_pages`] counts them.
    pub(crate) unaccepted_pages: u64,
}

impl core::ops::AddAssign for GradedMemory {
    fn add_assign(&mut self, other: Self) {
        if self.span.is_empty() {
            self.span = other.span;
        } else if !other.span.is_empty() {
            self.span.start = self.span.start.min(other.span.start);
            self.span.end = self.span.end.max(other.span.end);
        }
        self.present_pages += other.present_pages;
        self.managed_pages += other.managed_pages;
        self.unaccepted_pages += other.unaccepted_pages;
    }
}

/// Whether a head never has a grade: it is in use and nobody may free it, or is no memory that the
/// zone may hand out. If it has one nevertheless, it got that before it came to this.
#[inline(never)]
fn is_gradeless(state: BlockState) -> bool {
    match state.state() {
        Some(State::Reserved | State::Offline) => true,
        Some(State::Whole) => state.is_nobodys(),
        // Unaccepted memory that this build never accepts.
        Some(State::Unaccepted) => state.has(BlockState::KEPT),
        _ => false,
    }
}

/// What one head adds to the memory of its grade.
fn graded(segment: &Segment, found: HeadIn) -> GradedMemory {
    let state = found.state;
    let [start, end] = [found.index, found.end()].map(|at| segment.block_of(at).start());
    let span = PfnRange { start, end };
    let (present_pages, managed_pages) = match state.state() {
        Some(State::Split) => (state.present_pages(), state.managed_pages()),
        // A reserved block with a grade is one that could not be accepted.
        Some(State::Reserved) => (span.pages(), 0),
        _ => (span.pages(), span.pages()),
    };
    let unaccepted_pages = if is_listed(state) { span.pages() } else { 0 };
    GradedMemory { span, present_pages, managed_pages, unaccepted_pages }
}

impl LockedZone {
    /// Frames of all blocks of the grades *movable only* and *removable*, including frames that are
    /// no memory.
    pub(super) fn graded_block_pages(&self) -> [u64; 2] {
        let blocks = self.buddy.blocks_of_type();
        [Grade::MovableOnly, Grade::Removable]
            .map(|grade| u64::from(blocks[grade.migrate_type() as usize]) * PAGES_PER_BLOCK)
    }
}

impl Zone {
    /// The blocks of a grade that are memory. If there may be any, this looks at all heads, some
    /// under each hold of the lock. Exact if nobody changes grades meanwhile.
    pub(crate) fn graded_memory<P: Platform>(&self, platform: &P, grade: Grade) -> GradedMemory {
        let mut memory = GradedMemory::default();
        let blocks = self.read(platform).buddy.blocks_of_type();
        if grade != Grade::Any && blocks[grade.migrate_type() as usize] == 0 {
            return memory;
        }
        self.for_each_head(platform, &mut |segment, found| {
            let state = found.state;
            // What never gets a grade, such as tables, may lie amid memory of any grade.
            let is_memory = state.is_graded() || !is_gradeless(state);
            if is_memory && Grade::of(state.migrate_type()) == grade {
                memory += graded(segment, found);
            }
        });
        memory
    }

    /// Frames of those of the blocks at `range` that can have a grade: of those without one, and of
    /// those with one. Looks at some heads under each hold of the lock.
    pub(crate) fn shares_in<P: Platform>(&self, platform: &P, range: Range<u32>) -> [u64; 2] {
        let (mut pages, end) = ([0; 2], range.end);
        self.for_each_head_in(platform, range, &mut |found| {
            let is_graded = found.state.is_graded();
            if is_graded || !is_gradeless(found.state) {
                let blocks = u64::from(found.end().min(end) - found.index);
                pages[usize::from(is_graded)] += blocks * PAGES_PER_BLOCK;
            }
        });
        pages
    }

    /// Frames of all blocks with a grade, including frames that are no memory.
    pub(crate) fn most_graded_pages<P: Platform>(&self, platform: &P) -> u64 {
        if !cfg!(feature = "moving") {
            return 0;
        }
        self.read(platform).graded_block_pages().iter().sum()
    }

    /// Free frames of whole blocks of a grade.
    pub(crate) fn free_block_pages_of<P: Platform>(&self, platform: &P, grade: Grade) -> u64 {
        let locked = self.read_coalesced(platform);
        let of = |order: Order| {
            let own = |list: &ListId| list.migrate_type == grade.migrate_type();
            let lists = ListId::of_order(order).filter(own);
            lists.map(|list| u64::from(locked.buddy.blocks(list)) << order.get()).sum::<u64>()
        };
        (BLOCK_ORDER..=MAX_ORDER).filter_map(Order::new).map(of).sum()
    }

    /// Free frames of blocks with a grade: those that only movable requests may have.
    #[must_use]
    pub fn graded_pages(&self) -> u64 {
        let [movable_only, removable] = self.free_by_grade();
        movable_only + removable
    }

    /// Free frames of one grade.
    #[must_use]
    pub fn free_pages_of(&self, grade: Grade) -> u64 {
        let [movable_only, removable] = self.free_by_grade();
        match grade {
            Grade::Any => self.free_pages().saturating_sub(movable_only + removable),
            Grade::MovableOnly => movable_only,
            Grade::Removable => removable,
        }
    }

    fn free_by_grade(&self) -> [u64; GRADES] {
        let counters = &self.changing.counters.graded_pages;
        core::array::from_fn(|grade| super::counted(cfg!(feature = "moving"), &counters[grade]))
    }

    /// Free frames that a request of this type may not have.
    #[inline]
    pub(crate) fn out_of_reach(&self, migrate_type: MigrateType) -> u64 {
        if !cfg!(feature = "moving") {
            return 0;
        }
        if migrate_type == MigrateType::Movable {
            return 0;
        }
        // Read this first: memory that comes up counts as free before it no longer counts as
        // unaccepted.
        let unaccepted_pages = self.unaccepted_graded_pages();
        unaccepted_pages + self.graded_pages()
    }

    /// Pages without a grade that are free or withheld: what every request may have.
    #[inline(never)]
    pub(crate) fn ungraded_free_pages(&self) -> u64 {
        // Read first: withheld memory may come up meanwhile.
        let withheld = self.withheld_pages();
        (withheld + self.free_pages()).saturating_sub(self.out_of_reach(MigrateType::Unmovable))
    }

    /// The grade that a request is served from first, if any.
    #[inline]
    pub(crate) fn preferred(&self, migrate_type: MigrateType) -> Option<MigrateType> {
        if !cfg!(feature = "moving") {
            return None;
        }
        if migrate_type != MigrateType::Movable {
            return None;
        }
        match self.free_by_grade() {
            [0, 0] => None,
            [0, removable] => {
                takes_reserve_first(self.free_pages(), removable).then_some(MigrateType::Cma)
            }
            _ => Some(MigrateType::MovableOnly),
        }
    }

    /// Checks that all blocks at `range`, which are isolated, may get a grade: nothing in them is
    /// known to be unmovable. The error is the index of the first that may not.
    pub(crate) fn check_regrade<P: Platform>(
        &self,
        platform: &P,
        range: Range<u32>,
    ) -> Result<(), u32> {
        let locked = self.read_coalesced(platform);
        let movable = |found: &HeadIn| {
            let state = found.state;
            let mine = !state.migrate_type().is_mergeable()
                || state.migrate_type() == MigrateType::Movable;
            // What is out for a report is free and comes back with its new grade.
            state.is(State::Isolated)
                || state.is(State::Reporting)
                || mine && state.is(State::Split)
                || mine && state.is(State::Whole) && !state.is_nobodys()
                || state.is(State::Split) && state.managed_pages() == 0
        };
        match locked.buddy.table.heads(range).find(|found| !movable(found)) {
            Some(found) => Err(found.index),
            None => Ok(()),
        }
    }

    /// Finds the first of the heads at `range` that never has a grade, and returns the part of it
    /// that lies in `range`.
    pub(crate) fn without_grade<P: Platform>(
        &self,
        platform: &P,
        range: Range<u32>,
    ) -> Option<Range<u32>> {
        let locked = self.read_coalesced(platform);
        let found =
            locked.buddy.table.heads(range.clone()).find(|found| is_gradeless(found.state))?;
        Some(found.index..found.end().min(range.end))
    }

    /// Gives isolated blocks the migrate type of a grade. For the grade *any* this changes only
    /// blocks that have another grade. Heads that reach over the ends of `range` are divided there.
    /// `range` is short enough for one hold of the lock. Returns a block of memory that has
    /// another grade and, as it is not isolated, keeps it.
    pub(crate) fn regrade<P: Platform>(
        &self,
        platform: &P,
        range: Range<u32>,
        grade: Grade,
    ) -> Option<u32> {
        let mut locked = self.lock_coalesced(platform);
        let to = grade.migrate_type();
        locked.is_unusual = true;
        let table = locked.buddy.table;
        let (mut index, mut missed) = (range.start, None);
        while let Some(found) = table.heads(index..range.end).next() {
            // A head that is not isolated must not be changed: it is in circulation, reserved, or
            // no memory, and its entries may have gone with the memory (invariant 49).
            if !found.state.is_isolated() {
                if is_managed(found.state) && Grade::of(found.state.migrate_type()) != grade {
                    missed = Some(found.index);
                }
                index = found.end();
                continue;
            }
            let HeadIn { index: at, state, .. } = found;
            index = at;
            let order = if state.is(State::Split) {
                Order::BLOCK
            } else {
                match divide_whole(&table, index, range.end) {
                    Some(order) => order,
                    // `check_regrade` has seen to this. If it is not so, nothing is changed.
                    None => state.order().max(Order::BLOCK),
                }
            };
            let state = table.state(index);
            let from = state.migrate_type();
            // A block without a grade keeps the type of its use.
            if state.is_isolated() && (to.is_grade() || from.is_grade()) {
                let blocks = blocks_of(order);
                table.set_state(index, state.with_migrate_type(to));
                locked.buddy.retype(from, to, blocks);
                locked.isolated_blocks[from as usize] -= blocks;
                locked.isolated_blocks[to as usize] += blocks;
            }
            index += blocks_of(order);
        }
        missed
    }

    /// The grade of the block at a frame of the zone, as it was at some moment.
    pub(crate) fn grade_of<P: Platform>(&self, platform: &P, pfn: Pfn) -> Option<Grade> {
        let state: BlockState =
            self.state_of(platform, crate::vmemmap_space::BlockNumber::containing(pfn))?;
        Some(Grade::of(state.migrate_type()))
    }
}
