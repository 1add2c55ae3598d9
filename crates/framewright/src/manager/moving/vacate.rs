//! Vacates blocks: moves everything in them elsewhere, or reports what is in the way.
//!
//! Orders of memory: Relaxed: the number of calls that are moving memory, and of pages that they
//! moved, are hints.

use super::outcome::{Budget, Obstacle, ObstacleKind, Obstacles, Vacated};
use super::runs::{Counts, Mission, Purpose};
use crate::manager::facets::Moving;
use crate::manager::state::moving::Mover;
use crate::platform::Platform;
use crate::sync::table_atomic::Ordering;
use crate::units::PfnRange;
use crate::vmemmap_space::{BlockNumber, BlockRange};
use crate::zone::IsolateError;
use core::fmt;

/// How many attempts are made at a place in which others are moving memory, too.
const ATTEMPTS: u32 = 5;
/// How often to yield the CPU at most until the others have made progress.
const MOST_YIELDS: u32 = 1 << 10;

/// Why blocks were not vacated. They are in circulation as before; memory that was moved stays in
/// its new place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VacateError {
    /// The blocks could not be isolated; or, after everything was moved, not all of them were
    /// isolated any more, as memory came online or was released among them.
    Isolate(IsolateError),
    /// Something could not be moved.
    Obstacles {
        /// What was moved.
        moved: Vacated,
        /// What was not moved.
        obstacles: Obstacles,
    },
    /// The budget was used up first.
    OutOfTime {
        /// What was moved.
        moved: Vacated,
    },
    /// At the end some pages were still in use that no owner claimed: they were being freed.
    InUse {
        /// What was moved.
        moved: Vacated,
        /// How many pages were left.
        pages: u64,
    },
}

impl VacateError {
    /// Returns whether the first obstacle may be gone at the next attempt.
    pub(super) const fn may_pass(&self) -> bool {
        let Self::Obstacles { obstacles, .. } = self else {
            return matches!(self, Self::InUse { .. });
        };
        matches!(obstacles.first.kind, ObstacleKind::Busy | ObstacleKind::Unknown)
    }
}

impl fmt::Display for VacateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Isolate(error) => error.fmt(f),
            Self::Obstacles { obstacles: Obstacles { first, count: 1 }, .. } => {
                write!(f, "one run could not be moved: {first}")
            }
            Self::Obstacles { obstacles: Obstacles { first, count }, .. } => {
                write!(f, "{count} runs could not be moved, the first: {first}")
            }
            Self::OutOfTime { moved } => {
                write!(f, "out of time after {} pages were moved", moved.moved_pages)
            }
            Self::InUse { pages, .. } => write!(f, "{pages} pages are being freed by others"),
        }
    }
}

impl core::error::Error for VacateError {}

impl<'m, P: Platform> Moving<'m, P> {
    /// Isolates blocks and moves everything in them elsewhere on their node. When this returns, all
    /// of the blocks are free and isolated: [`claim`](super::super::Isolation::claim) takes them,
    /// [`unisolate`](super::super::Isolation::unisolate) gives them back.
    ///
    /// Owners are asked before anything is moved: if one says that its memory must stay, nothing is
    /// moved.
    ///
    /// # Errors
    /// [`VacateError`], which names the first obstacle. Nothing is isolated then, and memory that
    /// was moved stays moved.
    pub fn vacate(self, range: BlockRange, budget: Budget) -> Result<Vacated, VacateError> {
        self.vacate_naming(range, budget, &mut |_| {})
    }

    /// Does [`vacate`](Self::vacate) and calls `name` for everything that cannot be moved,
    /// ascending by block: what owners say must stay, or what they refuse while the rest is moved.
    /// If others are moving memory meanwhile, `name` may also be told of runs that a later attempt
    /// moves.
    ///
    /// # Errors
    /// As for [`vacate`](Self::vacate).
    pub fn vacate_naming(
        self,
        range: BlockRange,
        budget: Budget,
        name: &mut dyn FnMut(Obstacle),
    ) -> Result<Vacated, VacateError> {
        self.vacate_within(range, &mut { budget }, name)
    }

