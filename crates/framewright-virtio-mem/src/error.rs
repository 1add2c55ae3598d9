//! Errors: why a device cannot be used, and what a running device did wrong.

use crate::request::RequestKind;
use core::fmt;
use framewright_virtio::{HandshakeError, RingFault};
use virtio_drivers::transport::DeviceType;

/// A rule that a device's configuration breaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// The size of a block is not a power of two, or is less than a page of 4 KiB.
    BlockSize {
        /// The block size, as the device says.
        block_bytes: u64,
    },
    /// An address or a size is not a multiple of the block size.
    Alignment {
        /// The address or size.
        bytes: u64,
        /// The block size.
        block_bytes: u64,
    },
    /// The region extends beyond the last address.
    Wraps {
        /// The first address.
        start_bytes: u64,
        /// The size.
        size_bytes: u64,
    },
    /// More is usable than the region has.
    Usable {
        /// The usable size, as the device says.
        usable_bytes: u64,
        /// The size of the region.
        region_bytes: u64,
    },
    /// More is requested than is usable.
    Requested {
        /// The requested size, as the device says.
        requested_bytes: u64,
        /// The usable size, as the device says.
        usable_bytes: u64,
    },
    /// More is plugged than the region has.
    Plugged {
        /// The plugged size, as the device says.
        plugged_bytes: u64,
        /// The size of the region.
        region_bytes: u64,
    },
    /// The usable part became smaller, although not everything was unplugged.
    Shrank {
        /// The usable size before.
        before_bytes: u64,
        /// The usable size now.
        now_bytes: u64,
    },
    /// The plugged size, as the device says, differs from what it has acknowledged.
    Count {
        /// The plugged size, as the device says.
        plugged_bytes: u64,
        /// The size that the device has acknowledged.
        acknowledged_bytes: u64,
    },
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BlockSize { block_bytes } => {
                write!(f, "blocks of {block_bytes} bytes: not a power of two, or less than a page")
            }
            Self::Alignment { bytes, block_bytes } => {
                write!(f, "{bytes:#x} is not a multiple of the block's {block_bytes:#x} bytes")
            }
            Self::Wraps { start_bytes, size_bytes } => {
                write!(f, "{size_bytes:#x} bytes at {start_bytes:#x} reach beyond the last address")
            }
            Self::Usable { usable_bytes, region_bytes } => {
                write!(f, "{usable_bytes:#x} bytes usable, but the region has {region_bytes:#x}")
            }
            Self::Requested { requested_bytes, usable_bytes } => {
                write!(f, "{requested_bytes:#x} bytes requested, but only {usable_bytes:#x} usable")
            }
            Self::Plugged { plugged_bytes, region_bytes } => {
                write!(f, "{plugged_bytes:#x} bytes plugged, but the region has {region_bytes:#x}")
            }
            Self::Shrank { before_bytes, now_bytes } => {
                write!(f, "{before_bytes:#x} bytes were usable, now only {now_bytes:#x} are")
            }
            Self::Count { plugged_bytes, acknowledged_bytes } => {
                write!(
                    f,
                    "{plugged_bytes:#x} bytes plugged, but {acknowledged_bytes:#x} acknowledged"
                )
            }
        }
    }
}

/// Why a device cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StartError {
    /// The device is not a virtio-mem device.
    NotVirtioMem(DeviceType),
    /// Device and driver cannot work together.
    Handshake(HandshakeError),
    /// The device does not complete its reset.
    ResetPending,
    /// The device has no queue, or one without room for a request.
    MissingQueue,
    /// The grain of the settings is not a power of two.
    BadGrain {
        /// The grain.
        grain_bytes: u64,
    },
    /// The configuration space of the device is missing or too small.
    Configuration(virtio_drivers::Error),
    /// The configuration of the device changes all the time.
    Unsteady,
    /// The configuration of the device breaks a rule.
    Rule(Rule),
    /// The region of the device extends beyond the addresses that can be used.
    BeyondLimit {
        /// The end of the region.
        end_bytes: u64,
        /// The limit of the settings.
        limit_bytes: u64,
    },
    /// Something else lies within the region of the device.
    Taken {
        /// The first address of the region.
        start_bytes: u64,
        /// The end of the region.
        end_bytes: u64,
    },
    /// The region has more units than the driver can keep track of, or a unit has more of the
    /// device's blocks than one request can name.
    TooLarge {
        /// The number of units.
        units: u64,
    },
    /// After a reset the device has another configuration, or offers other features, than before.
    Changed,
    /// The device has done something after which it cannot be trusted, and is not started again.
    Broken(DeviceFault),
    /// There is no memory for the queue of the device.
    OutOfMemory,
}

