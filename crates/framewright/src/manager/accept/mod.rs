//! Unaccepted memory: runs are accepted for requests (`demand`), all at once by a job, or a little
//! at a time in the background (`all`).
//!
//! A run is claimed in its zone (`zone::unaccepted`), the platform accepts it without any lock
//! held, and then it is free. CPUs claim different runs and do not wait for one another. Only a CPU
//! that needs exactly the memory that another is accepting waits for that.
//!
//! ```text
//!   request ───> grow ────────> lowest run       ─┐
//!   isolation ─> grow_at ─────> runs of a range  ─┼─ claim ─> AcceptMemory ─> block behind ─> free
//!   job, poll ─> accept_some ─> highest run      ─┘               └─ fails: lost, reserved
//! ```
//!
//! Requests take the lowest memory, a block at a time, so that the block which had to be accepted
//! behind one becomes available next. Callers that accept more take it from the end: the memory
//! behind it is accepted already, and no block of 1 GiB has to be split for the sake of the next
//! one.

mod all;
mod demand;

pub use all::Acceptor;
pub(in crate::manager) use demand::Growing;

use crate::manager::facets::Acceptance;
use crate::manager::state::Manager;
use crate::manager::state::accept::AcceptEvents;
use crate::parameters::AcceptPolicy;
use crate::platform::{AcceptMemory, Platform, pinned};
use crate::units::{Pfn, PfnRange};
use crate::vmemmap_space::BlockNumber;
use crate::zone::{AcceptRun, Batch, Follower, LastBlock, RunEnd, Zone};

impl<P: Platform> Acceptance<'_, P> {
    /// Returns the policy from `accept_memory=`.
    #[must_use]
    pub const fn policy(self) -> AcceptPolicy {
        self.manager.accept.policy
    }

    /// Returns how many pages of all zones are not accepted yet. This includes blocks that were
    /// accepted ahead of their use, because the block before them is in use, and are not handed out
    /// yet.
    #[must_use]
    pub fn unaccepted_pages(self) -> u64 {
        self.manager.zones().iter().map(Zone::unaccepted_pages).sum()
    }

    /// Returns how many pages are out of use because they, or the pages behind them, could not be
    /// accepted.
    #[must_use]
    pub fn lost_pages(self) -> u64 {
        self.manager.zones().iter().map(Zone::lost_pages).sum()
    }

    /// Returns the counts of what was accepted so far.
    #[must_use]
    pub fn events(self) -> AcceptEvents {
        self.manager.accept.events()
    }
}

/// What to do about the block behind a run, if pages may be read past their end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Behind {
    /// Accept it.
    Accepted,
    /// Unless it is accepted already, let the last block of the run wait until somebody accepts it.
    Waits,
}

/// The result of an attempt to accept a run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attempt {
    /// There was no run to claim.
    Nothing,
    /// How many pages became available; 0 if accepting failed, or if the run waits for the block
    /// behind it.
    Pages(u64),
    /// The run had been accepted before and is still waiting.
    Waits,
}

impl<P: Platform> Manager<P> {
    /// Accepts the run that `claim` claims, if it claims one. For any context.
    ///
    /// The CPU is pinned from before the claim until the run is done, so that no task loses its CPU
    /// while it holds a run: a CPU that waits for a run waits for one that is at work (invariant
    /// 43).
    fn accept_one(
        &self,
        device: &dyn AcceptMemory,
        zone: &Zone,
        behind: Behind,
        claim: impl FnOnce() -> Option<AcceptRun>,
    ) -> Attempt {
        pinned(self.platform, |_| {
            let run = claim();
            run.map_or(Attempt::Nothing, |run| self.accept_claimed(device, zone, behind, &run))
        })
    }

    #[inline(never)]
    fn accept_claimed(
        &self,
        device: &dyn AcceptMemory,
        zone: &Zone,
        behind: Behind,
        run: &AcceptRun,
    ) -> Attempt {
        let frames = run.frames();
        let accepted = if run.is_ahead() { blocks(frames) } else { self.ask(device, frames) };
        let guards = device.reads_past_pages();
        let last = if guards && accepted == blocks(frames) {
            self.secure(device, frames.end, behind)
        } else {
            LastBlock::Free
        };
        let end = RunEnd { accepted_blocks: accepted, last, guards };
        let pages = zone.finish_run(self.platform, run, end);
        self.note_free();
        if run.is_ahead() && last == LastBlock::Ahead {
            Attempt::Waits
        } else {
            Attempt::Pages(pages)
        }
    }

