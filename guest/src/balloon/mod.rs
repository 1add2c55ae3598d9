//! The virtual machine's virtio balloon, if it has one. It is found on PCI, started, and lent to
//! the code that uses it.

mod exercise;
mod reporting;

use crate::console::log;
use crate::platform::GuestPlatform;
use crate::virtio::{self, Device, GuestHal, lend};
use framewright::debug::{Aids, POISON};
use framewright::firmware::MemoryMap;
use framewright::{Manager, Parameters};
use framewright_balloon::{Balloon, FreeContent, ReportingBalloon, Settings};
use virtio_drivers::transport::pci::PciTransport;

pub use exercise::test;
pub use reporting::Driver;

/// The balloon driver as this guest uses it.
pub type GuestBalloon = Balloon<GuestHal, PciTransport>;

/// Starts the balloon, lends it to `work`, and stops it. `work` gets `None` if there is no balloon
/// or it cannot be used; the log says which. The balloon can be used only once, through this
/// function or [`with_reports`].
pub fn with<R>(
    manager: &Manager<GuestPlatform>,
    parameters: &Parameters,
    map: MemoryMap<'_>,
    work: impl FnOnce(Option<&mut GuestBalloon>) -> R,
) -> R {
    lend(manager, || match open(manager, parameters, map) {
        Ok(mut balloon) => work(Some(&mut balloon)),
        Err(Without::Device) => {
            log!("virtio-balloon: no device");
            work(None)
        }
        Err(Without::Use) => work(None),
    })
}

/// Starts the balloon, registers it for free page reporting if it takes reports, and lends its
/// driver to `work`. Afterwards the device holds no memory. `work` gets `None` if there is no
/// balloon.
pub fn with_reports<R>(
    manager: &Manager<GuestPlatform>,
    parameters: &Parameters,
    map: MemoryMap<'_>,
    work: impl FnOnce(Option<&mut Driver<'_>>) -> R,
) -> R {
    lend(manager, || {
        let Ok(balloon) = open(manager, parameters, map) else { return work(None) };
        let mut balloon = ReportingBalloon::new(balloon);
        let mut driver = Driver::register(manager, &mut balloon);
        let result = work(Some(&mut driver));
        driver.finish();
        result
    })
}

/// Why there is no balloon.
enum Without {
    /// The machine has none.
    Device,
    /// It has one that cannot be used; the log has said why.
    Use,
}

fn open(
    manager: &Manager<GuestPlatform>,
    parameters: &Parameters,
    map: MemoryMap<'_>,
) -> Result<GuestBalloon, Without> {
    let Some((place, transport)) = virtio::open(manager, map, Device::Balloon) else {
        return Err(Without::Device);
    };
    let transport = match transport {
        Ok(transport) => transport,
        Err(error) => {
            log!("virtio-balloon {place}: {error}");
            return Err(Without::Use);
        }
    };
    let settings = Settings { free_content: free_content(parameters), ..Settings::default() };
    match GuestBalloon::new(transport, settings) {
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

/// What the manager's free pages contain.
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
