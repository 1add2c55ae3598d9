//! Reserve areas: ranges that devices can get in one piece at any time and that are lent to movable
//! requests meanwhile (Linux: `mm/cma.c`).
//!
//! An area is a name, a bitmap, and blocks of the grade *removable*. A request for a run gets the
//! lowest place that can be vacated: the memory lent there is moved, and places with memory that
//! cannot be moved are skipped.
//!
//! Orders of memory: Relaxed: a sum that nothing else depends on.

use super::GradeError;
use super::outcome::{Budget, ObstacleKind, Vacated};
use super::range::RangeError;
use super::vacate::{PutBack, VacateError};
use crate::block::MigrateType;
use crate::manager::facets::Moving;
use crate::manager::owned::Frames;
use crate::manager::request::{AllocateError, Request};
use crate::manager::state::Manager;
use crate::manager::state::areas::{Area, AreaCounts, AreaName, MOST_AREAS};
use crate::manager::state::pressure::count;
use crate::platform::Platform;
use crate::units::{Order, PAGE_SIZE, PAGES_PER_BLOCK, Pfn, PfnRange};
use crate::vmemmap_space::{BlockNumber, BlockRange};
use crate::zone::{FreeError, Grade, IsolateError, IsolatedPages};
use core::fmt;

/// How often a request goes through the area again because others have blocks of all places
/// isolated.
const MOST_PASSES: u32 = 1 << 14;

/// A request for a run of an area.
struct Wanted {
    number: usize,
    pages: u64,
    align: Order,
    budget: Budget,
}

/// A request in progress. When it ends, even by a panic of the mover, it updates the area.
struct Attempt<'m, P: Platform> {
    moving: Moving<'m, P>,
    number: usize,
    pages: u64,
    /// The run that is marked as handed out.
    run: Option<PfnRange>,
    is_given: bool,
}

impl<P: Platform> Drop for Attempt<'_, P> {
    fn drop(&mut self) {
        // The area exists, as areas are never removed.
        let _ = self.moving.with_area(self.number, |area| {
            area.vacating -= 1;
            if self.is_given {
                area.counts.success_pages = area.counts.success_pages.saturating_add(self.pages);
            } else {
                area.counts.fail_pages = area.counts.fail_pages.saturating_add(self.pages);
                self.run.into_iter().for_each(|run| area.mark(run, false));
            }
        });
    }
}

/// The reserved entry of an area that is being made. It is freed if making the area fails or
/// panics.
struct Chosen<'m, P: Platform> {
    manager: &'m Manager<P>,
    number: usize,
}

impl<P: Platform> Drop for Chosen<'_, P> {
    fn drop(&mut self) {
        self.manager.moving.chosen.lock(self.manager.platform)[self.number] = None;
    }
}

/// Why a call on an area failed. Nothing has changed, except for memory that was moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AreaError {
    /// There is no area of this number.
    NoArea(usize),
    /// There is already the largest possible number of areas.
    TooMany,
    /// There is an area of this name already.
    Exists(AreaName),
    /// A part of the range is in the area of this number.
    Overlaps(usize),
    /// There is no memory for the area's bitmap.
    Memory(AllocateError),
    /// The blocks cannot be set aside.
    Grade(GradeError),
    /// No run of this many pages could be vacated.
    NoRun {
        /// How many pages were requested.
        pages: u64,
    },
    /// Memory cannot be moved from this context, or not in time.
    Moving(RangeError),
    /// The area did not hand out all of this range.
    NotOut(PfnRange),
    /// The frames could not be freed.
    Free(FreeError),
}

