//! Completes moves that have begun: up to 32 runs are settled together, then each is copied, and
//! then the old frames are freed.

use super::outcome::ObstacleKind;
use super::runs::{Block, Mission, offsets};
use super::targets::{BATCH, Stock, Targets};
use crate::debug::{fill, first_other};
use crate::manager::state::moving::Begun;
use crate::platform::Platform;
use crate::sync::prefetch_first_lines;
use crate::units::{Order, Pfn, PfnRange};
use crate::zone::{FrameBits, FreeError, set_frames};
use core::panic::Location;

/// The byte that a target is filled with to detect a mover that falsely reports a move. It differs
/// from the poison of free memory, because the users may free the new place as soon as they know
/// it.
const UNMOVED: u8 = 0x55;

/// Moves in one block that have begun and are settled together, in ascending order.
pub(super) struct Batch {
    pub(super) begun: [Begun; BATCH],
    pub(super) count: usize,
}

impl Batch {
    pub(super) const fn is_full(&self) -> bool {
        self.count == BATCH
    }

    /// Adds a move if its run lies behind all others and there is room. Returns whether it lies
    /// behind them.
    pub(super) fn push(&mut self, begun: Begun) -> bool {
        let end = self.begun[..self.count].last().map_or(Pfn(0), |last| last.run.end);
        let fits = begun.run.start >= end;
        if let Some(place) = self.begun.get_mut(self.count).filter(|_| fits) {
            *place = begun;
            self.count += 1;
        }
        fits
    }
}

/// Why a run stays where it is.
pub(super) enum Stopped {
    Budget,
    Refused(ObstacleKind),
}

