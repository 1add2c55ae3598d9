//! Blocks that become memory, and blocks that stop being memory, while the machine runs.
//!
//! ```text
//!   hole ──prepare──> offline ──bring_online──> free ... allocated ──take_offline──> offline
//! ```
//!
//! A block that is *offline* has an entry in the table but is no memory in use and counts nowhere.
//! Offline blocks are in heads as large as possible. A GiB that is all offline is one head of a
//! group that is not ready, so that nobody reads its other entries (invariant 5), even where their
//! memory is gone.
//!
//! Orders of memory: Relaxed: counters are written under the zone lock.

use super::Zone;
use super::behind::is_accepted_where_it_is;
use super::initialise::ZoneTables;
use super::locked::LockedZone;
use super::remembered::Remembered;
use super::unaccepted::{is_listed, is_lost};
use super::unaccepted_again::{is_bad, is_leaked, leaked_word, was_accepted};
use crate::block::list::Position;
use crate::block::split::divide_whole;
use crate::block::table::largest_piece;
use crate::block::table::{BlockTable, GROUP, blocks_of};
use crate::block::{BlockState, MigrateType, Segment, State};
use crate::page::Descriptors;
use crate::platform::Platform;
use crate::sync::table_atomic::Ordering;
use crate::units::{Order, PfnRange, PhysRange};
use crate::zone::{Grade, ZoneId};
use core::ops::Range;

/// How many heads are changed under one hold of the lock, some 50 ns each.
const HEADS_AT_ONCE: u32 = 128;

/// The migrate type of offline blocks, which means nothing.
const NO_TYPE: MigrateType = MigrateType::Movable;

/// What a block is to code that adds and removes memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    /// Memory that is handed out or reserved.
    Online,
    /// Memory that is offline: no request gets it.
    Offline,
    /// No memory.
    Absent,
}

impl Presence {
    const fn of(state: BlockState) -> Self {
        match state.state() {
            Some(State::Offline) if state.has(BlockState::THERE) => Self::Offline,
            Some(State::Offline) => Self::Absent,
            _ => Self::Online,
        }
    }

    /// The state word of a head that is no memory in use.
    pub(super) const fn word(self, order: Order, is_accepted: bool) -> BlockState {
        let there = if matches!(self, Self::Offline) { BlockState::THERE } else { 0 };
        let accepted = if is_accepted { BlockState::ACCEPTED } else { 0 };
        BlockState::head(State::Offline, order, NO_TYPE).with(there | accepted)
    }
}

/// The past of a removed block that was offline before its removal. Otherwise the past is the
/// number of the migrate type of its grade, or 0 if it is not known.
const WAS_OFFLINE: u64 = 7;

/// The past to record for a head that is about to be no memory.
fn past_of(state: BlockState) -> u64 {
    if state.is(State::Offline) {
        return WAS_OFFLINE;
    }
    Grade::of(state.migrate_type()).migrate_type() as u64
}

/// What a hotplug window is made of.
pub(crate) struct Window {
    pub(crate) id: ZoneId,
    /// The window's number among the parts of its zone.
    pub(crate) part: u16,
    pub(crate) segments: &'static [Segment],
    pub(crate) tables: ZoneTables,
    /// The memory of the window's tables that lies outside of it.
    pub(crate) table_memory: PhysRange,
    /// Whether other tables of the window lie inside it.
    pub(crate) has_own_tables: bool,
    pub(crate) remembered: Remembered,
    pub(crate) descriptors: Descriptors,
    /// The seed of its shuffle, if shuffling is on.
    pub(crate) shuffle_seed: Option<u64>,
}

/// The pieces in which memory is taken out of use: at most `most` blocks each, a multiple of
/// `align` and aligned to it.
#[derive(Clone, Copy)]
pub(crate) struct Pieces {
    pub(crate) most: u32,
    pub(crate) align: u32,
}

