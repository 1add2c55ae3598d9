//! The driver: starts and resets the device, and does one bounded step of work at a time.

use crate::error::{DeviceFault, StartError};
use crate::features::{Features, FreeContent};
use crate::inflation::{BalloonMemory, Inflation};
use crate::queue_kind::QueueKind;
use crate::report::{Completion, MOST_RANGES, Reports, SubmitError, Token};
use crate::statistics::{self, Statistic};
use core::fmt;
use core::mem::ManuallyDrop;
use framewright_virtio::{self as virtio, Buffer, DmaPage, MOST_DESCRIPTORS, PrivateMemory, Ring};
use virtio_drivers::BufferDirection;
use virtio_drivers::transport::{DeviceStatus, DeviceType, InterruptStatus, Transport};

/// Offsets of 32-bit fields in the configuration space.
const TARGET: usize = 0;
const ACTUAL: usize = 4;
const POISON: usize = 12;

/// The number of descriptors in queues that carry one request at a time. Some hosts want more than
/// one.
const SMALL_RING: u16 = 8;

/// How the driver should work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// What the kernel's free pages hold. This decides whether PAGE_POISON is used and, if the host
    /// lacks that, whether reporting is used.
    pub free_content: FreeContent,
    /// The most ranges in one report; the queue's size and 128 are limits, too.
    pub report_ranges: u16,
    /// Whether the kernel calls [`Balloon::relieve`] when it runs out of memory: only then is
    /// DEFLATE_ON_OOM accepted. With it, hosts may inflate to more than the kernel can spare.
    pub relieves: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { free_content: FreeContent::Any, report_ranges: MOST_RANGES, relieves: false }
    }
}

/// How far the balloon is from its target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// The number of 4 KiB pages that the host wants.
    pub target_pages: u32,
    /// The number of pages that should be in the balloon: the target, or less after
    /// [`Balloon::relieve`].
    pub goal_pages: u32,
    /// The number of pages that are in the balloon.
    pub held_pages: u32,
    /// Whether a request has not been answered yet.
    pub waiting: bool,
    /// Whether the last attempt found no memory that could go into the balloon, or no memory for
    /// the list of its frames.
    pub short: bool,
}

/// The state of the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Running,
    /// The device has broken a rule. Its queues are not used until it is reset.
    Faulty(DeviceFault),
    Resetting,
    /// The device is reset and has not been started.
    Stopped,
}

/// All memory of the driver that the device uses.
struct Queues<H: PrivateMemory> {
    inflation: Inflation<H>,
    statistics: Option<(Ring<H>, DmaPage<H>)>,
    /// This queue is not used, but a host that offers hints expects it.
    hint: Option<Ring<H>>,
    reports: Option<Reports<H>>,
}

impl<H: PrivateMemory> Queues<H> {
    fn rings(&mut self) -> impl Iterator<Item = &mut Ring<H>> {
        let [inflate, deflate] = self.inflation.rings();
        let statistics = self.statistics.as_mut().map(|(ring, _)| ring);
        let rings = [Some(inflate), Some(deflate), statistics, self.hint.as_mut()];
        rings.into_iter().flatten().chain(self.reports.as_mut().map(Reports::ring))
    }
}

/// A virtio balloon device.
///
/// Dropping it resets the device. Frames that are then in the balloon are lost;
/// [`stop`](Self::stop) gives them back first.
pub struct Balloon<H: PrivateMemory, T: Transport> {
    /// Dropped only when the device does not use them any more.
    queues: ManuallyDrop<Queues<H>>,
    /// `virtio::release` drops it.
    transport: ManuallyDrop<T>,
    settings: Settings,
    features: Features,
    state: State,
    target_pages: u32,
    relief: Option<Relief>,
    /// The value that was last written to the device's `actual` field, if any.
    actual_pages: Option<u32>,
    reports_made: u64,
}

/// A request to make the balloon smaller than the host wants it.
#[derive(Clone, Copy)]
struct Relief {
    /// The target when the request was made: any other target ends the relief.
    target_pages: u32,
    goal_pages: u32,
}

