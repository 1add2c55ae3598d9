//! The adopter that gives the device's memory to Framewright's manager.

use crate::{PluggableMemory, Removal};
use framewright::manager::{self, Added, Budget, Hotplug, HotplugError, Obstacle};
use framewright::parameters::{OnlinePolicy, OnlineType};
use framewright::units::{NodeId, PhysRange};
use framewright::zone::{FreeError, Grade, Presence};
use framewright::{Manager, Mover, Platform};

/// A manager's memory in a device's region, for one step
/// ([`VirtioMem::work`](crate::VirtioMem::work)). New memory is removable, unless
/// `memhp_default_state=` or `memory_hotplug.online_policy=` say otherwise; memory that goes is
/// offline or free, or has been vacated. All that is requested is added, however much of it stays
/// offline (Linux waits at 1 GiB), since it holds its own tables. Under `auto-movable` each unit of
/// a request, or memory block if that is larger, gets a grade of its own, if the region was
/// registered with units ([`Hotplug::register_group`]).
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
    /// It refused to add or to remove this memory.
    Hotplug(PhysRange, HotplugError),
    /// Frames in the CPUs' caches were not what they should be.
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
    /// The memory in `region`, which belongs to this node. Before memory goes, `mover` moves what
    /// is in use there, for as long as `budget` allows in one step; without a mover, such memory
    /// stays.
    ///
    /// # Safety
    /// While this is used, nobody looks at descriptors of frames in the region that they do not
    /// hold ([`Hotplug::remove`]).
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

    /// What was in the way of the last removal, if anything.
    #[must_use]
    pub const fn obstacle(&self) -> Option<Obstacle> {
        self.obstacle
    }

    /// Whether the last removal stopped only because a step is short: the next step continues.
    #[must_use]
    pub const fn is_unfinished(&self) -> bool {
        self.is_unfinished
    }

    /// What the manager refused last. Each error is returned once.
    pub const fn take_error(&mut self) -> Option<ManagedError> {
        self.error.take()
    }

    fn hotplug(&self) -> Hotplug<'a, P> {
        let hotplug = self.manager.hotplug();
        self.mover.map_or(hotplug, |mover| hotplug.by(mover))
    }

    /// The grade of new memory; `None` if it stays offline.
    fn grade(&self, range: PhysRange) -> Option<Grade> {
        let settings = self.hotplug().settings();
        let is_left_to_us = settings.auto_online == OnlineType::Online
            && settings.policy == OnlinePolicy::ContigZones;
        if is_left_to_us {
            // Memory of this device should be removable again.
            Some(Grade::Removable)
        } else {
            self.hotplug().grade_for(range, self.node, settings.auto_online)
        }
    }

    /// How much memory gets a grade at a time: all of it, unless the grade depends on how much of
    /// the device's memory has which. Then it is a memory block, as in Linux.
    fn step_bytes(&self, range: PhysRange) -> u64 {
        let settings = self.hotplug().settings();
        let is_by_ratio = settings.auto_online == OnlineType::Online
            && settings.policy == OnlinePolicy::AutoMovable;
        let group = self.hotplug().group_at(range).filter(|_| is_by_ratio);
        let unit_bytes = group.and_then(|group| group.unit_bytes);
        unit_bytes.map_or(u64::MAX, |bytes| bytes.max(settings.block_bytes))
    }

    /// Brings new memory online, with the grade of each step in its turn. It was added as a whole,
    /// as each addition may take a window for good. What is refused stays offline, as in Linux.
    fn bring_online(&mut self, range: PhysRange, step_bytes: u64) {
        let mut rest = range;
        let mut steps = (range.size() / step_bytes).max(1);
        // Between runs of offline memory may be a window's tables.
        while let Some((run, _)) = self.hotplug().first_run_in(rest, Presence::Offline) {
            let end = (run.start / step_bytes).saturating_add(steps).saturating_mul(step_bytes);
            let part = PhysRange::new(run.start, end.min(run.end));
            let grade = self.grade(part);
            if grade == Some(Grade::Any) && steps > 1 {
                // Less of it may be for movable contents only.
                steps /= 2;
                continue;
            }
            if let Some(Err(error)) = grade.map(|grade| self.hotplug().online(part, grade)) {
                self.error = Some(ManagedError::Hotplug(part, error));
            }
            rest.start = part.end;
            steps = steps.saturating_mul(2);
        }
    }

    /// The whole units within the region, at multiples of their size.
    fn units(&self, unit_bytes: u64) -> PhysRange {
        let PhysRange { start, end } = self.region;
        let start = start.checked_next_multiple_of(unit_bytes).unwrap_or(end);
        let end = end.checked_div(unit_bytes).map_or(end, |units| units * unit_bytes);
        PhysRange::new(start.min(end), end)
    }

    /// Returns whether memory was added; remembers the error if not.
    fn has_come(&mut self, range: PhysRange, added: Result<Added, HotplugError>) -> bool {
        self.error = added.err().map(|error| ManagedError::Hotplug(range, error)).or(self.error);
        added.is_ok()
    }
}

/// The range that a device names. Nothing is cut off that is beyond all addresses, so that the
/// manager refuses the whole.
fn whole(start_bytes: u64, size_bytes: u64) -> PhysRange {
    PhysRange::new(start_bytes, start_bytes.saturating_add(size_bytes))
}

// SAFETY: the manager does not touch memory that it has removed, and neither do those whom it had
// given it to. It does not touch memory that it refuses either.
unsafe impl<P: Platform> PluggableMemory for ManagedMemory<'_, P> {
    unsafe fn add(&mut self, start_bytes: u64, size_bytes: u64) -> u64 {
        let range = whole(start_bytes, size_bytes);
        let step_bytes = self.step_bytes(range);
        let is_in_steps = step_bytes < size_bytes;
        let grade = if is_in_steps { None } else { self.grade(range) };
        let added = match grade {
            // SAFETY: the caller keeps this function's promise.
            Some(grade) => unsafe { self.hotplug().add(range, self.node, grade) },
            // SAFETY: the caller keeps this function's promise.
            None => unsafe { self.hotplug().add_offline(range, self.node) },
        };
        if !self.has_come(range, added) {
            return 0;
        }
        if is_in_steps {
            self.bring_online(range, step_bytes);
        }
        size_bytes
    }

    fn may_take_more(&self) -> bool {
        // Linux tries again after `-ENOMEM` and `-EBUSY`, which correspond to these errors. Only an
        // action of the adopter removes the other causes.
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
        // Frames in the CPUs' caches would split free memory into smaller runs.
        if let Err(error) = self.manager.drain() {
            self.error = Some(ManagedError::Caches(error));
        }
        (self.obstacle, self.is_unfinished) = (None, false);
        let hotplug = self.hotplug();
        // Parts of units were never added: a device's blocks may be smaller than a unit, so its
        // region may begin and end between two units.
        let within = self.units(unit_bytes);
        if within.is_empty() {
            return Removal::Nothing { obstacles: 0 };
        }
        // SAFETY: promised by the caller of `new` (invariant 49).
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
        let range = whole(start_bytes, size_bytes);
        // The grade it had; if that is no longer known, the grade of new memory.
        let grade = self.grade(range);
        // SAFETY: the caller keeps this function's promise.
        let added = unsafe { self.hotplug().put_back(range, self.node, grade) };
        self.has_come(range, added)
    }
}
