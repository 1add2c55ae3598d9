//! The block table of a zone: its entries, its free maps, the lots of its blocks, and which entries
//! may be read.
//!
//! An *index* numbers the blocks of a zone's segments one after the other. 512 entries are a
//! *group*; a group that lies wholly in one segment describes one GiB. The entries of a group that
//! is not *ready* were never cleared: only the first may be read, and it heads an order-18 block.
//! Everything else follows from that (invariants 5 and 6).
//!
//! The first entries of all groups lie in an array of their own. A machine whose memory is free or
//! allocated by the GiB then touches 16 adjacent bytes per GiB, rather than a cache line and a page
//! each.
//!
//! Orders of memory: Relaxed for entries, which the zone lock orders, or a pool's lock the links of
//! its pages (invariant 37); what is read without a lock is a hint, except by `state_as_reader`. A
//! ready bit is set with Release once its entries are clear, and pairs with Acquire in `is_ready`.

use super::free_heads::FreeHeads;
use super::free_map::FreeMap;
use super::lots::{Lot, LotTable};
use super::state::{BlockState, State};
use crate::sync::in_place::write_fields;
use crate::sync::prefetch;
use crate::sync::table_atomic::{AtomicU32, AtomicU64, Ordering};
use crate::units::{BLOCK_ORDER, Order};
use core::mem::MaybeUninit;
use core::ops::Range;

pub(crate) use super::free_heads::GROUP;

/// Returns the number of entries that a head of `order` covers.
pub(crate) const fn blocks_of(order: Order) -> u32 {
    1 << (order.get() - BLOCK_ORDER)
}

/// Returns the largest order, at most `most`, of an aligned piece that begins at `first` and ends
/// by `end`, both numbers or indices of blocks.
#[inline]
pub(crate) fn largest_piece(first: u32, end: u32, most: Order) -> Order {
    let fits = (end - first).checked_ilog2().unwrap_or(0);
    let level =
        first.trailing_zeros().min(fits).min(u32::from(most.get().saturating_sub(BLOCK_ORDER)));
    #[expect(clippy::cast_possible_truncation, reason = "a level of ten")]
    let order = Order::new(BLOCK_ORDER + level as u8);
    order.unwrap_or(Order::BLOCK)
}

/// The hot data of one block: 16 bytes, four to a cache line.
#[repr(C, align(16))]
pub struct BlockEntry {
    state: AtomicU64,
    previous: AtomicU32,
    next: AtomicU32,
}

const _: () = assert!(size_of::<BlockEntry>() == 16);

/// How many entries are cleared without a jump between them.
const AT_ONCE: usize = 32;

/// Makes entries inner ones while nobody reads them. The links of inner entries mean nothing, so
/// half of a table is not written. It writes many entries without a jump, because on small machines
/// bring-up spends many of its instructions here. The ready bit is stored afterwards, with Release.
fn clear_unread(entries: &[BlockEntry]) {
    let (many, few) = entries.as_chunks::<AT_ONCE>();
    many.iter().for_each(|entries| entries.iter().for_each(BlockEntry::forget));
    few.iter().for_each(BlockEntry::forget);
}

impl BlockEntry {
    #[cfg(test)]
    pub(crate) fn new() -> Self {
        Self { state: AtomicU64::new(0), previous: AtomicU32::new(0), next: AtomicU32::new(0) }
    }

    #[inline]
    pub(crate) fn clear(&self) {
        self.forget();
        self.set_links(0, 0);
    }