impl<H: PrivateMemory, T: Transport> Balloon<H, T> {
    /// Resets the device, agrees on features, sets up queues and starts the device.
    ///
    /// # Errors
    /// See [`StartError`]. The transport is never dropped, then or later: see
    /// [`release`](virtio::release).
    pub fn new(transport: T, settings: Settings) -> Result<Self, StartError> {
        let mut transport = ManuallyDrop::new(transport);
        let (features, queues) = match prepare(&mut *transport, settings) {
            Ok(prepared) => prepared,
            // The driver has already waited for the reset.
            Err(StartError::ResetPending) => return Err(StartError::ResetPending),
            Err(error) => {
                virtio::release(ManuallyDrop::into_inner(transport));
                return Err(error);
            }
        };
        let mut balloon = Self {
            queues: ManuallyDrop::new(queues),
            transport,
            settings,
            features,
            state: State::Stopped,
            target_pages: 0,
            relief: None,
            actual_pages: None,
            reports_made: 0,
        };
        balloon.start()?;
        Ok(balloon)
    }

    /// What free pages hold, as set when the driver was started.
    #[cfg(feature = "reporting")]
    pub(crate) const fn free_content(&self) -> FreeContent {
        self.settings.free_content
    }

    /// The features that device and driver have agreed on.
    #[must_use]
    pub fn features(&self) -> Features {
        self.features
    }

    /// The number of the reporting queue, if there is one.
    #[must_use]
    pub fn reporting_queue(&mut self) -> Option<u16> {
        self.queues.reports.as_mut().map(|reports| reports.ring().queue())
    }

