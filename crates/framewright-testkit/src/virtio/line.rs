//! The state that every device has: its status, its resets and its queues.

use super::hal::FakeHal;
use super::ring::DeviceRing;
use std::collections::BTreeMap;
use virtio_drivers::transport::DeviceStatus;

/// What happened to a device when its status was written or read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// Nothing to which the device has to react.
    None,
    /// The device has completed a reset.
    Reset,
    /// The device runs from now on.
    Started,
}

/// The state that every device has.
#[derive(Debug)]
pub struct Line {
    pub status: DeviceStatus,
    pub driver_features: u64,
    /// Whether the device refuses the features that the driver accepts.
    pub refuses_features: bool,
    /// How many reads of the status it takes to complete a reset; `None` for never.
    pub reset_looks: Option<u32>,
    resetting: Option<u32>,
    pub rings: BTreeMap<u16, DeviceRing>,
    pub resets: usize,
    pub starts: usize,
    pub notifications: usize,
    pub interrupts: u32,
}

impl Line {
    pub fn new() -> Self {
        Self {
            status: DeviceStatus::empty(),
            driver_features: 0,
            refuses_features: false,
            reset_looks: Some(0),
            resetting: None,
            rings: BTreeMap::new(),
            resets: 0,
            starts: 0,
            notifications: 0,
            interrupts: 0,
        }
    }

    pub fn is_running(&self) -> bool {
        self.resetting.is_none() && self.status.contains(DeviceStatus::DRIVER_OK)
    }

    /// Returns what the driver reads, and whether this read completed a reset.
    pub fn read_status(&mut self) -> (DeviceStatus, Turn) {
        let mut turn = Turn::None;
        match self.resetting {
            None => {}
            Some(0) => turn = self.complete_reset(),
            Some(left) => {
                self.resetting = Some(left.saturating_sub(u32::from(self.reset_looks.is_some())))
            }
        }
        // The status reads as 0 only once the reset is complete, even if it was 0 before.
        let is_resetting = self.resetting.is_some();
        (if is_resetting { self.status | DeviceStatus::ACKNOWLEDGE } else { self.status }, turn)
    }

    /// Handles a status that the driver writes; `offered` has the features that the device offers.
    pub fn write_status(&mut self, status: DeviceStatus, offered: u64) -> Turn {
        if status.is_empty() {
            match self.reset_looks {
                Some(0) => return self.complete_reset(),
                Some(looks) => self.resetting = Some(looks),
                None => self.resetting = Some(1),
            }
            return Turn::None;
        }
        assert!(self.resetting.is_none(), "the driver goes on while the reset is not complete");
        let steps = [
            DeviceStatus::ACKNOWLEDGE | DeviceStatus::DRIVER,
            DeviceStatus::FEATURES_OK,
            DeviceStatus::DRIVER_OK,
        ];
        if !status.contains(DeviceStatus::FAILED) {
            let before = |step: usize| steps[..step].iter().all(|flag| self.status.contains(*flag));
            for (step, flag) in steps.into_iter().enumerate() {
                assert!(
                    !status.contains(flag) || before(step),
                    "{status:?} after {:?}",
                    self.status
                );
            }
        }
        let is_new = |flag| status.contains(flag) && !self.status.contains(flag);
        let mut granted = status;
        if is_new(DeviceStatus::FEATURES_OK) {
            assert_eq!(self.driver_features & !offered, 0, "features that were not offered");
            if self.refuses_features {
                granted.remove(DeviceStatus::FEATURES_OK);
            }
        }
        let is_start = is_new(DeviceStatus::DRIVER_OK);
        self.status = granted;
        if is_start {
            self.starts += 1;
            return Turn::Started;
        }
        Turn::None
    }

    /// Completes a reset that would never complete.
    pub fn end_reset(&mut self) -> Turn {
        self.reset_looks = Some(0);
        if self.resetting.is_some() { self.complete_reset() } else { Turn::None }
    }

    /// Drops all state of the driver.
    fn complete_reset(&mut self) -> Turn {
        self.resetting = None;
        self.status = DeviceStatus::empty();
        self.driver_features = 0;
        self.resets += 1;
        for ring in std::mem::take(&mut self.rings).values() {
            FakeHal::set_device_s(ring.descriptors, false);
        }
        Turn::Reset
    }

    /// Handles the driver's setup of a queue that may have at most `most` descriptors.
    pub fn set_up(&mut self, queue: u16, ring: DeviceRing, most: u32) {
        assert!(
            self.status.contains(DeviceStatus::FEATURES_OK) && !self.is_running(),
            "queues are set up before the start"
        );
        assert!(u32::from(ring.size) <= most, "queue {queue} has no room for {}", ring.size);
        FakeHal::set_device_s(ring.descriptors, true);
        self.rings.insert(queue, ring);
    }

    /// Counts a notification by the driver.
    pub fn notified(&mut self) {
        assert!(self.is_running(), "a notification while the device does not run");
        self.notifications += 1;
    }
}