    /// [`clear`](Self::clear), but the links stay.
    #[inline]
    fn forget(&self) {
        self.state.store(0, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn state(&self) -> BlockState {
        BlockState::from_word(self.state.load(Ordering::Relaxed))
    }

    /// Sets the state of a block that was in no [lot](LotTable) and stays in none.
    #[inline]
    pub(crate) fn set_state_in_no_lot(&self, state: BlockState) {
        debug_assert!(LotTable::is_in_none(state), "{state:?} is in a lot (invariant 53)");
        self.set_state_alone(state);
    }

    /// Sets the state with Release, which pairs with `state_as_reader`, but not the block's lots:
    /// they stay as they are, or are set next.
    #[inline]
    pub(crate) fn set_state_alone(&self, state: BlockState) {
        self.state.store(state.word(), Ordering::Release);
    }

    #[inline]
    pub(crate) fn links(&self) -> (u32, u32) {
        (self.previous.load(Ordering::Relaxed), self.next.load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn set_links(&self, previous: u32, next: u32) {
        self.set_previous(previous);
        self.set_next(next);
    }

    #[inline]
    pub(crate) fn set_previous(&self, previous: u32) {
        self.previous.store(previous, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn set_next(&self, next: u32) {
        self.next.store(next, Ordering::Relaxed);
    }
}

/// See the module documentation. This is a handle: copies refer to the same table. Everything is
/// changed under the zone lock only, except the links of pages that pools have (invariant 37).
#[derive(Clone, Copy)]
pub(crate) struct BlockTable {
    /// The first entry of each group.
    heads: &'static [BlockEntry],
    /// All entries; the first of each group is unused here.
    entries: &'static [BlockEntry],
    free_maps: &'static [FreeMap],
    ready: &'static [AtomicU64],
    /// The numbers of free heads of each group.
    pub(super) free_heads: FreeHeads,
    lots: LotTable,
}

impl BlockTable {
    pub(crate) const EMPTY: Self = Self {
        heads: &[],
        entries: &[],
        free_maps: &[],
        ready: &[],
        free_heads: FreeHeads::EMPTY,
        lots: LotTable::EMPTY,
    };

    /// Writes [`EMPTY`](Self::EMPTY) in place.
    pub(crate) fn write(place: &mut MaybeUninit<Self>) -> &mut Self {
        write_fields!(
            BlockTable at place,
            {
                heads: &[],
                entries: &[],
                free_maps: &[],
                ready: &[],
                free_heads: FreeHeads::EMPTY,
                lots: LotTable::EMPTY,
            },
            {},
        )
    }

    /// Returns a table over memory of any content, except that `ready` must be zero. There is a
    /// free map for every entry, and a head and a ready bit for every group.
    pub(crate) const fn new(
        heads: &'static [BlockEntry],
        entries: &'static [BlockEntry],
        free_maps: &'static [FreeMap],
        ready: &'static [AtomicU64],
        free_heads: FreeHeads,
        lots: LotTable,
    ) -> Self {
        Self { heads, entries, free_maps, ready, free_heads, lots }
    }

    /// Makes this handle refer to another handle's table. It copies by fields, as some compilers
    /// copy larger values byte by byte.
    #[inline(never)]
    pub(crate) const fn name(&mut self, other: &Self) {
        let Self { heads, entries, free_maps, ready, free_heads, lots } = other;
        self.heads = heads;
        self.entries = entries;
        self.free_maps = free_maps;
        self.ready = ready;
        self.free_heads = *free_heads;
        self.lots = *lots;
    }

    /// Returns the parts that are read even while no group is ready.
    pub(crate) const fn heads_alone(
        &self,
    ) -> (&'static [AtomicU64], &'static [BlockEntry], FreeHeads) {
        (self.ready, self.heads, self.free_heads)
    }

    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.entries.len()).unwrap_or(u32::MAX)
    }

    /// Returns the entry at `index`, which must be readable. For callers that use more than one
    /// part of it, because finding the entry is a good part of the work.
    #[inline]
    pub(crate) fn entry(&self, index: u32) -> &'static BlockEntry {
        debug_assert!(
            index.is_multiple_of(GROUP) || self.is_ready(index),
            "entry {index} was never cleared (invariant 5)"
        );
        self.entry_at(index)
    }

    /// Returns the entry at `index`, whether or not it may be read.
    #[cfg_attr(feature = "smp", inline)]
    #[cfg_attr(not(feature = "smp"), inline(never))]
    fn entry_at(&self, index: u32) -> &'static BlockEntry {
        if index.is_multiple_of(GROUP) {
            &self.heads[(index / GROUP) as usize]
        } else {
            &self.entries[index as usize]
        }
    }

    /// [`entry`](Self::entry) for the first entry of a group, which every head of the largest order
    /// is.
    #[inline]
    pub(crate) fn group(&self, index: u32) -> &'static BlockEntry {
        &self.heads[(index / GROUP) as usize]
    }

    /// [`entry`](Self::entry) as a single copy, for code that runs only a few times, where size
    /// matters more than speed.
    #[inline(never)]
    pub(crate) fn cold_entry(&self, index: u32) -> &'static BlockEntry {
        self.entry(index)
    }

