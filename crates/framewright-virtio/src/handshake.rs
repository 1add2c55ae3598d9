//! How a device is reset, and how device and driver agree on features (virtio 1.2, 3.1.1).

use core::fmt;
use core::mem::ManuallyDrop;
use virtio_drivers::transport::{DeviceStatus, Transport};

/// The feature bit of version 1 of the protocol.
pub const VERSION_1: u64 = 1 << 32;
/// The device accesses memory only through the platform (ACCESS_PLATFORM): addresses belong to an
/// IOMMU, or memory must first be shared with the device.
const ACCESS_PLATFORM: u64 = 1 << 33;
/// The device needs the memory barriers of real hardware (ORDER_PLATFORM), which are stronger than
/// those between CPUs.
const ORDER_PLATFORM: u64 = 1 << 36;

/// How often to poll a device that is being reset before giving up.
const RESET_POLLS: u32 = 1 << 22;

/// The status in which features have been agreed on.
const AGREED: DeviceStatus =
    DeviceStatus::ACKNOWLEDGE.union(DeviceStatus::DRIVER).union(DeviceStatus::FEATURES_OK);

/// Why a device and a driver cannot work together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HandshakeError {
    /// The device speaks only the protocol before version 1.
    Legacy,
    /// The device does not access memory by physical address as CPUs do: it is behind an IOMMU, or
    /// the guest's memory is hidden from it, or it is real hardware. These drivers do not support
    /// that.
    NeedsPlatform {
        /// Whether it offers VIRTIO_F_ACCESS_PLATFORM.
        access: bool,
        /// Whether it offers VIRTIO_F_ORDER_PLATFORM.
        order: bool,
    },
    /// The device refuses features that it has itself offered.
    FeaturesRefused {
        /// The features that it was asked for.
        asked: u64,
    },
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Legacy => f.write_str("does not offer version 1 of the protocol"),
            Self::NeedsPlatform { access, order } => {
                let features = match (access, order) {
                    (true, true) => "ACCESS_PLATFORM and ORDER_PLATFORM",
                    (true, false) => "ACCESS_PLATFORM",
                    (false, _) => "ORDER_PLATFORM",
                };
                write!(f, "requires {features}, which is not supported: it is left alone")
            }
            Self::FeaturesRefused { asked } => {
                write!(f, "rejects features {asked:#x} that it had offered")
            }
        }
    }
}

impl core::error::Error for HandshakeError {}

/// Resets a device, whatever it is doing, and polls for a bounded time until the reset is complete.
/// Returns false if it is not complete by then.
pub fn reset<T: Transport>(transport: &mut T) -> bool {
    transport.set_status(DeviceStatus::empty());
    (0..RESET_POLLS).any(|_| transport.get_status() == DeviceStatus::empty())
}

/// Resets a device for good, as [`reset`] does. Returns false if the reset is not complete.
///
/// The transport is never dropped: those of `virtio-drivers` would reset the device once more and
/// wait for that without limit. They own nothing but the right to use the registers; a transport
/// that owns more leaks it.
pub fn release<T: Transport>(transport: T) -> bool {
    reset(&mut *ManuallyDrop::new(transport))
}

/// Agrees on features with a device that has been reset: `choose` gets the features that it offers,
/// and returns those that the driver wants, which include VERSION_1. Returns the agreed features.
///
/// A device is refused if it has a feature that changes how it accesses memory. Drivers here name
/// frames by physical address and order their stores as between CPUs, so such a device would access
/// the wrong memory, or none. It is not enough to leave these bits out, because a device may
/// continue even though the driver has not accepted them (virtio 1.2, 6.1).
///
/// # Errors
/// See [`HandshakeError`]. The device has then been told that the driver gave up.
pub fn agree<T: Transport>(
    transport: &mut T,
    choose: impl FnOnce(u64) -> u64,
) -> Result<u64, HandshakeError> {
    transport.set_status(DeviceStatus::ACKNOWLEDGE | DeviceStatus::DRIVER);
    let offered = transport.read_device_features();
    let agreed = may_work_with(offered).and_then(|()| {
        let asked = choose(offered);
        transport.write_driver_features(asked);
        transport.set_status(AGREED);
        let is_refused = !transport.get_status().contains(DeviceStatus::FEATURES_OK);
        if is_refused { Err(HandshakeError::FeaturesRefused { asked }) } else { Ok(asked) }
    });
    if agreed.is_err() {
        transport.set_status(DeviceStatus::FAILED);
    }
    agreed
}

/// Starts a device whose features are agreed on and whose queues are set up.
pub fn run<T: Transport>(transport: &mut T) {
    transport.set_status(AGREED | DeviceStatus::DRIVER_OK);
}

fn may_work_with(offered: u64) -> Result<(), HandshakeError> {
    if offered & VERSION_1 == 0 {
        return Err(HandshakeError::Legacy);
    }
    let (access, order) = (offered & ACCESS_PLATFORM != 0, offered & ORDER_PLATFORM != 0);
    if access || order {
        return Err(HandshakeError::NeedsPlatform { access, order });
    }
    Ok(())
}