impl Zone {
    /// Makes a part of a zone none of whose blocks is memory yet.
    #[inline(always)]
    pub(crate) fn window(window: Window) -> Self {
        let Window { id, part, segments, tables, table_memory, descriptors, .. } = window;
        let mut zone = Self::new(id, part, part + 1);
        zone.table_memory = table_memory;
        zone.has_own_tables = window.has_own_tables;
        zone.remembered = window.remembered;
        if let Some(segment) = segments.first() {
            let range = PfnRange { start: segment.start.start(), end: segment.end().start() };
            zone.attach(range, segments, &tables);
            zone.pfn_range = range;
            zone.changing.locked.get_mut().make_offline(segment.indices());
        }
        if let Some(seed) = window.shuffle_seed {
            zone.begin_shuffling(seed);
        }
        zone.descriptors = Some(descriptors);
        zone.changing.locked.get_mut().descriptors = Some(descriptors);
        zone
    }

    /// Passes the table to `look`, for callers without the lock. A table that may go with the
    /// memory in which it lies is looked at under the lock, so that it stays as long as `look` runs
    /// (invariant 49).
    #[inline]
    pub(super) fn look_at_table<P: Platform, R>(
        &self,
        platform: &P,
        look: impl FnOnce(&BlockTable) -> R,
    ) -> R {
        let _locked = self.has_own_tables.then(|| self.read(platform));
        look(&self.table)
    }

    /// The head that covers block `index` and its state, for callers without the lock: a guess.
    pub(crate) fn head_unlocked<P: Platform>(
        &self,
        platform: &P,
        index: u32,
    ) -> Option<(u32, BlockState)> {
        self.look_at_table(platform, |table| table.head_unlocked(index))
    }

    /// What the first block at `range` is, and where the run of blocks that are alike ends.
    pub(crate) fn place_of<P: Platform>(
        &self,
        platform: &P,
        range: &Range<u32>,
    ) -> (Presence, u32) {
        let of = |found: Option<BlockState>| found.map_or(Presence::Absent, Presence::of);
        let (place, end) = self.run_of(platform, range, &|found| of(found) as u64);
        let all = [Presence::Online, Presence::Offline];
        let place = all.into_iter().find(|&one| one as u64 == place);
        (place.unwrap_or(Presence::Absent), end)
    }

    /// What the first block at `range`, which is no memory, was before its removal, and where the
    /// run of blocks with that past ends. The past is a grade, none if the block was offline, and
    /// `unknown` if it is not known any more.
    pub(crate) fn past_of<P: Platform>(
        &self,
        platform: &P,
        range: &Range<u32>,
        unknown: Option<Grade>,
    ) -> (Option<Grade>, u32) {
        let absent = |state: &BlockState| Presence::of(*state) == Presence::Absent;
        let (past, end) =
            self.run_of(platform, range, &|found| found.filter(absent).map_or(0, BlockState::past));
        let past = match past {
            0 => unknown,
            WAS_OFFLINE => None,
            number => Some(Grade::of(MigrateType::from_bits(number))),
        };
        (past, end)
    }

    /// What `kind` returns for the first block at `range`, given the state of the head that covers
    /// it, and where the run of blocks with that result ends.
    #[inline(never)]
    pub(super) fn run_of<P: Platform>(
        &self,
        platform: &P,
        range: &Range<u32>,
        kind: &dyn Fn(Option<BlockState>) -> u64,
    ) -> (u64, u32) {
        let (mut found, mut next) = (None, range.start);
        while next < range.end {
            let locked = self.read_coalesced(platform);
            for _ in 0..HEADS_AT_ONCE {
                if next >= range.end {
                    break;
                }
                let head = locked.buddy.table.head_of(next);
                let this = kind(head.map(|(_, state)| state));
                let first = *found.get_or_insert(this);
                if first != this {
                    return (first, next);
                }
                let end = head.map_or(next + 1, |(head, state)| {
                    head + blocks_of(state.order().max(Order::BLOCK))
                });
                next = end.min(range.end);
            }
        }
        (found.unwrap_or_else(|| kind(None)), range.end)
    }

