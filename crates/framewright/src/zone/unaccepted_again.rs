//! Memory that was added and has to be accepted, and unaccepted memory that is removed.
//!
//! The offline head of memory that was here before tells whether it is accepted; memory that comes
//! for the first time is not. Memory that has to be accepted is inserted in the list of unaccepted
//! memory with a mark. The mark keeps its descriptors from being written, as their part of the
//! array may be gone.
//!
//! Memory that was reported to a host that forgets goes into that list, too. Unaccepted memory that
//! is to be removed leaves the list first, so that nobody accepts it in vain.
//!
//! Orders of memory: Relaxed: counters are written under the zone lock. Pages enter and leave the
//! list with Release, as in `unaccepted`.

use super::Zone;
use super::behind::is_accepted_where_it_is;
use super::locked::{LockedZone, ZoneGuard};
use super::unaccepted::{MOST_HEADS, Unaccepted, is_listed, is_lost};
use crate::block::list::NONE;
use crate::block::table::blocks_of;
use crate::block::{BlockState, MigrateType, State};
use crate::platform::Platform;
use crate::sync::table_atomic::Ordering;
use crate::units::Order;
use core::ops::Range;

/// How many heads are changed under one hold of the lock.
const HEADS_AT_ONCE: u32 = 128;

impl Zone {
    /// Whether the first block at `range`, which is offline, has to be accepted before its use, and
    /// where the run of blocks ends of which the same holds. `forgets` says that absent memory
    /// loses its acceptance.
    pub(crate) fn wants_accepting<P: Platform>(
        &self,
        platform: &P,
        range: &Range<u32>,
        forgets: bool,
    ) -> (bool, u32) {
        let wants = |state: BlockState| {
            let is_there = state.has(BlockState::THERE);
            !state.has(BlockState::ACCEPTED) || forgets && !is_there
        };
        let (wants, end) = self.run_of(platform, range, &|found| found.is_none_or(wants).into());
        (wants != 0, end)
    }

    /// Whether the first block at `range` has or can have an owner, and where the run of blocks
    /// ends of which the same holds. Unaccepted memory that is about to go, memory that could not
    /// be accepted, and pages of pools with memory errors cannot, nor can these once offline.
    pub(crate) fn can_be_taken<P: Platform>(
        &self,
        platform: &P,
        range: &Range<u32>,
    ) -> (bool, u32) {
        let is_bad_offline =
            |state: BlockState| state.is(State::Offline) && state.has(BlockState::POISONED);
        let takeable = |state| {
            !is_going(state) && !is_lost(state) && !is_leaked(state) && !is_bad_offline(state)
        };
        let (takes, end) = self.run_of(platform, range, &|found| found.is_none_or(takeable).into());
        (takes != 0, end)
    }

    /// Makes blocks that are all offline or holes unaccepted memory. If `is_here`, because the
    /// memory never left, those that could not be accepted before are lost.
    pub(crate) fn bring_unaccepted<P: Platform>(
        &self,
        platform: &P,
        range: Range<u32>,
        is_here: bool,
        migrate_type: MigrateType,
    ) {
        self.change_offline(platform, range, true, &mut |locked, index, order, before| {
            self.count_come(locked, order, migrate_type);
            if is_here && before.has(BlockState::POISONED) {
                self.lose(locked, index, order, migrate_type);
                return;
            }
            let word = BlockState::head(State::Unaccepted, order, migrate_type);
            // It was accepted since the caller asked, for the sake of the block before it.
            let is_ahead = before.has(BlockState::THERE) && before.has(BlockState::ACCEPTED);
            let ahead = if is_ahead { BlockState::AHEAD } else { 0 };
            locked.buddy.table.set_state(index, word.with(BlockState::AGAIN | ahead));
            locked.insert_unaccepted(index);
            self.add_unaccepted(order.pages(), migrate_type);
        });
    }

