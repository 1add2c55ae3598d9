//! The state of the device, and how it works.

use crate::virtio::{Chain, FakeHal, Line, Side, Turn, load_u8};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use virtio_drivers::transport::DeviceType;

/// The feature bits that the device looks at.
pub const STATS_VQ: u64 = 1 << 1;
pub const FREE_PAGE_HINT: u64 = 1 << 3;
pub const PAGE_POISON: u64 = 1 << 4;
pub const REPORTING: u64 = 1 << 5;

/// The fields of the configuration space.
pub const TARGET: usize = 0;
pub const ACTUAL: usize = 4;
pub const POISON: usize = 12;
pub const CONFIGURATION_BYTES: usize = 16;

/// How queues are numbered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Numbering {
    /// By the order of the queues that exist, as hosts do.
    Compact,
    /// By the fixed numbers of the specification.
    Fixed,
}

/// What the device offers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer {
    /// The feature bits, by number.
    pub features: u64,
    /// How queues are numbered.
    pub numbering: Numbering,
    /// The most descriptors of the reporting queue.
    pub reporting_size: u32,
    /// Whether reporting is offered without its queue.
    pub lacks_reporting_queue: bool,
    /// The size of the configuration space; a complete one has 16 bytes.
    pub configuration_bytes: usize,
}

impl Offer {
    /// Version 1, with all features of QEMU except hints.
    pub const USUAL: Self = Self {
        features: 1 << 32 | 0b11_0111,
        numbering: Numbering::Compact,
        reporting_size: 32,
        lacks_reporting_queue: false,
        configuration_bytes: CONFIGURATION_BYTES,
    };

    /// The usual offer, but with only these feature bits besides version 1.
    #[must_use]
    pub const fn with(features: u64) -> Self {
        Self { features: 1 << 32 | features, ..Self::USUAL }
    }
}

/// When the device answers requests for pages and reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answers {
    /// When the driver notifies the device.
    AtOnce,
    /// When the test calls `FakeBalloon::answer`.
    OnDemand,
}

/// What the device does instead of its next answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lie {
    /// It returns a descriptor that begins no request.
    OtherDescriptor,
    /// It returns a descriptor that the queue does not have, but whose lower half is right.
    NoDescriptor,
    /// It claims to have returned this many more requests than it has.
    Ahead(i16),
    /// It returns the request twice.
    Twice,
    /// It claims to have written this many bytes.
    Wrote(u32),
}

/// The purpose of a queue, in the specification's order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    Inflate,
    Deflate,
    Statistics,
    Hint,
    Reporting,
}

pub const KINDS: [Kind; 5] =
    [Kind::Inflate, Kind::Deflate, Kind::Statistics, Kind::Hint, Kind::Reporting];

/// The device.
#[derive(Debug)]
pub struct Device {
    pub offer: Offer,
    pub answers: Answers,
    pub lies: VecDeque<Lie>,
    /// Whether the device ignores what the driver writes, and answers nothing.
    pub is_hostile: bool,
    pub line: Line,
    pub configuration: [u8; CONFIGURATION_BYTES],
    /// The requests without an answer, by queue.
    waiting: BTreeMap<u16, VecDeque<Chain>>,
    /// The frames that the driver has put into the balloon.
    pub balloon: BTreeSet<u32>,
    /// The reports that were answered.
    pub reports: Vec<Vec<(u64, u32)>>,
    pub statistics: BTreeMap<u16, u64>,
    pub statistics_received: usize,
    /// The number of frames in each request for inflation.
    pub inflations: Vec<usize>,
}

impl Device {
    pub fn new(offer: Offer) -> Self {
        Self {
            offer,
            answers: Answers::AtOnce,
            lies: VecDeque::new(),
            is_hostile: false,
            line: Line::new(),
            configuration: [0; CONFIGURATION_BYTES],
            waiting: BTreeMap::new(),
            balloon: BTreeSet::new(),
            reports: Vec::new(),
            statistics: BTreeMap::new(),
            statistics_received: 0,
            inflations: Vec::new(),
        }
    }

    /// The purpose of the queue with this number.
    pub fn kind(&self, queue: u16) -> Option<Kind> {
        let exists = |kind: &Kind| self.size(*kind) > 0;
        match self.offer.numbering {
            Numbering::Compact => KINDS.into_iter().filter(exists).nth(queue.into()),
            Numbering::Fixed => KINDS.get(usize::from(queue)).copied().filter(exists),
        }
    }