impl fmt::Display for AreaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoArea(number) => write!(f, "there is no area {number}"),
            Self::TooMany => write!(f, "there are {MOST_AREAS} areas, and no more are possible"),
            Self::Exists(name) => write!(f, "area {} exists already", name.as_str()),
            Self::Overlaps(number) => write!(f, "part of it belongs to area {number}"),
            Self::Memory(error) => error.fmt(f),
            Self::Grade(error) => error.fmt(f),
            Self::NoRun { pages } => write!(f, "no run of {pages} pages could be vacated"),
            Self::Moving(error) => error.fmt(f),
            Self::NotOut(range) => write!(f, "the area did not hand out all of {range:?}"),
            Self::Free(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for AreaError {}

impl<'m, P: Platform> Moving<'m, P> {
    /// Sets blocks aside as an area and returns its number. Anything allocated in the blocks now
    /// must have been allocated as movable, and from now on only movable requests get memory there.
    /// All frames must be memory that the manager was given. An area is never removed.
    ///
    /// # Errors
    /// [`AreaError`].
    pub fn create_area(self, name: AreaName, range: BlockRange) -> Result<usize, AreaError> {
        let pages = PfnRange { start: range.start.start(), end: range.end.start() };
        let number = self.choose_place(name, pages)?;
        let manager = self.manager;
        let chosen = Chosen { manager, number };
        let made = self.check_going(pages).and_then(|()| self.bitmap_beside(range));
        let made = made.and_then(|bits| {
            self.grade_alone(range, Grade::Removable).map(|()| bits).map_err(AreaError::Grade)
        });
        let bits = made?;
        let area = Area::new(name, pages, bits.into_words());
        *manager.moving.areas[number].lock(manager.platform) = Some(area);
        count(&manager.moving.area_pages, pages.pages());
        core::mem::forget(chosen);
        Ok(number)
    }

    /// Refuses memory that is being taken out of use. The task that takes it out looks for areas
    /// after it has set `going`, and the entry of this area is in place by now.
    fn check_going(self, pages: PfnRange) -> Result<(), AreaError> {
        let going = *self.manager.hotplug.going.lock(self.manager.platform);
        let (start, end) = (Pfn::containing(going.start), Pfn::containing(going.end));
        let inside = PfnRange { start, end }.intersection(pages);
        if inside.is_empty() {
            return Ok(());
        }
        Err(AreaError::Grade(GradeError::InUse(inside.start)))
    }

    /// Allocates the bitmap of an area that is to be made, outside the area, as nothing unmovable
    /// may lie inside it.
    fn bitmap_beside(self, range: BlockRange) -> Result<Frames<'m, P>, AreaError> {
        let isolation = self.manager.isolation();
        let wrong = |error| AreaError::Grade(GradeError::Isolate(error));
        isolation.isolate(range).map_err(wrong)?;
        // Movers and the reclaim hook, which may be called to make room for the bitmap, may panic.
        let unwinding = PutBack { moving: self, range };
        let pages = u64::from(range.blocks()) * PAGES_PER_BLOCK;
        let bits = self.bitmap_of(pages);
        let whole = self.has_all(range);
        core::mem::forget(unwinding);
        self.put_back(range);
        whole?;
        bits
    }

    /// Checks that all frames of isolated blocks are the manager's.
    pub(super) fn has_all(self, range: BlockRange) -> Result<(), AreaError> {
        let survey = self.manager.isolation().survey(range);
        let IsolatedPages { free_pages, in_use_pages, descriptor_pages, .. } =
            survey.map_err(|error| AreaError::Grade(GradeError::Isolate(error)))?;
        if free_pages + in_use_pages + descriptor_pages
            == u64::from(range.blocks()) * PAGES_PER_BLOCK
        {
            return Ok(());
        }
        Err(AreaError::Grade(GradeError::InUse(range.start.start())))
    }

    /// Allocates memory for the bitmap of an area, which is never freed.
    fn bitmap_of(self, pages: u64) -> Result<Frames<'m, P>, AreaError> {
        let request = Request {
            migrate_type: MigrateType::Unmovable,
            zeroed: true,
            ..Request::pages((pages / 8).div_ceil(PAGE_SIZE).max(1))
        };
        self.manager.frames(&request).map_err(AreaError::Memory)
    }

    /// Reserves a number for an area before the area has its frames, so that no other area gets its
    /// name or place meanwhile.
    fn choose_place(self, name: AreaName, pages: PfnRange) -> Result<usize, AreaError> {
        let mut chosen = self.manager.moving.chosen.lock(self.manager.platform);
        let mut number = None;
        for (at, place) in chosen.iter().enumerate() {
            match *place {
                Some((known, _)) if known == name => return Err(AreaError::Exists(name)),
                Some((_, other)) if !other.intersection(pages).is_empty() => {
                    return Err(AreaError::Overlaps(at));
                }
                Some(_) => {}
                None => number = number.or(Some(at)),
            }
        }
        let number = number.ok_or(AreaError::TooMany)?;
        chosen[number] = Some((name, pages));
        Ok(number)
    }

    /// Returns the number of an area.
    #[must_use]
    pub fn area_named(self, name: &str) -> Option<usize> {
        (0..MOST_AREAS)
            .find(|&number| self.area(number).is_some_and(|(own, _, _)| own.as_str() == name))
    }

    /// Returns the name, frames and counts of an area.
    #[must_use]
    pub fn area(self, number: usize) -> Option<(AreaName, PfnRange, AreaCounts)> {
        let place = self.manager.moving.areas.get(number)?;
        let place = place.lock(self.manager.platform);
        let area = place.as_ref()?;
        Some((area.name, area.pages, area.counts))
    }

    /// Returns the first frame of any area in a range of blocks, including areas that are being
    /// made.
    pub(in crate::manager) fn area_in(self, range: BlockRange) -> Option<Pfn> {
        let pages = PfnRange { start: range.start.start(), end: range.end.start() };
        let chosen = self.manager.moving.chosen.lock(self.manager.platform);
        let inside = chosen.iter().flatten().map(|(_, area)| area.intersection(pages));
        inside.filter(|inside| !inside.is_empty()).map(|inside| inside.start).min()
    }

    /// Returns the highest contiguous blocks of a range that contain no area; empty if there are
    /// none.
    pub(in crate::manager) fn last_outside_areas(self, range: BlockRange) -> BlockRange {
        let chosen = self.manager.moving.chosen.lock(self.manager.platform);
        let areas = || {
            let number = |pfn: Pfn| BlockNumber::containing(pfn);
            chosen.iter().flatten().map(move |(_, area)| (number(area.start), number(area.end)))
        };
        let mut end = range.end;
        while let Some((start, _)) = areas().find(|&(start, over)| start < end && end <= over)
            && end > range.start
        {
            end = start.max(range.start);
        }
        let below = areas().map(|(_, over)| over).filter(|&over| over <= end).max();
        BlockRange { start: below.map_or(range.start, |over| over.max(range.start)), end }
    }

    /// Returns the frames of each area; empty for areas that do not exist.
    pub(super) fn area_ranges(self) -> [PfnRange; MOST_AREAS] {
        core::array::from_fn(|number| {
            self.area(number).map_or(PfnRange::new(0, 0), |(_, pages, _)| pages)
        })
    }

    /// Returns the number of frames of all areas (Linux: `totalcma_pages`).
    #[must_use]
    pub fn area_pages(self) -> u64 {
        self.manager.moving.area_pages.load(crate::sync::table_atomic::Ordering::Relaxed)
    }

    /// Returns how many bytes the command line asked to set aside at bring-up but that could not
    /// be.
    #[must_use]
    pub const fn failed_area_bytes(self) -> u64 {
        self.manager.moving.failed_area_bytes
    }

    /// Calls `with` for an area, under its lock.
    fn with_area<R>(
        self,
        number: usize,
        with: impl FnOnce(&mut Area) -> R,
    ) -> Result<R, AreaError> {
        let place = self.manager.moving.areas.get(number).ok_or(AreaError::NoArea(number))?;
        let mut place = place.lock(self.manager.platform);
        place.as_mut().map(with).ok_or(AreaError::NoArea(number))
    }

    /// Allocates the lowest run of an area that can be vacated (Linux: `cma_alloc`). The run goes
    /// back by [`release_to_area`](Self::release_to_area); an area does not learn of other frees.
    ///
    /// # Errors
    /// [`AreaError`].
    #[track_caller]
    pub fn allocate_in_area(
        self,
        number: usize,
        pages: u64,
        align: Order,
        budget: Budget,
    ) -> Result<PfnRange, AreaError> {
        if pages == 0 {
            return Err(AreaError::Memory(AllocateError::BadSize { pages }));
        }
        let mut wanted = Wanted { number, pages, align, budget };
        self.with_area(number, Area::enter)?;
        let mut attempt = Attempt { moving: self, number, pages, run: None, is_given: false };
        let mut result = Err(AreaError::NoRun { pages });
        for _ in 0..MOST_PASSES {
            let before = self.with_area(number, |area| area.alone())?;
            result = self.try_places(&mut wanted, &mut attempt.run);
            // An equal ticket before and after means that nobody else came in between.
            let alone =
                before.is_some() && before == self.with_area(number, |area| area.alone())?;
            // If a caller of this area has a block isolated, it will be done with it soon.
            let is_busy = matches!(
                result,
                Err(AreaError::Moving(RangeError::Vacate(VacateError::Isolate(
                    IsolateError::Isolated(_)
                ))))
            );
            let platform = self.manager.platform;
            if alone || !is_busy || !platform.can_wait() || !wanted.budget.allows(platform, 0) {
                break;
            }
            // The caller that isolated the block may need this CPU to go on (invariant 43).
            platform.yield_now();
        }
        attempt.is_given = result.is_ok();
        result
    }

    /// Tries each place of an area once, from the lowest on. Places with an isolated block are
    /// skipped; if no other place succeeds, the error is about one of them. `marked` is the place
    /// that is marked as handed out.
    #[track_caller]
    fn try_places(
        self,
        wanted: &mut Wanted,
        marked: &mut Option<PfnRange>,
    ) -> Result<PfnRange, AreaError> {
        let &mut Wanted { number, pages, align, .. } = wanted;
        let mut nothing = AreaError::NoRun { pages };
        let mut from = Pfn(0);
        let (mut repeated, mut is_drained) = (None, false);
        loop {
            let looked = self.with_area(number, |area| {
                let run = area.find(from, pages, align)?;
                run.into_iter().for_each(|run| area.mark(run, true));
                Ok(run)
            })?;
            *marked = match looked {
                Ok(run) => run,
                Err(next) => {
                    from = next;
                    continue;
                }
            };
            let Some(run) = *marked else { return Err(nothing) };
            let platform = self.manager.platform;
            // If no more runs may be begun, only free memory is of use. Then do not drain the
            // caches for each place, but once; and pass by blocks that are in use in part, be it by
            // the area's own runs, as looking into each would take longer than the caller allows.
            if !wanted.budget.allows(platform, 0) && wanted.budget.has_time(platform) {
                if !core::mem::replace(&mut is_drained, true) {
                    self.manager.drain_for_more();
                }
                if let Some(used) = self.last_used(run) {
                    *marked = None;
                    self.with_area(number, |area| area.mark(run, false))?;
                    if let AreaError::NoRun { .. } = nothing {
                        let moved = Vacated::default();
                        let error = VacateError::OutOfTime { moved };
                        nothing = AreaError::Moving(RangeError::Vacate(error));
                    }
                    from = BlockNumber(used.0 + 1).start();
                    continue;
                }
            }
            let error = match self.take_range(run, &mut wanted.budget) {
                Ok(run) => return Ok(run),
                Err(error) => error,
            };
            *marked = None;
            self.with_area(number, |area| area.mark(run, false))?;
            let next = run.start.add(align.pages());
            let behind = |pfn| BlockNumber(BlockNumber::containing(pfn).0 + 1).start();
            // Whether to report this error if there is no other place.
            let mut is_told = true;
            let next = match &error {
                // As long as there is time, free memory may still be had, even if no more may be
                // moved.
                _ if !wanted.budget.has_time(platform) => None,
                // Another thread may just have been moving or freeing it.
                RangeError::Vacate(error)
                    if error.may_pass()
                        && platform.can_wait()
                        && repeated.replace(run) != Some(run) =>
                {
                    is_told = false;
                    platform.yield_now();
                    Some(run.start)
                }
                RangeError::Vacate(VacateError::Obstacles { obstacles, .. }) => {
                    is_told = false;
                    Some(match obstacles.first.kind {
                        // Descriptors go away with their block if the whole block is vacated.
                        ObstacleKind::Descriptors => {
                            let rest = run.end.0.next_multiple_of(PAGES_PER_BLOCK) - run.end.0;
                            next.max(run.start.add(rest))
                        }
                        // Any place that begins before the obstacle's end contains it, too.
                        _ => next.max(obstacles.first.run.end.min(run.end)),
                    })
                }
                RangeError::Damaged(_) | RangeError::Vacate(VacateError::InUse { .. }) => {
                    is_told = false;
                    Some(next)
                }
                // The budget allows no more moves.
                RangeError::Vacate(VacateError::OutOfTime { .. }) => Some(next),
                RangeError::Vacate(VacateError::Isolate(IsolateError::Isolated(pfn))) => {
                    Some(next.max(behind(*pfn)))
                }
                // Part of a block or page that cannot be divided.
                RangeError::Vacate(VacateError::Isolate(IsolateError::Indivisible(_))) => {
                    is_told = false;
                    Some(next.max(behind(run.start)))
                }
                _ => None,
            };
            if is_told {
                nothing = AreaError::Moving(error);
            }
            match next {
                Some(next) => from = next,
                None => return Err(nothing),
            }
        }
    }

    /// Returns the last block with frames in use among those that a run lies in.
    fn last_used(self, run: PfnRange) -> Option<BlockNumber> {
        let BlockRange { start, mut end } = BlockRange::around(run);
        while start < end {
            let last = BlockNumber(end.0 - 1);
            let found = self.manager.isolation().survey(BlockRange { start: last, end });
            if found.is_ok_and(|pages| pages.in_use_pages != 0) {
                return Some(last);
            }
            end = last;
        }
        None
    }

    /// Gives back frames that an area handed out, all or a part of a run (Linux: `cma_release`).
    ///
    /// # Errors
    /// [`AreaError`].
    ///
    /// # Safety
    /// See [*Owning memory*](super::super#owning-memory): the caller owns all frames of `range`,
    /// and nobody uses them any more.
    pub unsafe fn release_to_area(self, number: usize, range: PfnRange) -> Result<(), AreaError> {
        if !self.with_area(number, |area| area.is_out(range))? {
            return Err(AreaError::NotOut(range));
        }
        self.manager
            .free_uncached(range, core::panic::Location::caller())
            .map_err(AreaError::Free)?;
        self.with_area(number, |area| {
            area.take_back(range);
        })
    }
}

impl<P: Platform> Moving<'_, P> {
    /// Notes that frames were freed in another way than through their area; they become available
    /// in it.
    pub(in crate::manager) fn note_released(self, range: PfnRange) {
        for number in 0..MOST_AREAS {
            // There is nothing to note if the area does not exist.
            let _ = self.with_area(number, |area| {
                if area.is_out(range) {
                    area.take_back(range);
                }
            });
        }
    }
}
