//! What the manager does with the device's memory in one step, and what the log says if memory
//! cannot be added or removed.

use crate::console::log;
use crate::platform::{GuestPlatform, PLATFORM};
use core::fmt;
use framewright::manager::{Budget, Obstacle};
use framewright::platform::Platform;
use framewright::units::{NodeId, PhysRange};
use framewright::{Manager, Mover};
use framewright_virtio_mem::ManagedMemory;

/// How long one step may spend moving memory.
const BUDGET_NS: u64 = 2_000_000;

/// Returns the manager's memory in a device's region, for one step.
pub fn of_manager<'a>(
    manager: &'a Manager<GuestPlatform>,
    region: PhysRange,
    node: NodeId,
    mover: Option<&'a dyn Mover>,
) -> ManagedMemory<'a, GuestPlatform> {
    let until_ns = PLATFORM.now_ns().map_or(0, |now_ns| now_ns + BUDGET_NS);
    // SAFETY: nobody in this guest reads descriptors of frames that it does not hold.
    unsafe { ManagedMemory::new(manager, region, node, mover, Budget::until(until_ns)) }
}

/// Logs what the manager refused, if anything.
pub fn tell_error(memory: &mut ManagedMemory<'_, GuestPlatform>) {
    if let Some(error) = memory.take_error() {
        log!("virtio-mem: {error}");
    }
}

/// Shows what was in the way, if anything, for the log.
pub struct Why(pub Option<Obstacle>);

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |obstacle| write!(f, "; {obstacle}"))
    }
}
