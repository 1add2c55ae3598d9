//! Moving run after run: what every kind of vacating and compacting has in common.
//!
//! Orders of memory: Relaxed: how many calls move memory is a hint.

use super::moves::{Batch, Stopped};
use super::outcome::{Budget, Naming, Obstacle, ObstacleKind, Obstacles, Vacated};
use super::targets::{Anywhere, BATCH, Targets};
use crate::manager::facets::Moving;
use crate::manager::parts::Piece;
use crate::manager::state::Manager;
use crate::manager::state::moving::{Begun, KINDS, Mover, Occupant};
use crate::manager::state::pressure::count;
use crate::memblock::NodeChoice;
use crate::platform::Platform;
use crate::sync::table_atomic::{AtomicU32, Ordering};
use crate::units::{Order, PAGES_PER_BLOCK, Pfn, PfnRange};
use crate::vmemmap_space::BlockNumber;
use crate::zone::{FrameBits, FreeError, Held, Occupied, UsedFrames};

/// Frames that stay, each of which costs a question and no move, for which the budget has one run
/// less.
const STAYED_A_RUN: u64 = 32;

/// What is done next.
pub(super) enum Next {
    /// Everything before this frame is done.
    From(Pfn),
    /// The budget is used up.
    Stop,
}

/// What a call is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// All that can be moved is.
    Vacate,
    /// About so many pages are moved, and where there is no room for a run the rest of its block
    /// stays.
    Compact {
        /// How many.
        most_pages: u64,
    },
    /// Owners are asked what they say of their frames, and nothing is moved.
    Look,
    /// As much, where nothing is isolated yet, which brings memory up.
    LookBeforeIsolation,
}

/// One call's moves, within its budget.
pub(super) struct Mission<'m, P: Platform> {
    pub(super) manager: &'m Manager<P>,
    pub(super) mover: Option<&'m dyn Mover>,
    leaves_node: bool,
    purpose: Purpose,
    /// There was no room for a run.
    pub(super) lacks_room: bool,
    budget: Budget,
    pub(super) begun: u64,
    /// Frames of those that their owner gave up to be moved.
    pub(super) isolated_pages: u64,
    /// Pieces of memory that stay: each was asked for in vain.
    stayed: u64,
    /// Something that somebody has was met.
    has_met: bool,
    /// What is vacated is done with up to here.
    reached: Pfn,
    counts: Counts,
    pub(super) moved: Vacated,
    /// Of these, pages that everybody can see in the counters.
    told_pages: u64,
    /// The run that was refused last, of which more blocks may hold a part.
    pub(super) refused: PfnRange,
    naming: Naming<'m>,
    /// Others meet what this one has taken and not given up yet.
    _active: Active<'m>,
}

/// What was asked, and what came of it.
#[derive(Default)]
pub(super) struct Counts {
    scanned_pages: u64,
    failed_pages: u64,
    obstacles: [u64; KINDS],
}

impl Counts {
    /// Counts it where everybody sees it.
    pub(super) fn add_to<P: Platform>(&self, manager: &Manager<P>) {
        let counters = &manager.moving.counters;
        count(&counters.scanned_pages, self.scanned_pages);
        count(&counters.failed_pages, self.failed_pages);
        let kinds = counters.obstacles.iter().zip(self.obstacles);
        kinds.filter(|(_, here)| *here != 0).for_each(|(all, here)| count(all, here));
    }
}

/// A call that moves memory at this moment.
struct Active<'m>(&'m AtomicU32);