    /// Makes absent blocks offline memory. If the memory `is_here`, because it never left, the mark
    /// stays that it has an error or could not be accepted. With `forgets` the memory counts as not
    /// accepted any more.
    pub(crate) fn put_offline<P: Platform>(
        &self,
        platform: &P,
        range: Range<u32>,
        is_here: bool,
        forgets: bool,
    ) {
        let mark = if is_here { BlockState::POISONED } else { 0 };
        self.change_offline(platform, range.clone(), false, &mut |locked, index, order, before| {
            let is_accepted = before.has(BlockState::ACCEPTED) && !forgets;
            let word = Presence::Offline.word(order, is_accepted);
            let word = if before.has(mark) { word.with(mark) } else { word };
            locked.buddy.table.set_state(index, word);
        });
        self.gather_offline(platform, range);
    }

    /// Makes blocks free that are all offline or holes. If the memory `is_here`, because it never
    /// left, nobody gets blocks with memory errors.
    pub(crate) fn bring_online<P: Platform>(
        &self,
        platform: &P,
        range: Range<u32>,
        is_here: bool,
        migrate_type: MigrateType,
    ) {
        self.change_offline(platform, range, false, &mut |locked, index, order, before| {
            self.count_come(locked, order, migrate_type);
            if is_here && before.has(BlockState::POISONED) {
                locked.buddy.table.set_state(index, leaked_word(order, migrate_type));
                return;
            }
            // With shuffling on, `free` flips a coin instead.
            let position = Position::tail_if(!self.shuffles);
            locked.buddy.free(index, order, migrate_type, position);
        });
    }

    /// Counts blocks that are managed from now on.
    pub(super) fn count_come(
        &self,
        locked: &mut LockedZone,
        order: Order,
        migrate_type: MigrateType,
    ) {
        locked.buddy.count_blocks(migrate_type, blocks_of(order));
        locked.is_unusual |= migrate_type.is_grade();
        self.present_pages.fetch_add(order.pages(), Ordering::Relaxed);
        self.managed_pages.fetch_add(order.pages(), Ordering::Relaxed);
    }

    /// Makes blocks that are all offline reserved memory, because tables lie there.
    pub(crate) fn bring_tables_online<P: Platform>(&self, platform: &P, range: Range<u32>) {
        self.change_offline(platform, range, false, &mut |locked, index, order, _| {
            locked.buddy.count_blocks(NO_TYPE, blocks_of(order));
            locked.buddy.table.set_state(index, BlockState::head(State::Reserved, order, NO_TYPE));
            self.present_pages.fetch_add(order.pages(), Ordering::Relaxed);
            self.reserved_pages.fetch_add(order.pages(), Ordering::Relaxed);
        });
    }

    /// Calls `change` for pieces of blocks that are offline or holes, with the state that each had;
    /// by then the piece is an inner head. `is_listed` says that they become unaccepted memory,
    /// which is in a list.
    pub(super) fn change_offline<P: Platform>(
        &self,
        platform: &P,
        range: Range<u32>,
        is_listed: bool,
        change: &mut dyn FnMut(&mut LockedZone, u32, Order, BlockState),
    ) {
        let mut index = range.start;
        while index < range.end {
            let lock = || self.lock_coalesced(platform);
            let mut locked = if is_listed { self.near_place(index, lock) } else { lock() };
            let mut is_busy = false;
            for _ in 0..HEADS_AT_ONCE {
                if index >= range.end {
                    break;
                }
                let table = locked.buddy.table;
                let order = match table.head_of(index) {
                    None => Order::BLOCK,
                    Some((_, state)) if is_accepted_where_it_is(state) => {
                        is_busy = true;
                        break;
                    }
                    Some(_) => divide_whole(&table, index, range.end).unwrap_or(Order::BLOCK),
                };
                let before = table.state(index);
                table.clear_entry(index);
                change(&mut locked, index, order, before);
                index += blocks_of(order);
            }
            drop(locked);
            if is_busy {
                platform.relax();
            }
        }
    }

