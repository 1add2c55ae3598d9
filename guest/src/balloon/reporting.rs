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
use framewright::reporting::{Content, Event, Progress, ReportDevice, Reporter, SubmitError};
use framewright::units::{Order, PhysRange};
use framewright_balloon::{DeviceFault, ManagedFrames, ReportingBalloon, StartError};
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

/// A device that stays in its place, as it is large. Nobody else has it, and it is registered once.
struct Lent<'a>(&'a mut BalloonDevice);

// SAFETY: the device keeps what it promises (invariant 32). This is all there is of it, as long as
// its reporter is there; the reporter is never leaked.
unsafe impl ReportDevice for Lent<'_> {
    fn capacity(&self) -> usize {
        self.0.capacity()
    }

    fn order(&self) -> Option<Order> {
        self.0.order()
    }

    unsafe fn submit(&mut self, ranges: &[PhysRange]) -> Result<(), SubmitError> {
        // SAFETY: the caller promises what the device demands.
        unsafe { self.0.submit(ranges) }
    }

    fn poll(&mut self) -> Progress {
        self.0.poll()
    }

    fn reset(&mut self) -> bool {
        self.0.reset()
    }

    fn content(&self) -> Content {
        self.0.content()
    }
}

/// The balloon, with the reports of free pages or without.
#[expect(clippy::large_enum_variant, reason = "there is one, and no heap to put it in")]
enum Way<'a> {
    Reporting(Reporter<'a, GuestPlatform, Lent<'a>>),
    Alone(&'a mut GuestBalloon),
}

impl Way<'_> {
    /// The balloon, to be used for everything but reports.
    fn balloon(&mut self) -> &mut GuestBalloon {
        match self {
            // SAFETY: the device is not moved, and only the balloon's other queues are used.
            Self::Reporting(reporter) => unsafe { reporter.device_mut() }.0.balloon(),
            Self::Alone(balloon) => balloon,
        }
    }

    /// Begins a reset, or continues one. A reporter continues by itself.
    fn reset(&mut self) {
        match self {
            Self::Reporting(reporter) => reporter.reset(),
            Self::Alone(balloon) => {
                if let Err(error) = balloon.try_reset() {
                    not_started(error);
                }
            }
        }
    }
}

fn not_started(error: StartError) {
    log!("virtio-balloon: not started again: {error}");
}

/// Drives the balloon. Nothing happens by itself: one CPU at a time has to call
/// [`poll`](Self::poll).
pub struct Driver<'a> {
    manager: &'a Manager<GuestPlatform>,
    way: Way<'a>,
    due_ns: u64,
    work_due_ns: u64,
    fault: Option<DeviceFault>,
}

impl<'a> Driver<'a> {
    /// Registers a balloon, if it takes reports. If that fails, the log says why, and there are no
    /// reports.
    pub(super) fn register(
        manager: &'a Manager<GuestPlatform>,
        balloon: &'a mut Result<BalloonDevice, GuestBalloon>,
    ) -> Self {
        let way = match balloon {
            Ok(device) => match manager.register_reporting(Lent(device)) {
                Ok(reporter) => Way::Reporting(reporter),
                Err((error, Lent(device))) => {
                    log!("Free page reporting: {error}");
                    Way::Alone(device.balloon())
                }
            },
            Err(balloon) => {
                log!("Free page reporting: the balloon takes no reports");
                Way::Alone(balloon)
            }
        };
        let mut driver = Self { manager, way, due_ns: 0, work_due_ns: 0, fault: None };
        driver.tell();
        driver
    }

    /// Whether free pages are reported.
    pub const fn reports(&self) -> bool {
        matches!(self.way, Way::Reporting(_))
    }

    /// Does what is due. It is cheap if nothing is due, so every wait loop may call it in each
    /// turn.
    pub fn poll(&mut self) {
        let Some(now_ns) = PLATFORM.now_ns() else { return };
        if now_ns >= self.work_due_ns {
            self.work_due_ns = now_ns + self.work();
        }
        let Way::Reporting(reporter) = &mut self.way else { return };
        if now_ns < self.due_ns && reporter.out_pages() == 0 {
            return;
        }
        let next_ns = reporter.poll(now_ns).unwrap_or(now_ns + MOST_WAIT_NS);
        self.due_ns = next_ns.min(now_ns + MOST_WAIT_NS);
        if reporter.is_silent() {
            reporter.reset();
        }
        self.tell();
    }