    pub fn queue(&self, kind: Kind) -> Option<u16> {
        (0..5).find(|&queue| self.kind(queue) == Some(kind))
    }

    /// The most descriptors of a queue; 0 if it does not exist.
    pub fn size(&self, kind: Kind) -> u32 {
        let offered = match kind {
            Kind::Inflate | Kind::Deflate => true,
            Kind::Statistics => self.offer.features & STATS_VQ != 0,
            Kind::Hint => self.offer.features & FREE_PAGE_HINT != 0,
            Kind::Reporting => {
                self.offer.features & REPORTING != 0 && !self.offer.lacks_reporting_queue
            }
        };
        if !offered {
            return 0;
        }
        if kind == Kind::Reporting { self.offer.reporting_size } else { 128 }
    }

    fn is_agreed(&self, kind: Kind) -> bool {
        let bit = match kind {
            Kind::Inflate | Kind::Deflate => return true,
            Kind::Statistics => STATS_VQ,
            Kind::Hint => FREE_PAGE_HINT,
            Kind::Reporting => REPORTING,
        };
        self.line.driver_features & bit != 0 && self.size(kind) > 0
    }

    pub fn has_ring(&self, queue: u16) -> bool {
        self.line.rings.contains_key(&queue)
    }

    pub fn set_no_notify(&mut self, on: bool) {
        for ring in self.line.rings.values() {
            ring.set_no_notify(on);
        }
    }

    /// Takes the requests that the driver has made available.
    pub fn look(&mut self, queue: u16) {
        let kind = self.kind(queue).unwrap_or_else(|| panic!("there is no queue {queue}"));
        let Some(ring) = self.line.rings.get_mut(&queue) else {
            panic!("queue {queue} was not set up")
        };
        while let Some(chain) = ring.take() {
            assert_ne!(kind, Kind::Hint, "the queue for hints is used");
            for piece in &chain.pieces {
                assert_eq!(piece.writable, kind == Kind::Reporting, "{kind:?}: {piece:?}");
                if !piece.writable {
                    FakeHal::set_device_s(piece.address, true);
                }
            }
            if kind == Kind::Statistics {
                self.statistics_received += 1;
                self.statistics = read_statistics(&chain);
            }
            let waiting = self.waiting.entry(queue).or_default();
            waiting.push_back(chain);
            assert!(
                kind != Kind::Statistics || waiting.len() == 1,
                "more than one buffer for statistics"
            );
        }
    }

    /// The number of requests without an answer.
    pub fn waiting(&self, kind: Kind) -> usize {
        self.queue(kind).and_then(|queue| self.waiting.get(&queue)).map_or(0, VecDeque::len)
    }

    /// Answers the oldest request of a queue. Returns false if there is none, or the device does
    /// not run.
    pub fn answer_one(&mut self, queue: u16) -> bool {
        self.answer_nth(queue, 0)
    }

    /// Answers request `number`, counted from the oldest.
    pub fn answer_nth(&mut self, queue: u16, number: usize) -> bool {
        let Some(kind) = self.kind(queue).filter(|_| self.line.is_running()) else { return false };
        let Some(chain) = self.waiting.get_mut(&queue).and_then(|waiting| waiting.remove(number))
        else {
            return false;
        };
        self.work(kind, &chain);
        for piece in chain.pieces.iter().filter(|piece| !piece.writable) {
            FakeHal::set_device_s(piece.address, false);
        }
        let Some(ring) = self.line.rings.get_mut(&queue) else { return false };
        let head = u32::from(chain.head);
        match self.lies.pop_front() {
            None => ring.put(head, 0),
            Some(Lie::OtherDescriptor) => {
                // A descriptor inside the chain, or a free one.
                let other = if chain.head + 1 < ring.size { chain.head + 1 } else { 0 };
                ring.put(other.into(), 0);
            }
            Some(Lie::NoDescriptor) => ring.put(head | 0x1_0000, 0),
            Some(Lie::Ahead(by)) => {
                ring.put(head, 0);
                ring.advance(by);
            }
            Some(Lie::Twice) => {
                ring.put(head, 0);
                ring.put(head, 0);
            }
            Some(Lie::Wrote(bytes)) => ring.put(head, bytes),
        }
        self.line.interrupts |= 1;
        true
    }