    /// The number of ranges that one report may have; 0 if the host takes none.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.queues.reports.as_ref().map_or(0, Reports::capacity)
    }

    /// The number of reports that the device has not answered.
    #[must_use]
    pub fn reports_in_flight(&self) -> usize {
        self.queues.reports.as_ref().map_or(0, Reports::in_flight)
    }

    /// Why the device is not running, or `None` if it is.
    #[must_use]
    pub fn fault(&self) -> Option<DeviceFault> {
        match self.state {
            State::Running => None,
            State::Faulty(fault) => Some(fault),
            State::Resetting => Some(DeviceFault::Resetting),
            State::Stopped => Some(DeviceFault::Stopped),
        }
    }

    /// How many 4 KiB pages are in the balloon. A kernel that counts them as its memory subtracts
    /// them from [`Statistic::Total`], as Linux does unless DEFLATE_ON_OOM was agreed on.
    #[must_use]
    pub fn held_pages(&self) -> u32 {
        self.queues.inflation.held_pages()
    }

    /// How many 4 KiB pages the host wants in the balloon at this moment. [`work`](Self::work)
    /// reads this by itself.
    ///
    /// # Errors
    /// The device is not running, or its configuration cannot be read.
    pub fn target_pages(&self) -> Result<u32, DeviceFault> {
        if let Some(fault) = self.fault() {
            return Err(fault);
        }
        self.transport
            .read_config_space::<u32>(TARGET)
            .map(u32::from_le)
            .map_err(DeviceFault::Configuration)
    }

    /// Gives free memory to the host. Each range is a physical address and a size in bytes, in
    /// whole pages. Does not wait.
    ///
    /// # Errors
    /// See [`SubmitError`]; the host has none of the ranges then.
    ///
    /// # Safety
    /// The memory belongs to the caller, and nobody reads or writes it until [`poll`](Self::poll)
    /// has returned the token, or a reset is complete. Its content is lost, and what it contains
    /// afterwards is unknown: an answer does not prove anything about the content.
    pub unsafe fn submit(&mut self, ranges: &[(u64, u32)]) -> Result<Token, SubmitError> {
        if let Some(fault) = self.fault() {
            return Err(SubmitError::Fault(fault));
        }
        let Some(reports) = &mut self.queues.reports else { return Err(SubmitError::NotSupported) };
        // SAFETY: the caller keeps this function's promise.
        let token = unsafe { reports.submit(&mut *self.transport, ranges, self.reports_made)? };
        self.reports_made += 1;
        Ok(token)
    }

    /// Returns the next report that the device has answered, in the order of its answers. This only
    /// reads memory, so it may be called often.
    ///
    /// # Errors
    /// The device has broken a rule. It keeps the reports that it has not answered until a reset.
    pub fn poll(&mut self) -> Result<Option<Completion>, DeviceFault> {
        if let Some(fault) = self.fault() {
            return Err(fault);
        }
        let polled = self.queues.reports.as_mut().map_or(Ok(None), Reports::poll);
        self.record_fault(polled)
    }

    /// Does one step of everything else; never waits. Call it now and then, after an interrupt if
    /// there are any, and again soon while the balloon has not reached its goal. It acknowledges
    /// the interrupt, answers a request for statistics with what `statistics` returns, finishes a
    /// request for pages, and begins the next one (at most 4 MiB).
    ///
    /// # Safety
    /// `memory` is the memory that all frames in the balloon came from: frames go back to it by
    /// number (invariant 42).
    ///
    /// # Errors
    /// The device has broken a rule, or asks to be reset.
    pub unsafe fn work(
        &mut self,
        memory: &mut dyn BalloonMemory,
        statistics: &mut dyn FnMut(Statistic) -> Option<u64>,
    ) -> Result<Progress, DeviceFault> {
        if let Some(fault) = self.fault() {
            return Err(fault);
        }
        // SAFETY: the caller keeps this function's promise.
        let step = unsafe { self.step(memory, statistics) };
        self.record_fault(step)
    }

    /// Lowers the goal to `pages` below what the balloon holds, because the guest needs memory more
    /// urgently than the host. [`work`](Self::work) then deflates; the goal stays until the host
    /// changes its target. Returns false if the host does not allow this (DEFLATE_ON_OOM).
    pub fn relieve(&mut self, pages: u32) -> bool {
        if !self.features.contains(Features::DEFLATE_ON_OOM) {
            return false;
        }
        let held = self.queues.inflation.held_pages();
        self.relief = Some(Relief {
            target_pages: self.target_pages,
            goal_pages: self.goal_pages().min(held).saturating_sub(pages),
        });
        true
    }

    /// Acknowledges an interrupt, for a handler that must do so at once.
    pub fn acknowledge_interrupt(&mut self) -> InterruptStatus {
        self.transport.ack_interrupt()
    }

    /// Resets the device and starts it again. Returns only when the device has completed the reset,
    /// however long that takes; [`try_reset`](Self::try_reset) does not wait. The device then has
    /// no reports any more, and their tokens will never be returned. The balloon keeps its pages.
    ///
    /// # Errors
    /// The device could not be started again. It has no reports any more, and takes no new ones.
    pub fn reset(&mut self) -> Result<(), StartError> {
        while !self.try_reset()? {
            core::hint::spin_loop();
        }
        Ok(())
    }

    /// Begins a reset, or continues one. Returns true once the device has completed it and was
    /// started again. Until then the device keeps all reports.
    ///
    /// # Errors
    /// As for [`reset`](Self::reset).
    pub fn try_reset(&mut self) -> Result<bool, StartError> {
        if !self.poll_reset() {
            return Ok(false);
        }
        let transport = &mut *self.transport;
        let features = negotiate(transport, self.settings)?;
        let shrunk = self
            .queues
            .rings()
            .any(|ring| transport.max_queue_size(ring.queue()) < ring.size().into());
        if features != self.features || shrunk {
            // Queues would have other numbers, or would not fit. A device that changes at a reset
            // cannot be used.
            self.transport.set_status(DeviceStatus::FAILED);
            return Err(StartError::Changed);
        }
        self.start()?;
        Ok(true)
    }

    /// Stops the device and gives the balloon's pages back. Returns true once that is done. Returns
    /// false if the device has not completed its reset: call this again then.
    /// [`reset`](Self::reset) starts the device again.
    ///
    /// # Safety
    /// As for [`work`](Self::work).
    pub unsafe fn stop(&mut self, memory: &mut dyn BalloonMemory) -> bool {
        if self.state != State::Stopped && !self.poll_reset() {
            return false;
        }
        // SAFETY: the caller promises that the frames came from `memory`, and the device has been
        // reset.
        unsafe { self.queues.inflation.empty(memory) };
        true
    }

    /// Begins a reset if none has begun. Returns true once it is complete: the device then uses no
    /// memory of the driver (invariant 32).
    fn poll_reset(&mut self) -> bool {
        if self.state != State::Resetting {
            self.state = State::Resetting;
            self.transport.set_status(DeviceStatus::empty());
        }
        if self.transport.get_status() != DeviceStatus::empty() {
            return false;
        }
        self.state = State::Stopped;
        for ring in self.queues.rings() {
            ring.clear();
        }
        true
    }

    /// Starts a device that has been reset and has accepted its features.
    fn start(&mut self) -> Result<(), StartError> {
        if let Some(poison) = self.settings.free_content.poison()
            && self.features.contains(Features::PAGE_POISON)
        {
            self.transport
                .write_config_space(POISON, poison.to_le())
                .map_err(StartError::Configuration)?;
        }
        for ring in self.queues.rings() {
            // SAFETY: `queues` is dropped, and `poll_reset` clears the ring, only after a reset
            // (invariant 32).
            unsafe { ring.set_up(&mut *self.transport) };
        }
        virtio::run(&mut *self.transport);
        self.state = State::Running;
        self.actual_pages = None;
        self.queues.inflation.repeat(&mut *self.transport);
        Ok(())
    }

    /// # Safety
    /// As for [`work`](Self::work).
    unsafe fn step(
        &mut self,
        memory: &mut dyn BalloonMemory,
        statistics: &mut dyn FnMut(Statistic) -> Option<u64>,
    ) -> Result<Progress, DeviceFault> {
        // The returned bits are not used: hosts with only message-signalled interrupts do not set
        // them.
        self.transport.ack_interrupt();
        if self.transport.get_status().contains(DeviceStatus::DEVICE_NEEDS_RESET) {
            return Err(DeviceFault::NeedsReset);
        }
        self.answer_statistics(statistics)?;
        // SAFETY: the caller keeps this function's promise.
        unsafe { self.queues.inflation.finish(memory)? };
        self.target_pages = self.target_pages()?;
        let goal_pages = self.goal_pages();
        let enough = self.queues.inflation.approach(goal_pages, memory, &mut *self.transport);
        let held_pages = self.queues.inflation.held_pages();
        if self.actual_pages != Some(held_pages) {
            let written = self.transport.write_config_space(ACTUAL, held_pages.to_le());
            written.map_err(DeviceFault::Configuration)?;
            self.actual_pages = Some(held_pages);
        }
        let waiting = self.queues.inflation.is_waiting();
        Ok(Progress {
            target_pages: self.target_pages,
            goal_pages,
            held_pages,
            waiting,
            short: !enough,
        })
    }

    fn goal_pages(&mut self) -> u32 {
        match self.relief {
            Some(relief) if relief.target_pages == self.target_pages => relief.goal_pages,
            _ => {
                self.relief = None;
                self.target_pages
            }
        }
    }

    /// Gives the host the buffer with the statistics. The host has it from the start and returns it
    /// when it wants new values.
    fn answer_statistics(
        &mut self,
        statistics: &mut dyn FnMut(Statistic) -> Option<u64>,
    ) -> Result<(), DeviceFault> {
        let Some((ring, page)) = &mut self.queues.statistics else { return Ok(()) };
        if let Some(used) = ring.poll()?
            && u64::from(used.written) > used.room
        {
            return Err(DeviceFault::TooLong { queue: ring.queue(), written: used.written });
        }
        if ring.chains_out() == 0 {
            let bytes = statistics::write(page, statistics);
            let buffer = Buffer { address: page.physical(), bytes, device_writes: false };
            // SAFETY: the page belongs to the driver, and the device only reads it (invariant 32).
            if unsafe { ring.add([buffer].into_iter(), 0) } {
                ring.notify(&mut *self.transport);
            }
        }
        Ok(())
    }

    /// Records the fault, if `result` is one.
    fn record_fault<V>(&mut self, result: Result<V, DeviceFault>) -> Result<V, DeviceFault> {
        if let Err(fault) = result {
            self.state = State::Faulty(fault);
        }
        result
    }
}

