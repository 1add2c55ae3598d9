//! A virtio-balloon that takes reports of free pages (step 14 of `docs/porting.md`).

use framewright::reporting::ReportDevice;
use framewright::{Manager, Platform};
use framewright_balloon::{Balloon, PrivateMemory, ReportingBalloon};
use virtio_drivers::transport::Transport;

/// Reports to a balloon, if it takes reports.
pub fn report_to<P: Platform, H: PrivateMemory, T: Transport>(
    manager: &Manager<P>,
    balloon: Balloon<H, T>,
    sleep_until: impl Fn(u64),
) {
    if let Ok(device) = ReportingBalloon::new(balloon) {
        report_forever(manager, device, sleep_until);
    }
}

/// A task of its own: polls the device, and sleeps until it is to be polled again.
pub fn report_forever<P: Platform, D: ReportDevice>(
    manager: &Manager<P>,
    device: D,
    sleep_until: impl Fn(u64),
) {
    let now_ns = || manager.platform().now_ns().unwrap_or(0);
    let Ok(mut reporter) = manager.register_reporting(device) else { return };
    while let Some(deadline_ns) = reporter.poll(now_ns()) {
        while let Some(event) = reporter.event() {
            let _ = event; // log it
        }
        sleep_until(deadline_ns);
    }
}
