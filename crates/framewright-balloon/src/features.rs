//! What device and driver agree on (virtio 1.2, 5.5.3), and how that determines the numbers of the
//! queues (5.5.2).

use crate::driver::Settings;
use crate::error::StartError;
use crate::queue_kind::QueueKind;
use virtio_drivers::transport::Transport;

bitflags::bitflags! {
    /// Feature bits, with the names of the virtio specification.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Features: u64 {
        /// Pages may be used again only after the host was told. This driver always tells the host
        /// first.
        const MUST_TELL_HOST = 1 << 0;
        /// There is a queue for statistics.
        const STATS_VQ = 1 << 1;
        /// Pages may be taken out of the balloon if the guest is short of memory.
        const DEFLATE_ON_OOM = 1 << 2;
        /// There is a queue for hints about free pages.
        const FREE_PAGE_HINT = 1 << 3;
        /// The host is told what free pages hold, and returns them with that content.
        const PAGE_POISON = 1 << 4;
        /// There is a queue for reports of free pages.
        const REPORTING = 1 << 5;
        /// Version 1 of the protocol.
        const VERSION_1 = 1 << 32;
    }
}

/// What the kernel's free pages hold, except for those that were never allocated, which hold what
/// firmware left. QEMU asks no more than that; a host that relied on PAGE_POISON for these, too,
/// would be wrong about their content, which no owner can rely on either.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FreeContent {
    /// Anything: nobody relies on the content.
    #[default]
    Any,
    /// Zeros: pages are cleared when they are freed, and then assumed to be clear.
    Zero,
    /// This byte throughout: pages are filled when they are freed, and checked when they are
    /// allocated.
    Fill(u8),
}

impl FreeContent {
    /// The value for the device's `poison_val`; `None` if it does not matter.
    pub(crate) fn poison(self) -> Option<u32> {
        match self {
            Self::Any => None,
            Self::Zero => Some(0),
            Self::Fill(byte) => Some(u32::from_ne_bytes([byte; 4])),
        }
    }
}

impl Features {
    /// Returns the features of `offered` that the driver accepts.
    ///
    /// A feature with a queue is accepted whenever it is offered, used or not, because devices
    /// number queues by what they offer. Only reporting may be declined, because its queue is the
    /// last one.
    pub(crate) fn accept(offered: u64, settings: Settings) -> Self {
        let mut features = Self::from_bits_truncate(offered);
        if !settings.relieves {
            features.remove(Self::DEFLATE_ON_OOM);
        }
        if settings.free_content == FreeContent::Any {
            features.remove(Self::PAGE_POISON);
        } else if !features.contains(Self::PAGE_POISON) {
            // The host would return reported pages with some other content.
            features.remove(Self::REPORTING);
        }
        features
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

    /// The queue's number and the largest size that the device allows; `None` if the queue does not
    /// exist.
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

    /// Whether the device uses the specification's fixed numbers. Most devices number only the
    /// queues that exist, in the specification's order. The two schemes differ after the first
    /// queue that does not exist, because a device with fixed numbers has a gap there.
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