impl<H: PrivateMemory, T: Transport> fmt::Debug for Balloon<H, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held_pages = self.queues.inflation.held_pages();
        f.debug_struct("Balloon")
            .field("features", &self.features)
            .field("state", &self.state)
            .field("held_pages", &held_pages)
            .finish_non_exhaustive()
    }
}

impl<H: PrivateMemory, T: Transport> Drop for Balloon<H, T> {
    fn drop(&mut self) {
        // SAFETY: the transport is taken once, and not used afterwards.
        let transport = unsafe { ManuallyDrop::take(&mut self.transport) };
        if virtio::release(transport) {
            // SAFETY: the queues are dropped once, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.queues) };
        }
        // Otherwise the device may still write into the queues, so they are leaked.
    }
}

/// Resets the device, agrees on features and creates its queues.
fn prepare<H: PrivateMemory, T: Transport>(
    transport: &mut T,
    settings: Settings,
) -> Result<(Features, Queues<H>), StartError> {
    let kind = transport.device_type();
    if kind != DeviceType::MemoryBalloon {
        return Err(StartError::NotABalloon(kind));
    }
    if !virtio::reset(transport) {
        return Err(StartError::ResetPending);
    }
    let features = negotiate(transport, settings)?;
    let queues = make_queues(features, transport, settings)
        .inspect_err(|_| transport.set_status(DeviceStatus::FAILED))?;
    Ok((features, queues))
}