    /// Makes a block lost that was offline or a hole: it is accepted, but the one behind it cannot
    /// be. If it has a memory error and `is_here`, because it never left, it keeps that.
    pub(crate) fn bring_lost<P: Platform>(
        &self,
        platform: &P,
        index: u32,
        is_here: bool,
        migrate_type: MigrateType,
    ) {
        let range = index..index + 1;
        self.change_offline(platform, range, false, &mut |locked, index, order, before| {
            self.count_come(locked, order, migrate_type);
            if is_here && before.has(BlockState::POISONED) {
                locked.buddy.table.set_state(index, leaked_word(order, migrate_type));
                return;
            }
            self.lose(locked, index, order, migrate_type);
            let table = locked.buddy.table;
            table.set_state(index, table.state(index).with(BlockState::ACCEPTED));
        });
    }

    /// Makes blocks lost that could not be accepted.
    pub(super) fn lose(
        &self,
        locked: &LockedZone,
        index: u32,
        order: Order,
        migrate_type: MigrateType,
    ) {
        let word = BlockState::head(State::Reserved, order, migrate_type);
        locked.buddy.table.set_state(index, word.with(BlockState::POISONED));
        self.changing.lost_pages.fetch_add(order.pages(), Ordering::Release);
    }

    /// Takes unaccepted memory, none of which is being accepted, out of the list. It then counts as
    /// reserved. Returns the number of pages.
    pub(crate) fn withhold_unaccepted<P: Platform>(&self, platform: &P, range: Range<u32>) -> u64 {
        let mut pages = 0;
        self.each_unaccepted(platform, range.clone(), false, is_listed, |locked, index| {
            let order = locked.cut_unaccepted(index, range.end);
            let state = locked.buddy.table.state(index);
            locked.unlink_unaccepted(index);
            locked.buddy.table.set_state(index, state.with(BlockState::GOING));
            self.reserved_pages.fetch_add(order.pages(), Ordering::Relaxed);
            self.sub_unaccepted(order.pages(), state.migrate_type());
            self.managed_pages.fetch_sub(order.pages(), Ordering::Relaxed);
            pages += order.pages();
        });
        pages
    }

    /// Undoes [`withhold_unaccepted`](Self::withhold_unaccepted).
    pub(crate) fn keep_unaccepted<P: Platform>(&self, platform: &P, range: Range<u32>) {
        self.each_unaccepted(platform, range, true, is_going, |locked, index| {
            let state = locked.buddy.table.state(index);
            let order = state.order();
            self.managed_pages.fetch_add(order.pages(), Ordering::Relaxed);
            self.reserved_pages.fetch_sub(order.pages(), Ordering::Relaxed);
            if state.has(BlockState::POISONED) {
                self.lose(locked, index, order, state.migrate_type());
                return;
            }
            locked.buddy.table.set_state(index, state.without(BlockState::GOING));
            locked.insert_unaccepted(index);
            self.add_unaccepted(order.pages(), state.migrate_type());
        });
    }

    /// Takes the lock with `take` once the place in the list is found for a head that is about to
    /// be inserted at `index`; each hold makes a bounded number of steps. From that place the
    /// places of following heads are few steps away as long as the lock is held. Between holds
    /// others may move the position.
    pub(super) fn near_place<'a, P: Platform>(
        &self,
        index: u32,
        take: impl Fn() -> ZoneGuard<'a, P>,
    ) -> ZoneGuard<'a, P> {
        loop {
            let mut locked = take();
            if locked.step_towards(index) {
                return locked;
            }
        }
    }

    /// Calls `change` for each `wanted` unaccepted head in `range`, some under each hold of the
    /// lock, with the index where its part of the range begins. `inserts` says that heads are put
    /// into the list.
    fn each_unaccepted<P: Platform>(
        &self,
        platform: &P,
        range: Range<u32>,
        inserts: bool,
        wanted: impl Fn(BlockState) -> bool,
        mut change: impl FnMut(&mut LockedZone, u32),
    ) {
        let mut next = range.start;
        while next < range.end {
            let lock = || self.lock(platform);
            let mut locked = if inserts { self.near_place(next, lock) } else { lock() };
            let mut is_busy = false;
            for _ in 0..HEADS_AT_ONCE {
                let Some(found) = self.table.heads(next..range.end).next() else { return };
                if is_accepted_where_it_is(found.state) {
                    is_busy = true;
                    break;
                }
                if found.state.is(State::Unaccepted) && wanted(found.state) {
                    change(&mut locked, found.index);
                    // `change` may have divided the head.
                    let order = self.table.state(found.index).order();
                    next = found.index + blocks_of(order);
                } else {
                    next = found.end();
                }
                if next >= range.end {
                    return;
                }
            }
            drop(locked);
            if is_busy {
                platform.relax();
            }
        }
    }

    /// Updates the counters for a head that goes and was unaccepted or could not be accepted.
    /// Returns false if it was neither.
    pub(super) fn uncount_unaccepted(&self, state: BlockState, pages: u64) -> bool {
        if is_lost(state) {
            // Readers subtract `lost_pages` from `managed_pages`, so these two changes cancel out.
            self.managed_pages.fetch_sub(pages, Ordering::Relaxed);
            self.changing.lost_pages.fetch_sub(pages, Ordering::Release);
        } else if is_going(state) {
            self.reserved_pages.fetch_sub(pages, Ordering::Relaxed);
        } else {
            return false;
        }
        true
    }
}

