//! Vacating blocks: everything in them is moved elsewhere, or what is in the way is named.

use super::runs::Mission;
use crate::manager::facets::Moving;
use crate::manager::state::moving::{Mover, NotNow};
use crate::platform::Platform;
use crate::units::{Pfn, PfnRange};
use crate::vmemmap_space::{BlockNumber, BlockRange};
use crate::zone::{Held, IsolateError};
use core::fmt;

/// How long a call may go on. It is looked at before each run is begun: up to 32 runs that were
/// begun are finished.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// When [`Platform::now_ns`](crate::Platform::now_ns) says this, nothing more is begun. Without
    /// a clock only 0, which is always over, counts.
    pub deadline_ns: Option<u64>,
    /// How many runs are begun at most.
    pub runs: u64,
}

impl Budget {
    /// As long as it takes.
    pub const UNLIMITED: Self = Self { deadline_ns: None, runs: u64::MAX };

    /// Until then.
    #[must_use]
    pub const fn until(deadline_ns: u64) -> Self {
        Self { deadline_ns: Some(deadline_ns), runs: u64::MAX }
    }

    /// So many runs.
    #[must_use]
    pub const fn runs(runs: u64) -> Self {
        Self { deadline_ns: None, runs }
    }

    /// Whether another run may be begun when `begun` have been.
    pub(super) fn allows<P: Platform>(&self, platform: &P, begun: u64) -> bool {
        begun < self.runs
            && self.deadline_ns.is_none_or(|deadline| {
                deadline != 0 && platform.now_ns().is_none_or(|now| now < deadline)
            })
    }
}

/// Why a run was not moved.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ObstacleKind {
    /// Somebody relies on where it is, the [`Mover`](crate::Mover) said.
    Pinned,
    /// It is in use at this moment, the mover said.
    Busy,
    /// It cannot be moved, the mover said.
    Fixed,
    /// The mover does not know it, or there is none that may be asked from here.
    Unknown,
    /// The move began and failed, or what the mover said of it cannot be.
    Failed,
    /// The mover said that it moved the run, and did not: nothing was written to where it was to
    /// be. Found with `page_poison=1`. Neither place is freed.
    NotMoved,
    /// There was no memory to move it to.
    NoMemory,
    /// It is memory that the manager was not given.
    Reserved,
    /// It is the manager's own.
    Manager,
    /// It is a page of a pool.
    Pool,
    /// It has a memory error.
    Poisoned,
    /// The hypervisor has it at this moment; after the next poll of the reporter it is back.
    Reporting,
    /// It holds page descriptors of a block that is not vacated as a whole.
    Descriptors,
}

impl ObstacleKind {
    /// How many there are.
    pub const COUNT: usize = crate::manager::state::moving::KINDS;

    pub(super) const fn of_held(held: Held) -> Self {
        match held {
            Held::Reserved => Self::Reserved,
            Held::Manager => Self::Manager,
            Held::Pool => Self::Pool,
            Held::Poisoned => Self::Poisoned,
            Held::Reporting => Self::Reporting,
        }
    }

    pub(super) const fn of_refusal(refusal: NotNow) -> Option<Self> {
        match refusal {
            NotNow::Pinned => Some(Self::Pinned),
            NotNow::Busy => Some(Self::Busy),
            NotNow::Gone => None,
        }
    }
}

impl fmt::Display for ObstacleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pinned => "pinned",
            Self::Busy => "busy",
            Self::Fixed => "not movable",
            Self::Unknown => "of an unknown owner",
            Self::Failed => "not moved: the move failed",
            Self::NotMoved => "said to be moved and was not",
            Self::NoMemory => "not moved: there is no memory to move it to",
            Self::Reserved => "not managed",
            Self::Manager => "the manager's own",
            Self::Pool => "in a huge-page pool",
            Self::Poisoned => "bad memory",
            Self::Reporting => "with the hypervisor",
            Self::Descriptors => "used for page descriptors",
        })
    }
}

/// Frames that could not be moved away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Obstacle {
    /// Which.
    pub run: PfnRange,
    /// Why.
    pub kind: ObstacleKind,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is {}", self.run, self.kind)
    }
}

