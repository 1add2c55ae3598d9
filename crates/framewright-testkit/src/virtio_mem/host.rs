//! The host's end of the fake device, which a test controls.

use super::device::{
    Answers, Asked, BLOCK_SIZE, Device, Offer, PLUGGED_SIZE, REGION_SIZE, REQUESTED_SIZE, Reply,
    USABLE_SIZE,
};
use crate::virtio::{self, FakeHal, Side as _};
use std::cell::{RefCell, RefMut};
use std::ops::Range;
use std::rc::Rc;
use virtio_drivers::transport::DeviceStatus;

/// A transport to a fake virtio-mem device.
pub type FakeTransport = virtio::FakeTransport<Device>;

/// The host's end of a fake virtio-mem device.
#[derive(Clone, Debug)]
pub struct FakeVirtioMem {
    device: Rc<RefCell<Device>>,
}

impl Default for FakeVirtioMem {
    fn default() -> Self {
        Self::new()
    }
}

impl FakeVirtioMem {
    /// Makes the usual device, which requests no memory and answers at once.
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

    /// Requests that this many bytes be plugged.
    pub fn set_requested(&self, bytes: u64) {
        self.device().request(bytes);
    }

    /// The number of bytes that the host requests.
    #[must_use]
    pub fn requested_bytes(&self) -> u64 {
        self.device().field(REQUESTED_SIZE)
    }

    /// The number of bytes that are plugged.
    #[must_use]
    pub fn plugged_bytes(&self) -> u64 {
        self.device().plugged_bytes()
    }

    /// Whether all of these addresses are plugged.
    #[must_use]
    pub fn is_plugged(&self, addresses: Range<u64>) -> bool {
        let device = self.device();
        let Offer { address, block_bytes, .. } = device.offer;
        let block = |at: u64| at.checked_sub(address).map(|offset| offset / block_bytes);
        match (block(addresses.start), block(addresses.end - 1)) {
            (Some(first), Some(last)) => {
                (first..=last).all(|block| device.plugged.contains(&block))
            }
            _ => false,
        }
    }

    /// Plugs blocks, as if an earlier driver had left them plugged.
    pub fn leave_plugged(&self, blocks: Range<u64>) {
        let mut device = self.device();
        device.plugged.extend(blocks);
        let bytes = device.plugged_bytes();
        device.set_field(PLUGGED_SIZE, bytes);
    }

    /// Makes the device report this block size.
    pub fn say_block(&self, bytes: u64) {
        self.device().set_field(BLOCK_SIZE, bytes);
    }

    /// Makes the device report this region size.
    pub fn say_region(&self, bytes: u64) {
        self.device().set_field(REGION_SIZE, bytes);
    }

    /// Makes the device report this much of the region as usable.
    pub fn say_usable(&self, bytes: u64) {
        self.device().set_field(USABLE_SIZE, bytes);
    }

    /// Makes the device report this many plugged bytes.
    pub fn say_plugged(&self, bytes: u64) {
        self.device().set_field(PLUGGED_SIZE, bytes);
    }

    /// Makes the device report this many requested bytes.
    pub fn say_requested(&self, bytes: u64) {
        self.device().set_field(REQUESTED_SIZE, bytes);
    }

    /// Announces a change of the configuration, whether there was one or not.
    pub fn announce(&self) {
        self.device().announce();
    }

    /// Sets whether the configuration changes between any two reads of its generation.
    pub fn set_unsteady(&self, on: bool) {
        self.device().is_unsteady = on;
    }

    /// Stops announcing changes, even through the generation of the configuration.
    pub fn be_quiet(&self) {
        self.device().is_quiet = true;
    }

    /// Sets when requests are answered from now on.
    pub fn set_answers(&self, answers: Answers) {
        self.device().answers = answers;
    }

    /// Answers the waiting request. Returns false if there is none.
    pub fn answer(&self) -> bool {
        let mut device = self.device();
        device.look();
        device.answer()
    }

    /// Whether a request is waiting.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.device().is_waiting()
    }

    /// Gives this reply instead of the next answer. Several replies are given in turn.
    pub fn reply(&self, reply: Reply) {
        self.device().replies.push_back(reply);
    }

    /// Drops all replies that were not given yet.
    pub fn stop_replying(&self) {
        self.device().replies.clear();
    }

    /// Sets whether everything is answered with BUSY.
    pub fn set_busy(&self, on: bool) {
        self.device().is_busy = on;
    }

    /// All requests that were answered or lost.
    #[must_use]
    pub fn asked(&self) -> Vec<Asked> {
        self.device().asked.clone()
    }

    /// Turns hostile: from now on it ignores all requests, and only [`overwrite`](Self::overwrite)
    /// changes what the driver sees.
    pub fn turn_hostile(&self) {
        self.device().is_hostile = true;
    }

    /// Returns a descriptor with this length, answer and state, whatever the driver has asked.
    pub fn forge(&self, descriptor: u32, written: u32, answer: u16, state: u16) {
        self.device().forge(descriptor, written, answer, state);
    }

    /// Overwrites every byte of the driver's memory that devices can access with the results of
    /// `random`.
    pub fn overwrite(&self, random: &mut dyn FnMut() -> u16) {
        FakeHal::overwrite(random);
    }

    /// Refuses the features that the driver accepts.
    pub fn refuse_features(&self) {
        self.device().line.refuses_features = true;
    }

    /// Offers these features from the next reset on.
    pub fn set_features(&self, features: u64) {
        self.device().offer.features = features;
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

    /// Asks the driver for a reset.
    pub fn ask_for_reset(&self) {
        self.device().line.status |= DeviceStatus::DEVICE_NEEDS_RESET;
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
}
