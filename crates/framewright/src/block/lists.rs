//! Free blocks of a zone: two lists per migrate type and order, linked through the table.
//!
//! One has the blocks that the hypervisor was told of, all of them; the other has the rest, which
//! is handed out first, because whoever gets a reported block makes the hypervisor find memory for
//! it. Without a device for reports all blocks are in the second.

use super::deferred_merge::DeferredMerges;
use super::free_index::FreeIndex;
use super::in_flight::InFlight;
use super::placement::Placement;
use super::reported::{ReportedBitmap, ReportedBits, WasReported};
use super::shuffle::Chance;
use super::state::{BlockState, MigrateType, State};
use super::table::{BlockEntry, BlockTable};
use crate::units::{BLOCK_ORDER, MAX_ORDER, Order};

/// Orders that have lists: 9..=18.
pub const BLOCK_ORDERS: usize = (MAX_ORDER - BLOCK_ORDER) as usize + 1;

/// Which end of a list a block joins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Position {
    /// Next to be handed out.
    Head,
    /// Last to be handed out.
    Tail,
}

impl Position {
    const fn other(self) -> Self {
        match self {
            Self::Head => Self::Tail,
            Self::Tail => Self::Head,
        }
    }
}

#[derive(Clone, Copy)]
struct List {
    first: u32,
    last: u32,
    blocks: u32,
}

/// No block: the end of a list (invariant 8).
pub(crate) const NONE: u32 = u32::MAX;

impl List {
    const EMPTY: Self = Self { first: NONE, last: NONE, blocks: 0 };

    /// `entry_of` finds the entry of another head in the list.
    #[inline]
    fn link_first<'t>(
        &mut self,
        entry_of: impl FnOnce(u32) -> &'t BlockEntry,
        entry: &BlockEntry,
        index: u32,
    ) {
        entry.set_links(NONE, self.first);
        match self.first {
            NONE => self.last = index,
            first => entry_of(first).set_previous(index),
        }
        self.first = index;
        self.blocks += 1;
    }

    /// The same at the other end.
    #[inline]
    fn link_last<'t>(
        &mut self,
        entry_of: impl FnOnce(u32) -> &'t BlockEntry,
        entry: &BlockEntry,
        index: u32,
    ) {
        entry.set_links(self.last, NONE);
        match self.last {
            NONE => self.first = index,
            last => entry_of(last).set_next(index),
        }
        self.last = index;
        self.blocks += 1;
    }
}

/// What a zone did since bring-up, as far as it is off the usual way of allocations and frees.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ZoneEvents {
    /// Blocks that became pages.
    pub block_splits: u64,
    /// Blocks all of whose pages came back and that are whole again.
    pub block_merges: u64,
    /// Blocks of another migrate type that were taken over for a request that found none of its
    /// own.
    pub fallback_claims: u64,
    /// Runs out of blocks of another migrate type that kept their type.
    pub fallback_steals: u64,
    /// Times that a CPU's cache was filled.
    pub cache_refills: u64,
    /// Pages that went into caches, and to the callers that found them empty.
    pub cache_refill_pages: u64,
    /// Times that a part of a CPU's cache came back.
    pub cache_returns: u64,
    /// Pages that came back.
    pub cache_return_pages: u64,
}

impl core::ops::AddAssign for ZoneEvents {
    fn add_assign(&mut self, other: Self) {
        self.block_splits += other.block_splits;
        self.block_merges += other.block_merges;
        self.fallback_claims += other.fallback_claims;
        self.fallback_steals += other.fallback_steals;
        self.cache_refills += other.cache_refills;
        self.cache_refill_pages += other.cache_refill_pages;
        self.cache_returns += other.cache_returns;
        self.cache_return_pages += other.cache_return_pages;
    }
}