    /// Lets the device end the report that it has, for a second at most.
    pub fn end_report(&mut self) {
        let reporting = self.manager.reporting();
        let was_paused = reporting.is_paused();
        reporting.pause();
        within(1, || {
            self.poll();
            !matches!(&self.way, Way::Reporting(reporter) if reporter.out_pages() != 0)
        });
        if !was_paused {
            reporting.resume();
        }
    }

    /// Lets reporting run for this many seconds, then logs its counters.
    pub fn wait(&mut self, seconds: u64) {
        within(seconds, || {
            self.poll();
            false
        });
        let Way::Reporting(reporter) = &self.way else { return };
        let counters = self.manager.reporting_counters();
        log!(
            "Free page reporting: {} pages reported in {} calls, {} errors, {} with the device",
            counters.reported_pages,
            counters.calls,
            counters.errors,
            reporter.out_pages()
        );
    }

    /// Takes back the memory that the device holds, and stops the device.
    pub(super) fn finish(mut self) {
        if let Way::Reporting(reporter) = &mut self.way {
            reporter.close();
            let mut ask = || PLATFORM.now_ns().is_none_or(|now_ns| reporter.poll(now_ns).is_none());
            if !within(LAST_SECONDS, &mut ask) {
                reporter.reset();
                within(LAST_SECONDS, || {
                    PLATFORM.now_ns().is_none_or(|now_ns| reporter.poll(now_ns).is_none())
                });
            }
        }
        self.tell();
        let manager = self.manager;
        let balloon = match self.way {
            Way::Alone(balloon) => balloon,
            Way::Reporting(reporter) => match reporter.unregister() {
                Ok(Lent(device)) => device.balloon(),
                Err(reporter) => {
                    let pages = reporter.out_pages();
                    log!("Free page reporting: {pages} pages stay with the device");
                    return;
                }
            },
        };
        // SAFETY: the balloon's frames are all this manager's.
        if !within(LAST_SECONDS, || unsafe { balloon.stop(&mut ManagedFrames::new(manager)) }) {
            log!("virtio-balloon: it does not complete its reset");
        }
    }

    /// Does a step of the balloon's other work. Returns how soon the next is due, in nanoseconds.
    fn work(&mut self) -> u64 {
        if let Way::Reporting(reporter) = &mut self.way {
            // SAFETY: the device is not moved, and is only asked for what a reset met.
            unsafe { reporter.device_mut() }.0.take_error().into_iter().for_each(not_started);
        }
        let balloon = self.way.balloon();
        let held_pages = balloon.held_pages();
        let mut answer = |tag| statistics(self.manager, held_pages, tag);
        let mut frames = ManagedFrames::new(self.manager);
        // SAFETY: the guest has one manager, and all of the balloon's frames are this manager's.
        let step = unsafe { balloon.work(&mut frames, &mut answer) };
        if let Some(error) = frames.take_error() {
            log!("virtio-balloon: frames are lost: {error}");
        }
        match step {
            Ok(progress) => {
                self.fault = None;
                let is_there = progress.short || progress.held_pages == progress.goal_pages;
                if is_there { WORK_NS } else { 0 }
            }
            Err(DeviceFault::Resetting) => {
                self.way.reset();
                WORK_NS
            }
            // A device that could not be started again is left alone.
            Err(DeviceFault::Stopped) => WORK_NS,
            Err(fault) => {
                if self.fault.replace(fault) != Some(fault) {
                    log!("{fault}");
                }
                self.way.reset();
                RETRY_NS
            }
        }
    }

    fn tell(&mut self) {
        let Way::Reporting(reporter) = &mut self.way else { return };
        while let Some(event) = reporter.event() {
            match event {
                Event::Enabled { .. } => log!("{event}"),
                _ => log!("page_reporting: {event}"),
            }
        }
    }
}
