//! The free blocks of a zone: a buddy system over its block table.
//!
//! Each migrate type and order has two lists, linked through the table. One holds the blocks that
//! were reported to the hypervisor as a whole; the other holds the rest, which is handed out first
//! because the hypervisor must find memory again for a reported block. Without a device for reports
//! all blocks are in the second list. Movable blocks of 2 MiB stay outside the lists until somebody
//! needs them merged (`deferred_merge`).
//!
//! ```text
//! free: merge.rs ──> deferred (2 MiB, movable) ──coalesce──> lists, by type and order
//! take: split.rs <── deferred, else the smallest block of the type, else a type to fall back on
//! ```
//!
//! All of it is reached through the zone lock. This module has the lists; [`take`](Buddy::take) is
//! in `split`, [`free`](Buddy::free) in `merge`, [`coalesce`](Buddy::coalesce) in `coalesce`, and
//! the random orders of `page_alloc.shuffle` in `shuffle`.

use super::deferred_merge::{DeferredMerges, attach};
use super::free_heads::FreeHeads;
use super::list::{BLOCK_ORDERS, List, ListId, NONE, Position, slot};
use super::migrate_type::MigrateType;
use super::placement::Placement;
use super::random::Random;
use super::reported::{ReportedBitmap, ReportedBits, WasReported};
use super::segment::{self, Segment};
use super::state::{BlockState, State};
use super::table::{BlockEntry, BlockTable, GROUP, blocks_of, largest_piece};
use crate::sync::add_fields::add_fields;
use crate::sync::in_place::{each, write_fields};
use crate::sync::table_atomic::AtomicU64;
use crate::units::{BLOCK_ORDER, MAX_ORDER, Order, PAGES_PER_BLOCK};
use core::mem::MaybeUninit;
use core::ops::Range;

/// Counts of a zone's less common events since bring-up: those off the fast paths of allocations
/// and frees.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ZoneEvents {
    /// Blocks that were split into pages.
    pub block_splits: u64,
    /// Split blocks that became whole again because all their pages came back.
    pub block_merges: u64,
    /// Blocks of another migrate type that were claimed for a request that found none of its own
    /// type.
    pub fallback_claims: u64,
    /// Runs taken from blocks of another migrate type that kept their type.
    pub fallback_steals: u64,
    /// Times that a CPU's cache was refilled.
    pub cache_refills: u64,
    /// Pages that refills brought to caches and to the callers that found them empty.
    pub cache_refill_pages: u64,
    /// Times that part of a CPU's cache was returned.
    pub cache_returns: u64,
    /// Pages that were returned.
    pub cache_return_pages: u64,
}

impl ZoneEvents {
    const NONE: Self = Self {
        block_splits: 0,
        block_merges: 0,
        fallback_claims: 0,
        fallback_steals: 0,
        cache_refills: 0,
        cache_refill_pages: 0,
        cache_returns: 0,
        cache_return_pages: 0,
    };
}

impl core::ops::AddAssign for ZoneEvents {
    fn add_assign(&mut self, other: Self) {
        add_fields!(
            self += other,
            block_splits,
            block_merges,
            fallback_claims,
            fallback_steals,
            cache_refills,
            cache_refill_pages,
            cache_returns,
            cache_return_pages
        );
    }
}

type Lists = [[[List; BLOCK_ORDERS]; MigrateType::COUNT]; 2];

/// Initialises empty lists in place.
fn empty_lists(place: &mut MaybeUninit<Lists>) -> &mut Lists {
    each(place, |types| each(types, |orders| each(orders, |list| list.write(List::EMPTY))))
}

fn no_graded_merges(
    place: &mut MaybeUninit<[DeferredMerges; GRADES]>,
) -> &mut [DeferredMerges; GRADES] {
    each(place, DeferredMerges::write)
}

/// The number of migrate types that are grades.
pub(crate) const GRADES: usize = 2;

