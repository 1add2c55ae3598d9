//! The virtual machine's virtio-mem device, if it has one: memory that is added and removed while
//! the guest runs.
//!
//! The whole region is in the direct map from the start; nobody accesses the parts that are not
//! plugged. New memory has the grade *removable*, so that nothing is placed in it that cannot be
//! moved out again.

mod exercise;
mod memory;
mod status;

use crate::accept;
use crate::console::log;
use crate::direct_map;
use crate::platform::{GuestPlatform, PLATFORM};
use crate::virtio::{self, Device, GuestHal, is_taken, lend};
use framewright::firmware::{MemoryMap, Topology};
use framewright::manager::Group;
use framewright::platform::Platform;
use framewright::units::{NodeId, PAGE_SIZE, PhysRange};
use framewright::{Manager, Mover};
use framewright_virtio_mem::{
    DeviceFault, Obstacle, Progress, Region, Settings, Standstill, VirtioMem,
};
use memory::{Why, of_manager, tell_error};
use virtio_drivers::transport::pci::PciTransport;

pub use exercise::test;
pub use status::{region, show};

/// The virtio-mem driver as this guest uses it.
type GuestDevice = VirtioMem<GuestHal, PciTransport>;

const MS: u64 = 1_000_000;
/// How often the size that the host requests is checked.
const LOOK_NS: u64 = MS;
/// How soon a device that broke the protocol is tried again.
const RETRY_NS: u64 = 1000 * MS;
/// After this many steps that free nothing, the driver waits as it does if something is in the way.
const MOST_UNFINISHED_STEPS: u32 = 256;
/// How long the guest waits at the start for the memory that the host requests from the start.
const FIRST_SECONDS: u64 = 5;

/// Drives the device. Nothing happens by itself: one CPU at a time has to call
/// [`poll`](Self::poll).
pub struct Driver<'a> {
    manager: &'a Manager<GuestPlatform>,
    device: GuestDevice,
    node: NodeId,
    due_ns: u64,
    /// What was logged last: plugged bytes and the obstacle.
    told: (u64, Option<Obstacle>),
    /// Whether the last step could take nothing out of use, so that another is futile for now.
    standstill: Standstill,
    /// Whether the last step moved memory and ended before a run was free.
    is_unfinished: bool,
    /// How many such steps there were since memory was last added or removed.
    unfinished_steps: u32,
    fault: Option<DeviceFault>,
}

/// Starts the device, waits until the guest has the memory that the host requests from the start,
/// and lends its driver to `work`. `work` gets `None` if there is no device or it cannot be used,
/// which the log says. A machine's device can be used only once.
pub fn with<R>(
    manager: &Manager<GuestPlatform>,
    topology: &Topology<'_>,
    map: MemoryMap<'_>,
    work: impl FnOnce(Option<&mut Driver<'_>>) -> R,
) -> R {
    lend(manager, || {
        let Some(mut driver) = open(manager, topology, map) else { return work(None) };
        driver.settle(FIRST_SECONDS, None);
        work(Some(&mut driver))
    })
}

fn open<'a>(
    manager: &'a Manager<GuestPlatform>,
    topology: &Topology<'_>,
    map: MemoryMap<'_>,
) -> Option<Driver<'a>> {
    let (place, transport) = virtio::open(manager, map, Device::Memory)?;
    let refuse = |why: &dyn core::fmt::Display| log!("virtio-mem {place}: {why}");
    let transport = transport.inspect_err(|error| refuse(error)).ok()?;
    let settings = Settings { limit_bytes: direct_map::end(), ..Settings::default() };
    let mut is_taken = |first, last| is_taken(map, first, last);
    let device = GuestDevice::new(transport, settings, &mut is_taken);
    let device = device.inspect_err(|error| refuse(error)).ok()?;
    let Region { block_bytes, node, .. } = device.region();
    let region = region_of(&device);
    // The region is whole 2 MiB pages, because the driver plugs in such units.
    let mapped = accept::expect(manager, region);
    if let Err(error) = mapped.unwrap_or_else(|| direct_map::add_memory(manager, region)) {
        refuse(&error);
        return None;
    }
    // If the device does not say, the table of affinities may, as in Linux.
    let node = node.and_then(|domain| topology.find_domain(domain.into()));
    let node = node.unwrap_or_else(|| topology.owner(region.start).node);
    log!(
        "virtio-mem {place}: {:?}, {region} by {} KiB, node {node}",
        device.features(),
        block_bytes >> 10
    );
    let group = Group { region, node, unit_bytes: Some(device.unit_bytes()) };
    if let Err(error) = manager.hotplug().register_group(group) {
        log!("virtio-mem {place}: its memory needs a window for each GiB: {error}");
    }
    // If a unit's worth of memory is freed, a unit may be removable.
    let standstill = Standstill::new(device.unit_bytes() / PAGE_SIZE);
    status::note_region(region);
    status::note(&device, None);
    Some(Driver {
        manager,
        device,
        node,
        due_ns: 0,
        is_unfinished: false,
        unfinished_steps: 0,
        told: (0, None),
        standstill,
        fault: None,
    })
}