impl From<HandshakeError> for StartError {
    fn from(error: HandshakeError) -> Self {
        Self::Handshake(error)
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotVirtioMem(kind) => {
                write!(f, "the virtio device is {kind:?}, not virtio-mem")
            }
            Self::Handshake(error) => write!(f, "the virtio-mem device {error}"),
            Self::ResetPending => f.write_str("the virtio-mem device does not complete its reset"),
            Self::MissingQueue => {
                f.write_str("the virtio-mem device has no queue large enough for a request")
            }
            Self::BadGrain { grain_bytes } => {
                write!(f, "a grain of {grain_bytes} bytes is not a power of two")
            }
            Self::Configuration(error) => {
                write!(f, "configuration of the virtio-mem device: {error}")
            }
            Self::Unsteady => {
                f.write_str("the configuration of the virtio-mem device keeps changing")
            }
            Self::Rule(rule) => write!(f, "configuration of the virtio-mem device: {rule}"),
            Self::BeyondLimit { end_bytes, limit_bytes } => write!(
                f,
                "the region of the virtio-mem device ends at {end_bytes:#x}, \
                 beyond {limit_bytes:#x}, where usable addresses end"
            ),
            Self::Taken { start_bytes, end_bytes } => write!(
                f,
                "the region of the virtio-mem device is in use already, \
                 {start_bytes:#x}..{end_bytes:#x}"
            ),
            Self::TooLarge { units } => {
                write!(
                    f,
                    "the region of the virtio-mem device has {units} units: these are too many, \
                     or each has more than 65535 of its blocks"
                )
            }
            Self::Changed => f.write_str("the virtio-mem device is not the one before its reset"),
            Self::Broken(fault) => write!(f, "not restarted after a fault: {fault}"),
            Self::OutOfMemory => f.write_str("no memory for the queue of the virtio-mem device"),
        }
    }
}

impl core::error::Error for StartError {}

/// What a running device did wrong. Memory in use stays in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceFault {
    /// The device broke a rule of its queue.
    Ring(RingFault),
    /// The device claims to have written more bytes than it was given, or too few for an answer.
    Length {
        /// The number of bytes that it claims.
        written: u32,
    },
    /// The device's answer is not a known one.
    UnknownAnswer {
        /// The answer.
        answer: u16,
    },
    /// The device's answer is not possible for this request.
    Unexpected {
        /// What the device was asked.
        request: RequestKind,
        /// The answer.
        answer: u16,
    },
    /// The device answered ERROR: its record of what is plugged differs from ours.
    Refused {
        /// What the device was asked.
        request: RequestKind,
    },
    /// The device carried out a request in part, which is not allowed.
    Partial {
        /// The first address that the request was about.
        start_bytes: u64,
    },
    /// The configuration of the device breaks a rule.
    Rule(Rule),
    /// The configuration space of the device cannot be read.
    Configuration(virtio_drivers::Error),
    /// The device asks to be reset.
    NeedsReset,
    /// A reset has begun and is not complete.
    Resetting,
    /// The device was stopped, or could not be started again after a reset.
    Stopped,
}

impl DeviceFault {
    /// Whether the device is broken for ever: even after a reset it would not be clear which memory
    /// is plugged.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        matches!(self, Self::Refused { .. } | Self::Partial { .. } | Self::Rule(_))
    }
}

impl From<RingFault> for DeviceFault {
    fn from(fault: RingFault) -> Self {
        Self::Ring(fault)
    }
}

impl fmt::Display for DeviceFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("virtio-mem: ")?;
        match self {
            Self::Ring(fault) => fault.fmt(f),
            Self::Length { written } => write!(f, "an answer cannot have {written} bytes"),
            Self::UnknownAnswer { answer } => write!(f, "unknown answer {answer:#x}"),
            Self::Unexpected { request, answer } => {
                write!(f, "answer {answer} to {request} is not possible")
            }
            Self::Refused { request } => write!(f, "the device answers ERROR to {request}"),
            Self::Partial { start_bytes } => {
                write!(f, "the device did only part of a request at {start_bytes:#x}")
            }
            Self::Rule(rule) => write!(f, "configuration: {rule}"),
            Self::Configuration(error) => write!(f, "configuration: {error}"),
            Self::NeedsReset => f.write_str("the device asks to be reset"),
            Self::Resetting => f.write_str("a reset is not complete"),
            Self::Stopped => f.write_str("the device is stopped"),
        }
    }
}

impl core::error::Error for DeviceFault {}
