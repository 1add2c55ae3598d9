//! The virtio balloon of the virtual machine, if it has one: found on PCI, started, and lent to whoever uses it.

mod exercise;
mod memory;
mod pci;
mod reporting;

use crate::console::log;
use crate::platform::GuestPlatform;
use core::fmt;
use framewright::debug::{Aids, POISON};
use framewright::{Manager, Parameters};
use framewright_balloon::{Balloon, FreeContent, Settings, StartError};
use framewright_x86::page_table::MapFault;
use virtio_drivers::transport::pci::bus::{DeviceFunction, PciError, PciRoot};
use virtio_drivers::transport::pci::{PciTransport, VirtioPciError};

pub use exercise::test;
pub use memory::{GuestHal, ManagedFrames};
pub use reporting::Driver;

/// The driver as this guest has it.
pub type GuestBalloon = Balloon<GuestHal, PciTransport>;

/// Why there is a balloon that cannot be used.
#[derive(Debug)]
pub enum BalloonError {
    /// Its registers cannot be mapped.
    Registers(MapFault),
    /// PCI says something impossible.
    Pci(PciError),
    /// Its registers are not where virtio devices have them.
    Transport(VirtioPciError),
    /// The driver refuses it.
    Start(StartError),
}

impl fmt::Display for BalloonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Registers(error) => write!(f, "its registers: {error}"),
            Self::Pci(error) => error.fmt(f),
            Self::Transport(error) => error.fmt(f),
            Self::Start(error) => error.fmt(f),
        }
    }
}

/// Starts the balloon, lends it to `work`, and stops it. `None` goes to `work` when there is none or it cannot be used, which the log says. A machine's balloon is
/// used once, here or by [`with_reports`].
pub fn with<R>(
    manager: &Manager<GuestPlatform>,
    parameters: &Parameters,
    work: impl FnOnce(Option<&mut GuestBalloon>) -> R,
) -> R {
    memory::lend(manager, || match open(manager, parameters) {
        Ok(mut balloon) => work(Some(&mut balloon)),
        Err(Without::Device) => {
            log!("virtio-balloon: no device");
            work(None)
        }
        Err(Without::Use) => work(None),
    })
}

/// Starts the balloon, registers it for free page reports, and lends what drives it to `work`; afterwards nothing is with the device. `None` goes to `work` when there is
/// no balloon, or it takes no reports, which the log says unless there is none at all.
pub fn with_reports<R>(
    manager: &Manager<GuestPlatform>,
    parameters: &Parameters,
    work: impl FnOnce(Option<&mut Driver<'_>>) -> R,
) -> R {
    memory::lend(manager, || {
        let Ok(balloon) = open(manager, parameters) else { return work(None) };
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

fn open(manager: &Manager<GuestPlatform>, parameters: &Parameters) -> Result<GuestBalloon, Without> {
    // SAFETY: nobody else uses PCI's configuration ports.
    let mut ports = unsafe { pci::Ports::new() };
    let Some(place) = framewright_balloon::pci::find(&ports) else { return Err(Without::Device) };
    match start(manager, parameters, &mut ports, place) {
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
    ports: &mut pci::Ports,
    place: DeviceFunction,
) -> Result<GuestBalloon, BalloonError> {
    let mut root = PciRoot::new(ports.again());
    for (number, bar) in root.bars(place).map_err(BalloonError::Pci)?.into_iter().enumerate() {
        if let Some((address, bytes)) = bar.and_then(|bar| bar.memory_address_size())
            && address != 0
        {
            pci::map_registers(manager, number, address, bytes).map_err(BalloonError::Registers)?;
        }
    }
    framewright_balloon::pci::enable(ports, place);
    let transport = PciTransport::new::<GuestHal, _>(&mut root, place).map_err(BalloonError::Transport)?;
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