    /// Does what a request asks.
    fn work(&mut self, kind: Kind, chain: &Chain) {
        match kind {
            Kind::Inflate | Kind::Deflate => {
                let frames = read_frames(chain);
                if kind == Kind::Inflate {
                    self.inflations.push(frames.len());
                    self.balloon.extend(frames);
                } else {
                    for frame in frames {
                        self.balloon.remove(&frame);
                    }
                }
            }
            Kind::Reporting => {
                let ranges = chain.pieces.iter().map(|piece| (piece.address, piece.bytes));
                self.reports.push(ranges.collect());
            }
            Kind::Statistics | Kind::Hint => {}
        }
    }

    pub fn field(&self, offset: usize) -> u32 {
        u32::from_le_bytes(self.configuration[offset..offset + 4].try_into().expect("4 bytes"))
    }

    pub fn set_field(&mut self, offset: usize, value: u32) {
        self.configuration[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
        self.line.interrupts |= 2;
    }
}

impl Side for Device {
    const KIND: DeviceType = DeviceType::MemoryBalloon;

    fn line(&mut self) -> &mut Line {
        &mut self.line
    }

    fn offered(&self) -> u64 {
        self.offer.features
    }

    fn queue_size(&self, queue: u16) -> u32 {
        self.kind(queue).map_or(0, |kind| self.size(kind))
    }

    fn turned(&mut self, turn: Turn) {
        match turn {
            Turn::None => {}
            // Pages stay in the balloon.
            Turn::Reset => {
                for chain in std::mem::take(&mut self.waiting).into_values().flatten() {
                    for piece in chain.pieces.iter().filter(|piece| !piece.writable) {
                        FakeHal::set_device_s(piece.address, false);
                    }
                }
            }
            Turn::Started => {
                for kind in KINDS.into_iter().filter(|&kind| self.is_agreed(kind)) {
                    let queue = self.queue(kind).expect("an agreed queue exists");
                    assert!(self.has_ring(queue), "{kind:?}, which was agreed on, was not set up");
                }
            }
        }
    }

    fn notify(&mut self, queue: u16) {
        if self.is_hostile {
            return;
        }
        self.look(queue);
        let kind = self.kind(queue);
        if self.answers == Answers::AtOnce && kind != Some(Kind::Statistics) {
            while self.answer_one(queue) {}
        }
    }

    fn generation(&mut self) -> u32 {
        0
    }

    fn read_configuration(&mut self, offset: usize, bytes: &mut [u8]) -> bool {
        let Some(field) =
            self.configuration[..self.offer.configuration_bytes].get(offset..offset + bytes.len())
        else {
            return false;
        };
        bytes.copy_from_slice(field);
        true
    }

    fn write_configuration(&mut self, offset: usize, bytes: &[u8]) -> bool {
        let writable = match offset {
            ACTUAL => self.line.is_running(),
            POISON => self.line.driver_features & PAGE_POISON != 0 && !self.line.is_running(),
            _ => false,
        };
        assert!(writable, "the driver writes {bytes:?} at {offset} of the configuration space");
        match self.configuration[..self.offer.configuration_bytes]
            .get_mut(offset..offset + bytes.len())
        {
            Some(field) => field.copy_from_slice(bytes),
            None => return false,
        }
        true
    }
}

fn bytes(chain: &Chain) -> Vec<u8> {
    chain
        .pieces
        .iter()
        .flat_map(|piece| (0..piece.bytes).map(|at| load_u8(piece.address + u64::from(at))))
        .collect()
}

fn read_frames(chain: &Chain) -> Vec<u32> {
    let bytes = bytes(chain);
    assert!(bytes.len().is_multiple_of(4), "half a frame number");
    bytes
        .chunks_exact(4)
        .map(|number| u32::from_le_bytes(number.try_into().expect("4 bytes")))
        .collect()
}

fn read_statistics(chain: &Chain) -> BTreeMap<u16, u64> {
    let bytes = bytes(chain);
    assert!(bytes.len().is_multiple_of(10), "half a statistic");
    let entries = bytes.chunks_exact(10).map(|entry| {
        let (tag, value) = entry.split_at(2);
        (
            u16::from_le_bytes(tag.try_into().expect("2 bytes")),
            u64::from_le_bytes(value.try_into().expect("8 bytes")),
        )
    });
    entries.collect()
}
