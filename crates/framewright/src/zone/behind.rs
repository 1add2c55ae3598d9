//! The block behind a run that comes up. A read of the run's last page may reach past its end (as
//! `load_unaligned_zeropad` does in Linux), so the next block must have been accepted, whatever its
//! use.
//!
//! If the next block is in the list of unaccepted blocks, it is claimed like any run. Otherwise (it
//! is offline, or about to go) it is accepted where it is and keeps its state. Its head has the
//! mark *going* meanwhile (in the state *accepting* if it was unaccepted), and a CPU that adds or
//! removes memory waits until that is over.
//!
//! Orders of memory: Relaxed: the number of runs that are being accepted; Release: pages that are
//! lost. Both for the reasons given in `unaccepted`.

use super::Zone;
use super::locked::LockedZone;
use super::unaccepted::{AcceptRun, LastBlock, RunEnd, again, is_listed, is_lost};
use crate::block::split::divide_whole;
use crate::block::{BlockState, MigrateType, State};
use crate::platform::Platform;
use crate::sync::table_atomic::Ordering;
use crate::units::Order;

/// What [`Zone::claim_follower`] found of the block behind a run.
pub(crate) enum Follower {
    /// It may be read.
    Readable,
    /// It could not be accepted.
    Lost,
    /// Another CPU is accepting it.
    Busy,
    /// The caller has claimed it and must accept it.
    Claimed(AcceptRun),
}

/// What a block means for the one before it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    /// It is accepted, or it is no memory that has to be accepted.
    Readable,
    Lost,
    Busy,
    /// It is in the list of unaccepted blocks, so somebody will accept it.
    Listed,
    /// It is not accepted and in no list, because it is offline or about to go.
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
            Some(State::Offline) if is_accepted => Self::Readable,
            Some(State::Offline) if state.has(BlockState::POISONED) => Self::Lost,
            Some(State::Offline) => Self::Out,
            _ => Self::Readable,
        }
    }
}

/// Whether the block is offline or about to go, and is being accepted where it is.
pub(super) fn is_accepted_where_it_is(state: BlockState) -> bool {
    let is_either = state.is(State::Accepting) || state.is(State::Offline);
    is_either && state.has(BlockState::GOING)
}

impl Zone {
    fn next_at(&self, index: u32) -> Next {
        self.table.head_of(index).map_or(Next::Readable, |(_, state)| Next::of(state))
    }

    /// Whether the block before the one at `index` waits until that one is accepted. Under the
    /// lock.
    pub(super) fn is_wait_for(&self, index: u32) -> bool {
        matches!(self.next_at(index), Next::Listed | Next::Busy)
    }

    /// What becomes of the block before the one at `index`. Nothing if the one at `index` has to be
    /// accepted first.
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

    /// Takes a free block out of use for good, until it goes, because the one behind it cannot be
    /// read. Returns nothing if it was not free as a whole. Otherwise returns whether it was
    /// isolated; its isolation has ended with this.
    pub(crate) fn lose_free<P: Platform>(&self, platform: &P, index: u32) -> Option<bool> {
        let start = self.start_of(index);
        let order = Order::BLOCK;
        self.allocate_at(platform, start, order, MigrateType::Movable)?;
        // The block was just allocated, and nobody else knows of it.
        let mut locked = self.lock(platform);
        let state = locked.buddy.table.state(index);
        let word = BlockState::head(State::Reserved, order, state.migrate_type());
        locked.isolated_blocks[state.migrate_type() as usize] -= u32::from(state.is_isolated());
        let marks = BlockState::POISONED | BlockState::ACCEPTED;
        locked.buddy.table.clear_entry(index);
        locked.buddy.table.set_state(index, word.with(marks));
        // It was counted as allocated just above, and is not managed any more.
        locked.freed_pages += order.pages();
        self.changing.lost_pages.fetch_add(order.pages(), Ordering::Release);
        Some(state.is_isolated())
    }

    /// Ends the claim of a block behind a run.
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
