//! Moving run after run: what every kind of vacating and compacting has in common.

use super::targets::{Anywhere, BATCH, Stock, Targets};
use super::vacate::{Budget, Naming, Obstacle, ObstacleKind, Obstacles, Vacated};
use crate::debug::{fill, first_other};
use crate::manager::facets::Moving;
use crate::manager::parts::Piece;
use crate::manager::state::Manager;
use crate::manager::state::moving::{Begun, Mover, Occupant};
use crate::manager::state::pressure::count;
use crate::memblock::NodeChoice;
use crate::platform::Platform;
use crate::sync::prefetch_first_lines;
use crate::units::{Order, PAGES_PER_BLOCK, Pfn, PfnRange};
use crate::vmemmap_space::BlockNumber;
use crate::zone::{FrameBits, FreeError, Held, Occupied, UsedFrames, set_frames};
use core::panic::Location;

/// What a target is filled with where a mover that lies is to be found out. Not what free memory is
/// poisoned with: the new place may be freed as soon as its users know it.
const UNMOVED: u8 = 0x55;

/// What is done next.
pub(super) enum Next {
    /// Everything before this frame is done.
    From(Pfn),
    /// The budget is used up.
    Stop,
}

/// One call's moves, within its budget.
pub(super) struct Mission<'m, P: Platform> {
    manager: &'m Manager<P>,
    mover: Option<&'m dyn Mover>,
    leaves_node: bool,
    /// Owners are asked what they say of their frames, and nothing is moved.
    only_looks: bool,
    budget: Budget,
    begun: u64,
    /// Frames of those that their owner gave up to be moved.
    isolated_pages: u64,
    scanned_pages: u64,
    moved: Vacated,
    /// Of these, pages that everybody can see in the counters.
    told_pages: u64,
    /// The run that was refused last, of which more blocks may hold a part.
    refused: PfnRange,
    naming: Naming<'m>,
}

/// What comes of a frame that somebody has.
enum At {
    /// The move of the run that it is a part of has begun.
    Begun(Begun),
    /// The run is gone, or stays and was named.
    Done(PfnRange),
    /// It is being freed.
    Free,
    /// It stays, and is to be named.
    Stays(ObstacleKind),
}

/// Moves of one block that have begun and are settled together, ascending.
struct Batch {
    begun: [Begun; BATCH],
    count: usize,
}

impl Batch {
    const fn is_full(&self) -> bool {
        self.count == BATCH
    }

    /// Adds one, if it lies behind all others and there is room.
    fn push(&mut self, begun: Begun) -> bool {
        let end = self.begun[..self.count].last().map_or(Pfn(0), |last| last.run.end);
        let fits = begun.run.start >= end;
        if let Some(place) = self.begun.get_mut(self.count).filter(|_| fits) {
            *place = begun;
            self.count += 1;
        }
        fits
    }
}

impl<'m, P: Platform> Mission<'m, P> {
    #[inline(never)]
    pub(super) fn new(
        moving: Moving<'m, P>,
        budget: Budget,
        name: &'m mut dyn FnMut(Obstacle),
    ) -> Self {
        let Moving { manager, leaves_node, .. } = moving;
        Self {
            manager,
            leaves_node,
            only_looks: false,
            mover: moving.mover(),
            budget,
            begun: 0,
            isolated_pages: 0,
            scanned_pages: 0,
            moved: Vacated::default(),
            told_pages: 0,
            refused: PfnRange::new(0, 0),
            naming: Naming::new(name),
        }
    }

    /// Moves nothing from now on: all that owners say can be moved is passed over.
    pub(super) const fn only_look(&mut self) {
        self.only_looks = true;
    }

