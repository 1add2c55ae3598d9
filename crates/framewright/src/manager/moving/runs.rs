//! Moves one run after another: the common part of all kinds of vacating and compacting.
//!
//! Orders of memory: Relaxed: the number of calls that are moving memory is a hint.

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

/// How many frames that stay cost the budget one run: the owner is asked about each of them, but
/// nothing is moved.
const STAYED_A_RUN: u64 = 32;

/// How to go on.
pub(super) enum Next {
    /// Everything before this frame is done.
    From(Pfn),
    /// The budget is used up.
    Stop,
}

/// The purpose of a call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Move everything that can be moved.
    Vacate,
    /// Move about `most_pages` pages. If there is no room for a run, the rest of its block stays.
    Compact {
        /// About how many pages to move at most.
        most_pages: u64,
    },
    /// Only ask owners about their frames; move nothing.
    Look,
    /// As `Look`, before anything is isolated: isolation makes withheld memory available.
    LookBeforeIsolation,
}

/// The moves of one call, within its budget.
pub(super) struct Mission<'m, P: Platform> {
    pub(super) manager: &'m Manager<P>,
    pub(super) mover: Option<&'m dyn Mover>,
    to: Option<NodeChoice>,
    purpose: Purpose,
    /// There was no room for a run.
    pub(super) lacks_room: bool,
    budget: Budget,
    pub(super) begun: u64,
    /// Frames whose owner agreed to move them.
    pub(super) isolated_pages: u64,
    /// Pieces of memory that stay: their owners were asked in vain.
    stayed: u64,
    /// Memory that is in use was met.
    has_met: bool,
    /// Everything to be vacated before this frame is done.
    reached: Pfn,
    counts: Counts,
    pub(super) moved: Vacated,
    /// Those of the moved pages that are in the shared counters.
    told_pages: u64,
    /// The run that was refused last, which may extend into more blocks.
    pub(super) refused: PfnRange,
    naming: Naming<'m>,
    /// Tells other calls that they may meet frames that this call has taken and not given up yet.
    _active: Active<'m>,
}

/// Counts of what was asked and of the answers.
#[derive(Default)]
pub(super) struct Counts {
    scanned_pages: u64,
    failed_pages: u64,
    obstacles: [u64; KINDS],
}

impl Counts {
    /// Adds the counts to the shared counters.
    pub(super) fn add_to<P: Platform>(&self, manager: &Manager<P>) {
        let counters = &manager.moving.counters;
        count(&counters.scanned_pages, self.scanned_pages);
        count(&counters.failed_pages, self.failed_pages);
        let kinds = counters.obstacles.iter().zip(self.obstacles);
        kinds.filter(|(_, here)| *here != 0).for_each(|(all, here)| count(all, here));
    }
}

/// A call that is moving memory.
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

/// The result for a frame in use.
enum At {
    /// The move of the frame's run has begun.
    Begun(Begun),
    /// The run is gone, or it stays and was reported.
    Done(PfnRange),
    /// The frame is being freed.
    Free,
    /// The frame stays and is yet to be reported.
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
        let Moving { manager, to, .. } = moving;
        Self {
            manager,
            to,
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

    /// Returns whether there was no room for a run since this was last called.
    pub(super) const fn lacked_room(&mut self) -> bool {
        core::mem::replace(&mut self.lacks_room, false)
    }

    /// Returns the frame up to which everything that was to be vacated is done.
    pub(super) const fn reached(&self) -> Pfn {
        self.reached
    }

    pub(super) const fn manager(&self) -> &'m Manager<P> {
        self.manager
    }

    /// Returns how many frames in use were examined so far.
    pub(super) const fn scanned_pages(&self) -> u64 {
        self.counts.scanned_pages
    }

    /// Returns the rest of the budget, which is less than before if any owner was asked.
    pub(super) const fn left(&self) -> Budget {
        let used = self.begun + self.stayed.div_ceil(STAYED_A_RUN);
        let runs = self.budget.runs.saturating_sub(used);
        Budget { runs, ..self.budget }
    }

    /// Returns how many runs of the budget were used.
    const fn used(&self) -> u64 {
        self.begun + self.stayed / STAYED_A_RUN
    }

    /// Returns whether the budget and the limit of the purpose allow another run.
    pub(super) fn may_go_on(&self) -> bool {
        let is_enough = match self.purpose {
            Purpose::Compact { most_pages } => self.moved.moved_pages >= most_pages,
            _ => false,
        };
        !is_enough && self.budget.allows(self.manager.platform, self.used())
    }

    /// Returns how many runs were moved so far.
    pub(super) const fn moved_runs(&self) -> u64 {
        self.moved.moved_runs
    }