/// See the module documentation.
#[repr(C)]
pub(crate) struct Buddy {
    /// Frames of all blocks in lists, and of graded blocks that are in no list yet.
    pub(super) pages: u64,
    /// The part of `pages` in blocks of each grade.
    pub(super) graded_pages: [u64; GRADES],
    /// Free blocks that are in no list yet.
    pub(super) deferred: DeferredMerges,
    /// Which of several equally good blocks is taken.
    pub(crate) placement: Placement,
    /// Per type, bit n says that the list of order 9 + n is not empty; the masks for lists of
    /// reported blocks are the second.
    occupied: [[u16; MigrateType::COUNT]; 2],
    /// Nothing merges beyond this order: the largest that exists, unless blocks are shuffled.
    pub(crate) largest: Order,
    /// Callers that are coalescing at the moment; while there are any, no merge is deferred.
    pub(super) coalescing: u32,
    /// Blocks of 2 MiB by migrate type, whatever they are used for.
    blocks_of_type: [u32; MigrateType::COUNT],
    /// The entries of the zone's blocks.
    pub(crate) table: BlockTable,
    /// Runs of blocks, ascending. No block merges across the end of one.
    pub(crate) segments: &'static [Segment],
    /// The zone's events, counted here because all of them happen under the lock.
    pub(crate) events: ZoneEvents,
    lists: Lists,
    /// Decides where freed blocks go while blocks are shuffled.
    pub(crate) random: Random,
    /// Which blocks were reported and which are zero.
    pub(crate) reported: ReportedBitmap,
    /// What was known of the block that was taken last.
    pub(crate) last_taken: WasReported,
    /// Graded free blocks that are in no list yet. This field is last because most zones have none.
    pub(super) graded_merges: [DeferredMerges; GRADES],
}

impl Buddy {
    /// Initialises it in place, without any block.
    pub(crate) fn write(place: &mut MaybeUninit<Self>) -> &mut Self {
        write_fields!(
            Buddy at place,
            {
                pages: 0,
                graded_pages: [0; GRADES],
                placement: Placement::USUAL,
                occupied: [[0; MigrateType::COUNT]; 2],
                largest: Order::MAX,
                coalescing: 0,
                blocks_of_type: [0; MigrateType::COUNT],
                segments: &[],
                events: ZoneEvents::NONE,
                random: Random::new(0),
                last_taken: WasReported { reported: false, zero: false },
            },
            {
                table: BlockTable::write,
                deferred: DeferredMerges::write,
                graded_merges: no_graded_merges,
                reported: ReportedBitmap::write_empty,
                lists: empty_lists,
            },
        )
    }

    /// Attaches the zone's blocks, none of which is free yet.
    pub(crate) fn attach(
        &mut self,
        segments: &'static [Segment],
        table: &BlockTable,
        deferred: &'static [AtomicU64],
        reported: &'static [AtomicU64],
    ) {
        self.segments = segments;
        self.table.name(table);
        if !deferred.is_empty() {
            let blocks = table.len() as usize;
            attach(&mut self.deferred, &mut self.graded_merges, deferred, blocks);
            self.reported.attach(reported);
        }
    }

    /// Returns the indices of the segment that holds `index`, which must be in one.
    pub(crate) fn segment_of(&self, index: u32) -> Range<u32> {
        match self.segments {
            [only] => only.indices(),
            segments => {
                segment::find_index(segments, index).map_or(index..index + 1, Segment::indices)
            }
        }
    }

    /// Returns the free frames, including those of blocks whose merge is deferred.
    pub(crate) const fn free_pages(&self) -> u64 {
        self.pages + self.deferred.pages()
    }

    /// Returns the free frames that were not reported to the hypervisor.
    pub(crate) const fn unreported_pages(&self) -> u64 {
        self.free_pages().saturating_sub(self.reported.reported_pages())
    }

    /// Returns the free frames of each grade.
    pub(crate) const fn graded_pages(&self) -> [u64; GRADES] {
        self.graded_pages
    }