    pub(super) const fn manager(&self) -> &'m Manager<P> {
        self.manager
    }

    /// Frames in use that were looked at so far.
    pub(super) const fn scanned_pages(&self) -> u64 {
        self.scanned_pages
    }

    /// What is left of the budget.
    pub(super) const fn left(&self) -> Budget {
        let runs = self.budget.runs.saturating_sub(self.begun);
        Budget { runs, ..self.budget }
    }

    /// What was moved and what was not.
    pub(super) fn end(mut self) -> (Vacated, Option<Obstacles>) {
        self.tell_moved();
        let counters = &self.manager.moving.counters;
        count(&counters.begun_runs, self.begun);
        count(&counters.isolated_pages, self.isolated_pages);
        count(&counters.scanned_pages, self.scanned_pages);
        (self.moved, self.naming.end())
    }

    /// Counts what was moved since it was counted last: once for many runs, as others read it.
    fn tell_moved(&mut self) {
        let pages = self.moved.moved_pages - self.told_pages;
        if pages != 0 {
            self.told_pages += pages;
            count(&self.manager.moving.counters.moved_pages, pages);
        }
    }

    /// Moves everything in isolated frames elsewhere on their node. False when the budget was used
    /// up first.
    pub(super) fn vacate(&mut self, pages: PfnRange) -> Result<bool, FreeError> {
        for Piece { zone, segment, range } in self.manager.pieces(pages)? {
            let node = zone.id().node;
            let mut targets = Anywhere(if self.leaves_node {
                NodeChoice::Preferred(node)
            } else {
                NodeChoice::Exact(node)
            });
            let mut at = range.start;
            while at < range.end {
                let block = BlockNumber::containing(at);
                let end = Pfn(block.start().0 + PAGES_PER_BLOCK).min(range.end);
                let part = PfnRange { start: at, end };
                let index = segment.index_of(block);
                let next = match zone.occupied(self.manager.platform, segment, index) {
                    Occupied::Nothing => Next::From(end),
                    // Perhaps it is brought up when it is isolated.
                    Occupied::Held(Held::Reserved) if self.only_looks && zone.has_withheld() => {
                        Next::From(end)
                    }
                    Occupied::Held(held) => {
                        self.refuse(part, ObstacleKind::of_held(held));
                        Next::From(end)
                    }
                    Occupied::Whole(whole) => self.move_whole(at, whole, &mut targets),
                    Occupied::Frames(frames) => {
                        self.name_unmovable(&frames, part);
                        let within = Block { piece: Piece { zone, segment, range }, index, part };
                        self.move_frames(&within, &frames.in_use, &mut targets)
                    }
                };
                match next {
                    Next::From(next) => at = next.max(at.add(1)),
                    Next::Stop => return Ok(false),
                }
            }
        }
        Ok(true)
    }

    #[inline(never)]
    pub(super) fn refuse(&mut self, run: PfnRange, kind: ObstacleKind) {
        self.naming.add(run, kind);
        self.count_refused(run.pages(), 1, kind);
    }

    fn refuse_frame(&mut self, pfn: Pfn, kind: ObstacleKind) {
        let is_another = self.naming.add_frame(pfn, kind);
        self.count_refused(1, u64::from(is_another), kind);
    }

    fn count_refused(&self, pages: u64, obstacles: u64, kind: ObstacleKind) {
        let counters = &self.manager.moving.counters;
        count(&counters.obstacles[kind as usize], obstacles);
        count(&counters.failed_pages, pages);
    }

    /// Names what of a part of a split block nobody can move.
    fn name_unmovable(&mut self, frames: &UsedFrames, part: PfnRange) {
        let is_whole = part.pages() == PAGES_PER_BLOCK;
        let kinds = [
            (&frames.reserved, ObstacleKind::Reserved),
            (&frames.reporting, ObstacleKind::Reporting),
            (&frames.descriptors, ObstacleKind::Descriptors),
        ];
        for (bits, kind) in kinds {
            // The descriptors of a block that becomes free as a whole go by themselves.
            if kind == ObstacleKind::Descriptors && is_whole {
                continue;
            }
            for offset in offsets(bits, part) {
                self.refuse_frame(BlockNumber::containing(part.start).start().add(offset), kind);
            }
        }
    }

    /// Begins the move of the run that a frame is a part of, if it is one and was not refused just
    /// now. Nothing when the budget is used up.
    fn begin_at(&mut self, pfn: Pfn) -> Option<At> {
        let occupant = self.mover.map_or(Occupant::Unknown, |mover| mover.occupant(pfn));
        let run = match occupant {
            Occupant::Movable(run) if is_plausible(run, pfn) => run,
            Occupant::Free => return Some(At::Free),
            other => return Some(At::Stays(kind_of(other))),
        };
        if run == self.refused || self.only_looks {
            return Some(At::Done(run));
        }
        Some(match self.begin(run) {
            Ok(Some(begun)) => At::Begun(begun),
            Ok(None) => At::Done(run),
            Err(Stopped::Budget) => return None,
            Err(Stopped::Refused(kind)) => {
                self.refused = run;
                self.refuse(run, kind);
                At::Done(run)
            }
        })
    }

    /// Moves what a block was allocated as, or the part of it that has one owner.
    fn move_whole(&mut self, at: Pfn, whole: PfnRange, targets: &mut dyn Targets<P>) -> Next {
        self.scanned_pages += whole.end.0 - at.0;
        Next::From(match self.begin_at(at) {
            None => return Next::Stop,
            Some(At::Begun(begun)) => {
                self.settle(&[begun]);
                match self.finish(&begun, None, targets) {
                    Ok(()) => {
                        self.free(begun.run);
                        self.tell_moved();
                    }
                    Err(kind) => {
                        self.refused = begun.run;
                        self.refuse(begun.run, kind);
                    }
                }
                begun.run.end
            }
            Some(At::Done(run)) => run.end,
            Some(At::Free) => whole.end,
            Some(At::Stays(kind)) => {
                self.refuse(PfnRange { start: at, end: whole.end }, kind);
                whole.end
            }
        })
    }

    /// Moves frames of a split block, those of `bits` in its part, and frees them together.
    pub(super) fn move_frames(
        &mut self,
        block: &Block,
        bits: &FrameBits,
        targets: &mut dyn Targets<P>,
    ) -> Next {
        let mut batch = Batch { begun: [Begun::default(); BATCH], count: 0 };
        let mut done = block.part.start;
        let mut is_stopped = false;
        for offset in offsets(bits, block.part) {
            let pfn = block.all().start.add(offset);
            if pfn < done {
                continue;
            }
            self.scanned_pages += 1;
            match self.begin_at(pfn) {
                None => {
                    is_stopped = true;
                    break;
                }
                Some(At::Begun(begun)) => {
                    if !batch.push(begun) {
                        // It overlaps another, which no owner says of his memory.
                        self.abort(begun);
                        self.refuse(begun.run, ObstacleKind::Failed);
                    }
                    done = begun.run.end;
                    if batch.is_full() {
                        self.finish_batch(&mut batch, block, bits, targets);
                    }
                }
                Some(At::Done(run)) => done = run.end,
                Some(At::Free) => {}
                Some(At::Stays(kind)) => self.refuse_frame(pfn, kind),
            }
        }
        self.finish_batch(&mut batch, block, bits, targets);
        if is_stopped { Next::Stop } else { Next::From(done.max(block.part.end)) }
    }

    /// Makes the moves of a batch, which is empty then, and frees what was moved of its block. At
    /// once, because to whoever vacates the block at the same time these frames are nobody's.
    fn finish_batch(
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
                    // The next block may have a part of the last run of this one.
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

    /// Moves one run that the caller names, and frees what it was.
    pub(super) fn move_one(
        &mut self,
        run: PfnRange,
        targets: &mut dyn Targets<P>,
    ) -> Result<(), ObstacleKind> {
        let begun = match self.begin(run) {
            Ok(Some(begun)) => begun,
            // It was freed meanwhile.
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

    /// Begins the move of a run; nothing when it is gone.
    fn begin(&mut self, run: PfnRange) -> Result<Option<Begun>, Stopped> {
        let Some(mover) = self.mover else {
            return Err(Stopped::Refused(ObstacleKind::Unknown));
        };
        if !self.budget.allows(self.manager.platform, self.begun) {
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

    fn settle(&self, begun: &[Begun]) {
        if let Some(mover) = self.mover {
            mover.settle(begun);
        }
    }

    fn abort(&self, begun: Begun) {
        if let Some(mover) = self.mover {
            self.settle(&[begun]);
            // SAFETY: the move has begun and not ended (invariant 47).
            unsafe { mover.abort(begun.token, begun.run) };
        }
    }

    /// Moves a run whose move has begun and is settled, to frames from `to` on if it has its place
    /// already; the caller frees what it was. Else the run stays where it is.
    ///
    /// Everything here is passed in registers: what is written to memory and read back at once in
    /// another width waits for all that the copy before it wrote, a quarter of what a copy takes.
    #[inline]
    fn finish(
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
        // SAFETY: the move has begun and not ended (invariant 47); `to` was allocated for it.
        if unsafe { mover.relocate(token, run, to) }.is_err() {
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

    /// Asks for the contents of the run that is copied next, where it begins with a frame of
    /// `bits`, which is memory whatever the mover says. Unasked the processor looks at it only when
    /// all that was written since the copy before it is out. Not before that copy: its own reads
    /// would wait, which costs a tenth of it on Zen 3.
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

    /// Frees what nobody uses any more: what was moved, or was to be moved to.
    pub(super) fn free(&mut self, run: PfnRange) {
        let place = Location::caller();
        let freed = match self.manager.free_uncached(run, place) {
            // Of several allocations, which page owners want back one by one.
            Err(FreeError::WrongSize { .. }) => (run.start.0..run.end.0).map(Pfn).all(|pfn| {
                let frame = PfnRange::of_order(pfn, Order::PAGE);
                self.manager.free_uncached(frame, place).is_ok()
            }),
            freed => freed.is_ok(),
        };
        if !freed {
            // The mover freed it, or never owned it.
            self.refuse(run, ObstacleKind::Failed);
        }
    }

    /// Frees what was moved out of a block: under one hold of the lock where nobody has to look at
    /// it first.
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

/// A part of a split block.
pub(super) struct Block {
    pub(super) piece: Piece,
    pub(super) index: u32,
    pub(super) part: PfnRange,
}

impl Block {
    /// All of its frames.
    fn all(&self) -> PfnRange {
        let start = BlockNumber::containing(self.part.start).start();
        PfnRange { start, end: start.add(PAGES_PER_BLOCK) }
    }
}

/// Why a run stays where it is.
enum Stopped {
    Budget,
    Refused(ObstacleKind),
}

/// Whether what a mover says of a frame can be.
fn is_plausible(run: PfnRange, pfn: Pfn) -> bool {
    run.start <= pfn && pfn < run.end && run.pages() <= Order::MAX.pages()
}

const fn kind_of(occupant: Occupant) -> ObstacleKind {
    match occupant {
        Occupant::Pinned => ObstacleKind::Pinned,
        Occupant::Fixed => ObstacleKind::Fixed,
        Occupant::Unknown => ObstacleKind::Unknown,
        // What it says cannot be.
        Occupant::Movable(_) | Occupant::Free => ObstacleKind::Failed,
    }
}

/// The set bits of a block's map in a part of the block, as offsets in the block.
pub(super) fn offsets(bits: &FrameBits, part: PfnRange) -> impl Iterator<Item = u64> + '_ {
    let base = BlockNumber::containing(part.start).start().0;
    let (start, end) = (part.start.0 - base, part.end.0 - base);
    (0..)
        .step_by(64)
        .zip(bits)
        .flat_map(move |(first, &word)| {
            let mut rest = word;
            core::iter::from_fn(move || {
                let bit = (rest != 0).then(|| rest.trailing_zeros())?;
                rest &= rest - 1;
                Some(first + u64::from(bit))
            })
        })
        .filter(move |offset| (start..end).contains(offset))
}
