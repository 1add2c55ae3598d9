//! What device and driver agree on, and how queues are numbered by it (SPEC 5.6).

use crate::error::StartError;
use core::fmt;
use virtio_drivers::transport::Transport;

bitflags::bitflags! {
    /// Feature bits, by the names of the virtio specification.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Features: u64 {
        /// Pages may be used again only after the host was told. This driver always tells first.
        const MUST_TELL_HOST = 1 << 0;
        /// There is a queue for statistics.
        const STATS_VQ = 1 << 1;
        /// Pages may be taken out of the balloon when the guest is short of memory.
        const DEFLATE_ON_OOM = 1 << 2;
        /// There is a queue for hints about free pages.
        const FREE_PAGE_HINT = 1 << 3;
        /// The host is told what free pages hold, and gives them back with that.
        const PAGE_POISON = 1 << 4;
        /// There is a queue for reports of free pages.
        const REPORTING = 1 << 5;
        /// Version 1 of the protocol.
        const VERSION_1 = 1 << 32;
    }
}

/// The device reaches memory as the platform lets it (ACCESS_PLATFORM): addresses are an IOMMU's,
/// or memory must be shared with it first.
const ACCESS_PLATFORM: u64 = 1 << 33;
/// The device needs the barriers of real hardware (ORDER_PLATFORM), which are stronger than those
/// between CPUs.
const ORDER_PLATFORM: u64 = 1 << 36;

/// What the kernel's free pages hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FreeContent {
    /// Anything: nobody relies on it.
    #[default]
    Any,
    /// Zeros: pages are cleared when they are freed, and taken to be clear.
    Zero,
    /// This byte throughout: pages are filled when they are freed, and looked at when they are
    /// allocated.
    Fill(u8),
}

impl FreeContent {
    /// The value for the device's `poison_val`; `None` when it does not matter.
    pub(crate) fn poison(self) -> Option<u32> {
        match self {
            Self::Any => None,
            Self::Zero => Some(0),
            Self::Fill(byte) => Some(u32::from_ne_bytes([byte; 4])),
        }
    }
}

/// What a queue is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueKind {
    /// Pages that go into the balloon.
    Inflate,
    /// Pages that come out.
    Deflate,
    /// Statistics.
    Statistics,
    /// Hints about free pages, not used.
    Hint,
    /// Reports of free pages.
    Reporting,
}

impl QueueKind {
    /// All of them, in the specification's order.
    const IN_ORDER: [Self; 5] =
        [Self::Inflate, Self::Deflate, Self::Statistics, Self::Hint, Self::Reporting];

    /// The specification's own number.
    const fn fixed(self) -> u16 {
        self as u16
    }
}

impl fmt::Display for QueueKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Inflate => "inflation",
            Self::Deflate => "deflation",
            Self::Statistics => "statistics",
            Self::Hint => "free page hints",
            Self::Reporting => "free page reporting",
        })
    }
}

impl Features {
    /// What the driver accepts of `offered`, given what free pages hold.
    ///
    /// Whatever has a queue is accepted where it is offered, used or not: devices number queues by
    /// what they offer. Only reporting may be turned down, because its queue is the last.
    ///
    /// A device that offers what changes how it reaches memory is refused: the driver names frames
    /// and reported ranges by physical address and orders its stores as between CPUs, so that such
    /// a device would reach other memory than was meant, or none. A device may go on although the
    /// driver has not accepted these bits (virtio 1.2, 6.1), so leaving them out is not enough.
    pub(crate) fn accept(offered: u64, content: FreeContent) -> Result<Self, StartError> {
        let mut features = Self::from_bits_truncate(offered);
        if !features.contains(Self::VERSION_1) {
            return Err(StartError::Legacy);
        }
        let needed = offered & (ACCESS_PLATFORM | ORDER_PLATFORM);
        if needed != 0 {
            return Err(StartError::NeedsPlatform {
                access: needed & ACCESS_PLATFORM != 0,
                order: needed & ORDER_PLATFORM != 0,
            });
        }
        if content == FreeContent::Any {
            features.remove(Self::PAGE_POISON);
        } else if !features.contains(Self::PAGE_POISON) {
            // The host would give reported pages back with something else in them.
            features.remove(Self::REPORTING);
        }
        Ok(features)
    }

    /// Whether the queue exists.
    fn has_queue(self, kind: QueueKind) -> bool {
        match kind {
            QueueKind::Inflate | QueueKind::Deflate => true,
            QueueKind::Statistics => self.contains(Self::STATS_VQ),
            QueueKind::Hint => self.contains(Self::FREE_PAGE_HINT),
            QueueKind::Reporting => self.contains(Self::REPORTING),
        }
    }

    /// The queue's number and the largest size that the device allows; `None` where the queue does
    /// not exist.
    pub(crate) fn queue<T: Transport>(
        self,
        kind: QueueKind,
        transport: &mut T,
    ) -> Result<Option<(u16, u32)>, StartError> {
        if !self.has_queue(kind) {
            return Ok(None);
        }
        let queue =
            if self.numbers_are_fixed(transport) { kind.fixed() } else { self.compact(kind) };
        match transport.max_queue_size(queue) {
            0 => Err(StartError::MissingQueue { kind, queue }),
            size => Ok(Some((queue, size))),
        }
    }

    /// Devices number only the queues that exist, in the specification's order; the specification
    /// gives each a number of its own. The two differ from the first queue on that does not exist,
    /// where such a device has a gap.
    fn numbers_are_fixed<T: Transport>(self, transport: &mut T) -> bool {
        let mut is_gap = |kind| {
            transport.max_queue_size(self.compact(kind)) == 0
                && transport.max_queue_size(kind.fixed()) > 0
        };
        QueueKind::IN_ORDER.into_iter().filter(|&kind| self.has_queue(kind)).any(&mut is_gap)
    }

    /// How many queues exist before this one.
    fn compact(self, kind: QueueKind) -> u16 {
        let before = QueueKind::IN_ORDER.into_iter().take_while(|before| *before != kind);
        before.map(|before| u16::from(self.has_queue(before))).sum()
    }
}
