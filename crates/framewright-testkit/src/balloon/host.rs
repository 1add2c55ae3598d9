//! The host's end of the fake balloon, which a test controls.

use super::device::{ACTUAL, Answers, Device, Kind, Lie, Offer, POISON, TARGET};
use crate::virtio::{self, FakeHal, Side as _};
use std::cell::{RefCell, RefMut};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use virtio_drivers::transport::DeviceStatus;

/// A transport to a fake balloon.
pub type FakeTransport = virtio::FakeTransport<Device>;

/// The host's end of a fake balloon.
#[derive(Clone, Debug)]
pub struct FakeBalloon {
    device: Rc<RefCell<Device>>,
}

impl Default for FakeBalloon {
    fn default() -> Self {
        Self::new()
    }
}

impl FakeBalloon {
    /// Makes a device that offers the usual features and answers at once.
    #[must_use]
    pub fn new() -> Self {
        Self::offering(Offer::USUAL)
    }

    /// Makes a device with this offer.
    #[must_use]
    pub fn offering(offer: Offer) -> Self {
        Self { device: Rc::new(RefCell::new(Device::new(offer))) }
    }

    /// The transport for the driver.
    #[must_use]
    pub fn transport(&self) -> FakeTransport {
        FakeTransport::new(Rc::clone(&self.device))
    }

    fn device(&self) -> RefMut<'_, Device> {
        self.device.borrow_mut()
    }

    /// Sets when requests are answered from now on.
    pub fn set_answers(&self, answers: Answers) {
        self.device().answers = answers;
    }

    /// Answers up to `count` requests for pages and reports, the oldest first. Returns how many
    /// there were.
    pub fn answer(&self, count: usize) -> usize {
        (0..count)
            .filter(|_| {
                [Kind::Inflate, Kind::Deflate, Kind::Reporting]
                    .into_iter()
                    .any(|kind| self.answer_of(kind, 0))
            })
            .count()
    }

    /// Answers report `number` of those without an answer, counted from the oldest. Returns false
    /// if there is none.
    #[must_use]
    pub fn answer_report(&self, number: usize) -> bool {
        self.answer_of(Kind::Reporting, number)
    }

    fn answer_of(&self, kind: Kind, number: usize) -> bool {
        let mut device = self.device();
        let Some(queue) = device.queue(kind).filter(|&queue| device.has_ring(queue)) else {
            return false;
        };
        device.look(queue);
        device.answer_nth(queue, number)
    }

    /// The number of requests for pages without an answer.
    #[must_use]
    pub fn requests_waiting(&self) -> usize {
        let device = self.device();
        device.waiting(Kind::Inflate) + device.waiting(Kind::Deflate)
    }

    /// Tells one lie instead of the next answer. Several lies are told in turn.
    pub fn lie(&self, lie: Lie) {
        self.device().lies.push_back(lie);
    }

    /// Drops all lies that were not told yet.
    pub fn stop_lying(&self) {
        self.device().lies.clear();
    }

    /// Turns hostile: from now on it ignores all requests, and only [`overwrite`](Self::overwrite)
    /// changes what the driver sees.
    pub fn turn_hostile(&self) {
        self.device().is_hostile = true;
    }

    /// Overwrites every byte of the driver's memory that devices can access with the results of
    /// `random`.
    pub fn overwrite(&self, random: &mut dyn FnMut() -> u16) {
        FakeHal::overwrite(random);
    }

    /// Asks the driver not to notify. The device then finds requests when it is told to answer.
    pub fn set_no_notify(&self, on: bool) {
        self.device().set_no_notify(on);
    }

    /// Refuses the features that the driver accepts.
    pub fn refuse_features(&self) {
        self.device().line.refuses_features = true;
    }

    /// Sets how many reads of the status a reset takes; with `None` it never completes.
    pub fn set_reset_looks(&self, looks: Option<u32>) {
        self.device().line.reset_looks = looks;
    }

    /// Completes a reset that is under way, and all later ones at once.
    pub fn end_reset(&self) {
        let mut device = self.device();
        let turn = device.line.end_reset();
        device.turned(turn);
    }

    /// Makes this offer from the next reset on.
    pub fn set_offer(&self, offer: Offer) {
        self.device().offer = offer;
    }

    /// Asks the driver for a reset.
    pub fn ask_for_reset(&self) {
        let mut device = self.device();
        device.line.status |= DeviceStatus::DEVICE_NEEDS_RESET;
        device.line.interrupts |= 2;
    }

    /// Sets how many pages should be in the balloon.
    pub fn set_target(&self, pages: u32) {
        self.device().set_field(TARGET, pages);
    }

    /// The number of pages in the balloon, as the driver reports it.
    #[must_use]
    pub fn actual(&self) -> u32 {
        self.device().field(ACTUAL)
    }

    /// The content of free pages, as the driver reports it.
    #[must_use]
    pub fn poison(&self) -> u32 {
        self.device().field(POISON)
    }

    /// The frames that are in the balloon.
    #[must_use]
    pub fn balloon(&self) -> BTreeSet<u32> {
        self.device().balloon.clone()
    }

    /// The number of frames in each request for inflation.
    #[must_use]
    pub fn inflations(&self) -> Vec<usize> {
        self.device().inflations.clone()
    }

    /// The reports that were answered: the address and bytes of each range.
    #[must_use]
    pub fn reports(&self) -> Vec<Vec<(u64, u32)>> {
        self.device().reports.clone()
    }

    /// Returns the buffer for statistics, which asks for new ones. Returns false if the device has
    /// none.
    #[must_use]
    pub fn ask_for_statistics(&self) -> bool {
        self.answer_of(Kind::Statistics, 0)
    }

    /// The latest statistics by tag, and how often statistics came.
    #[must_use]
    pub fn statistics(&self) -> (BTreeMap<u16, u64>, usize) {
        let device = self.device();
        (device.statistics.clone(), device.statistics_received)
    }

    /// The features that the driver has accepted.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.device().line.driver_features
    }

    /// Whether a driver has started the device and not reset it since.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.device().line.is_running()
    }

    /// The number of completed resets.
    #[must_use]
    pub fn resets(&self) -> usize {
        self.device().line.resets
    }

    /// Whether an interrupt is waiting to be acknowledged.
    #[must_use]
    pub fn interrupts(&self) -> bool {
        self.device().line.interrupts != 0
    }

    /// How often the driver has notified the device.
    #[must_use]
    pub fn notifications(&self) -> usize {
        self.device().line.notifications
    }
}
