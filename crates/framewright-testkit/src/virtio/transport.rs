//! The driver's end of a fake device.

use super::line::{Line, Turn};
use super::ring::DeviceRing;
use std::cell::{RefCell, RefMut};
use std::rc::Rc;
use virtio_drivers::transport::{DeviceStatus, DeviceType, InterruptStatus, Transport};
use virtio_drivers::{Error, PhysAddr, Result};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The device's side of a transport.
pub trait Side {
    /// The kind of the device.
    const KIND: DeviceType;

    /// The state that every device has.
    fn line(&mut self) -> &mut Line;

    /// The features that the device offers.
    fn offered(&self) -> u64;

    /// The most descriptors that a queue may have; 0 if there is no such queue.
    fn queue_size(&self, queue: u16) -> u32;

    /// Called when the device was reset or has started.
    fn turned(&mut self, turn: Turn);

    /// Called when the driver has notified this queue.
    fn notify(&mut self, queue: u16);

    /// Reads a part of the configuration; returns false if there is no such part.
    fn read_configuration(&mut self, offset: usize, bytes: &mut [u8]) -> bool;

    /// Writes a part of the configuration; returns false if there is no such part.
    fn write_configuration(&mut self, offset: usize, bytes: &[u8]) -> bool;

    /// A number that changes with the configuration.
    fn generation(&mut self) -> u32;
}

/// A transport to a fake device.
#[derive(Debug)]
pub struct FakeTransport<D: Side> {
    device: Rc<RefCell<D>>,
    kind: DeviceType,
}

impl<D: Side> FakeTransport<D> {
    pub(crate) fn new(device: Rc<RefCell<D>>) -> Self {
        Self { device, kind: D::KIND }
    }

    /// Makes the transport claim another kind of device.
    #[must_use]
    pub fn disguised(mut self, kind: DeviceType) -> Self {
        self.kind = kind;
        self
    }

    fn device(&self) -> RefMut<'_, D> {
        self.device.borrow_mut()
    }
}

impl<D: Side> Transport for FakeTransport<D> {
    fn device_type(&self) -> DeviceType {
        self.kind
    }

    fn read_device_features(&mut self) -> u64 {
        self.device().offered()
    }

    fn write_driver_features(&mut self, features: u64) {
        let mut device = self.device();
        let line = device.line();
        assert!(
            !line.status.contains(DeviceStatus::FEATURES_OK),
            "features after they were agreed on"
        );
        line.driver_features = features;
    }

    fn max_queue_size(&mut self, queue: u16) -> u32 {
        self.device().queue_size(queue)
    }

    fn notify(&mut self, queue: u16) {
        let mut device = self.device();
        device.line().notified();
        device.notify(queue);
    }

    fn get_status(&self) -> DeviceStatus {
        let mut device = self.device();
        let (status, turn) = device.line().read_status();
        device.turned(turn);
        status
    }

    fn set_status(&mut self, status: DeviceStatus) {
        let mut device = self.device();
        let offered = device.offered();
        let turn = device.line().write_status(status, offered);
        device.turned(turn);
    }

    fn set_guest_page_size(&mut self, _: u32) {}

    fn requires_legacy_layout(&self) -> bool {
        false
    }

    fn queue_set(
        &mut self,
        queue: u16,
        size: u32,
        descriptors: PhysAddr,
        driver: PhysAddr,
        device: PhysAddr,
    ) {
        let size = u16::try_from(size).expect("a queue's size has 16 bits");
        let ring = DeviceRing::new(size, descriptors, driver, device);
        let mut device = self.device();
        let most = device.queue_size(queue);
        device.line().set_up(queue, ring, most);
    }

    fn queue_unset(&mut self, _: u16) {}

    fn queue_used(&mut self, queue: u16) -> bool {
        self.device().line().rings.contains_key(&queue)
    }

    fn ack_interrupt(&mut self) -> InterruptStatus {
        let pending = std::mem::take(&mut self.device().line().interrupts);
        InterruptStatus::from_bits_truncate(pending)
    }

    fn read_config_generation(&self) -> u32 {
        self.device().generation()
    }

    fn read_config_space<T: FromBytes + IntoBytes>(&self, offset: usize) -> Result<T> {
        let mut value = T::new_zeroed();
        let read = self.device().read_configuration(offset, value.as_mut_bytes());
        if read { Ok(value) } else { Err(Error::ConfigSpaceTooSmall) }
    }

    fn write_config_space<T: IntoBytes + Immutable>(
        &mut self,
        offset: usize,
        value: T,
    ) -> Result<()> {
        let written = self.device().write_configuration(offset, value.as_bytes());
        if written { Ok(()) } else { Err(Error::ConfigSpaceTooSmall) }
    }
}

/// Panics, because here the transports of `virtio-drivers` reset the device and wait for that
/// without limit, and a device may complete one reset and not the next.
impl<D: Side> Drop for FakeTransport<D> {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "dropping the transport could wait for ever");
    }
}
