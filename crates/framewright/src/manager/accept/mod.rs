//! Unaccepted memory: runs of it are accepted for whom they are wanted (`demand`), all of it by a
//! job, or a little at a time in the background (`all`).
//!
//! A run is claimed in its zone (`zone::unaccepted`), the platform accepts it without any lock, and
//! then it is free. Several CPUs claim different runs and never wait for one another; whoever wants
//! the very memory that another accepts, and nothing else, waits for that.
//!
//! ```text
//!   request ───> grow ────────> lowest run       ─┐
//!   isolation ─> grow_at ─────> runs of a range  ─┼─ claim ─> AcceptMemory ─> block behind ─> free
//!   job, poll ─> accept_some ─> highest run      ─┘               └─ fails: lost, reserved
//! ```
//!
//! Requests take the lowest memory and a block each, so that the block that had to be accepted
//! behind one is the next that comes up. Whoever accepts more takes it from the end: what lies
//! behind it is accepted already, and no block of 1 GiB is cut for the sake of the next one.

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
    /// `accept_memory=`.
    #[must_use]
    pub const fn policy(self) -> AcceptPolicy {
        self.manager.accept.policy
    }

    /// Pages of all zones that are not accepted yet. Those count that were accepted ahead of their
    /// use because the block before them is in use, and are not handed out yet.
    #[must_use]
    pub fn unaccepted_pages(self) -> u64 {
        self.manager.zones().iter().map(Zone::unaccepted_pages).sum()
    }

    /// Pages that are out of use because they could not be accepted, or lie before such.
    #[must_use]
    pub fn lost_pages(self) -> u64 {
        self.manager.zones().iter().map(Zone::lost_pages).sum()
    }

    /// What was accepted by now.
    #[must_use]
    pub fn events(self) -> AcceptEvents {
        self.manager.accept.events()
    }
}

/// What is done about the block behind a run, where pages may be read past their end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Behind {
    /// It is accepted.
    Accepted,
    /// Unless it is accepted, the last block of the run waits until somebody has accepted it.
    Waits,
}

/// What came of an attempt to accept a run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attempt {
    /// There was none to be claimed.
    Nothing,
    /// So many pages came up; none when it failed, or waits for the block behind it.
    Pages(u64),
    /// It was accepted before and waits still.
    Waits,
}

impl<P: Platform> Manager<P> {
    /// Accepts the run that `claim` claims, if it does. Any context.
    ///
    /// Pinned from before it is claimed until it is done, so that no task loses its CPU with a run
    /// in its hands: whoever waits for one waits for a CPU that is at work (invariant 43).
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

    /// Sees to it that the block at `pfn`, behind one that will be in use, can be read, or has that
    /// wait.
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

    /// Has frames accepted; how many blocks of them were, from the first on.
    fn ask(&self, device: &dyn AcceptMemory, frames: PfnRange) -> u32 {
        let accepted_pages = self.ask_pages(device, frames);
        blocks(PfnRange { end: frames.start.add(accepted_pages), ..frames })
    }

    /// Has frames accepted, pinned; how many were, from the first on.
    fn ask_pages(&self, device: &dyn AcceptMemory, frames: PfnRange) -> u64 {
        let accepted_pages = match pinned(self.platform, |_| device.accept(frames)) {
            Ok(()) => frames.pages(),
            // Whatever it says, the last one was not.
            Err(error) => error.accepted_pages.min(frames.pages().saturating_sub(1)),
        };
        self.accept.note_call(frames, accepted_pages);
        accepted_pages
    }

    /// Accepts the first block of what lies right behind memory that is in use or will be, at the
    /// end of bring-up: pages before it may be read past their end. Where that fails the last page
    /// before it is kept, if it is free.
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

    /// Sees to it that what is in use before a frame may be read past its end.
    fn accept_border(&self, device: &dyn AcceptMemory, start: Pfn) {
        if let Some(before) = start.0.checked_sub(1).map(Pfn)
            && self.is_in_use(before)
            && !self.secure_follower(device, start)
            && !self.lose_added(before)
        {
            self.keep_page_before(start);
        }
    }

