//! The balloon at work while the guest goes on: free memory is reported to the host, its target is
//! followed, its questions for statistics are answered.

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
/// Polls come at least so often, for whoever wants a flush.
const MOST_WAIT_NS: u64 = 20 * MS;
/// How often the host's target is looked at while the balloon is where it should be, and how often
/// a device is tried again that did what it may not.
const WORK_NS: u64 = 100 * MS;
const RETRY_NS: u64 = 1000 * MS;
/// How long the end waits for a device's last answer, and then for its reset.
const LAST_SECONDS: u64 = 10;

/// A balloon as the manager's device for free page reports.
pub type BalloonDevice = ReportingBalloon<GuestHal, PciTransport>;

/// What drives a registered balloon. Nothing happens by itself: [`poll`](Self::poll) wants to be
/// called, from one CPU at a time.
pub struct Driver<'a> {
    manager: &'a Manager<GuestPlatform>,
    reporter: Reporter<'a, GuestPlatform, BalloonDevice>,
    due_ns: u64,
    work_due_ns: u64,
    fault: Option<DeviceFault>,
}

impl<'a> Driver<'a> {
    /// Registers a balloon; nothing, and the log says why, when that cannot be.
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

    /// Does what is due. Cheap when nothing is, so that every wait may call it in each turn.
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

    /// Lets reports go on for so many seconds.
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

    /// Takes back what the device has, and stops it.
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

    /// A step of everything else that a balloon does; how soon the next is due, in nanoseconds.
    fn work(&mut self) -> u64 {
        let mut answer = |tag| statistics(self.manager, tag);
        // SAFETY: the device stays where it is, and this is about the balloon's other queues.
        let device = unsafe { self.reporter.device_mut() };
        if let Some(error) = device.take_error() {
            log!("virtio-balloon: not started again: {error}");
        }
        let mut frames = ManagedFrames::new(self.manager);
        // SAFETY: the guest has one manager, and the balloon's frames are all its.
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