    fn list(&self, id: ListId) -> &List {
        &self.lists[usize::from(id.reported)][id.migrate_type as usize][slot(id.order)]
    }

    fn list_mut(&mut self, id: ListId) -> &mut List {
        &mut self.lists[usize::from(id.reported)][id.migrate_type as usize][slot(id.order)]
    }

    /// Returns the number of blocks in one list.
    pub(crate) fn blocks(&self, list: ListId) -> u32 {
        self.list(list).blocks
    }

    /// Blocks of 2 MiB by migrate type, without those that are not memory.
    pub(crate) const fn blocks_of_type(&self) -> [u32; MigrateType::COUNT] {
        self.blocks_of_type
    }

    /// Counts blocks that are new. All of them are movable, as at bring-up.
    pub(crate) const fn count_new(&mut self, blocks: u32) {
        self.blocks_of_type[MigrateType::Movable as usize] += blocks;
    }

    /// Counts blocks that became memory.
    pub(crate) const fn count_blocks(&mut self, migrate_type: MigrateType, blocks: u32) {
        self.blocks_of_type[migrate_type as usize] += blocks;
    }

    /// Uncounts blocks that are no longer memory.
    pub(crate) const fn uncount_blocks(&mut self, migrate_type: MigrateType, blocks: u32) {
        self.blocks_of_type[migrate_type as usize] -= blocks;
    }

    /// Counts blocks under their new type.
    pub(crate) const fn retype(&mut self, from: MigrateType, to: MigrateType, blocks: u32) {
        self.blocks_of_type[from as usize] -= blocks;
        self.blocks_of_type[to as usize] += blocks;
    }

    /// Returns the first block of a list, [`NONE`] when it is empty.
    pub(crate) fn first(&self, list: ListId) -> u32 {
        self.list(list).first
    }

    /// Returns the last block of a list, [`NONE`] when it is empty.
    pub(super) fn last(&self, list: ListId) -> u32 {
        self.list(list).last
    }

    /// Returns the block that would be handed out last, of the largest order that has a block with
    /// something left to report. Only blocks of at least `order` count and, with `graded_only`,
    /// only those with a grade.
    pub(crate) fn coldest(&self, order: Order, graded_only: bool) -> Option<u32> {
        let first = if graded_only { MigrateType::MovableOnly as usize } else { 0 };
        let lists = &self.lists[0][first..];
        let larger = (order.get().max(BLOCK_ORDER)..=MAX_ORDER).rev().filter_map(Order::new);
        larger
            .flat_map(|order| lists.iter().map(move |lists| lists[slot(order)].last))
            .find(|&index| index != NONE)
    }

    /// Sets both ends of a list whose blocks were put into another order.
    pub(super) fn replace_ends(&mut self, list: ListId, first: u32, last: u32) {
        let list = self.list_mut(list);
        (list.first, list.last) = (first, last);
    }

    /// Returns the block of a list that is to be taken next.
    pub(super) fn next(&mut self, list: ListId) -> u32 {
        let from_end = self.placement.coin();
        let list = self.list(list);
        if from_end { list.last } else { list.first }
    }

    /// Returns the list of `migrate_type` with the smallest blocks of at least `order`: first among
    /// blocks with something left to report, else among reported ones.
    pub(crate) fn smallest(&self, migrate_type: MigrateType, order: Order) -> Option<ListId> {
        let masks = self.occupied.map(|occupied| occupied[migrate_type as usize] >> slot(order));
        let (mask, reported) = if masks[0] != 0 { (masks[0], false) } else { (masks[1], true) };
        #[expect(clippy::cast_possible_truncation, reason = "at most sixteen bits")]
        let above = mask.trailing_zeros() as u8;
        let found = (mask != 0).then(|| Order::new(order.get() + above)).flatten();
        found.map(|order| ListId { migrate_type, order, reported })
    }

