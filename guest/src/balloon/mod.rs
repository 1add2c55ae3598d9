//! The virtio balloon of the virtual machine, if it has one: found on PCI, started, and lent to
//! whoever uses it.

mod exercise;
mod memory;
mod pci;
mod reporting;

use crate::console::log;
use crate::platform::GuestPlatform;
use core::fmt;
use framewright::debug::{Aids, POISON};
use framewright::firmware::{MemoryKind, MemoryMap};
use framewright::units::PhysRange;
use framewright::{Manager, Parameters};
use framewright_arch::paging::MapFault;
use framewright_balloon::pci::RegistersError;
use framewright_balloon::{Balloon, FreeContent, Settings, StartError};
use virtio_drivers::transport::pci::bus::{DeviceFunction, PciRoot};
use virtio_drivers::transport::pci::{PciTransport, VirtioPciError};

pub use exercise::test;
pub use memory::{GuestHal, ManagedFrames};
pub use reporting::Driver;

/// The driver as this guest has it.
pub type GuestBalloon = Balloon<GuestHal, PciTransport>;

/// Why there is a balloon that cannot be used.
#[derive(Debug)]
pub enum BalloonError {
    /// Its registers are at an impossible address.
    Place(RegistersError),
    /// Its registers cannot be mapped.
    Registers(MapFault),
    /// Its registers are not where virtio devices have them.
    Transport(VirtioPciError),
    /// The driver refuses it.
    Start(StartError),
}

impl fmt::Display for BalloonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Registers(error) => write!(f, "its registers: {error}"),
            Self::Place(error) => error.fmt(f),
            Self::Transport(error) => error.fmt(f),
            Self::Start(error) => error.fmt(f),
        }
    }
}

/// Starts the balloon, lends it to `work`, and stops it. `work` gets `None` when there is none or
/// it cannot be used, which the log says. A machine's balloon is used once, here or by
/// [`with_reports`].
pub fn with<R>(
    manager: &Manager<GuestPlatform>,
    parameters: &Parameters,
    map: MemoryMap<'_>,
    work: impl FnOnce(Option<&mut GuestBalloon>) -> R,
) -> R {
    memory::lend(manager, || match open(manager, parameters, map) {
        Ok(mut balloon) => work(Some(&mut balloon)),
        Err(Without::Device) => {
            log!("virtio-balloon: no device");
            work(None)
        }
        Err(Without::Use) => work(None),
    })
}

/// Starts the balloon, registers it for free page reporting, and lends its driver to `work`;
/// afterwards the device has no memory. `work` gets `None` when there is no balloon, or it takes no
/// reports, which the log then says.
pub fn with_reports<R>(
    manager: &Manager<GuestPlatform>,
    parameters: &Parameters,
    map: MemoryMap<'_>,
    work: impl FnOnce(Option<&mut Driver<'_>>) -> R,
) -> R {
    memory::lend(manager, || {
        let Ok(balloon) = open(manager, parameters, map) else { return work(None) };
        match Driver::register(manager, balloon, free_content(parameters)) {
            Some(mut driver) => {
                let result = work(Some(&mut driver));
                driver.finish();
                result
            }
            None => work(None),
        }
    })
}

/// Why there is no balloon.
enum Without {
    /// The machine has none.
    Device,
    /// It has one that cannot be used, which the log has said.
    Use,
}

fn open(
    manager: &Manager<GuestPlatform>,
    parameters: &Parameters,
    map: MemoryMap<'_>,
) -> Result<GuestBalloon, Without> {
    // SAFETY: nobody else uses PCI's configuration ports.
    let mut ports = unsafe { pci::Ports::new() };
    let Some(place) = framewright_balloon::pci::find(&ports) else { return Err(Without::Device) };
    match start(manager, parameters, map, &mut ports, place) {
        Ok(mut balloon) => {
            log!(
                "virtio-balloon {place}: {:?}, reporting queue {:?}, {} ranges a report",
                balloon.features(),
                balloon.reporting_queue(),
                balloon.capacity()
            );
            Ok(balloon)
        }
        Err(error) => {
            log!("virtio-balloon {place}: {error}");
            Err(Without::Use)
        }
    }
}

fn start(
    manager: &Manager<GuestPlatform>,
    parameters: &Parameters,
    map: MemoryMap<'_>,
    ports: &mut pci::Ports,
    place: DeviceFunction,
) -> Result<GuestBalloon, BalloonError> {
    // Whatever the map names is memory, managed or not, but for what it reserves: windows for
    // registers are among that.
    let mut is_memory = |first: u64, last: u64| {
        let pages = PhysRange::new(first, last.saturating_add(1));
        let mut ranges = map.ranges().iter().filter(|range| range.kind != MemoryKind::Reserved);
        ranges.any(|range| !range.range.intersection(pages).is_empty())
    };
    let found = framewright_balloon::pci::registers(ports, place, &mut is_memory)
        .map_err(BalloonError::Place)?;
    for registers in found.into_iter().flatten() {
        pci::map_registers(manager, registers).map_err(BalloonError::Registers)?;
    }
    framewright_balloon::pci::enable(ports, place);
    let mut root = PciRoot::new(ports.again());
    let transport =
        PciTransport::new::<GuestHal, _>(&mut root, place).map_err(BalloonError::Transport)?;
    let settings = Settings { free_content: free_content(parameters), ..Settings::default() };
    GuestBalloon::new(transport, settings).map_err(BalloonError::Start)
}

/// What the manager's free pages hold.
const fn free_content(parameters: &Parameters) -> FreeContent {
    let aids = Aids::of(parameters);
    if aids.page_poison {
        FreeContent::Fill(POISON)
    } else if aids.init_on_free {
        FreeContent::Zero
    } else {
        FreeContent::Any
    }
}