/// See the module documentation. What every operation changes comes first, in one cache line.
#[repr(C)]
pub(crate) struct FreeLists {
    /// Frames in all lists.
    pages: u64,
    /// Free blocks that are in no list yet.
    pub(crate) deferred: DeferredMerges,
    /// Free frames in split blocks, which are in no list.
    pub(crate) split_pages: u64,
    /// Frames that hold descriptors.
    pub(crate) map_pages: u64,
    /// Free frames in isolated blocks, which are in no list and are not counted as free.
    pub(crate) isolated_pages: u64,
    /// Free frames that are with the hypervisor, which are in no list and are not counted as free.
    pub(crate) reporting_pages: u64,
    /// Which of equally good places is taken.
    pub(crate) placement: Placement,
    /// Per type, bit n says that the list of order 9 + n is not empty; those of reported blocks
    /// come second.
    occupied: [[u16; MigrateType::COUNT]; 2],
    /// A split block all of whose frames are free, kept as it is.
    pub(crate) spare: u32,
    /// Split blocks with free frames.
    pub(crate) free_index: FreeIndex,
    /// Counted here, because all of it happens under the lock.
    pub(crate) events: ZoneEvents,
    lists: [[[List; BLOCK_ORDERS]; MigrateType::COUNT]; 2],
    /// Nothing merges beyond this order: the largest there is, unless blocks are shuffled.
    pub(crate) largest: Order,
    /// What decides where freed blocks go while they are.
    pub(crate) chance: Chance,
    /// Which blocks are reported and which are zero.
    pub(crate) reported: ReportedBitmap,
    /// What marks the block had that was taken last.
    pub(crate) last_taken: WasReported,
    /// Runs of split blocks that are with the hypervisor.
    pub(crate) in_flight: InFlight,
    /// Frames of blocks that the manager keeps for itself.
    pub(crate) kept_pages: u64,
}

fn slot(order: Order) -> usize {
    usize::from(order.get() - BLOCK_ORDER)
}

impl FreeLists {
    pub(crate) const EMPTY: Self = Self {
        lists: [[[List::EMPTY; BLOCK_ORDERS]; MigrateType::COUNT]; 2],
        occupied: [[0; MigrateType::COUNT]; 2],
        pages: 0,
        deferred: DeferredMerges::EMPTY,
        split_pages: 0,
        map_pages: 0,
        isolated_pages: 0,
        reporting_pages: 0,
        free_index: FreeIndex::EMPTY,
        spare: NONE,
        placement: Placement::USUAL,
        events: ZoneEvents {
            block_splits: 0,
            block_merges: 0,
            fallback_claims: 0,
            fallback_steals: 0,
            cache_refills: 0,
            cache_refill_pages: 0,
            cache_returns: 0,
            cache_return_pages: 0,
        },
        largest: Order::MAX,
        chance: Chance::new(0),
        reported: ReportedBitmap::EMPTY,
        last_taken: WasReported { reported: false, zero: false },
        in_flight: InFlight::EMPTY,
        kept_pages: 0,
    };

    /// Free frames.
    #[inline]
    pub(crate) const fn free_pages(&self) -> u64 {
        self.block_pages() + self.split_pages
    }

    /// Free frames of blocks that are not split, in lists and loose.
    #[inline]
    const fn block_pages(&self) -> u64 {
        self.pages + self.deferred.pages()
    }

    /// Those of them that the hypervisor was not told of.
    pub(crate) const fn unreported_pages(&self) -> u64 {
        self.block_pages().saturating_sub(self.reported.reported_pages())
    }

    /// Blocks in one list.
    pub(crate) fn blocks(&self, migrate_type: MigrateType, order: Order, reported: bool) -> u32 {
        self.lists[usize::from(reported)][migrate_type as usize][slot(order)].blocks
    }

    /// First block of a list, [`NONE`] when it is empty.
    pub(crate) fn first(&self, migrate_type: MigrateType, order: Order, reported: bool) -> u32 {
        self.lists[usize::from(reported)][migrate_type as usize][slot(order)].first
    }