    pub(crate) fn free_map(&self, index: u32) -> &'static FreeMap {
        &self.free_maps[index as usize]
    }

    /// [`free_map`](Self::free_map) as a single copy, like [`cold_entry`](Self::cold_entry).
    #[inline(never)]
    pub(crate) fn cold_free_map(&self, index: u32) -> &'static FreeMap {
        self.free_map(index)
    }

    pub(crate) fn is_ready(&self, index: u32) -> bool {
        is_ready(self.ready, index)
    }

    /// Returns the state at `index`, for readers without the lock; nothing if the block is part of
    /// a larger one whose entries were never cleared.
    #[inline(never)]
    pub(crate) fn state_if_ready(&self, index: u32) -> Option<BlockState> {
        if !self.is_ready(index) {
            return None;
        }
        let entry = if index.is_multiple_of(GROUP) {
            self.heads.get((index / GROUP) as usize)?
        } else {
            self.entries.get(index as usize)?
        };
        Some(entry.state())
    }

    /// [`head_of`](Self::head_of) for readers without the lock. The result is a guess, because
    /// blocks may merge and split meanwhile.
    pub(crate) fn head_unlocked(&self, index: u32) -> Option<(u32, BlockState)> {
        let first = index & !(GROUP - 1);
        if index >= self.len() {
            return None;
        }
        let Some(state) = self.state_if_ready(index) else {
            return Some((first, self.heads.get((index / GROUP) as usize)?.state()));
        };
        if !state.is(State::Inner) {
            return Some((index, state));
        }
        let (head, state) = (1..=GROUP.trailing_zeros()).find_map(|level| {
            let candidate = index & !((1 << level) - 1);
            let state = self.state_if_ready(candidate)?;
            (!state.is(State::Inner)).then_some((candidate, state))
        })?;
        // If the head found does not reach `index`, the index is in a hole.
        (index - head < blocks_of(state.order().max(Order::BLOCK))).then_some((head, state))
    }

    /// Returns the first index from `index` on whose group is ready, or an index beyond the table
    /// when there is none.
    pub(crate) fn next_ready(&self, index: u32) -> u32 {
        let group = index / GROUP;
        let mut mask = u64::MAX << (group % 64);
        for (first, word) in (0..).step_by(64).zip(self.ready).skip((group / 64) as usize) {
            let ready = word.load(Ordering::Acquire) & mask;
            if ready != 0 {
                return index.max((first + ready.trailing_zeros()) * GROUP);
            }
            mask = u64::MAX;
        }
        u32::MAX
    }

    /// Clears the entries and the lots of `index`'s group unless it is ready. The first entry is
    /// kept if it heads an order-18 block, as it does in every group that is not ready once
    /// bring-up is over.
    #[inline(never)]
    pub(crate) fn make_ready(&self, index: u32, keep_first: bool) {
        if self.is_ready(index) {
            return;
        }
        let group = index / GROUP;
        let start = (group * GROUP) as usize;
        let end = (start + GROUP as usize).min(self.entries.len());
        if !keep_first {
            self.heads[group as usize].clear();
        }
        // The group's first entry is unused in this array. It is cleared too, so that the number of
        // entries is a multiple of the step.
        clear_unread(&self.entries[start..end]);
        self.lots.clear_group(group * GROUP);
        self.free_heads.clear(group);
        let word = &self.ready[(group / 64) as usize];
        word.store(word.load(Ordering::Relaxed) | 1 << (group % 64), Ordering::Release);
    }

    /// Makes the group's first entry the head of all of it; no other entry of the group may be read
    /// from now on. The caller has kept out readers without the lock.
    pub(crate) fn make_unready(&self, index: u32) {
        let group = index / GROUP;
        let word = &self.ready[(group / 64) as usize];
        word.store(word.load(Ordering::Relaxed) & !(1 << (group % 64)), Ordering::Release);
    }

    /// Returns the state word of an entry that may be read: its group is ready, or it is the
    /// group's first.
    pub(crate) fn state(&self, index: u32) -> BlockState {
        BlockState::from_word(self.entry(index).state.load(Ordering::Relaxed))
    }

    /// [`state`](Self::state) for a reader without the zone lock, inside the block's `Readers`.
    pub(crate) fn state_as_reader(&self, index: u32) -> BlockState {
        // SeqCst, as this load must not overtake the store in `Readers::enter`. It acquires what
        // `set_state` releases. The group was ready before; if it went offline meanwhile, its
        // entries are inner ones and offline heads, which have no count.
        BlockState::from_word(self.entry_at(index).state.load(Ordering::SeqCst))
    }

    /// Sets the state with Release, so that a reader that finds descriptors through the word sees
    /// them initialised. The block's lots must be those of its last state, or that must be inner.
    #[cfg_attr(feature = "smp", inline(never))]
    pub(crate) fn set_state(&self, index: u32, state: BlockState) {
        let entry = self.entry(index);
        let old = entry.state();
        debug_assert!(old == BlockState::INNER || self.has_lots_of(index, old), "{old:?}");
        entry.set_state_alone(state);
        if LotTable::may_differ(old, state) {
            self.update_lots(index, state);
        }
    }

    /// [`set_state`](Self::set_state) for a caller that has the entry already, of a split block of
    /// which nothing changes but what is free in it.
    #[inline]
    pub(crate) fn set_free_count(
        &self,
        entry: &BlockEntry,
        index: u32,
        old: BlockState,
        new: BlockState,
    ) {
        debug_assert!(old == entry.state() && !old.differs_in_kind(new), "{old:?} becomes {new:?}");
        debug_assert!(self.has_lots_of(index, old), "{old:?}");
        entry.set_state_alone(new);
        if LotTable::differ_in_room(old, new) {
            self.update_lots(index, new);
        }
    }

    /// [`set_state`](Self::set_state) for a caller that has the entry already, whatever the block's
    /// lots were.
    #[inline]
    pub(crate) fn set_state_and_lots(&self, entry: &BlockEntry, index: u32, state: BlockState) {
        entry.set_state_alone(state);
        self.update_lots(index, state);
    }

    /// Makes the lots of a block those of `state`. Under the zone lock, as for states: the lots of
    /// neighbours are in the same word.
    #[cfg_attr(feature = "smp", inline(never))]
    fn update_lots(&self, index: u32, state: BlockState) {
        // Nobody has written the words of a group that is not ready, and in a window that holds its
        // own tables they may not be memory (invariant 49). Its block is in no lot.
        if cfg!(feature = "smp") && index.is_multiple_of(GROUP) && !self.is_ready(index) {
            return;
        }
        self.lots.set(index, state);
    }

    /// Takes a block out of all lots, as its next state is in none.
    #[inline]
    pub(crate) fn clear_lots(&self, index: u32) {
        self.update_lots(index, BlockState::INNER);
    }

    /// [`clear_lots`](Self::clear_lots) of all blocks of `range`, in one ready group.
    pub(crate) fn clear_all_lots(&self, range: Range<u32>) {
        self.lots.set_all(range, BlockState::INNER);
    }

    /// [`set_state`](Self::set_state) for all entries of `range`, in one ready group; their links
    /// do not change.
    pub(crate) fn set_states(&self, range: Range<u32>, state: BlockState) {
        self.for_entries(range.clone(), |entry| entry.set_state_alone(state));
        self.lots.set_all(range, state);
    }

    /// Makes the entries of `range`, in one ready group, inner again and clears their links. Their
    /// blocks are in no lot any more.
    pub(crate) fn clear_entries_and_lots(&self, range: Range<u32>) {
        self.for_entries(range.clone(), BlockEntry::clear);
        self.lots.set_all(range, BlockState::INNER);
    }

    #[inline]
    fn for_entries(&self, range: Range<u32>, change: impl Fn(&BlockEntry)) {
        let mut start = range.start;
        if start.is_multiple_of(GROUP) && !range.is_empty() {
            change(self.entry(start));
            start += 1;
        }
        self.entries[start as usize..range.end as usize].iter().for_each(change);
    }

    /// Returns the reference count of a counted block, which is in its first link.
    pub(crate) fn count(&self, index: u32) -> &'static AtomicU32 {
        &self.entry(index).previous
    }

    /// Returns the owner word of a counted block, which is in its second link.
    pub(crate) fn owner(&self, index: u32) -> &'static AtomicU32 {
        &self.entry(index).next
    }

    pub(crate) fn links(&self, index: u32) -> (u32, u32) {
        let entry = self.entry(index);
        (entry.previous.load(Ordering::Relaxed), entry.next.load(Ordering::Relaxed))
    }

    pub(crate) fn set_previous(&self, index: u32, previous: u32) {
        self.entry(index).previous.store(previous, Ordering::Relaxed);
    }

    pub(crate) fn set_next(&self, index: u32, next: u32) {
        self.entry(index).next.store(next, Ordering::Relaxed);
    }

    /// Prefetches what freeing runs of `order` in the block at `index` will touch.
    #[inline]
    pub(crate) fn prefetch(&self, index: u32, order: Order) {
        prefetch(self.entry_at(index));
        if order < Order::BLOCK {
            prefetch(self.free_map(index));
        }
    }

    /// Makes the entry at `index` inner again and clears its links. Only for a block that is in no
    /// [lot](LotTable), or whose state is set next.
    pub(crate) fn clear_entry(&self, index: u32) {
        self.entry(index).clear();
    }

    /// [`head_of`](Self::head_of) as a single copy, for code that runs only a few times, where size
    /// matters more than speed.
    #[inline(never)]
    pub(crate) fn cold_head_of(&self, index: u32) -> Option<(u32, BlockState)> {
        self.head_of(index)
    }

    /// Returns the head that covers `index`, in at most ten probes. Nothing if no head does, as in
    /// a hole or in the padding between segments.
    pub(crate) fn head_of(&self, index: u32) -> Option<(u32, BlockState)> {
        if index >= self.len() {
            return None;
        }
        if !self.is_ready(index) {
            let first = index & !(GROUP - 1);
            return Some((first, self.state(first)));
        }
        for level in 0..=(GROUP.trailing_zeros()) {
            let candidate = index & !((1 << level) - 1);
            let state = self.state(candidate);
            if !state.is(State::Inner) {
                return (index - candidate < blocks_of(state.order()))
                    .then_some((candidate, state));
            }
        }
        None
    }

    /// Searches for a group with a free head of at least `order`, from the group of `range.start`
    /// on, among those that begin before `range.end`. Looks at up to `most` groups.
    pub(crate) fn group_with_free(
        &self,
        range: Range<u32>,
        order: Order,
        most: u32,
    ) -> GroupSearch {
        let first = range.start / GROUP;
        let end = range.end.div_ceil(GROUP);
        let largest = |group: u32| {
            let state = self.heads[group as usize].state();
            state.is(State::Free) && state.order() == Order::MAX
        };
        for group in first..end.min(first.saturating_add(most)) {
            let start = group * GROUP;
            if largest(group) || self.is_ready(start) && self.free_heads.has(group, order) {
                return GroupSearch::Found(start);
            }
        }
        if end - first > most {
            GroupSearch::From((first + most) * GROUP)
        } else {
            GroupSearch::None
        }
    }

    /// Returns what tells the lots of freed runs.
    pub(crate) const fn ready_lots(&self) -> ReadyLots {
        ReadyLots { ready: self.ready, lots: self.lots }
    }

    /// Returns whether the lots of a block are those of `state`. For verification, and for
    /// assertions, as verification comes when deferred merges have been made up for.
    #[inline(never)]
    pub(crate) fn has_lots_of(&self, index: u32, state: BlockState) -> bool {
        !self.is_ready(index) || self.lots.matches(index, state)
    }

    /// Returns the numbers of free heads of each group, for verification.
    pub(crate) const fn free_heads(&self) -> FreeHeads {
        self.free_heads
    }
}