    /// Makes sure that the block at `pfn`, behind one that will be in use, can be read, or tells
    /// the caller to let the block before it wait.
    fn secure(&self, device: &dyn AcceptMemory, pfn: Pfn, behind: Behind) -> LastBlock {
        let block = BlockNumber::containing(pfn);
        let Some(segment) = self.segment_of(block) else { return LastBlock::Free };
        let Some(zone) = self.zones().get(usize::from(segment.zone)) else {
            return LastBlock::Free;
        };
        let index = segment.index_of(block);
        if behind == Behind::Waits
            && let Some(last) = zone.last_before(self.platform, index)
        {
            return last;
        }
        // Pinned as in `accept_one`.
        pinned(self.platform, |_| match zone.claim_follower(self.platform, index) {
            Follower::Readable => LastBlock::Free,
            Follower::Lost => LastBlock::Lost,
            Follower::Busy => LastBlock::Ahead,
            Follower::Claimed(run) => {
                let is_accepted = self.ask(device, run.frames()) != 0;
                zone.finish_follower(self.platform, &run, is_accepted);
                if is_accepted { LastBlock::Free } else { LastBlock::Lost }
            }
        })
    }

    /// Has frames accepted; returns how many whole blocks were, from the first on.
    fn ask(&self, device: &dyn AcceptMemory, frames: PfnRange) -> u32 {
        let accepted_pages = self.ask_pages(device, frames);
        blocks(PfnRange { end: frames.start.add(accepted_pages), ..frames })
    }

    /// Has frames accepted while pinned; returns how many were, from the first on.
    fn ask_pages(&self, device: &dyn AcceptMemory, frames: PfnRange) -> u64 {
        let accepted_pages = match pinned(self.platform, |_| device.accept(frames)) {
            Ok(()) => frames.pages(),
            // Whatever the error says, the last frame was not accepted.
            Err(error) => error.accepted_pages.min(frames.pages().saturating_sub(1)),
        };
        self.accept.note_call(frames, accepted_pages);
        accepted_pages
    }

    /// At the end of bring-up, accepts the first block of unaccepted memory right behind memory
    /// that is or will be in use, because pages before it may be read past their end. If that
    /// fails, keeps the last page before it out of use, if that page is free.
    pub(in crate::manager) fn accept_borders(&self) {
        let Some(device) = self.platform.accept_memory() else { return };
        if !device.reads_past_pages() {
            return;
        }
        for zone in self.zones() {
            let (mut at, mut end) = (None, None);
            while let Some((index, start)) = zone.unaccepted_after(self.platform, at) {
                at = Some(index);
                if end != Some(start) {
                    self.accept_border(device, start);
                }
                end = zone.end_of(self.platform, index);
            }
        }
    }

    /// Makes sure that memory in use before a frame may be read past its end.
    fn accept_border(&self, device: &dyn AcceptMemory, start: Pfn) {
        if let Some(before) = start.0.checked_sub(1).map(Pfn)
            && self.is_in_use(before)
            && !self.secure_follower(device, start)
            && !self.lose_added(before)
        {
            self.keep_page_before(start);
        }
    }

    /// Takes the block of a frame out of use until it is removed, if it was added and is wholly
    /// free. A page that nobody gives back would keep the block from being removed for good.
    fn lose_added(&self, frame: Pfn) -> bool {
        let block = BlockNumber::containing(frame);
        let Some(segment) = self.segment_of(block) else { return false };
        let number = usize::from(segment.zone);
        number >= self.hotplug.first_window
            && self
                .zones()
                .get(number)
                .is_some_and(|zone| self.lose_free(zone, segment.index_of(block)))
    }

    /// Does [`Zone::lose_free`]. Returns whether the block was free as a whole.
    pub(super) fn lose_free(&self, zone: &Zone, index: u32) -> bool {
        let lost = zone.lose_free(self.platform, index);
        if lost == Some(true) {
            // A caller that has isolated the block will not find it again.
            self.isolation().uncount(1);
        }
        lost.is_some()
    }

    /// Has the block at `pfn`, which lies behind one in use, accepted, or waits for the CPU that is
    /// accepting it; returns false if that failed.
    fn secure_follower(&self, device: &dyn AcceptMemory, pfn: Pfn) -> bool {
        loop {
            match self.secure(device, pfn, Behind::Accepted) {
                LastBlock::Free => return true,
                LastBlock::Lost => return false,
                // Another CPU is accepting it.
                LastBlock::Ahead => self.platform.relax(),
            }
        }
    }