    /// The block that would be handed out last of those of at least `order` that have something to
    /// report, the largest first.
    pub(crate) fn coldest(&self, order: Order) -> Option<u32> {
        let larger = (order.get().max(BLOCK_ORDER)..=MAX_ORDER).rev().filter_map(Order::new);
        larger
            .flat_map(|order| self.lists[0].iter().map(move |lists| lists[slot(order)].last))
            .find(|&index| index != NONE)
    }

    /// The blocks of a list were put into another order, from the first to the last.
    pub(crate) fn replace_ends(
        &mut self,
        migrate_type: MigrateType,
        order: Order,
        reported: bool,
        (first, last): (u32, u32),
    ) {
        let list = &mut self.lists[usize::from(reported)][migrate_type as usize][slot(order)];
        (list.first, list.last) = (first, last);
    }

    /// The block of a list to be taken next.
    pub(crate) fn next(&mut self, migrate_type: MigrateType, order: Order, reported: bool) -> u32 {
        let list = &self.lists[usize::from(reported)][migrate_type as usize][slot(order)];
        if self.placement.coin() { list.last } else { list.first }
    }

    /// The smallest order from `order` up that has a free block of `migrate_type` with something in
    /// it that was not reported; or, when there is none, that has a reported one, which the second
    /// value says.
    #[inline]
    pub(crate) fn smallest(
        &self,
        migrate_type: MigrateType,
        order: Order,
    ) -> Option<(Order, bool)> {
        let masks = self.occupied.map(|occupied| occupied[migrate_type as usize] >> slot(order));
        let (mask, reported) = if masks[0] != 0 { (masks[0], false) } else { (masks[1], true) };
        #[expect(clippy::cast_possible_truncation, reason = "at most sixteen bits")]
        let above = mask.trailing_zeros() as u8;
        let found = (mask != 0).then(|| Order::new(order.get() + above)).flatten();
        found.map(|found| (found, reported))
    }