    /// Does [`vacate_naming`](Self::vacate_naming) and subtracts what it used from the budget.
    pub(in crate::manager) fn vacate_within(
        self,
        range: BlockRange,
        budget: &mut Budget,
        name: &mut dyn FnMut(Obstacle),
    ) -> Result<Vacated, VacateError> {
        self.manager.isolation().isolate(range).map_err(VacateError::Isolate)?;
        let pages = PfnRange { start: range.start.start(), end: range.end.start() };
        self.vacate_isolated(pages, budget, Some(name))
            .and_then(|moved| {
                let left = self.manager.isolation().survey_isolated(range);
                let left = left.map_err(VacateError::Isolate)?;
                let pages = left.in_use_pages + left.descriptor_pages;
                if pages == 0 { Ok(moved) } else { Err(VacateError::InUse { moved, pages }) }
            })
            .inspect_err(|_| self.put_back(range))
    }

    /// Returns the mover, if it may be called from this context.
    pub(super) fn mover(self) -> Option<&'m dyn Mover> {
        let Moving { manager, by, .. } = self;
        if !manager.platform.can_wait() {
            return None;
        }
        let mover = by.or_else(|| manager.moving.mover(manager.platform))?;
        mover.serves(core::ptr::from_ref(manager).cast()).then_some(mover)
    }

    /// Puts back blocks that this call had isolated, but for those that another caller has put back
    /// or claimed, although they were not its own, and for those that became memory meanwhile.
    pub(in crate::manager) fn put_back(self, range: BlockRange) {
        self.manager.isolation().put_back_rest(range);
    }

    /// Moves the contents of isolated frames elsewhere, and subtracts what that used from the
    /// budget. The blocks stay isolated, unless the mover or `name` panics.
    ///
    /// Runs that others are moving are obstacles only for a moment, so this tries again.
    pub(super) fn vacate_isolated(
        self,
        pages: PfnRange,
        budget: &mut Budget,
        name: Option<&mut dyn FnMut(Obstacle)>,
    ) -> Result<Vacated, VacateError> {
        let unwinding = PutBack { moving: self, range: BlockRange::around(pages) };
        let platform = self.manager.platform;
        let are_others_active =
            || self.manager.moving.active.load(Ordering::Relaxed) != 0 && platform.can_wait();
        let (mut moved, mut attempts, mut untold) = (Vacated::default(), 1, name);
        loop {
            let others = are_others_active();
            let is_last = !others || attempts >= ATTEMPTS;
            let mut ignored = |_| {};
            let mut tried = match &mut untold {
                Some(name) if is_last => self.try_isolated(pages, budget, &mut **name),
                _ => self.try_isolated(pages, budget, &mut ignored),
            };
            moved.moved_runs += tried.moved.moved_runs;
            moved.moved_pages += tried.moved.moved_pages;
            if let Err(VacateError::Obstacles { obstacles, .. }) = tried.result {
                let has_time = budget.allows(platform, 0);
                let may_pass = tried.is_passing
                    && attempts < ATTEMPTS
                    && has_time
                    && (others || are_others_active());
                if may_pass {
                    if is_last {
                        // Nothing is reported twice.
                        untold = None;
                    }
                    attempts += 1;
                    self.let_others_move(budget);
                    continue;
                }
                if let Some(name) = untold.as_mut().filter(|_| !is_last) {
                    if has_time {
                        // Try once more, to report all obstacles.
                        attempts = ATTEMPTS;
                        continue;
                    }
                    name(obstacles.first);
                }
            }
            tried.counts.add_to(self.manager);
            if let Err(
                VacateError::Obstacles { moved: all, .. }
                | VacateError::OutOfTime { moved: all }
                | VacateError::InUse { moved: all, .. },
            ) = &mut tried.result
            {
                *all = moved;
            }
            core::mem::forget(unwinding);
            return tried.result.map(|()| moved);
        }
    }

    /// Waits until others have completed the moves that they have begun.
    fn let_others_move(self, budget: &Budget) {
        let manager = self.manager;
        let moved = || manager.moving.counters.moved_pages.load(Ordering::Relaxed);
        let before = moved();
        for _ in 0..MOST_YIELDS {
            // The thread that moves may need this CPU for that (invariant 43).
            manager.platform.yield_now();
            let is_over = manager.moving.active.load(Ordering::Relaxed) == 0;
            if is_over || moved() != before || !budget.allows(manager.platform, 0) {
                break;
            }
        }
    }

    /// Makes one attempt. Asking owners takes at most half of the time, so that a caller which
    /// comes again and again with little time makes progress.
    fn try_isolated(
        self,
        pages: PfnRange,
        budget: &mut Budget,
        name: &mut dyn FnMut(Obstacle),
    ) -> Tried {
        let looks = budget.half_of_the_time(self.manager.platform);
        let (mut tried, has_met) = self.try_once(pages, Purpose::Look, looks, name);
        budget.runs = tried.left_runs;
        if tried.result.is_ok() && has_met
            || matches!(tried.result, Err(VacateError::OutOfTime { .. }))
        {
            (tried, _) = self.try_once(pages, Purpose::Vacate, *budget, name);
            budget.runs = tried.left_runs;
        }
        tried
    }

    /// Looks at all of the frames, or moves them; also returns whether any memory in use was met.
    fn try_once(
        self,
        pages: PfnRange,
        purpose: Purpose,
        budget: Budget,
        name: &mut dyn FnMut(Obstacle),
    ) -> (Tried, bool) {
        let mut mission = Mission::new(self, purpose, budget, name);
        let is_done = mission.vacate(pages);
        let (has_met, left_runs) = (mission.has_met(), mission.left().runs);
        let is_passing = mission.is_passing();
        let (moved, obstacles, counts) = mission.end_uncounted();
        let result = match (is_done, obstacles) {
            (Err(error), _) => Err(VacateError::Isolate(IsolateError::Place(error))),
            (_, Some(obstacles)) => Err(VacateError::Obstacles { moved, obstacles }),
            (Ok(false), None) => Err(VacateError::OutOfTime { moved }),
            (Ok(true), None) => Ok(()),
        };
        (Tried { moved, counts, left_runs, is_passing, result }, has_met)
    }

    /// Moves what can be moved out of blocks, and puts the blocks back into circulation.
    ///
    /// # Errors
    /// The blocks could not be isolated.
    pub(in crate::manager) fn vacate_some(
        self,
        range: BlockRange,
        budget: &mut Budget,
    ) -> Result<Partly, VacateError> {
        self.manager.isolation().isolate(range).map_err(VacateError::Isolate)?;
        let unwinding = PutBack { moving: self, range };
        let mut ignored = |_| {};
        let mut mission = Mission::new(self, Purpose::Vacate, *budget, &mut ignored);
        let pages = PfnRange { start: range.start.start(), end: range.end.start() };
        let is_done = mission.vacate(pages);
        let reached = BlockNumber::containing(mission.reached());
        *budget = mission.left();
        let (_, obstacles) = mission.end();
        drop(unwinding);
        Ok(Partly {
            first: obstacles.map(|all| all.first),
            reached: if is_done == Ok(false) { reached } else { range.end },
        })
    }
}

/// The result of vacating as much as possible.
pub(in crate::manager) struct Partly {
    /// The first obstacle.
    pub(in crate::manager) first: Option<Obstacle>,
    /// All blocks before this one are done; the end of the range, unless the budget was used up.
    pub(in crate::manager) reached: BlockNumber,
}

/// The result of one attempt.
struct Tried {
    moved: Vacated,
    counts: Counts,
    /// How many runs of the budget are left.
    left_runs: u64,
    /// Whether all obstacles may be gone at any moment.
    is_passing: bool,
    result: Result<(), VacateError>,
}

/// Puts blocks back if the mover or a callback panics and the panic unwinds.
pub(super) struct PutBack<'m, P: Platform> {
    pub(super) moving: Moving<'m, P>,
    pub(super) range: BlockRange,
}

impl<P: Platform> Drop for PutBack<'_, P> {
    fn drop(&mut self) {
        self.moving.put_back(self.range);
    }
}