    /// Makes blocks offline or absent. They are allocated whole by the caller, hold tables that are
    /// not needed any more, or are offline already. Returns how many of them others had isolated
    /// meanwhile; their isolation ends.
    pub(crate) fn take_offline<P: Platform>(
        &self,
        platform: &P,
        range: Range<u32>,
        to: Presence,
    ) -> u64 {
        // Note what was accepted only if the platform accepts memory at all: a GiB whose heads are
        // not alike stays divided. It is noted for a host that forgets, too, because the host may
        // refuse to take the memory back.
        let remembers = platform.accept_memory().is_some();
        let mut isolated = 0;
        let mut index = range.start;
        while index < range.end {
            let mut locked = self.lock_coalesced(platform);
            let before = locked.unused_pages();
            let mut is_busy = false;
            for _ in 0..HEADS_AT_ONCE {
                if index >= range.end {
                    break;
                }
                let head = locked.buddy.table.head_of(index);
                is_busy = head.is_some_and(|(_, state)| is_accepted_where_it_is(state));
                if is_busy {
                    break;
                }
                let blocks_before = locked.isolated_blocks.iter().sum::<u32>();
                let word = |order, state: BlockState| {
                    let mark = if is_bad(state) { BlockState::POISONED } else { 0 };
                    let past = if to == Presence::Absent { past_of(state) } else { 0 };
                    let word = to.word(order, remembers && was_accepted(state));
                    word.with(mark).with_past(past)
                };
                index += self.take_head_offline(&mut locked, index, range.end, &word);
                isolated += u64::from(blocks_before - locked.isolated_blocks.iter().sum::<u32>());
            }
            locked.note_freed_since(before);
            drop(locked);
            if is_busy {
                platform.relax();
            }
        }
        self.gather_offline(platform, range);
        if self.is_gone() {
            self.leave_tables(platform);
        }
        isolated
    }

    /// Makes one head offline or absent. `word` returns its new state word, given its order and old
    /// state. Returns how many blocks the head has.
    fn take_head_offline(
        &self,
        locked: &mut LockedZone,
        index: u32,
        end: u32,
        word: &dyn Fn(Order, BlockState) -> BlockState,
    ) -> u32 {
        let table = locked.buddy.table;
        let Some((head, found)) = table.head_of(index) else { return 1 };
        locked.end_count(head);
        let order = divide_whole(&table, index, end).unwrap_or(Order::BLOCK);
        if found.is(State::Offline) {
            table.set_state(index, word(order, found));
            return blocks_of(order);
        }
        let (blocks, pages) = (blocks_of(order), order.pages());
        let state = table.state(index);
        if state.is_isolated() {
            locked.isolated_blocks[state.migrate_type() as usize] -= blocks;
        }
        locked.buddy.uncount_blocks(state.migrate_type(), blocks);
        let was_used = if self.uncount_unaccepted(state, pages) {
            false
        } else if state.is(State::Reserved) {
            self.reserved_pages.fetch_sub(pages, Ordering::Relaxed);
            false
        } else {
            self.managed_pages.fetch_sub(pages, Ordering::Relaxed);
            true
        };
        self.present_pages.fetch_sub(pages, Ordering::Relaxed);
        locked.freed_pages += if was_used { pages } else { 0 };
        table.clear_entry(index);
        table.set_state(index, word(order, state));
        blocks
    }

    /// Merges the offline heads of each GiB that has a part in `range`.
    fn gather_offline<P: Platform>(&self, platform: &P, range: Range<u32>) {
        let first = range.start & !(GROUP - 1);
        for group in (first..range.end).step_by(GROUP as usize) {
            let mut locked = self.lock_coalesced(platform);
            for segment in self.segments {
                let blocks =
                    segment.indices().start.max(group)..segment.indices().end.min(group + GROUP);
                if !blocks.is_empty() {
                    locked.gather_offline(blocks);
                }
            }
        }
    }

    /// From the first to the last block that is memory, for a window; the span, for other parts.
    pub(crate) fn present_span<P: Platform>(&self, platform: &P, is_window: bool) -> PfnRange {
        let none = PfnRange::new(0, 0);
        let Some(segment) = self.segments.first().filter(|_| is_window) else { return self.span };
        if self.present_pages() == 0 {
            return none;
        }
        let (mut span, mut rest) = (none, segment.indices());
        while !rest.is_empty() {
            let (presence, end) = self.place_of(platform, &rest);
            if presence == Presence::Online {
                let [first, end] = [rest.start, end].map(|at| segment.block_of(at).start());
                let start = if span.is_empty() { first } else { span.start };
                span = PfnRange { start, end };
            }
            rest.start = end;
        }
        span
    }