/// The region that may be memory of the device, in whole units.
fn region_of(device: &GuestDevice) -> PhysRange {
    let Region { start_bytes, size_bytes, .. } = device.region();
    let unit_bytes = device.unit_bytes();
    let start = start_bytes.next_multiple_of(unit_bytes);
    let end = (start_bytes + size_bytes) / unit_bytes * unit_bytes;
    PhysRange::new(start, end.max(start))
}

impl Driver<'_> {
    /// Does what is due. It is cheap if nothing is due, so every wait loop may call it in each
    /// turn. `mover` moves pages out of memory that is to be removed.
    pub fn poll(&mut self, mover: Option<&dyn Mover>) {
        let Some(now_ns) = PLATFORM.now_ns() else { return };
        if now_ns >= self.due_ns {
            self.due_ns = now_ns + self.work(now_ns, mover).1;
        }
    }

    /// Does one step. Returns its result, and how soon the next is due, in nanoseconds.
    fn work(&mut self, now_ns: u64, mover: Option<&dyn Mover>) -> (Option<Progress>, u64) {
        let free_pages = self.manager.totals().free_pages;
        let plugged_bytes = self.device.plugged_bytes();
        if self.standstill.may_go_on(free_pages) || self.is_unfinished {
            self.device.memory_changed();
        }
        let region = region_of(&self.device);
        let mut memory = of_manager(self.manager, region, self.node, mover);
        // SAFETY: the guest has one manager, which all of the device's memory goes to, and the
        // memory map names nothing in its region.
        let step = unsafe { self.device.work(&mut memory, now_ns) };
        tell_error(&mut memory);
        let result = match step {
            Ok(progress) => {
                self.fault = None;
                let is_stuck = matches!(progress.obstacle, Some(Obstacle::InUse { .. }));
                self.standstill.note(is_stuck, free_pages);
                if progress.plugged_bytes != plugged_bytes {
                    self.unfinished_steps = 0;
                }
                self.is_unfinished = is_stuck
                    && memory.is_unfinished()
                    && self.unfinished_steps < MOST_UNFINISHED_STEPS;
                self.unfinished_steps += u32::from(self.is_unfinished);
                if !self.is_unfinished {
                    self.tell(progress, Why(memory.obstacle()));
                }
                if progress.obstacle == Some(Obstacle::Silent) {
                    self.reset();
                }
                let wait_ns = progress.due_ns.map_or(LOOK_NS, |due_ns| due_ns - now_ns.min(due_ns));
                (Some(progress), wait_ns.min(LOOK_NS))
            }
            // A device that could not be started again is left alone.
            Err(DeviceFault::Stopped) => (None, RETRY_NS),
            Err(fault) => {
                if self.fault.replace(fault) != Some(fault) {
                    log!("{fault}");
                }
                self.reset();
                (None, RETRY_NS)
            }
        };
        status::note(&self.device, result.0);
        result
    }

    fn reset(&mut self) {
        if let Err(error) = self.device.try_reset() {
            // A final fault was logged, and stays. After any other the device is stopped for good.
            if !self.fault.is_some_and(|fault| fault.is_final()) {
                log!("virtio-mem: not started again: {error}");
            }
        }
    }

    /// Logs what has changed, once the device has come to rest.
    fn tell(&mut self, progress: Progress, why: Why) {
        let now = (progress.plugged_bytes, progress.obstacle);
        if progress.waiting && progress.obstacle.is_none() || now == self.told {
            return;
        }
        self.told = now;
        let counters = self.device.counters();
        match progress.obstacle {
            None => log!(
                "virtio-mem: {} MiB plugged, after {} PLUG, {} UNPLUG",
                progress.plugged_bytes >> 20,
                counters.plug,
                counters.unplug
            ),
            Some(obstacle) => log!(
                "virtio-mem: {} of {} MiB plugged: {obstacle}{why}",
                progress.plugged_bytes >> 20,
                progress.requested_bytes >> 20
            ),
        }
    }

    /// Polls until the guest has the memory that the host requests, for at most this many seconds.
    /// Returns whether it has.
    fn settle(&mut self, seconds: u64, mover: Option<&dyn Mover>) -> bool {
        crate::timekeeping::within(seconds, || {
            let Some(now_ns) = PLATFORM.now_ns() else { return true };
            let (progress, _) = self.work(now_ns, mover);
            progress.is_some_and(|progress| progress.is_settled())
        })
    }
}