    /// Returns whether the next block of at least `order` for a request of `migrate_type`, of that
    /// type or of a fallback, is reported memory.
    #[cold]
    pub(crate) fn is_next_reported(&self, migrate_type: MigrateType, order: Order) -> bool {
        if migrate_type == MigrateType::Movable
            && order == Order::BLOCK
            && !self.deferred.is_empty()
        {
            return false;
        }
        let mut types =
            core::iter::once(migrate_type).chain(migrate_type.fallbacks().iter().copied());
        self.reported.is_tracked()
            && types
                .find_map(|from| {
                    let is_in_no_list = order == Order::BLOCK && self.defers_grade(from);
                    let list = || self.smallest(from, order).map(|list| list.reported);
                    if is_in_no_list { Some(false) } else { list() }
                })
                .is_some_and(|reported| reported)
    }

    /// Clears the report bits of a block that was taken and keeps what they said in `last_taken`.
    /// `early` says that unreported memory was available.
    pub(super) fn end_reported(&mut self, index: u32, order: Order, early: bool) {
        if self.reported.is_tracked() {
            self.last_taken = self.reported.take(index, order, self.free_pages(), early);
        }
    }

    /// Takes out the report bits of a block that leaves the zone but stays free, as a page of a
    /// pool. Returns them if any part was reported.
    pub(super) fn move_reported(&mut self, index: u32, order: Order) -> Option<ReportedBits> {
        if self.reported.is_tracked() {
            self.reported.move_out(index, order, self.free_pages())
        } else {
            None
        }
    }

    /// Writes the head of a free block and links it.
    pub(super) fn insert(
        &mut self,
        index: u32,
        order: Order,
        migrate_type: MigrateType,
        position: Position,
    ) {
        let reported = self.reported.is_reported(index, order);
        let list = &mut self.lists[usize::from(reported)][migrate_type as usize][slot(order)];
        debug_assert!(
            (index..index + blocks_of(order))
                .all(|at| self.table.has_lots_of(at, BlockState::INNER)),
            "a part of a free block is in a lot (invariant 53)"
        );
        let entry = self.table.entry(index);
        let state = BlockState::head(State::Free, order, migrate_type);
        entry.set_state_in_no_lot(if reported { state.with(BlockState::REPORTED) } else { state });
        match if self.placement.coin() { position.other() } else { position } {
            Position::Head => list.link_first(|other| self.table.entry(other), entry, index),
            Position::Tail => list.link_last(|other| self.table.entry(other), entry, index),
        }
        self.occupied[usize::from(reported)][migrate_type as usize] |= 1 << slot(order);
        self.table.free_heads.add(index, order);
        self.pages += order.pages();
        if let Some(grade) = migrate_type.grade_index() {
            self.graded_pages[grade] += order.pages();
        }
    }

    /// Takes the first block of the largest order and marks it allocated. Returns nothing if the
    /// list is empty or if taking the block needs more than unlinking it.
    #[inline(always)]
    pub(crate) fn take_largest(&mut self, migrate_type: MigrateType) -> Option<u32> {
        let list = &mut self.lists[0][migrate_type as usize][slot(Order::MAX)];
        let index = list.first;
        if index == NONE
            || self.reported.is_tracked()
            || self.placement.is_random()
            || !self.deferred.is_empty()
        {
            return None;
        }
        let entry = self.table.group(index);
        let next = entry.links().1;
        list.first = next;
        list.blocks -= 1;
        if next == NONE {
            list.last = NONE;
            self.occupied[0][migrate_type as usize] &= !(1 << slot(Order::MAX));
        } else {
            self.table.group(next).set_previous(NONE);
        }
        self.pages -= Order::MAX.pages();
        if let Some(grade) = migrate_type.grade_index() {
            self.graded_pages[grade] -= Order::MAX.pages();
        }
        // Its links mean nothing until the block is counted, and counting begins by clearing them.
        entry.set_state_in_no_lot(BlockState::head(State::Whole, Order::MAX, migrate_type));
        Some(index)
    }

