//! The manager as the driver sees it.

use crate::console::log;
use crate::platform::{GuestPlatform, PLATFORM};
use core::fmt;
use framewright::manager::{self, Budget, Hotplug, Obstacle};
use framewright::parameters::{OnlinePolicy, OnlineType};
use framewright::platform::Platform;
use framewright::units::{NodeId, PhysRange};
use framewright::zone::Grade;
use framewright::{Manager, Mover};
use framewright_virtio_mem::{PluggableMemory, Removal};

/// How long one step may move memory.
const BUDGET_NS: u64 = 2_000_000;

/// The manager's memory in the device's region.
pub struct ManagedMemory<'a> {
    manager: &'a Manager<GuestPlatform>,
    region: PhysRange,
    node: NodeId,
    mover: Option<&'a dyn Mover>,
    obstacle: Option<Obstacle>,
    is_unfinished: bool,
}

impl<'a> ManagedMemory<'a> {
    /// What lies in `region`, of this node.
    pub fn new(
        manager: &'a Manager<GuestPlatform>,
        region: PhysRange,
        node: NodeId,
        mover: Option<&'a dyn Mover>,
    ) -> Self {
        Self { manager, region, node, mover, obstacle: None, is_unfinished: false }
    }

    /// What was in the way, if anything, for the log.
    pub fn obstacle(&self) -> impl fmt::Display + use<> {
        Why(self.obstacle)
    }

    /// Whether nothing was in the way but that a step is short: the next one goes on.
    pub fn is_unfinished(&self) -> bool {
        self.is_unfinished
    }

    fn hotplug(&self) -> Hotplug<'a, GuestPlatform> {
        let hotplug = self.manager.hotplug();
        self.mover.map_or(hotplug, |mover| hotplug.by(mover))
    }

    /// # Safety
    /// There is memory, and it is nobody's.
    unsafe fn enter(&self, start_bytes: u64, size_bytes: u64) -> bool {
        let range = PhysRange::with_size(start_bytes, size_bytes);
        let settings = self.hotplug().settings();
        let is_left_to_us = settings.auto_online == OnlineType::Online
            && settings.policy == OnlinePolicy::ContigZones;
        let added = if is_left_to_us {
            // It is to go again.
            // SAFETY: passed on to the caller; the direct map shows all of the region.
            unsafe { self.hotplug().add(range, self.node, Grade::Removable) }
        } else {
            // SAFETY: the same.
            unsafe { self.hotplug().add_by_policy(range, self.node) }
        };
        match added {
            Ok(_) => true,
            Err(error) => {
                log!("virtio-mem: {range} cannot be used: {error}");
                false
            }
        }
    }
}

struct Why(Option<Obstacle>);

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |obstacle| write!(f, "; {obstacle}"))
    }
}

// SAFETY: what the manager has removed it does not touch, nor does anybody whom it had given it to,
// and what it refuses it does not touch either.
unsafe impl PluggableMemory for ManagedMemory<'_> {
    unsafe fn add(&mut self, start_bytes: u64, size_bytes: u64) -> u64 {
        // SAFETY: passed on to the caller.
        if unsafe { self.enter(start_bytes, size_bytes) } { size_bytes } else { 0 }
    }

    fn remove(&mut self, most_bytes: u64, unit_bytes: u64) -> Removal {
        // What lies in caches of CPUs would cut what is free into runs.
        if let Err(error) = self.manager.drain() {
            log!("virtio-mem: {error}");
        }
        let until_ns = PLATFORM.now_ns().map_or(0, |now_ns| now_ns + BUDGET_NS);
        let budget = Budget::until(until_ns);
        // SAFETY: nobody in this guest looks at descriptors of frames that it does not hold.
        let found =
            unsafe { self.hotplug().remove_some(self.region, most_bytes, unit_bytes, budget) };
        match found {
            Ok(manager::Removal::Run(run)) => {
                Removal::Run { start_bytes: run.start, size_bytes: run.size() }
            }
            Ok(manager::Removal::Nothing(obstacle)) => {
                self.obstacle = obstacle;
                self.is_unfinished = false;
                Removal::Nothing { obstacles: obstacle.is_some().into() }
            }
            Ok(manager::Removal::OutOfTime) => {
                (self.obstacle, self.is_unfinished) = (None, true);
                Removal::Nothing { obstacles: 0 }
            }
            Err(error) => {
                log!("virtio-mem: {error}");
                Removal::Nothing { obstacles: 0 }
            }
        }
    }

    unsafe fn put_back(&mut self, start_bytes: u64, size_bytes: u64) -> bool {
        // SAFETY: passed on to the caller.
        unsafe { self.enter(start_bytes, size_bytes) }
    }
}