    /// Returns whether any memory in use was met.
    pub(super) const fn has_met(&self) -> bool {
        self.has_met
    }

    /// Returns whether all obstacles may be gone at any moment.
    pub(super) const fn is_passing(&self) -> bool {
        self.naming.is_passing()
    }

    /// Ends the mission, and returns what was moved and which obstacles were met.
    pub(super) fn end(self) -> (Vacated, Option<Obstacles>) {
        let manager = self.manager;
        let (moved, obstacles, counts) = self.end_uncounted();
        counts.add_to(manager);
        (moved, obstacles)
    }

    /// Does [`end`](Self::end) for an attempt that may be repeated: the caller counts what was
    /// asked in vain.
    pub(super) fn end_uncounted(mut self) -> (Vacated, Option<Obstacles>, Counts) {
        self.tell_moved();
        let counters = &self.manager.moving.counters;
        count(&counters.begun_runs, self.begun);
        count(&counters.isolated_pages, self.isolated_pages);
        (self.moved, self.naming.end(), self.counts)
    }

    /// Adds the pages that were moved since the last call to the shared counter: once for many
    /// runs, as other CPUs read it.
    pub(super) fn tell_moved(&mut self) {
        let pages = self.moved.moved_pages - self.told_pages;
        if pages != 0 {
            self.told_pages += pages;
            count(&self.manager.moving.counters.moved_pages, pages);
        }
    }

    /// Moves the contents of isolated frames elsewhere. Returns false if the budget was used up
    /// first, which is checked before a run is begun and after memory that stays or was only looked
    /// at.
    pub(super) fn vacate(&mut self, pages: PfnRange) -> Result<bool, FreeError> {
        for Piece { zone, segment, range } in self.manager.pieces(pages)? {
            let mut targets = Anywhere(self.to.unwrap_or(NodeChoice::Exact(zone.id().node)));
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
                    // Isolation may make this withheld memory available.
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

    /// Handles memory that no mover can move. It stays, except for free pages of pools.
    fn vacate_held(&mut self, held: Held, part: PfnRange) -> Next {
        // Before isolation, avoid the page instead, as there are other places.
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

    /// Returns whether owners say that all frames of a block can be moved. Reports the first frame
    /// that cannot.
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

    /// Reports what nobody can move in a part of a split block. `from` is where the vacated range
    /// begins: frames before the part in its block may be the end of a run that is vacated, too.
    fn name_unmovable(&mut self, frames: &UsedFrames, part: PfnRange, from: Pfn) {
        let base = BlockNumber::containing(part.start).start();
        let is_whole = from <= base && part.end.0 - base.0 == PAGES_PER_BLOCK;
        let kinds = [
            (&frames.reserved, ObstacleKind::Reserved),
            (&frames.reporting, ObstacleKind::Reporting),
            (&frames.descriptors, ObstacleKind::Descriptors),
        ];
        for (bits, kind) in kinds {
            // The descriptors of a block that becomes free as a whole go away by themselves.
            if kind == ObstacleKind::Descriptors && is_whole {
                continue;
            }
            for offset in offsets(bits, part) {
                self.refuse_frame(base.add(offset), kind);
            }
        }
    }

    /// Begins the move of a frame's run, if the frame belongs to one that was not just refused.
    /// Returns `None` if the budget is used up.
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

    /// Moves the contents of a block that was allocated as a whole, or of the part of it that has
    /// one owner.
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

    /// Moves the frames of a split block that are set in `bits` and lie in the block's part, and
    /// frees them together.
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
                        // It overlaps another run, which is impossible for a correct answer of an
                        // owner.
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
    /// Returns the frames of the whole block.
    pub(super) fn all(&self) -> PfnRange {
        let start = BlockNumber::containing(self.part.start).start();
        PfnRange { start, end: start.add(PAGES_PER_BLOCK) }
    }
}

/// Returns whether a mover's answer about a frame can be true.
fn is_plausible(run: PfnRange, pfn: Pfn) -> bool {
    run.start <= pfn && pfn < run.end && run.pages() <= Order::MAX.pages()
}

const fn kind_of(occupant: Occupant) -> ObstacleKind {
    match occupant {
        Occupant::Pinned => ObstacleKind::Pinned,
        Occupant::Fixed => ObstacleKind::Fixed,
        Occupant::Unknown => ObstacleKind::Unknown,
        // The answer cannot be true.
        Occupant::Movable(_) | Occupant::Free => ObstacleKind::Failed,
    }
}

/// Returns the set bits of a block's map in a part of the block, as offsets in the block.
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