    /// Puts an allocated block of the largest order at the front of its list. Returns false and
    /// changes nothing if it is not such a block or if freeing it needs more than that.
    #[inline(always)]
    pub(crate) fn free_largest(&mut self, index: u32) -> bool {
        const WHOLE: BlockState = BlockState::head(State::Whole, Order::MAX, MigrateType::Movable);
        const FREE: BlockState = BlockState::head(State::Free, Order::MAX, MigrateType::Movable);
        let entry = self.table.group(index);
        if entry.state() != WHOLE
            || self.reported.is_tracked()
            || self.placement.is_random()
            || self.largest != Order::MAX
        {
            return false;
        }
        let list = &mut self.lists[0][MigrateType::Movable as usize][slot(Order::MAX)];
        entry.set_state_in_no_lot(FREE);
        list.link_first(|other| self.table.group(other), entry, index);
        if list.last == index {
            self.occupied[0][MigrateType::Movable as usize] |= 1 << slot(Order::MAX);
        }
        self.pages += Order::MAX.pages();
        true
    }

    /// Appends the blocks of a run to the movable lists, as the largest aligned pieces. For
    /// bring-up, when nothing is reported yet, placement is not random and none of them has a free
    /// buddy. `shift` leads from a block's number to its index. Does what [`insert`](Self::insert)
    /// does, but does once what can be done once, as bring-up spends many of its instructions here.
    pub(crate) fn append_run(&mut self, blocks: Range<u32>, shift: u32) {
        debug_assert!(
            !self.reported.is_tracked(),
            "there are devices for reports before there is memory"
        );
        let table = &self.table;
        let lists = &mut self.lists[0][MigrateType::Movable as usize];
        let (mut occupied, mut ready, mut heads) = (0, u32::MAX, 0_u64);
        let mut next = blocks.start;
        while next < blocks.end {
            let order = largest_piece(next, blocks.end, Order::MAX);
            let level = slot(order);
            let index = next.wrapping_add(shift);
            next += 1 << level;
            if level < BLOCK_ORDERS - 1 && index / GROUP != ready {
                table.free_heads.add_heads(ready, heads);
                table.make_ready(index, false);
                (ready, heads) = (index / GROUP, 0);
            }
            let entry = table.entry(index);
            let free = BlockState::head(State::Free, order, MigrateType::Movable);
            entry.set_state_in_no_lot(free);
            let list = &mut lists[level];
            list.link_last(|other| table.entry(other), entry, index);
            occupied |= 1 << level;
            heads += FreeHeads::one_of(level);
        }
        table.free_heads.add_heads(ready, heads);
        self.occupied[0][MigrateType::Movable as usize] |= occupied;
        self.pages += u64::from(blocks.end - blocks.start) * PAGES_PER_BLOCK;
    }

    /// Unlinks a free head and makes its entry inner.
    pub(super) fn remove(&mut self, index: u32) {
        self.remove_entry(self.table.entry(index), index);
    }

    /// [`remove`](Self::remove) for a caller that already has the entry.
    pub(super) fn remove_entry(&mut self, entry: &BlockEntry, index: u32) {
        let state = entry.state();
        let (order, migrate_type) = (state.order(), state.migrate_type());
        let reported = usize::from(state.has(BlockState::REPORTED));
        let list = &mut self.lists[reported][migrate_type as usize][slot(order)];
        let (previous, next) = entry.links();
        match previous {
            NONE => list.first = next,
            previous => self.table.entry(previous).set_next(next),
        }
        match next {
            NONE => list.last = previous,
            next => self.table.entry(next).set_previous(previous),
        }
        list.blocks -= 1;
        if list.blocks == 0 {
            self.occupied[reported][migrate_type as usize] &= !(1 << slot(order));
        }
        self.table.free_heads.remove(index, order);
        self.pages -= order.pages();
        if let Some(grade) = migrate_type.grade_index() {
            self.graded_pages[grade] -= order.pages();
        }
        entry.clear();
    }
}
