//! The block behind a run that comes up: pages may be read past their end, and so it must have been
//! accepted, whatever it is.
//!
//! What is in the list is claimed as any run. What is not is accepted where it is, and stays what
//! it is: memory that is offline, or about to go. Its head has the mark *going* meanwhile, in the
//! state *accepting* where it was unaccepted, and who adds or removes memory waits for its end.
//!
//! Orders of memory: Relaxed: the number of runs that are being accepted; Release: pages that are
//! lost. Both as in `unaccepted`.

use super::Zone;
use super::locked::LockedZone;
use super::unaccepted::{AcceptRun, LastBlock, RunEnd, again, is_listed, is_lost};
use crate::block::split::divide_whole;
use crate::block::{BlockState, MigrateType, State};
use crate::platform::Platform;
use crate::sync::table_atomic::Ordering;
use crate::units::Order;

/// What is with the block behind a run.
pub(crate) enum Follower {
    /// It may be read.
    Readable,
    /// It could not be accepted.
    Lost,
    /// Somebody accepts it.
    Busy,
    /// It is the caller's to accept.
    Claimed(AcceptRun),
}

/// What a block is to the one before it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    /// It is accepted, or no memory that has to be.
    Readable,
    Lost,
    Busy,
    /// Somebody comes for it.
    Listed,
    /// It is not accepted, and nobody comes for it: it is offline, or goes.
    Out,
}

impl Next {
    fn of(state: BlockState) -> Self {
        let is_accepted = state.has(BlockState::ACCEPTED);
        match state.state() {
            Some(State::Accepting) => Self::Busy,
            _ if is_lost(state) && is_accepted => Self::Readable,
            _ if is_lost(state) => Self::Lost,
            Some(State::Unaccepted) if is_accepted => Self::Readable,
            Some(State::Unaccepted) if state.has(BlockState::POISONED) => Self::Lost,
            Some(State::Unaccepted) if is_listed(state) => Self::Listed,
            Some(State::Unaccepted) if state.has(BlockState::GOING) => Self::Out,
            Some(State::Offline) if state.has(BlockState::GOING) => Self::Busy,
            Some(State::Offline) if !state.has(BlockState::THERE) => Self::Readable,
            Some(State::Offline) if state.has(BlockState::POISONED) => Self::Lost,
            Some(State::Offline) if !is_accepted => Self::Out,
            _ => Self::Readable,
        }
    }
}

/// Whether a block that is offline, or goes, is being accepted.
pub(super) fn is_accepted_where_it_is(state: BlockState) -> bool {
    let is_either = state.is(State::Accepting) || state.is(State::Offline);
    is_either && state.has(BlockState::GOING)
}

impl Zone {
    fn next_at(&self, index: u32) -> Next {
        self.table.head_of(index).map_or(Next::Readable, |(_, state)| Next::of(state))
    }

    /// Whether a block waits for the one at `index`, under the lock: that somebody comes for it, or
    /// has done with it.
    pub(super) fn is_wait_for(&self, index: u32) -> bool {
        matches!(self.next_at(index), Next::Listed | Next::Busy)
    }

    /// What becomes of a block now that the one at `index` lies behind it; nothing where that has
    /// to be accepted for it.
    pub(crate) fn last_before<P: Platform>(&self, platform: &P, index: u32) -> Option<LastBlock> {
        let _locked = self.read(platform);
        match self.next_at(index) {
            Next::Lost => Some(LastBlock::Lost),
            Next::Readable => Some(LastBlock::Free),
            Next::Listed | Next::Busy => Some(LastBlock::Ahead),
            Next::Out => None,
        }
    }

    /// Claims the block at `index`, which lies behind a run, unless it may be read already.
    pub(crate) fn claim_follower<P: Platform>(&self, platform: &P, index: u32) -> Follower {
        let mut locked = self.lock(platform);
        match self.next_at(index) {
            Next::Readable => Follower::Readable,
            Next::Lost => Follower::Lost,
            Next::Busy => Follower::Busy,
            Next::Listed => Follower::Claimed(self.claim(&mut locked, index, index + 1)),
            Next::Out => Follower::Claimed(self.claim_where_it_is(&locked, index)),
        }
    }

    fn claim_where_it_is(&self, locked: &LockedZone, index: u32) -> AcceptRun {
        let table = locked.buddy.table;
        let order = divide_whole(&table, index, index + 1).unwrap_or(Order::BLOCK);
        let state = table.state(index);
        let word = if state.is(State::Offline) {
            state
        } else {
            BlockState::head(State::Accepting, order, state.migrate_type()).with(again(state))
        };
        table.set_state(index, word.with(BlockState::GOING));
        self.changing.accepting_runs.fetch_add(1, Ordering::Relaxed);
        AcceptRun { index, order, start: self.start_of(index), is_ahead: false, is_again: true }
    }

    /// Takes a free block out of use for good, until it goes: the one behind it cannot be read.
    /// Nothing where it was not free as a whole; else whether somebody has isolated it meanwhile,
    /// for whom it is no block any more.
    pub(crate) fn lose_free<P: Platform>(&self, platform: &P, index: u32) -> Option<bool> {
        let start = self.start_of(index);
        let order = Order::BLOCK;
        self.allocate_at(platform, start, order, MigrateType::Movable)?;
        // Of a block that nobody knows but this.
        let mut locked = self.lock(platform);
        let state = locked.buddy.table.state(index);
        let word = BlockState::head(State::Reserved, order, state.migrate_type());
        locked.isolated_blocks[state.migrate_type() as usize] -= u32::from(state.is_isolated());
        let marks = BlockState::POISONED | BlockState::ACCEPTED;
        locked.buddy.table.set_inner(index);
        locked.buddy.table.set_state(index, word.with(marks));
        self.changing.lost_pages.fetch_add(order.pages(), Ordering::Release);
        Some(state.is_isolated())
    }

    /// Ends a claim of a block behind a run.
    pub(crate) fn finish_follower<P: Platform>(
        &self,
        platform: &P,
        run: &AcceptRun,
        is_accepted: bool,
    ) {
        let locked = self.lock(platform);
        let table = locked.buddy.table;
        let state = table.state(run.index);
        if !is_accepted_where_it_is(state) {
            drop(locked);
            let last = if is_accepted { LastBlock::Ahead } else { LastBlock::Lost };
            let accepted_blocks = u32::from(is_accepted);
            self.finish_run(platform, run, RunEnd { accepted_blocks, last, guards: false });
            return;
        }
        let mark = if is_accepted { BlockState::ACCEPTED } else { BlockState::POISONED };
        let word = if state.is(State::Offline) {
            state.without(BlockState::GOING)
        } else {
            BlockState::head(State::Unaccepted, run.order, state.migrate_type())
                .with(BlockState::GOING | again(state))
        };
        table.set_state(run.index, word.with(mark));
        self.changing.accepting_runs.fetch_sub(1, Ordering::Relaxed);
    }
}