/// Whether an unaccepted head is about to go, and so in no list.
fn is_going(state: BlockState) -> bool {
    let is_unaccepted = state.is(State::Unaccepted) || state.is(State::Accepting);
    is_unaccepted && state.has(BlockState::GOING)
}

/// The state of a block that left its pool with a memory error, so that nobody will ever own it
/// again.
pub(super) const fn leaked_word(order: Order, migrate_type: MigrateType) -> BlockState {
    BlockState::head(State::Whole, order, migrate_type).with(BlockState::POISONED)
}

/// Whether the block left its pool with a memory error: see [`leaked_word`].
pub(super) fn is_leaked(state: BlockState) -> bool {
    state.is(State::Whole) && state.has(BlockState::POISONED)
}

/// Whether a block that goes is never handed out again unless it really leaves the machine: it has
/// a memory error or could not be accepted. The one behind it could not be is no reason.
pub(super) fn is_bad(state: BlockState) -> bool {
    let is_for_another = is_lost(state) && state.has(BlockState::ACCEPTED);
    state.has(BlockState::POISONED) && !is_for_another
}

/// Whether memory that had this state before it went is accepted.
pub(super) fn was_accepted(state: BlockState) -> bool {
    let may_not_be = state.is(State::Unaccepted) || state.is(State::Offline) || is_lost(state);
    !may_not_be || state.has(BlockState::ACCEPTED)
}

impl LockedZone {
    /// Moves the position in the list towards the last head before `index`, by a bounded number of
    /// steps. Returns whether it has got there, or there is no such head.
    fn step_towards(&mut self, index: u32) -> bool {
        let table = self.buddy.table;
        let Unaccepted { first, last, near } = self.unaccepted;
        let mut at = if last == NONE || last < index { last } else { near };
        for _ in 0..MOST_HEADS {
            let next = if at == NONE { first } else { table.links(at).1 };
            if at != NONE && at > index {
                (at, _) = table.links(at);
            } else if next != NONE && next < index {
                at = next;
            } else {
                self.unaccepted.near = at;
                return true;
            }
        }
        self.unaccepted.near = at;
        false
    }

    /// Inserts an unaccepted head into the list at its place, which is [near](Zone::near_place).
    pub(super) fn insert_unaccepted(&mut self, index: u32) {
        let table = self.buddy.table;
        // Mostly its place is behind its neighbour in memory, or at the end.
        let neighbour = index.checked_sub(1).and_then(|before| table.head_of(before));
        match neighbour {
            Some((head, state)) if is_listed(state) => self.unaccepted.near = head,
            _ => while !self.step_towards(index) {},
        }
        let previous = self.unaccepted.near;
        self.unaccepted.near = index;
        let next = match previous {
            NONE => core::mem::replace(&mut self.unaccepted.first, index),
            previous => {
                let (_, next) = table.links(previous);
                table.set_next(previous, index);
                next
            }
        };
        table.cold_entry(index).set_links(previous, next);
        match next {
            NONE => self.unaccepted.last = index,
            next => table.set_previous(next, index),
        }
    }
}