/// Returns whether the group of `index` is ready.
#[inline(always)]
fn is_ready(ready: &[AtomicU64], index: u32) -> bool {
    let group = index / GROUP;
    ready.get((group / 64) as usize).is_some_and(|word| {
        // Acquire pairs with the Release in `make_ready`: a reader without the lock sees cleared
        // entries and lots.
        word.load(Ordering::Acquire) >> (group % 64) & 1 != 0
    })
}

/// What a CPU's cache needs of a table. This is a handle, too.
#[derive(Clone, Copy)]
pub(crate) struct ReadyLots {
    ready: &'static [AtomicU64],
    lots: LotTable,
}

impl ReadyLots {
    pub(crate) const EMPTY: Self = Self { ready: &[], lots: LotTable::EMPTY };

    /// Returns the lot to which a run of `order`, at most 9, in the block at `index` belongs: none
    /// if only its zone can take it back, or if the block is part of a larger one whose entries
    /// were never cleared. Reliable as far as the caller owns frames in the block.
    #[inline(always)]
    pub(crate) fn get(&self, index: u32, order: Order) -> Option<Lot> {
        if is_ready(self.ready, index) { self.lots.get(index, order) } else { None }
    }
}

/// The result of a search for a group.
pub(crate) enum GroupSearch {
    /// The first index of the group found.
    Found(u32),
    /// There may be such a group from this index on.
    From(u32),
    /// There is no such group.
    None,
}