/// Agrees on features with a device that has been reset.
fn negotiate<T: Transport>(transport: &mut T, settings: Settings) -> Result<Features, StartError> {
    let choose = |offered| Features::accept(offered, settings).bits();
    let agreed = virtio::agree(transport, choose)?;
    Ok(Features::from_bits_truncate(agreed))
}

fn make_queues<H: PrivateMemory, T: Transport>(
    features: Features,
    transport: &mut T,
    settings: Settings,
) -> Result<Queues<H>, StartError> {
    let mut ring = |kind, wanted: u16| -> Result<Option<Ring<H>>, StartError> {
        let Some((queue, most)) = features.queue(kind, transport)? else { return Ok(None) };
        Ring::new(queue, most, wanted).map(Some).ok_or(StartError::OutOfMemory)
    };
    let missing = |kind| StartError::MissingQueue { kind, queue: kind as u16 };
    let inflate = ring(QueueKind::Inflate, SMALL_RING)?.ok_or(missing(QueueKind::Inflate))?;
    let deflate = ring(QueueKind::Deflate, SMALL_RING)?.ok_or(missing(QueueKind::Deflate))?;
    let statistics = match ring(QueueKind::Statistics, SMALL_RING)? {
        Some(ring) => {
            let page =
                DmaPage::new(BufferDirection::DriverToDevice).ok_or(StartError::OutOfMemory)?;
            Some((ring, page))
        }
        None => None,
    };
    let hint = ring(QueueKind::Hint, SMALL_RING)?;
    let reporting = ring(QueueKind::Reporting, MOST_DESCRIPTORS)?;
    let reports = reporting.map(|ring| Reports::new(ring, settings.report_ranges));
    let inflation = Inflation::new(inflate, deflate).ok_or(StartError::OutOfMemory)?;
    Ok(Queues { inflation, statistics, hint, reports })
}
