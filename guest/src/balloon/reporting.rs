//! Runs the balloon while the guest does other work: reports free memory to the host, follows the
//! host's target, and answers its questions for statistics.

use super::GuestBalloon;
use super::exercise::statistics;
use crate::console::log;
use crate::platform::{GuestPlatform, PLATFORM};
use crate::timekeeping::within;
use crate::virtio::GuestHal;
use framewright::Manager;
use framewright::platform::Platform;
use framewright::reporting::{Event, Reporter};
use framewright_balloon::{DeviceFault, ManagedFrames, ReportingBalloon};
use virtio_drivers::transport::pci::PciTransport;

const MS: u64 = 1_000_000;
/// The longest time between two polls, so that a CPU that waits for a flush is served.
const MOST_WAIT_NS: u64 = 20 * MS;
/// `WORK_NS`: how often the host's target is checked once the balloon has reached it. `RETRY_NS`:
/// how soon a device that broke the protocol is tried again.
const WORK_NS: u64 = 100 * MS;
const RETRY_NS: u64 = 1000 * MS;
/// How long `finish` waits for the device's last answer, and then again for its reset.
const LAST_SECONDS: u64 = 10;

/// A balloon as the device that the manager's free page reports go to.
pub type BalloonDevice = ReportingBalloon<GuestHal, PciTransport>;

/// Drives a registered balloon. Nothing happens by itself: one CPU at a time has to call
/// [`poll`](Self::poll).
pub struct Driver<'a> {
    manager: &'a Manager<GuestPlatform>,
    reporter: Reporter<'a, GuestPlatform, BalloonDevice>,
    due_ns: u64,
    work_due_ns: u64,
    fault: Option<DeviceFault>,
}

impl<'a> Driver<'a> {
    /// Registers a balloon. Returns `None` if that fails; the log says why.
    pub(super) fn register(
        manager: &'a Manager<GuestPlatform>,
        balloon: GuestBalloon,
    ) -> Option<Self> {
        let Some(device) = ReportingBalloon::new(balloon) else {
            log!("Free page reporting: the balloon takes no reports");
            return None;
        };
        match manager.register_reporting(device) {
            Ok(reporter) => {
                let mut driver = Self { manager, reporter, due_ns: 0, work_due_ns: 0, fault: None };
                driver.tell();
                Some(driver)
            }
            Err((error, _)) => {
                log!("Free page reporting: {error}");
                None
            }
        }
    }

    /// Does what is due. It is cheap if nothing is due, so every wait loop may call it in each
    /// turn.
    pub fn poll(&mut self) {
        let Some(now_ns) = PLATFORM.now_ns() else { return };
        if now_ns >= self.work_due_ns {
            self.work_due_ns = now_ns + self.work();
        }
        if now_ns < self.due_ns && self.reporter.out_pages() == 0 {
            return;
        }
        let next_ns = self.reporter.poll(now_ns).unwrap_or(now_ns + MOST_WAIT_NS);
        self.due_ns = next_ns.min(now_ns + MOST_WAIT_NS);
        self.tell();
        if self.reporter.is_silent() {
            self.reporter.reset();
        }
    }

    /// Lets reporting run for this many seconds, then logs its counters.
    pub fn wait(&mut self, seconds: u64) {
        within(seconds, || {
            self.poll();
            false
        });
        let counters = self.manager.reporting_counters();
        log!(
            "Free page reporting: {} pages reported in {} calls, {} errors, {} with the device",
            counters.reported_pages,
            counters.calls,
            counters.errors,
            self.reporter.out_pages()
        );
    }

    /// Takes back the memory that the device holds, and stops the device.
    pub(super) fn finish(mut self) {
        self.reporter.close();
        let mut ask =
            || PLATFORM.now_ns().is_none_or(|now_ns| self.reporter.poll(now_ns).is_none());
        if !within(LAST_SECONDS, &mut ask) {
            self.reporter.reset();
            within(LAST_SECONDS, || {
                PLATFORM.now_ns().is_none_or(|now_ns| self.reporter.poll(now_ns).is_none())
            });
        }
        self.tell();
        let manager = self.manager;
        match self.reporter.unregister() {
            Ok(mut device) => {
                // SAFETY: the balloon's frames are all this manager's.
                if !within(LAST_SECONDS, || unsafe {
                    device.balloon().stop(&mut ManagedFrames::new(manager))
                }) {
                    log!("virtio-balloon: it does not complete its reset");
                }
            }
            Err(reporter) => {
                log!("Free page reporting: {} pages stay with the device", reporter.out_pages())
            }
        }
    }

    /// Does a step of the balloon's other work. Returns how soon the next is due, in nanoseconds.
    fn work(&mut self) -> u64 {
        let mut answer = |tag| statistics(self.manager, tag);
        // SAFETY: the device is not moved, and only the balloon's other queues are used.
        let device = unsafe { self.reporter.device_mut() };
        if let Some(error) = device.take_error() {
            log!("virtio-balloon: not started again: {error}");
        }
        let mut frames = ManagedFrames::new(self.manager);
        // SAFETY: the guest has one manager, and all of the balloon's frames are this manager's.
        let step = unsafe { device.balloon().work(&mut frames, &mut answer) };
        if let Some(error) = frames.take_error() {
            log!("virtio-balloon: frames are lost: {error}");
        }
        match step {
            Ok(progress) => {
                self.fault = None;
                let is_there = progress.short || progress.held_pages == progress.goal_pages;
                if is_there { WORK_NS } else { 0 }
            }
            // A device that could not be started again is left alone.
            Err(DeviceFault::Resetting | DeviceFault::Stopped) => WORK_NS,
            Err(fault) => {
                if self.fault.replace(fault) != Some(fault) {
                    log!("{fault}");
                }
                self.reporter.reset();
                RETRY_NS
            }
        }
    }

    fn tell(&mut self) {
        while let Some(event) = self.reporter.event() {
            match event {
                Event::Enabled { .. } => log!("{event}"),
                _ => log!("page_reporting: {event}"),
            }
        }
    }
}
