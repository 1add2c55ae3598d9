//! The balloon with Framewright's manager: its frames, and its reports of free pages.

use crate::{Balloon, BalloonMemory, Features, FreeContent, StartError, Token};
use framewright::debug::POISON;
use framewright::platform::AcceptMemory;
use framewright::reporting::{Acknowledged, Content, Progress, ReportDevice, SubmitError};
use framewright::units::{Order, PAGE_SIZE, Pfn, PfnRange, PhysRange};
use framewright::zone::{FreeError, MigrateType};
use framewright::{Manager, Platform, Request};
use framewright_virtio::PrivateMemory;
use virtio_drivers::transport::Transport;

/// The most ranges in one report.
const RANGES: usize = 32;

/// A manager's frames for inflation. They are *unmovable*: nothing can move frames that the host
/// has. Taken from movable memory, they would pin memory that is meant to be moved or removed.
///
/// There are none where the host forgets that memory was accepted
/// ([`AcceptMemory::forgets`](framewright::platform::AcceptMemory::forgets)): single frames cannot
/// be accepted anew when they come back, so such a guest reports free memory instead.
pub struct ManagedFrames<'a, P: Platform> {
    manager: &'a Manager<P>,
    error: Option<FreeError>,
}

impl<'a, P: Platform> ManagedFrames<'a, P> {
    /// The frames of this manager.
    pub const fn new(manager: &'a Manager<P>) -> Self {
        Self { manager, error: None }
    }

    /// Why frames that came back could not be freed, and were therefore lost. Each call returns an
    /// error at most once.
    pub fn take_error(&mut self) -> Option<FreeError> {
        self.error.take()
    }
}

// SAFETY: nobody else uses frames that the manager has allocated until they are freed.
unsafe impl<P: Platform> BalloonMemory for ManagedFrames<'_, P> {
    fn take(&mut self, order: u32, end_pfn: u64) -> Option<u64> {
        let forgets = |device: &dyn AcceptMemory| device.forgets();
        if self.manager.platform().accept_memory().is_some_and(forgets) {
            return None;
        }
        let order = Order::new(u8::try_from(order).ok()?)?;
        let request = Request {
            migrate_type: MigrateType::Unmovable,
            max_address: end_pfn.saturating_mul(PAGE_SIZE),
            fail_fast: true,
            ..Request::new(order)
        };
        self.manager.allocate(&request).ok().map(|range| range.start.0)
    }

    unsafe fn give_back(&mut self, first_pfn: u64, pages: u32) {
        let end = first_pfn.saturating_add(u64::from(pages));
        let range = PfnRange { start: Pfn(first_pfn), end: Pfn(end) };
        // SAFETY: `take` allocated these frames, and the caller does not use them any more
        // (invariant 42).
        if let Err(error) = unsafe { self.manager.free(range) }
            && error.concerns(range)
        {
            self.error = Some(error);
        }
    }
}

/// A balloon as a manager's device for free page reports
/// ([`Manager::register_reporting`]).
pub struct ReportingBalloon<H: PrivateMemory, T: Transport> {
    balloon: Balloon<H, T>,
    /// The report that the device has.
    token: Option<Token>,
    error: Option<StartError>,
}

impl<H: PrivateMemory, T: Transport> ReportingBalloon<H, T> {
    /// Returns the balloon's reports.
    ///
    /// # Errors
    /// The balloon itself, if it takes no reports. It can still be driven alone.
    #[expect(
        clippy::result_large_err,
        reason = "it is given back as it came, and there is no heap to put it in"
    )]
    pub fn new(balloon: Balloon<H, T>) -> Result<Self, Balloon<H, T>> {
        // For a report device, a capacity of 0 would mean the usual capacity.
        let takes_reports = balloon.capacity() != 0;
        if takes_reports { Ok(Self { balloon, token: None, error: None }) } else { Err(balloon) }
    }

    /// The balloon, for its other functions: inflation and statistics.
    pub const fn balloon(&mut self) -> &mut Balloon<H, T> {
        &mut self.balloon
    }

    /// Why the device was not started again after a reset. Each error is returned once.
    pub const fn take_error(&mut self) -> Option<StartError> {
        self.error.take()
    }
}

// SAFETY: a report belongs to the device from a successful `submit` until the driver has its answer
// or the device has completed a reset, which is what the driver promises (invariant 32). The device
// is told of nothing but the ranges and the driver's own pages. `content` claims no more than
// PAGE_POISON does.
unsafe impl<H: PrivateMemory, T: Transport> ReportDevice for ReportingBalloon<H, T> {
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
        // SAFETY: the caller promises that the ranges belong to this device until the device says
        // that it is done.
        match unsafe { self.balloon.submit(buffers) } {
            Ok(token) => {
                self.token = Some(token);
                Ok(())
            }
            Err(crate::SubmitError::Busy) => Err(SubmitError::Busy),
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
            // A faulty device keeps the memory until it is reset.
            Ok(_) | Err(_) => Progress::Pending,
        }
    }

    fn reset(&mut self) -> bool {
        let is_done = match self.balloon.try_reset() {
            Ok(is_done) => is_done,
            Err(error) => {
                // The device has completed the reset, and has none of our memory.
                self.error = Some(error);
                true
            }
        };
        if is_done {
            self.token = None;
        }
        is_done
    }

    /// With PAGE_POISON the host promises that free memory keeps its content; without it, the host
    /// promises nothing.
    fn content(&self) -> Content {
        match self.balloon.free_content() {
            _ if !self.balloon.features().contains(Features::PAGE_POISON) => Content::Undefined,
            // Not `Zero`: memory that was never freed holds what firmware left there, and a host
            // that locks its memory keeps that content.
            FreeContent::Zero => Content::ZeroOrKept,
            FreeContent::Fill(POISON) => Content::Poison,
            FreeContent::Any | FreeContent::Fill(_) => Content::Undefined,
        }
    }
}
