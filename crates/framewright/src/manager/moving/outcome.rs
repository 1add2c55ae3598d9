//! What a call that moves memory may take, what it moved, and what was in its way.

use crate::manager::state::moving::NotNow;
use crate::platform::Platform;
use crate::units::{Pfn, PfnRange};
use crate::zone::Held;
use core::fmt;

/// How long a call may go on. It is looked at before each run is begun: up to 32 runs that were
/// begun are finished. So many frames that stay count as a run, as each was asked for.
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

    /// With the first half of the time that is left.
    pub(super) fn half_of_the_time<P: Platform>(self, platform: &P) -> Self {
        let half = |deadline: u64| {
            let now = platform.now_ns().filter(|&now| now < deadline);
            now.map_or(deadline, |now| now + (deadline - now) / 2)
        };
        Self { deadline_ns: self.deadline_ns.map(half), ..self }
    }

    /// Whether another run may be begun when `begun` have been.
    pub(in crate::manager) fn allows<P: Platform>(&self, platform: &P, begun: u64) -> bool {
        begun < self.runs && self.has_time(platform)
    }

    /// Whether there is an end to the time.
    pub(in crate::manager) const fn is_timed(&self) -> bool {
        self.deadline_ns.is_some()
    }

    /// Whether the time is not over, whatever may be begun.
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
    /// Somebody relies on where it is, the [`Mover`](crate::Mover) said.
    Pinned,
    /// It is in use at this moment, the mover said; or it is a page of a pool on its way.
    Busy,
    /// It cannot be moved, the mover said; or only a part of it lies in what is to go, and it is
    /// not to be divided.
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
    /// It is a page of a pool that somebody uses, or of which there may be others elsewhere.
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
            Self::Unknown => "its owner is unknown",
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
    /// One of them stays where it is for longer than others need to be done with it.
    is_lasting: bool,
    name: &'n mut dyn FnMut(Obstacle),
}

impl<'n> Naming<'n> {
    pub(super) fn new(name: &'n mut dyn FnMut(Obstacle)) -> Self {
        Self { all: None, last: None, is_lasting: false, name }
    }

    /// Whether all that was met may be gone at any moment: what others move is in use then, and
    /// where it is to go to is nobody's.
    pub(super) const fn is_passing(&self) -> bool {
        !self.is_lasting
    }

    pub(super) fn add(&mut self, run: PfnRange, kind: ObstacleKind) {
        self.is_lasting |= !matches!(kind, ObstacleKind::Busy | ObstacleKind::Unknown);
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
