//! The balloon at work while the guest goes on: free memory is reported to the host, its target is
//! followed, its questions for statistics are answered.

use super::exercise::statistics;
use super::{GuestBalloon, ManagedFrames};
use crate::console::log;
use crate::platform::{GuestPlatform, PLATFORM};
use crate::timekeeping::within;
use framewright::Manager;
use framewright::platform::Platform;
use framewright::reporting::{
    Acknowledged, Content, Event, Progress, ReportDevice, Reporter, SubmitError,
};
use framewright::units::PhysRange;
use framewright_balloon::{DeviceFault, Features, FreeContent, Token};

const MS: u64 = 1_000_000;
/// Polls come at least so often, for whoever wants a flush.
const MOST_WAIT_NS: u64 = 20 * MS;
/// How often the host's target is looked at while the balloon is where it should be, and how often
/// a device is tried again that did what it may not.
const WORK_NS: u64 = 100 * MS;
const RETRY_NS: u64 = 1000 * MS;
/// Ranges of one report.
const RANGES: usize = 32;
/// How long the end waits for a device's last answer, and then for its reset.
const LAST_SECONDS: u64 = 10;

/// A balloon as the manager's device for free page reports.
pub struct BalloonDevice {
    balloon: GuestBalloon,
    content: Content,
    /// The report that is out.
    token: Option<Token>,
}

impl BalloonDevice {
    fn new(balloon: GuestBalloon, free_content: FreeContent) -> Self {
        // What the host promises with PAGE_POISON is to leave in free memory what is there; without
        // it, nothing.
        let content = match free_content {
            _ if !balloon.features().contains(Features::PAGE_POISON) => Content::Undefined,
            FreeContent::Any => Content::Undefined,
            // Not zero: memory that nobody has freed yet holds what firmware left, and a locked
            // host keeps that.
            FreeContent::Zero => Content::ZeroOrKept,
            FreeContent::Fill(_) => Content::Poison,
        };
        Self { balloon, content, token: None }
    }
}

// SAFETY: a report is the device's from a `submit` that succeeds until the driver has its answer or
// the device has completed a reset, which is what the driver promises (invariant 32); the device is
// told of nothing but the ranges and the driver's own pages. `content` claims no more than
// PAGE_POISON does.
unsafe impl ReportDevice for BalloonDevice {
    fn capacity(&self) -> usize {
        self.balloon.capacity().min(RANGES)
    }

    unsafe fn submit(&mut self, ranges: &[PhysRange]) -> Result<(), SubmitError> {
        let mut buffers = [(0, 0); RANGES];
        for (index, range) in ranges.iter().enumerate() {
            let bytes = u32::try_from(range.size()).map_err(|_| SubmitError::Failed)?;
            *buffers.get_mut(index).ok_or(SubmitError::Failed)? = (range.start, bytes);
        }
        let buffers = buffers.get(..ranges.len()).ok_or(SubmitError::Failed)?;
        // SAFETY: passed on to the caller: the ranges are this device's until it says that it is
        // done.
        match unsafe { self.balloon.submit(buffers) } {
            Ok(token) => {
                self.token = Some(token);
                Ok(())
            }
            Err(framewright_balloon::SubmitError::Busy) => Err(SubmitError::Busy),
            Err(_) => Err(SubmitError::Failed),
        }
    }

    fn poll(&mut self) -> Progress {
        match self.balloon.poll() {
            Ok(Some(completion)) if Some(completion.token) == self.token => {
                self.token = None;
                match completion.result {
                    Ok(()) => Progress::Done(Acknowledged::ALL),
                    Err(_) => Progress::Failed,
                }
            }
            // A device that is at fault has the memory until it is reset.
            Ok(_) | Err(_) => Progress::Pending,
        }
    }

    fn reset(&mut self) -> bool {
        let done = match self.balloon.try_reset() {
            Ok(done) => done,
            Err(error) => {
                // It has completed the reset, and has nothing of ours.
                log!("virtio-balloon: not started again: {error}");
                true
            }
        };
        if done {
            self.token = None;
        }
        done
    }

    fn content(&self) -> Content {
        self.content
    }
}

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
        free_content: FreeContent,
    ) -> Option<Self> {
        if balloon.capacity() == 0 {
            // As a device's capacity that would mean the usual one.
            log!("Free page reporting: the balloon takes no reports");
            return None;
        }
        match manager.register_reporting(BalloonDevice::new(balloon, free_content)) {
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
                    device.balloon.stop(&mut ManagedFrames(manager))
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
        let balloon = &mut unsafe { self.reporter.device_mut() }.balloon;
        // SAFETY: the guest has one manager, and the balloon's frames are all its.
        match unsafe { balloon.work(&mut ManagedFrames(self.manager), &mut answer) } {
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
