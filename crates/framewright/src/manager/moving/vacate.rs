//! Vacating blocks: everything in them is moved elsewhere, or what is in the way is named.
//!
//! Orders of memory: Relaxed: how many calls move memory, and what they moved, are hints.

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

/// Attempts at a place in which others move memory, too.
const ATTEMPTS: u32 = 5;
/// How often the CPU is given up at most until they have got on.
const MOST_YIELDS: u32 = 1 << 10;

/// Why blocks were not vacated. They are in circulation as before; what was moved stays where it is
/// now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VacateError {
    /// They could not be isolated.
    Isolate(IsolateError),
    /// Something could not be moved.
    Obstacles {
        /// What was moved.
        moved: Vacated,
        /// What was not.
        obstacles: Obstacles,
    },
    /// The budget was used up first.
    OutOfTime {
        /// What was moved.
        moved: Vacated,
    },
    /// This many pages were in use in the end that nobody answered for: they were being freed.
    InUse {
        /// What was moved.
        moved: Vacated,
        /// What was left.
        pages: u64,
    },
}

impl VacateError {
    /// Whether what was in the way first may be gone at the next attempt.
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
    /// Isolates blocks and moves everything in them elsewhere, on their node. When it returns, all
    /// of them is free and isolated: [`claim`](super::super::Isolation::claim) takes them,
    /// [`unisolate`](super::super::Isolation::unisolate) gives them back.
    ///
    /// Owners are asked before anything is moved: nothing is where one says that it must stay.
    ///
    /// # Errors
    /// [`VacateError`], which names the first thing that could not be moved. Nothing is isolated
    /// then, and what was moved stays moved.
    pub fn vacate(self, range: BlockRange, budget: Budget) -> Result<Vacated, VacateError> {
        self.vacate_naming(range, budget, &mut |_| {})
    }

    /// [`vacate`](Self::vacate) that calls `name` for everything that cannot be moved, ascending by
    /// block: what owners say of it, or what they refuse while the rest is moved. Where others move
    /// memory meanwhile, it may be told of what is moved at another attempt.
    ///
    /// # Errors
    /// As there.
    pub fn vacate_naming(
        self,
        range: BlockRange,
        budget: Budget,
        name: &mut dyn FnMut(Obstacle),
    ) -> Result<Vacated, VacateError> {
        self.vacate_within(range, &mut { budget }, name)
    }

    /// [`vacate_naming`](Self::vacate_naming) that takes from the budget what it needed.
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
                let left = self.manager.isolation().survey(range).map_err(VacateError::Isolate)?;
                let pages = left.in_use_pages + left.descriptor_pages;
                if pages == 0 { Ok(moved) } else { Err(VacateError::InUse { moved, pages }) }
            })
            .inspect_err(|_| self.put_back(range))
    }

    /// Who moves contents, if he may be asked from here.
    pub(super) fn mover(self) -> Option<&'m dyn Mover> {
        let Moving { manager, by, .. } = self;
        if !manager.platform.can_wait() {
            return None;
        }
        let mover = by.or_else(|| manager.moving.mover(manager.platform))?;
        mover.serves(core::ptr::from_ref(manager).cast()).then_some(mover)
    }

    /// Puts blocks back that a call isolated which then failed.
    pub(in crate::manager) fn put_back(self, range: BlockRange) {
        if self.manager.isolation().unisolate(range).is_err() {
            // Somebody put some of them back or claimed them, which were not his.
            self.manager.isolation().unisolate_rest(range);
        }
    }

    /// Moves what is in isolated frames elsewhere, and takes from the budget what that needed; the
    /// blocks stay isolated, but where the mover or `name` panics.
    ///
    /// What others move at this moment is in nobody's way for long, so that is attempted again.
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
                        // Nothing is told twice.
                        untold = None;
                    }
                    attempts += 1;
                    self.let_others_move(budget);
                    continue;
                }
                if let Some(name) = untold.as_mut().filter(|_| !is_last) {
                    if has_time {
                        // Once more, to name all of it.
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

    /// Waits until others are done with what they have begun.
    fn let_others_move(self, budget: &Budget) {
        let manager = self.manager;
        let moved = || manager.moving.counters.moved_pages.load(Ordering::Relaxed);
        let before = moved();
        for _ in 0..MOST_YIELDS {
            // Who moves it may need this CPU for that (invariant 43).
            manager.platform.yield_now();
            let is_over = manager.moving.active.load(Ordering::Relaxed) == 0;
            if is_over || moved() != before || !budget.allows(manager.platform, 0) {
                break;
            }
        }
    }

    /// One attempt. Owners are asked first, for half of the time at most, so that who comes again
    /// and again with little time gets on.
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

    /// Looks at all of it, or moves it; whether there was anything.
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

    /// Moves what can be moved out of blocks, which are in circulation again then.
    ///
    /// # Errors
    /// They could not be isolated.
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

/// What came of vacating as much as can be.
pub(in crate::manager) struct Partly {
    /// What was in the way first.
    pub(in crate::manager) first: Option<Obstacle>,
    /// What lies before it is done with: the end, unless the budget was used up.
    pub(in crate::manager) reached: BlockNumber,
}

/// What came of one attempt.
struct Tried {
    moved: Vacated,
    counts: Counts,
    /// Of the budget.
    left_runs: u64,
    /// All that was in the way may be gone at any moment.
    is_passing: bool,
    result: Result<(), VacateError>,
}

/// Puts blocks back when a call out of here panics, where that does not end everything.
pub(super) struct PutBack<'m, P: Platform> {
    pub(super) moving: Moving<'m, P>,
    pub(super) range: BlockRange,
}

impl<P: Platform> Drop for PutBack<'_, P> {
    fn drop(&mut self) {
        self.moving.put_back(self.range);
    }
}
