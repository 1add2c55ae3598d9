//! Errors: why a device cannot be used, and what a running device did wrong.

use crate::queue_kind::QueueKind;
use core::fmt;
use framewright_virtio::{HandshakeError, RingFault};
use virtio_drivers::transport::DeviceType;

/// Why a device cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StartError {
    /// The device is not a balloon.
    NotABalloon(DeviceType),
    /// The device speaks only the protocol before version 1.
    Legacy,
    /// The device does not access memory by physical address as CPUs do: it is behind an IOMMU, or
    /// the guest's memory is hidden from it, or it is real hardware. This driver does not support
    /// that.
    NeedsPlatform {
        /// Whether it offers VIRTIO_F_ACCESS_PLATFORM.
        access: bool,
        /// Whether it offers VIRTIO_F_ORDER_PLATFORM.
        order: bool,
    },
    /// The device does not complete its reset.
    ResetPending,
    /// The device refuses features that it has itself offered.
    FeaturesRefused {
        /// The features that it was asked for.
        asked: u64,
    },
    /// A feature is offered without its queue.
    MissingQueue {
        /// The purpose of the queue.
        kind: QueueKind,
        /// The number of the queue.
        queue: u16,
    },
    /// After a reset the device offers different features or queues than before.
    Changed,
    /// There is no memory for queues.
    OutOfMemory,
    /// The configuration space of the device is missing or too small.
    Configuration(virtio_drivers::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotABalloon(kind) => write!(f, "the virtio device is {kind:?}, not a balloon"),
            Self::Legacy => write!(f, "the virtio balloon {}", HandshakeError::Legacy),
            &Self::NeedsPlatform { access, order } => {
                write!(f, "the virtio balloon {}", HandshakeError::NeedsPlatform { access, order })
            }
            Self::ResetPending => f.write_str("the virtio balloon does not complete its reset"),
            &Self::FeaturesRefused { asked } => {
                write!(f, "the virtio balloon {}", HandshakeError::FeaturesRefused { asked })
            }
            Self::MissingQueue { kind, queue } => {
                write!(
                    f,
                    "the virtio balloon offers {kind} without a queue for it (number {queue})"
                )
            }
            Self::Changed => {
                f.write_str("the virtio balloon offers something else than before its reset")
            }
            Self::OutOfMemory => f.write_str("no memory for the queues of the virtio balloon"),
            Self::Configuration(error) => write!(f, "configuration of the virtio balloon: {error}"),
        }
    }
}

impl core::error::Error for StartError {}

impl From<HandshakeError> for StartError {
    fn from(error: HandshakeError) -> Self {
        match error {
            HandshakeError::Legacy => Self::Legacy,
            HandshakeError::NeedsPlatform { access, order } => {
                Self::NeedsPlatform { access, order }
            }
            HandshakeError::FeaturesRefused { asked } => Self::FeaturesRefused { asked },
        }
    }
}

/// What a running device did wrong. The device keeps everything that it was given until it is
/// reset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceFault {
    /// The device claims to have returned more than it was given, or its count ran backwards.
    IndexOutOfStep {
        /// The number of the queue.
        queue: u16,
        /// The requests returned since the last poll, as the device claims.
        returned: u16,
        /// The requests that it had.
        given: u16,
    },
    /// The device returned a descriptor that is not the first one of a request that it had.
    NotGiven {
        /// The number of the queue.
        queue: u16,
        /// The descriptor.
        descriptor: u32,
    },
    /// The device claims to have written more than it was given.
    TooLong {
        /// The number of the queue.
        queue: u16,
        /// The number of bytes that it claims.
        written: u32,
    },
    /// The device asks to be reset.
    NeedsReset,
    /// A reset has begun and is not complete.
    Resetting,
    /// The device was stopped, or could not be started again after a reset.
    Stopped,
    /// The configuration space of the device cannot be read or written.
    Configuration(virtio_drivers::Error),
}

impl fmt::Display for DeviceFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            &Self::IndexOutOfStep { queue, returned, given } => {
                let fault = RingFault::IndexOutOfStep { queue, returned, given };
                write!(f, "virtio balloon: {fault}")
            }
            &Self::NotGiven { queue, descriptor } => {
                write!(f, "virtio balloon: {}", RingFault::NotGiven { queue, descriptor })
            }
            Self::TooLong { queue, written } => {
                write!(f, "virtio balloon: queue {queue}: {written} bytes written, more than fit")
            }
            Self::NeedsReset => f.write_str("virtio balloon: the device asks to be reset"),
            Self::Resetting => f.write_str("virtio balloon: a reset is not complete"),
            Self::Stopped => f.write_str("virtio balloon: the device is stopped"),
            Self::Configuration(error) => write!(f, "virtio balloon: configuration: {error}"),
        }
    }
}

impl core::error::Error for DeviceFault {}

impl From<RingFault> for DeviceFault {
    fn from(fault: RingFault) -> Self {
        match fault {
            RingFault::IndexOutOfStep { queue, returned, given } => {
                Self::IndexOutOfStep { queue, returned, given }
            }
            RingFault::NotGiven { queue, descriptor } => Self::NotGiven { queue, descriptor },
        }
    }
}