    /// The longest run of blocks within `range` that are free, offline, not accepted, or lost
    /// because they could not be accepted, cut to the size of a piece. Of equally long runs, the
    /// highest. The lock is not held throughout: others may take blocks of the run meanwhile.
    pub(crate) fn highest_free<P: Platform>(
        &self,
        platform: &P,
        segment: &Segment,
        range: &Range<u32>,
        Pieces { most, align }: Pieces,
    ) -> Option<Range<u32>> {
        let mut best: Option<Range<u32>> = None;
        let mut run: Option<Range<u32>> = None;
        let mut next = range.start;
        let consider = |run: &Range<u32>, best: &mut Option<Range<u32>>| {
            let first = segment.block_of(run.start).0.next_multiple_of(align);
            let last = (segment.block_of(run.start).0 + (run.end - run.start)) / align * align;
            let blocks = last.saturating_sub(first).min(most / align * align);
            if blocks == 0 {
                return;
            }
            let end = run.start + (last - segment.block_of(run.start).0);
            if best.as_ref().is_none_or(|best| blocks >= best.end - best.start) {
                *best = Some(end - blocks..end);
            }
        };
        while next < range.end {
            let locked = self.read_coalesced(platform);
            for _ in 0..HEADS_AT_ONCE {
                if next >= range.end {
                    break;
                }
                let found = locked.buddy.table.head_of(next);
                let end = found
                    .map_or(next + 1, |(head, state)| head + blocks_of(state.order()))
                    .min(range.end);
                let is_free = found.is_some_and(|(_, state)| {
                    state.is(State::Free)
                        || state.is(State::Unaccepted) && is_listed(state)
                        || is_lost(state)
                        || is_leaked(state)
                        || Presence::of(state) == Presence::Offline
                });
                match &mut run {
                    Some(run) if is_free && run.end == next => run.end = end,
                    _ => {
                        if let Some(run) = run.take() {
                            consider(&run, &mut best);
                        }
                        run = is_free.then_some(next..end);
                    }
                }
                next = end;
            }
        }
        if let Some(run) = run {
            consider(&run, &mut best);
        }
        best
    }
}

impl LockedZone {
    /// Makes all these blocks absent, whatever the table says of them.
    pub(super) fn make_offline(&mut self, range: Range<u32>) {
        let table = self.buddy.table;
        let mut index = range.start;
        while index < range.end {
            let order = largest_piece(index, range.end, Order::MAX);
            if order == Order::MAX {
                table.make_unready(index);
            } else {
                table.make_ready(index, false);
            }
            let entry = table.cold_entry(index);
            entry.clear();
            table.set_state_and_lots(entry, index, Presence::Absent.word(order, false));
            index += blocks_of(order);
        }
    }

    /// Merges the offline heads among blocks of one GiB.
    #[inline(never)]
    fn gather_offline(&mut self, range: Range<u32>) {
        let table = self.buddy.table;
        let place = |index: u32| {
            let (_, state) = table.head_of(index)?;
            // A head that is being accepted or could not be accepted stays as it is.
            let is_marked = state.has(BlockState::GOING | BlockState::POISONED);
            let is_alike = state.is(State::Offline) && !is_marked;
            is_alike.then(|| state.with_order(Order::BLOCK))
        };
        let mut index = range.start;
        while index < range.end {
            let first = index;
            let word = place(first);
            while index < range.end && place(index) == word {
                index += 1;
            }
            if let Some(word) = word {
                self.set_offline(first..index, word);
            }
        }
    }

    /// Puts offline blocks of one GiB into as few heads as possible.
    pub(super) fn set_offline(&self, range: Range<u32>, word: BlockState) {
        let table = self.buddy.table;
        let mut index = range.start;
        if range.end - index == GROUP && index.is_multiple_of(GROUP) {
            table.make_unready(index);
        } else {
            // While a group is one head, a part of it cannot be offline alone.
            table.make_ready(index, false);
            table.clear_entries_and_lots(range.clone());
        }
        while index < range.end {
            let order = largest_piece(index, range.end, Order::MAX);
            let entry = table.cold_entry(index);
            entry.clear();
            table.set_state_and_lots(entry, index, word.with_order(order));
            index += blocks_of(order);
        }
    }
}