impl<'m> Active<'m> {
    fn new(count: &'m AtomicU32) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Active<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
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

impl<'m, P: Platform> Mission<'m, P> {
    #[inline(never)]
    pub(super) fn new(
        moving: Moving<'m, P>,
        purpose: Purpose,
        budget: Budget,
        name: &'m mut dyn FnMut(Obstacle),
    ) -> Self {
        let Moving { manager, leaves_node, .. } = moving;
        Self {
            manager,
            leaves_node,
            purpose,
            lacks_room: false,
            reached: Pfn(0),
            counts: Counts::default(),
            mover: moving.mover(),
            budget,
            begun: 0,
            isolated_pages: 0,
            stayed: 0,
            has_met: false,
            moved: Vacated::default(),
            told_pages: 0,
            refused: PfnRange::new(0, 0),
            naming: Naming::new(name),
            _active: Active::new(&manager.moving.active),
        }
    }

    const fn only_looks(&self) -> bool {
        matches!(self.purpose, Purpose::Look | Purpose::LookBeforeIsolation)
    }

    /// Whether there was no room for something since this was asked last.
    pub(super) const fn lacked_room(&mut self) -> bool {
        core::mem::replace(&mut self.lacks_room, false)
    }

    /// Up to where all that was to be vacated was done with.
    pub(super) const fn reached(&self) -> Pfn {
        self.reached
    }

    pub(super) const fn manager(&self) -> &'m Manager<P> {
        self.manager
    }

    /// Frames in use that were looked at so far.
    pub(super) const fn scanned_pages(&self) -> u64 {
        self.counts.scanned_pages
    }

    /// What is left of the budget: less than before wherever somebody was asked.
    pub(super) const fn left(&self) -> Budget {
        let used = self.begun + self.stayed.div_ceil(STAYED_A_RUN);
        let runs = self.budget.runs.saturating_sub(used);
        Budget { runs, ..self.budget }
    }

    /// Runs of the budget that were used.
    const fn used(&self) -> u64 {
        self.begun + self.stayed / STAYED_A_RUN
    }

    /// Whether the budget and the limit let another run be begun.
    pub(super) fn may_go_on(&self) -> bool {
        let is_enough = match self.purpose {
            Purpose::Compact { most_pages } => self.moved.moved_pages >= most_pages,
            _ => false,
        };
        !is_enough && self.budget.allows(self.manager.platform, self.used())
    }

    /// Runs that were moved so far.
    pub(super) const fn moved_runs(&self) -> u64 {
        self.moved.moved_runs
    }

    /// Whether somebody has anything of what was looked at.
    pub(super) const fn has_met(&self) -> bool {
        self.has_met
    }

    /// Whether all that is in the way may be gone at any moment.
    pub(super) const fn is_passing(&self) -> bool {
        self.naming.is_passing()
    }

    /// What was moved and what was not.
    pub(super) fn end(self) -> (Vacated, Option<Obstacles>) {
        let manager = self.manager;
        let (moved, obstacles, counts) = self.end_uncounted();
        counts.add_to(manager);
        (moved, obstacles)
    }

    /// [`end`](Self::end) of an attempt that may be made again: what was asked in vain is counted
    /// by the caller.
    pub(super) fn end_uncounted(mut self) -> (Vacated, Option<Obstacles>, Counts) {
        self.tell_moved();
        let counters = &self.manager.moving.counters;
        count(&counters.begun_runs, self.begun);
        count(&counters.isolated_pages, self.isolated_pages);
        (self.moved, self.naming.end(), self.counts)
    }

    /// Counts what was moved since it was counted last: once for many runs, as others read it.
    pub(super) fn tell_moved(&mut self) {
        let pages = self.moved.moved_pages - self.told_pages;
        if pages != 0 {
            self.told_pages += pages;
            count(&self.manager.moving.counters.moved_pages, pages);
        }
    }

    /// Moves everything in isolated frames elsewhere on their node. False when the budget was used
    /// up first, which is found out where a run is to be begun, and behind what stays or was only
    /// looked at.
    pub(super) fn vacate(&mut self, pages: PfnRange) -> Result<bool, FreeError> {
        for Piece { zone, segment, range } in self.manager.pieces(pages)? {
            let node = zone.id().node;
            let mut targets = Anywhere(if self.leaves_node {
                NodeChoice::Preferred(node)
            } else {
                NodeChoice::Exact(node)
            });
            let mut at = range.start;
            self.reached = at;
            while at < range.end {
                let block = BlockNumber::containing(at);
                let end = Pfn(block.start().0 + PAGES_PER_BLOCK).min(range.end);
                let part = PfnRange { start: at, end };
                let index = segment.index_of(block);
                let stayed = self.stayed;
                let next = match zone.occupied(self.manager.platform, segment, index) {
                    Occupied::Nothing => Next::From(end),
                    // Perhaps it is brought up when it is isolated.
                    Occupied::Held(Held::Reserved)
                        if self.purpose == Purpose::LookBeforeIsolation && zone.has_withheld() =>
                    {
                        self.has_met = true;
                        Next::From(end)
                    }
                    Occupied::Held(held) => {
                        self.has_met = true;
                        self.vacate_held(held, part)
                    }
                    Occupied::Whole(whole) => self.move_whole(at, whole, &mut targets),
                    Occupied::Frames(frames) => {
                        self.name_unmovable(&frames, part, range.start);
                        let within = Block { piece: Piece { zone, segment, range }, index, part };
                        self.move_frames(&within, &frames.in_use, &mut targets)
                    }
                };
                match next {
                    Next::From(next) => at = next.max(at.add(1)),
                    Next::Stop => return Ok(false),
                }
                self.reached = at;
                let has_asked = self.stayed != stayed || self.only_looks() && self.has_met;
                if has_asked && !self.may_go_on() {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// What nobody moves stays, but for free pages of pools.
    fn vacate_held(&mut self, held: Held, part: PfnRange) -> Next {
        // Elsewhere there are other places.
        let may_go = cfg!(feature = "pools")
            && held == Held::Pool
            && self.purpose != Purpose::LookBeforeIsolation;
        let (run, left) = if !may_go {
            (part, Err(ObstacleKind::of_held(held)))
        } else if self.only_looks() || self.budget.has_time(self.manager.platform) {
            self.manager.hugetlb().vacate(part, self.only_looks())
        } else {
            return Next::Stop;
        };
        if let Err(kind) = left {
            self.stayed += 1;
            self.refuse(run, kind);
        }
        Next::From(run.end)
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

    const fn count_refused(&mut self, pages: u64, obstacles: u64, kind: ObstacleKind) {
        self.counts.obstacles[kind as usize] += obstacles;
        self.counts.failed_pages += pages;
    }

    /// Whether owners say of all frames of a block that they can be moved. The first of which they
    /// do not is named.
    pub(super) fn can_empty(&mut self, block: &Block, bits: &FrameBits) -> bool {
        let (mut done, mut asked) = (block.part.start, 0);
        for offset in offsets(bits, block.part) {
            let pfn = block.all().start.add(offset);
            if pfn < done {
                continue;
            }
            asked += 1;
            match self.occupant(pfn) {
                Occupant::Movable(run) if is_plausible(run, pfn) => done = run.end,
                Occupant::Free => {}
                other => {
                    self.counts.scanned_pages += asked;
                    self.stayed += asked;
                    self.refuse_frame(pfn, kind_of(other));
                    return false;
                }
            }
        }
        true
    }

    fn occupant(&self, pfn: Pfn) -> Occupant {
        self.mover.map_or(Occupant::Unknown, |mover| mover.occupant(pfn))
    }

    /// Names what of a part of a split block nobody can move, of all that is vacated from `from`
    /// on: what lies before the part in its block may be the end of a run that goes, too.
    fn name_unmovable(&mut self, frames: &UsedFrames, part: PfnRange, from: Pfn) {
        let base = BlockNumber::containing(part.start).start();
        let is_whole = from <= base && part.end.0 - base.0 == PAGES_PER_BLOCK;
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
                self.refuse_frame(base.add(offset), kind);
            }
        }
    }

    /// Begins the move of the run that a frame is a part of, if it is one and was not refused just
    /// now. Nothing when the budget is used up.
    fn begin_at(&mut self, pfn: Pfn) -> Option<At> {
        self.has_met = true;
        let run = match self.occupant(pfn) {
            Occupant::Movable(run) if is_plausible(run, pfn) => run,
            Occupant::Free => return Some(At::Free),
            other => {
                self.stayed += 1;
                return Some(At::Stays(kind_of(other)));
            }
        };
        if run == self.refused || self.only_looks() {
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
        self.counts.scanned_pages += whole.end.0 - at.0;
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
            self.counts.scanned_pages += 1;
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
                        if self.lacks_room && matches!(self.purpose, Purpose::Compact { .. }) {
                            break;
                        }
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
}

/// A part of a split block.
pub(super) struct Block {
    pub(super) piece: Piece,
    pub(super) index: u32,
    pub(super) part: PfnRange,
}

impl Block {
    /// All of its frames.
    pub(super) fn all(&self) -> PfnRange {
        let start = BlockNumber::containing(self.part.start).start();
        PfnRange { start, end: start.add(PAGES_PER_BLOCK) }
    }
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