    /// Allocates the page before a frame that could not be accepted, if it is free. Nobody gives it
    /// back.
    pub(in crate::manager) fn keep_page_before(&self, start: Pfn) {
        let page = crate::units::Order::PAGE;
        if let Some(before) = start.0.checked_sub(1) {
            let _ = self.allocate_at(Pfn(before), page, crate::block::MigrateType::Movable);
        }
    }

    /// Makes sure that memory which is about to become available before a frame may be read past
    /// its end; returns false if it may not.
    pub(in crate::manager) fn accept_behind(&self, end: Pfn) -> bool {
        let device = self.platform.accept_memory().filter(|device| device.reads_past_pages());
        device.is_none_or(|device| self.secure_follower(device, end))
    }

    /// Does [`accept_border`](Self::accept_border) if the platform accepts memory.
    pub(in crate::manager) fn accept_border_of(&self, start: Pfn) {
        if let Some(device) = self.platform.accept_memory()
            && device.reads_past_pages()
        {
            self.accept_border(device, start);
        }
    }

    /// Secures the borders between memory in use and unaccepted heads among `frames`, which lie in
    /// one part of a zone, and the border behind `frames`.
    pub(in crate::manager) fn accept_borders_of(&self, zone: &Zone, frames: PfnRange) {
        let Some(device) = self.platform.accept_memory() else { return };
        if !device.reads_past_pages() {
            return;
        }
        let first = BlockNumber::containing(frames.start);
        let Some(segment) = self.segment_of(first) else { return };
        let start = segment.index_of(first);
        self.accept_border(device, frames.start);
        let mut rest = start..start + blocks(frames);
        while let Some(found) = zone.unaccepted_in(self.platform, rest.clone()) {
            self.accept_border(device, segment.block_of(found.start).start());
            rest.start = found.end.max(rest.start + 1);
        }
        self.accept_border(device, frames.end);
    }

    /// Takes back the memory of a batch from a host that forgets acceptance.
    pub(crate) fn take_back_unaccepted(&self, zone: &Zone, batch: &mut Batch) {
        while pinned(self.platform, |_| self.take_back_one(zone, batch)) {}
    }

    /// Takes the batch back up to the first run that others have isolated, and has that run
    /// accepted; pinned as in [`accept_one`](Self::accept_one). Returns whether there was such a
    /// run.
    fn take_back_one(&self, zone: &Zone, batch: &mut Batch) -> bool {
        let Some(frames) = zone.take_back_unaccepted(self.platform, batch) else { return false };
        // A caller has isolated this run and relies on its free frames being memory.
        let Some(device) = self.platform.accept_memory() else { return false };
        let first = BlockNumber::containing(frames.start);
        let Some(segment) = self.segment_of(first) else { return false };
        let accepted = self.ask(device, frames);
        let start = segment.index_of(first);
        let lost = zone.end_report(self.platform, &(start..start + blocks(frames)), accepted);
        if lost != 0 {
            self.isolation().uncount(u64::from(lost));
        }
        true
    }

    /// Has frames accepted that are to hold tables; the error is the first frame that could not be.
    pub(in crate::manager) fn accept_for_tables(&self, frames: PfnRange) -> Result<(), Pfn> {
        let Some(device) = self.platform.accept_memory() else { return Ok(()) };
        let accepted_pages = self.ask_pages(device, frames);
        if accepted_pages == frames.pages() {
            Ok(())
        } else {
            Err(frames.start.add(accepted_pages))
        }
    }

    /// Returns whether a frame is memory that the manager hands out.
    fn is_in_use(&self, pfn: Pfn) -> bool {
        use crate::block::State;
        let state = loop {
            let state = self.block_state(BlockNumber::containing(pfn));
            // A CPU that is accepting the block may have looked behind it before anything was
            // there.
            if state.is_none_or(|state| !state.is(State::Accepting)) {
                break state;
            }
            self.platform.relax();
        };
        state.is_some_and(|state| match state.state() {
            Some(State::Split) => state.managed_pages() != 0,
            // Isolated and reported blocks come back, and nobody looks behind them then.
            Some(
                State::Free
                | State::Whole
                | State::Pool
                | State::Deferred
                | State::Isolated
                | State::Reporting,
            ) => true,
            _ => false,
        })
    }
}

/// Returns how many whole blocks the frames have.
fn blocks(frames: PfnRange) -> u32 {
    u32::try_from(frames.pages() / crate::units::PAGES_PER_BLOCK).unwrap_or(u32::MAX)
}