    /// Takes the block of a frame out of use until it goes, where it was added and all of it is
    /// free. A page that nobody gives back would keep it for good.
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

    /// [`Zone::lose_free`]. Whether the block was free as a whole.
    pub(super) fn lose_free(&self, zone: &Zone, index: u32) -> bool {
        let lost = zone.lose_free(self.platform, index);
        if lost == Some(true) {
            // Who has isolated it does not find it again.
            self.isolation().uncount(1);
        }
        lost.is_some()
    }

    /// Has the block at `pfn` accepted, which lies behind one in use, or waits for who is at it;
    /// false where that failed.
    fn secure_follower(&self, device: &dyn AcceptMemory, pfn: Pfn) -> bool {
        loop {
            match self.secure(device, pfn, Behind::Accepted) {
                LastBlock::Free => return true,
                LastBlock::Lost => return false,
                // Somebody is at it.
                LastBlock::Ahead => self.platform.relax(),
            }
        }
    }

    /// Takes the page before a frame that could not be accepted, if it is free. Nobody gives it
    /// back.
    pub(in crate::manager) fn keep_page_before(&self, start: Pfn) {
        let page = crate::units::Order::PAGE;
        if let Some(before) = start.0.checked_sub(1) {
            let _ = self.allocate_at(Pfn(before), page, crate::block::MigrateType::Movable);
        }
    }

    /// Sees to it that what is about to come up before a frame may be read past its end; false
    /// where it may not.
    pub(in crate::manager) fn accept_behind(&self, end: Pfn) -> bool {
        let device = self.platform.accept_memory().filter(|device| device.reads_past_pages());
        device.is_none_or(|device| self.secure_follower(device, end))
    }

    /// [`accept_border`](Self::accept_border), where there is anything to be accepted.
    pub(in crate::manager) fn accept_border_of(&self, start: Pfn) {
        if let Some(device) = self.platform.accept_memory()
            && device.reads_past_pages()
        {
            self.accept_border(device, start);
        }
    }

    /// Sees to the borders between memory in use and the unaccepted heads among `frames`, which lie
    /// in one part of a zone, and what lies behind them.
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

    /// Takes back what a host had that forgets that it was accepted.
    pub(crate) fn take_back_unaccepted(&self, zone: &Zone, batch: &mut Batch) {
        while pinned(self.platform, |_| self.take_back_one(zone, batch)) {}
    }

    /// Whether there was one; pinned as in [`accept_one`](Self::accept_one).
    fn take_back_one(&self, zone: &Zone, batch: &mut Batch) -> bool {
        let Some(frames) = zone.take_back_unaccepted(self.platform, batch) else { return false };
        // Somebody isolated it: he counts on what is free in it being memory.
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

    /// Has frames accepted that are to hold tables; the first that could not be.
    pub(in crate::manager) fn accept_for_tables(&self, frames: PfnRange) -> Result<(), Pfn> {
        let Some(device) = self.platform.accept_memory() else { return Ok(()) };
        let accepted_pages = self.ask_pages(device, frames);
        if accepted_pages == frames.pages() {
            Ok(())
        } else {
            Err(frames.start.add(accepted_pages))
        }
    }

    /// Whether a frame is memory that the manager hands out.
    fn is_in_use(&self, pfn: Pfn) -> bool {
        use crate::block::State;
        let state = loop {
            let state = self.block_state(BlockNumber::containing(pfn));
            // Whoever accepts it may have looked behind it before there was anything.
            if state.is_none_or(|state| !state.is(State::Accepting)) {
                break state;
            }
            self.platform.relax();
        };
        state.is_some_and(|state| match state.state() {
            Some(State::Split) => state.managed_pages() != 0,
            Some(State::Free | State::Whole | State::Pool | State::Deferred) => true,
            _ => false,
        })
    }
}

/// Whole blocks.
fn blocks(frames: PfnRange) -> u32 {
    u32::try_from(frames.pages() / crate::units::PAGES_PER_BLOCK).unwrap_or(u32::MAX)
}
