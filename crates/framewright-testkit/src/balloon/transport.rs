//! The driver's end of the fake balloon.

use super::device::Device;
use super::ring::DeviceRing;
use std::cell::RefCell;
use std::rc::Rc;
use virtio_drivers::transport::{DeviceStatus, DeviceType, InterruptStatus, Transport};
use virtio_drivers::{Error, PhysAddr, Result};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A transport to a fake balloon.
#[derive(Debug)]
pub struct FakeTransport {
    device: Rc<RefCell<Device>>,
    kind: DeviceType,
}

impl FakeTransport {
    pub(super) fn new(device: Rc<RefCell<Device>>) -> Self {
        Self { device, kind: DeviceType::MemoryBalloon }
    }

    /// Makes it claim to be another kind of device.
    #[must_use]
    pub fn disguised(mut self, kind: DeviceType) -> Self {
        self.kind = kind;
        self
    }
}

impl Transport for FakeTransport {
    fn device_type(&self) -> DeviceType {
        self.kind
    }

    fn read_device_features(&mut self) -> u64 {
        self.device.borrow().offer.features
    }

    fn write_driver_features(&mut self, features: u64) {
        let mut device = self.device.borrow_mut();
        assert!(
            !device.status.contains(DeviceStatus::FEATURES_OK),
            "features after they were agreed on"
        );
        device.driver_features = features;
    }

    fn max_queue_size(&mut self, queue: u16) -> u32 {
        let device = self.device.borrow();
        device.kind(queue).map_or(0, |kind| device.size(kind))
    }

    fn notify(&mut self, queue: u16) {
        self.device.borrow_mut().notify(queue);
    }

    fn get_status(&self) -> DeviceStatus {
        self.device.borrow_mut().status()
    }

    fn set_status(&mut self, status: DeviceStatus) {
        self.device.borrow_mut().set_status(status);
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
        self.device.borrow_mut().set_up(queue, DeviceRing::new(size, descriptors, driver, device));
    }

    fn queue_unset(&mut self, _: u16) {}

    fn queue_used(&mut self, queue: u16) -> bool {
        self.device.borrow().has_ring(queue)
    }

    fn ack_interrupt(&mut self) -> InterruptStatus {
        let pending = std::mem::take(&mut self.device.borrow_mut().interrupts);
        InterruptStatus::from_bits_truncate(pending)
    }

    fn read_config_generation(&self) -> u32 {
        0
    }

    fn read_config_space<T: FromBytes + IntoBytes>(&self, offset: usize) -> Result<T> {
        let mut value = T::new_zeroed();
        let read = self.device.borrow().read_configuration(offset, value.as_mut_bytes());
        if read { Ok(value) } else { Err(Error::ConfigSpaceTooSmall) }
    }

    fn write_config_space<T: IntoBytes + Immutable>(
        &mut self,
        offset: usize,
        value: T,
    ) -> Result<()> {
        let written = self.device.borrow_mut().write_configuration(offset, value.as_bytes());
        if written { Ok(()) } else { Err(Error::ConfigSpaceTooSmall) }
    }
}