    /// Whether the next block of at least `order` for a request of `migrate_type`, its own or a
    /// foreign one, is reported memory.
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
                .find_map(|from| self.smallest(from, order))
                .is_some_and(|(_, reported)| reported)
    }

    /// Ends the marks of a block that was taken, which are in `taken` then. `early`: there was
    /// something that was not reported.
    #[inline]
    pub(crate) fn end_reported(&mut self, index: u32, order: Order, early: bool) {
        if self.reported.is_tracked() {
            self.last_taken = self.reported.take(index, order, self.block_pages(), early);
        }
    }

    /// The same for a block that stays free for others than this zone: what was reported of it, if
    /// anything was.
    #[inline]
    pub(crate) fn move_reported(&mut self, index: u32, order: Order) -> Option<ReportedBits> {
        if self.reported.is_tracked() {
            self.reported.move_out(index, order, self.block_pages())
        } else {
            None
        }
    }

    /// Writes the head and links it.
    #[inline]
    pub(crate) fn insert(
        &mut self,
        table: &BlockTable,
        index: u32,
        order: Order,
        migrate_type: MigrateType,
        position: Position,
    ) {
        let reported = self.reported.is_reported(index, order);
        let list = &mut self.lists[usize::from(reported)][migrate_type as usize][slot(order)];
        let entry = table.entry(index);
        let state = BlockState::head(State::Free, order, migrate_type);
        entry.set_state(if reported { state.with(BlockState::REPORTED) } else { state });
        match if self.placement.coin() { position.other() } else { position } {
            Position::Head => list.link_first(|other| table.entry(other), entry, index),
            Position::Tail => list.link_last(|other| table.entry(other), entry, index),
        }
        self.occupied[usize::from(reported)][migrate_type as usize] |= 1 << slot(order);
        self.pages += order.pages();
    }

    /// Takes the first block of the largest order and makes it an allocated one; also says how many
    /// frames are free then. Nothing when there is none in the list, or when more is to be done
    /// than to unlink it.
    #[inline(always)]
    pub(crate) fn take_largest(
        &mut self,
        table: &BlockTable,
        migrate_type: MigrateType,
    ) -> Option<(u32, u64)> {
        let list = &mut self.lists[0][migrate_type as usize][slot(Order::MAX)];
        let index = list.first;
        if index == NONE
            || self.reported.is_tracked()
            || self.placement.is_random()
            || !self.deferred.is_empty()
        {
            return None;
        }
        let pages = self.pages - Order::MAX.pages();
        let entry = table.group(index);
        let next = entry.links().1;
        list.first = next;
        list.blocks -= 1;
        if next == NONE {
            list.last = NONE;
            self.occupied[0][migrate_type as usize] &= !(1 << slot(Order::MAX));
        } else {
            table.group(next).set_previous(NONE);
        }
        self.pages = pages;
        // Its links mean nothing until it is counted, which begins with clearing them.
        entry.set_state(BlockState::head(State::Whole, Order::MAX, migrate_type));
        Some((index, pages + self.split_pages))
    }

    /// Puts an allocated block of the largest order to the front of its list; says how many frames
    /// are free then. Nothing, and nothing is changed, when it is not one, or when more is to be
    /// done than that.
    #[inline(always)]
    pub(crate) fn give_largest(&mut self, table: &BlockTable, index: u32) -> Option<u64> {
        const WHOLE: BlockState = BlockState::head(State::Whole, Order::MAX, MigrateType::Movable);
        const FREE: BlockState = BlockState::head(State::Free, Order::MAX, MigrateType::Movable);
        let entry = table.group(index);
        if entry.state() != WHOLE
            || self.reported.is_tracked()
            || self.placement.is_random()
            || self.largest != Order::MAX
        {
            return None;
        }
        let list = &mut self.lists[0][MigrateType::Movable as usize][slot(Order::MAX)];
        let pages = self.pages + Order::MAX.pages();
        let free_pages = pages + self.deferred.pages() + self.split_pages;
        entry.set_state(FREE);
        list.link_first(|other| table.group(other), entry, index);
        if list.last == index {
            self.occupied[0][MigrateType::Movable as usize] |= 1 << slot(Order::MAX);
        }
        self.pages = pages;
        Some(free_pages)
    }

    /// Puts a movable block, whose entry says already that it is free, at the end of its list at
    /// bring-up, when nothing is reported yet and placement is not left to chance:
    /// [`insert`](Self::insert) in a quarter of the code, as what runs for the first time costs
    /// what it is long.
    #[inline]
    pub(crate) fn append(
        &mut self,
        table: &BlockTable,
        entry: &BlockEntry,
        index: u32,
        order: Order,
    ) {
        debug_assert!(
            !self.reported.is_tracked(),
            "there are devices for reports before there is memory"
        );
        let slot = slot(order).min(BLOCK_ORDERS - 1);
        let list = &mut self.lists[0][MigrateType::Movable as usize][slot];
        list.link_last(|other| table.cold_entry(other), entry, index);
        self.occupied[0][MigrateType::Movable as usize] |= 1 << slot;
        self.pages += order.pages();
    }

    /// Unlinks a free head and leaves its entry inner.
    pub(crate) fn remove(&mut self, table: &BlockTable, index: u32) {
        self.remove_entry(table, table.entry(index));
    }

    /// The same for who has its entry.
    #[inline]
    pub(crate) fn remove_entry(&mut self, table: &BlockTable, entry: &BlockEntry) {
        let state = entry.state();
        let (order, migrate_type) = (state.order(), state.migrate_type());
        let reported = usize::from(state.has(BlockState::REPORTED));
        let list = &mut self.lists[reported][migrate_type as usize][slot(order)];
        let (previous, next) = entry.links();
        match previous {
            NONE => list.first = next,
            previous => table.entry(previous).set_next(next),
        }
        match next {
            NONE => list.last = previous,
            next => table.entry(next).set_previous(previous),
        }
        list.blocks -= 1;
        if list.blocks == 0 {
            self.occupied[reported][migrate_type as usize] &= !(1 << slot(order));
        }
        self.pages -= order.pages();
        entry.clear();
    }
}
