//! The budget of a call that moves memory, what the call moved, and what was in its way.

use crate::manager::state::moving::NotNow;
use crate::platform::Platform;
use crate::units::{Pfn, PfnRange};
use crate::zone::Held;
use core::fmt;

/// How long a call may go on. The budget is checked before each run is begun; up to 32 runs that
/// have begun are still completed. Every 32 frames that stay count as one run, because the mover
/// was asked about each of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// When [`Platform::now_ns`](crate::Platform::now_ns) reaches this, no more runs are begun.
    /// Without a clock only the value 0 has an effect: this time is always over.
    pub deadline_ns: Option<u64>,
    /// The most runs that are begun.
    pub runs: u64,
}

impl Budget {
    /// No limit.
    pub const UNLIMITED: Self = Self { deadline_ns: None, runs: u64::MAX };

    /// A budget that ends at this time.
    #[must_use]
    pub const fn until(deadline_ns: u64) -> Self {
        Self { deadline_ns: Some(deadline_ns), runs: u64::MAX }
    }

    /// A budget for this many runs.
    #[must_use]
    pub const fn runs(runs: u64) -> Self {
        Self { deadline_ns: None, runs }
    }

    /// Returns the budget with only the first half of the time that is left.
    pub(super) fn half_of_the_time<P: Platform>(self, platform: &P) -> Self {
        let half = |deadline: u64| {
            let now = platform.now_ns().filter(|&now| now < deadline);
            now.map_or(deadline, |now| now + (deadline - now) / 2)
        };
        Self { deadline_ns: self.deadline_ns.map(half), ..self }
    }

    /// Returns whether another run may be begun after `begun` runs.
    pub(in crate::manager) fn allows<P: Platform>(&self, platform: &P, begun: u64) -> bool {
        begun < self.runs && self.has_time(platform)
    }

    /// Returns whether the time is limited.
    pub(in crate::manager) const fn is_timed(&self) -> bool {
        self.deadline_ns.is_some()
    }

    /// Returns whether there is time left, even if no more runs may be begun.
    #[inline(never)]
    pub(in crate::manager) fn has_time<P: Platform>(&self, platform: &P) -> bool {
        self.deadline_ns.is_none_or(|deadline| {
            deadline != 0 && platform.now_ns().is_none_or(|now| now < deadline)
        })
    }
}

/// Why a run was not moved.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ObstacleKind {
    /// The [`Mover`](crate::Mover) said that a user relies on the run's address.
    Pinned,
    /// The mover said that the run is in use right now; or it is a page on its way into or out of a
    /// pool.
    Busy,
    /// The mover said that the run cannot be moved; or only a part of it lies in the memory that is
    /// to be vacated, and it must not be divided.
    Fixed,
    /// The mover does not know the run, or there is no mover that may be asked from this context.
    Unknown,
    /// The move began and failed, or what the mover said about the run cannot be true.
    Failed,
    /// The mover said that it moved the run but did not: nothing was written to the target.
    /// Detected with `page_poison=1`. Neither place is freed.
    NotMoved,
    /// There was no memory to move it to.
    NoMemory,
    /// The manager was not given this memory.
    Reserved,
    /// The manager uses the memory itself.
    Manager,
    /// A page of a huge-page pool: it is in use, or the call only looks for a place and avoids
    /// pools.
    Pool,
    /// The memory has an error.
    Poisoned,
    /// The hypervisor has the memory right now; it is back after the next poll of the reporter.
    Reporting,
    /// The memory holds page descriptors of a block that is not vacated as a whole.
    Descriptors,
}

impl ObstacleKind {
    /// The number of kinds.
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
            Self::NotMoved => "reported as moved, but it was not",
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
    /// The frames.
    pub run: PfnRange,
    /// Why they could not be moved.
    pub kind: ObstacleKind,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is {}", self.run, self.kind)
    }
}

/// The obstacles that a call met: the first one, and their number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Obstacles {
    /// The first obstacle that was met.
    pub first: Obstacle,
    /// How many there were, at least 1.
    pub count: u64,
}

/// Collects the obstacles of a call and reports each of them.
pub(super) struct Naming<'n> {
    all: Option<Obstacles>,
    /// The obstacle that was met last, to which more frames may belong.
    last: Option<Obstacle>,
    /// At least one obstacle may stay longer than other movers need to finish.
    is_lasting: bool,
    name: &'n mut dyn FnMut(Obstacle),
}

impl<'n> Naming<'n> {
    pub(super) fn new(name: &'n mut dyn FnMut(Obstacle)) -> Self {
        Self { all: None, last: None, is_lasting: false, name }
    }

    /// Returns whether all obstacles may be gone at any moment: a run that others are moving is in
    /// use until then, and its target seems to have no owner.
    pub(super) const fn is_passing(&self) -> bool {
        !self.is_lasting
    }

    pub(super) fn add(&mut self, run: PfnRange, kind: ObstacleKind) {
        self.is_lasting |= !matches!(kind, ObstacleKind::Busy | ObstacleKind::Unknown);
        let last = self.last.replace(Obstacle { run, kind });
        self.tell(last);
    }

    /// Does [`add`](Self::add) for one frame. Merges it with the frame before it, and returns
    /// false, if both are in the way for the same reason.
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

    /// Reports the last obstacle and returns them all.
    pub(super) fn end(mut self) -> Option<Obstacles> {
        let last = self.last.take();
        self.tell(last);
        self.all
    }
}

/// What was moved to vacate memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Vacated {
    /// Moved runs.
    pub moved_runs: u64,
    /// Frames of these runs.
    pub moved_pages: u64,
}