/// What was in the way: the first of it by name, all by number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Obstacles {
    /// The first that was met.
    pub first: Obstacle,
    /// How many there were, at least 1.
    pub count: u64,
}

/// Who is told of each obstacle.
pub(super) struct Naming<'n> {
    all: Option<Obstacles>,
    /// The one that was met last, to which more frames may belong.
    last: Option<Obstacle>,
    name: &'n mut dyn FnMut(Obstacle),
}

impl<'n> Naming<'n> {
    pub(super) fn new(name: &'n mut dyn FnMut(Obstacle)) -> Self {
        Self { all: None, last: None, name }
    }

    pub(super) fn add(&mut self, run: PfnRange, kind: ObstacleKind) {
        let last = self.last.replace(Obstacle { run, kind });
        self.tell(last);
    }

    /// [`add`](Self::add) of one frame, which is said together with the one before it where both
    /// are in the way for one reason. False then.
    pub(super) fn add_frame(&mut self, pfn: Pfn, kind: ObstacleKind) -> bool {
        match &mut self.last {
            Some(last) if last.kind == kind && last.run.end == pfn => {
                last.run.end = pfn.add(1);
                false
            }
            _ => {
                self.add(PfnRange::of_order(pfn, crate::units::Order::PAGE), kind);
                true
            }
        }
    }

    fn tell(&mut self, obstacle: Option<Obstacle>) {
        let Some(obstacle) = obstacle else { return };
        self.all.get_or_insert(Obstacles { first: obstacle, count: 0 }).count += 1;
        (self.name)(obstacle);
    }

    /// All of them.
    pub(super) fn end(mut self) -> Option<Obstacles> {
        let last = self.last.take();
        self.tell(last);
        self.all
    }
}

/// What was moved to vacate something.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Vacated {
    /// Runs.
    pub moved_runs: u64,
    /// Frames of all of them.
    pub moved_pages: u64,
}

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
    /// # Errors
    /// [`VacateError`], which names the first thing that could not be moved. Nothing is isolated
    /// then, and what was moved stays moved.
    pub fn vacate(self, range: BlockRange, budget: Budget) -> Result<Vacated, VacateError> {
        self.vacate_naming(range, budget, &mut |_| {})
    }

    /// [`vacate`](Self::vacate) that calls `name` for everything that cannot be moved, ascending by
    /// block, while the rest is moved.
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
        self.vacate_isolated(pages, budget, name)
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
            for block in (range.start.0..range.end.0).map(BlockNumber) {
                let one = BlockRange { start: block, end: BlockNumber(block.0 + 1) };
                let _ = self.manager.isolation().unisolate(one);
            }
        }
    }

    /// Moves what is in isolated frames elsewhere, and takes from the budget what that needed; the
    /// blocks stay isolated, but where the mover or `name` panics.
    pub(super) fn vacate_isolated(
        self,
        pages: PfnRange,
        budget: &mut Budget,
        name: &mut dyn FnMut(Obstacle),
    ) -> Result<Vacated, VacateError> {
        let mut mission = Mission::new(self, *budget, name);
        let unwinding = PutBack { moving: self, range: BlockRange::around(pages) };
        let is_done =
            mission.vacate(pages).map_err(|error| VacateError::Isolate(IsolateError::Place(error)));
        *budget = mission.left();
        let (moved, obstacles) = mission.end();
        core::mem::forget(unwinding);
        match (is_done?, obstacles) {
            (_, Some(obstacles)) => Err(VacateError::Obstacles { moved, obstacles }),
            (false, None) => Err(VacateError::OutOfTime { moved }),
            (true, None) => Ok(moved),
        }
    }
}

/// Puts blocks back when a call out of here panics, where that does not end everything.
struct PutBack<'m, P: Platform> {
    moving: Moving<'m, P>,
    range: BlockRange,
}

impl<P: Platform> Drop for PutBack<'_, P> {
    fn drop(&mut self) {
        self.moving.put_back(self.range);
    }
}
