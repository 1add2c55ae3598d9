//! A virtio-balloon that takes reports of free pages (step 14 of `docs/porting.md`).

use framewright::reporting::{Acknowledged, Progress, ReportDevice, SubmitError};
use framewright::units::PhysRange;
use framewright::{Manager, Platform};
use framewright_balloon::{Balloon, PrivateMemory, Token};
use virtio_drivers::transport::Transport;

/// The balloon, and the report that it has.
#[derive(Debug)]
pub struct Device<H: PrivateMemory, T: Transport> {
    balloon: Balloon<H, T>,
    out: Option<Token>,
}

// SAFETY: what was submitted is the balloon's until it answers or was reset (invariants 32, 35).
unsafe impl<H: PrivateMemory, T: Transport> ReportDevice for Device<H, T> {
    fn capacity(&self) -> usize {
        self.balloon.capacity() // 0: the host takes no reports; do not register it then
    }
    unsafe fn submit(&mut self, ranges: &[PhysRange]) -> Result<(), SubmitError> {
        let mut list = [(0, 0); 32];
        let list = list.get_mut(..ranges.len()).ok_or(SubmitError::Failed)?;
        for (entry, range) in list.iter_mut().zip(ranges) {
            *entry = (range.start, u32::try_from(range.size()).map_err(|_| SubmitError::Failed)?);
        }
        // SAFETY: passed on to the caller: memory that is nobody's until we say that it is done.
        let token = unsafe { self.balloon.submit(list) }.map_err(|error| match error {
            framewright_balloon::SubmitError::Busy => SubmitError::Busy,
            _ => SubmitError::Failed,
        })?;
        self.out = Some(token);
        Ok(())
    }
    fn poll(&mut self) -> Progress {
        match self.balloon.poll() {
            Ok(Some(answer)) if Some(answer.token) == self.out => match answer.result {
                Ok(()) => Progress::Done(Acknowledged::ALL),
                Err(_) => Progress::Failed,
            },
            Ok(_) | Err(_) => Progress::Pending,
        }
    }
    fn reset(&mut self) -> bool {
        // After an error it has nothing of ours either.
        self.balloon.try_reset().unwrap_or(true)
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