impl<P: Platform> Mission<'_, P> {
    /// Makes the moves of a batch, which it leaves empty, and frees the frames of the block that
    /// were moved out. This happens at once, because a thread that vacates the block at the same
    /// time would find that nobody owns these frames.
    pub(super) fn finish_batch(
        &mut self,
        batch: &mut Batch,
        block: &Block,
        bits: &FrameBits,
        targets: &mut dyn Targets<P>,
    ) {
        let all_begun = &batch.begun[..core::mem::take(&mut batch.count)];
        if all_begun.is_empty() {
            return;
        }
        self.settle(all_begun);
        let all = block.all();
        let mut moved = FrameBits::default();
        self.ask_for(block, bits, all_begun.first());
        let mut stock = Stock::of(self.manager, all_begun, targets);
        for (number, begun) in all_begun.iter().enumerate() {
            let run = begun.run;
            let finished = self.finish(begun, stock.take(run), targets);
            self.ask_for(block, bits, all_begun.get(number + 1));
            match finished {
                Ok(()) if run.intersection(all) == run => {
                    let place = |pfn: Pfn| usize::try_from(pfn.0 - all.start.0).unwrap_or(0);
                    set_frames(&mut moved, place(run.start)..place(run.end));
                }
                Ok(()) => self.free(run),
                Err(kind) => {
                    // The next block may hold a part of the last run of this block.
                    if run.end > all.end || self.refused.end <= all.end {
                        self.refused = run;
                    }
                    self.refuse(run, kind);
                }
            }
        }
        self.free_moved(block, &moved);
        self.tell_moved();
    }

    /// Moves one run that the caller names, and frees the old frames.
    pub(super) fn move_one(
        &mut self,
        run: PfnRange,
        targets: &mut dyn Targets<P>,
    ) -> Result<(), ObstacleKind> {
        let begun = match self.begin(run) {
            Ok(Some(begun)) => begun,
            // The run was freed meanwhile.
            Ok(None) => return Err(ObstacleKind::Unknown),
            Err(Stopped::Budget) => return Err(ObstacleKind::Busy),
            Err(Stopped::Refused(kind)) => {
                self.refuse(run, kind);
                return Err(kind);
            }
        };
        self.settle(&[begun]);
        match self.finish(&begun, None, targets) {
            Ok(()) => {
                self.free(run);
                Ok(())
            }
            Err(kind) => {
                self.refuse(run, kind);
                Err(kind)
            }
        }
    }

    /// Begins the move of a run; returns `None` if the run is gone.
    pub(super) fn begin(&mut self, run: PfnRange) -> Result<Option<Begun>, Stopped> {
        let Some(mover) = self.mover else {
            return Err(Stopped::Refused(ObstacleKind::Unknown));
        };
        if !self.may_go_on() {
            return Err(Stopped::Budget);
        }
        self.begun += 1;
        match mover.begin(run) {
            Ok(token) => {
                self.isolated_pages += run.pages();
                Ok(Some(Begun { run, token }))
            }
            Err(refusal) => ObstacleKind::of_refusal(refusal)
                .map_or(Ok(None), |kind| Err(Stopped::Refused(kind))),
        }
    }

    pub(super) fn settle(&self, begun: &[Begun]) {
        if let Some(mover) = self.mover {
            mover.settle(begun);
        }
    }

    pub(super) fn abort(&self, begun: Begun) {
        if let Some(mover) = self.mover {
            self.settle(&[begun]);
            // SAFETY: the move has begun and not ended (invariant 47).
            unsafe { mover.abort(begun.token, begun.run) };
        }
    }

    /// Moves a run whose move has begun and is settled: to the frames from `to` on or, without
    /// `to`, to frames from `targets`. The caller frees the old frames. On failure the run stays
    /// where it is.
    ///
    /// All arguments are passed in registers: a value that is written to memory and read back at
    /// once in another width waits for all stores of the copy before it, which takes a quarter of
    /// the time of a copy.
    #[inline]
    pub(super) fn finish(
        &mut self,
        begun: &Begun,
        to: Option<Pfn>,
        targets: &mut dyn Targets<P>,
    ) -> Result<(), ObstacleKind> {
        match to.or_else(|| targets.take(self.manager, begun.run)) {
            Some(to) => self.relocate(begun, to),
            None => {
                if let Some(mover) = self.mover {
                    // SAFETY: the move has begun and not ended (invariant 47).
                    unsafe { mover.abort(begun.token, begun.run) };
                }
                self.lacks_room = true;
                Err(ObstacleKind::NoMemory)
            }
        }
    }

    fn relocate(&mut self, begun: &Begun, to: Pfn) -> Result<(), ObstacleKind> {
        let &Begun { run, token } = begun;
        let to = PfnRange { start: to, end: to.add(run.pages()) };
        let Some(mover) = self.mover else {
            self.free(to);
            return Err(ObstacleKind::Unknown);
        };
        let looks = self.manager.debug.aids.page_poison && self.is_reachable(run, to);
        if looks {
            fill(self.manager.platform, to, UNMOVED);
        }
        let is_owned = cfg!(feature = "debug") && self.manager.debug.aids.page_owner;
        let before = if is_owned { self.manager.copy_owner(Some(run.start), to, 0) } else { 0 };
        // SAFETY: the move has begun and not ended (invariant 47); `to` was allocated for it.
        if unsafe { mover.relocate(token, run, to) }.is_err() {
            if is_owned {
                self.manager.copy_owner(None, to, before);
            }
            self.free(to);
            return Err(ObstacleKind::Failed);
        }
        let is_unmoved = |frames| first_other(self.manager.platform, frames, UNMOVED).is_none();
        if looks && is_unmoved(to) && !is_unmoved(run) {
            return Err(ObstacleKind::NotMoved);
        }
        self.moved.moved_runs += 1;
        self.moved.moved_pages += run.pages();
        Ok(())
    }

    /// Prefetches the beginning of the run that is copied next, if its first frame is set in
    /// `bits`, which guarantees that it is memory whatever the mover reported. Without the
    /// prefetch, the processor reads it only after all stores since the last copy have drained. The
    /// prefetch must not come before that copy, whose own reads would have to wait: this costs a
    /// tenth of a copy on Zen 3.
    #[inline]
    fn ask_for(&self, block: &Block, bits: &FrameBits, next: Option<&Begun>) {
        let Some(&Begun { run: PfnRange { start, .. }, .. }) = next else { return };
        let offset = start.0.wrapping_sub(block.all().start.0);
        let word = usize::try_from(offset / 64).ok().and_then(|word| bits.get(word));
        let is_in_use = word.is_some_and(|word| word >> (offset % 64) & 1 != 0);
        let address = start.address();
        if is_in_use && address < self.manager.platform.direct_limit() {
            prefetch_first_lines(self.manager.platform.direct(address));
        }
    }

    fn is_reachable(&self, run: PfnRange, to: PfnRange) -> bool {
        run.end.max(to.end).address() <= self.manager.platform.direct_limit()
    }

    /// Frees frames that nobody uses any more: the old place of a run that was moved, or an unused
    /// target.
    pub(super) fn free(&mut self, run: PfnRange) {
        let place = Location::caller();
        let freed = match self.manager.free_uncached(run, place) {
            // The run consists of several allocations, which page owners want freed one by one and
            // which may lie in several zones. If one of them is gone, nobody owns the others all
            // the same.
            Err(FreeError::WrongSize { .. } | FreeError::SpansZones(_)) => (run.start.0..run.end.0)
                .fold(true, |all, pfn| {
                    let frame = PfnRange::of_order(Pfn(pfn), Order::PAGE);
                    self.manager.free_uncached(frame, place).is_ok() && all
                }),
            freed => freed.is_ok(),
        };
        if !freed {
            // The mover freed the run, or never owned it.
            self.refuse(run, ObstacleKind::Failed);
        }
    }

    /// Frees the frames that were moved out of a block, under one hold of the lock if nothing has
    /// to look at them first.
    fn free_moved(&mut self, block: &Block, moved: &FrameBits) {
        let all = block.all();
        if *moved == FrameBits::default() {
            return;
        }
        if !self.manager.pressure.epoch.wants_attention()
            && block.piece.zone.free_frames(self.manager.platform, block.index, moved)
        {
            return self.manager.pressure.epoch.note_free();
        }
        let mut run: Option<PfnRange> = None;
        for offset in offsets(moved, all) {
            let pfn = all.start.add(offset);
            run = match run {
                Some(run) if run.end == pfn => Some(PfnRange { end: pfn.add(1), ..run }),
                other => {
                    other.into_iter().for_each(|run| self.free(run));
                    Some(PfnRange::of_order(pfn, Order::PAGE))
                }
            };
        }
        run.into_iter().for_each(|run| self.free(run));
    }
}
