//! The device's memory as Framewright's manager has it.

use crate::{PluggableMemory, Removal};
use framewright::manager::{self, Added, Budget, Hotplug, HotplugError, Obstacle};
use framewright::parameters::{OnlinePolicy, OnlineType};
use framewright::units::{NodeId, PhysRange};
use framewright::zone::{FreeError, Grade};
use framewright::{Manager, Mover, Platform};

/// A manager's memory in a device's region, for one step
/// ([`VirtioMem::work`](crate::VirtioMem::work)). What comes is removable, unless
/// `memhp_default_state=` or `memory_hotplug.online_policy=` say otherwise; what goes is offline or
/// free, or vacated.
pub struct ManagedMemory<'a, P: Platform> {
    manager: &'a Manager<P>,
    region: PhysRange,
    node: NodeId,
    mover: Option<&'a dyn Mover>,
    budget: Budget,
    obstacle: Option<Obstacle>,
    is_unfinished: bool,
    error: Option<ManagedError>,
}

/// What the manager refused. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ManagedError {
    /// Memory that came, or was to go.
    Hotplug(PhysRange, HotplugError),
    /// Frames that CPUs keep were not what they should be.
    Caches(FreeError),
}

impl core::fmt::Display for ManagedError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Hotplug(range, error) => write!(f, "{range}: {error}"),
            Self::Caches(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for ManagedError {}

impl<'a, P: Platform> ManagedMemory<'a, P> {
    /// What lies in `region`, of this node. What is in use is moved by `mover` before it goes, as
    /// long as `budget` allows in one step; without one it stays.
    ///
    /// # Safety
    /// While this is used nobody looks at descriptors of frames in the region that they do not hold
    /// ([`Hotplug::remove`]).
    pub const unsafe fn new(
        manager: &'a Manager<P>,
        region: PhysRange,
        node: NodeId,
        mover: Option<&'a dyn Mover>,
        budget: Budget,
    ) -> Self {
        let (obstacle, error) = (None, None);
        Self { manager, region, node, mover, budget, obstacle, is_unfinished: false, error }
    }

    /// What was in the way, if anything.
    #[must_use]
    pub const fn obstacle(&self) -> Option<Obstacle> {
        self.obstacle
    }

    /// Whether nothing was in the way but that a step is short: the next one goes on.
    #[must_use]
    pub const fn is_unfinished(&self) -> bool {
        self.is_unfinished
    }

    /// What the manager refused last; once for each time.
    pub const fn take_error(&mut self) -> Option<ManagedError> {
        self.error.take()
    }

    fn hotplug(&self) -> Hotplug<'a, P> {
        let hotplug = self.manager.hotplug();
        self.mover.map_or(hotplug, |mover| hotplug.by(mover))
    }

    /// The grade of what comes; none where it stays offline.
    fn grade(&self, range: PhysRange) -> Option<Grade> {
        let settings = self.hotplug().settings();
        let is_left_to_us = settings.auto_online == OnlineType::Online
            && settings.policy == OnlinePolicy::ContigZones;
        if is_left_to_us {
            // It is to go again.
            Some(Grade::Removable)
        } else {
            self.hotplug().grade_for(range, self.node, settings.auto_online)
        }
    }

    /// The units that lie wholly in the region, at multiples of their size.
    fn units(&self, unit_bytes: u64) -> PhysRange {
        let PhysRange { start, end } = self.region;
        let start = start.checked_next_multiple_of(unit_bytes).unwrap_or(end);
        let end = end.checked_div(unit_bytes).map_or(end, |units| units * unit_bytes);
        PhysRange::new(start.min(end), end)
    }

    /// Whether something came; what was wrong is remembered.
    fn has_come(&mut self, range: PhysRange, added: Result<Added, HotplugError>) -> bool {
        self.error = added.err().map(|error| ManagedError::Hotplug(range, error)).or(self.error);
        added.is_ok()
    }
}

// SAFETY: what the manager has removed it does not touch, nor does anybody whom it had given it to,
// and what it refuses it does not touch either.
unsafe impl<P: Platform> PluggableMemory for ManagedMemory<'_, P> {
    unsafe fn add(&mut self, start_bytes: u64, size_bytes: u64) -> u64 {
        let range = PhysRange::with_size(start_bytes, size_bytes);
        let added = match self.grade(range) {
            // SAFETY: passed on to the caller.
            Some(grade) => unsafe { self.hotplug().add(range, self.node, grade) },
            // SAFETY: the same.
            None => unsafe { self.hotplug().add_offline(range, self.node) },
        };
        if self.has_come(range, added) { size_bytes } else { 0 }
    }

    fn may_take_more(&self) -> bool {
        // As Linux tries again after `-ENOMEM` and `-EBUSY`. Only a call of the adopter's changes
        // the other causes.
        matches!(
            self.error,
            Some(ManagedError::Hotplug(
                _,
                HotplugError::NoRoomForTables { .. }
                    | HotplugError::NotAccepted(_)
                    | HotplugError::Busy
                    | HotplugError::Veto(_)
            ))
        )
    }

    fn remove(&mut self, most_bytes: u64, unit_bytes: u64) -> Removal {
        // What lies in caches of CPUs would cut what is free into runs.
        if let Err(error) = self.manager.drain() {
            self.error = Some(ManagedError::Caches(error));
        }
        (self.obstacle, self.is_unfinished) = (None, false);
        let hotplug = self.hotplug();
        // What is no whole unit was never added: a device's blocks may be smaller, and so may its
        // region begin and end between two units.
        let within = self.units(unit_bytes);
        if within.is_empty() {
            return Removal::Nothing { obstacles: 0 };
        }
        // SAFETY: promised where this was made (invariant 49).
        let found = unsafe { hotplug.remove_some(within, most_bytes, unit_bytes, self.budget) };
        match found {
            Ok(manager::Removal::Run(run)) => {
                return Removal::Run { start_bytes: run.start, size_bytes: run.size() };
            }
            Ok(manager::Removal::Nothing(obstacle)) => self.obstacle = obstacle,
            Ok(manager::Removal::OutOfTime) => self.is_unfinished = true,
            Err(error) => self.error = Some(ManagedError::Hotplug(within, error)),
        }
        Removal::Nothing { obstacles: self.obstacle.is_some().into() }
    }

    unsafe fn put_back(&mut self, start_bytes: u64, size_bytes: u64) -> bool {
        let range = PhysRange::with_size(start_bytes, size_bytes);
        // As it was, and where nobody knows that any more, as what comes.
        let grade = self.grade(range);
        // SAFETY: passed on to the caller.
        let added = unsafe { self.hotplug().put_back(range, self.node, grade) };
        self.has_come(range, added)
    }
}
