//! The state of the device, and how it works.

use crate::virtio::{Chain, DeviceRing, FakeHal, Line, Piece, Side, Turn, load_u8};
use std::collections::{BTreeSet, VecDeque};
use virtio_drivers::transport::DeviceType;

// The fields of the configuration space.
pub const BLOCK_SIZE: usize = 0;
pub const NODE: usize = 8;
pub const ADDRESS: usize = 16;
pub const REGION_SIZE: usize = 24;
pub const USABLE_SIZE: usize = 32;
pub const PLUGGED_SIZE: usize = 40;
pub const REQUESTED_SIZE: usize = 48;
const CONFIGURATION_BYTES: usize = 56;

const PLUG: u16 = 0;
const UNPLUG: u16 = 1;
const UNPLUG_ALL: u16 = 2;
const STATE: u16 = 3;

const ACK: u16 = 0;
const NACK: u16 = 1;
const BUSY: u16 = 2;
const ERROR: u16 = 3;

/// How much memory beyond the requested size may be plugged.
const SPARE_BYTES: u64 = 256 << 20;

/// What the device offers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer {
    /// The feature bits, by number.
    pub features: u64,
    /// The size of a block.
    pub block_bytes: u64,
    /// The first address of the region.
    pub address: u64,
    /// The size of the region.
    pub region_bytes: u64,
    /// The proximity domain.
    pub node: u16,
    /// The most descriptors of the queue.
    pub queue_size: u32,
    /// The size of the configuration space; a complete one has 56 bytes.
    pub configuration_bytes: usize,
}

impl Offer {
    /// QEMU's defaults: 2 GiB from 4 GiB on, in blocks of 2 MiB, with all features.
    pub const USUAL: Self = Self {
        features: 1 << 32 | 0b111,
        block_bytes: 2 << 20,
        address: 4 << 30,
        region_bytes: 2 << 30,
        node: 0,
        queue_size: 128,
        configuration_bytes: CONFIGURATION_BYTES,
    };
}

/// When the device answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answers {
    /// When the driver notifies the device.
    AtOnce,
    /// When the test calls `FakeVirtioMem::answer`.
    OnDemand,
}

/// What the device does instead of its next answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reply {
    /// It does nothing and answers with this code.
    Answer(u16),
    /// It does what was asked and answers with this code.
    Claim(u16),
    /// It does half of what was asked, and acknowledges.
    Half,
    /// It does nothing and acknowledges, with this state.
    State(u16),
    /// It answers NACK to a plug request; else it does what was asked.
    NackPlug,
    /// It does what was asked and never answers before a reset.
    Lose,
    /// It answers twice.
    Twice,
    /// It claims to have written this many bytes.
    Wrote(u32),
    /// It returns a descriptor that begins no request.
    OtherDescriptor,
    /// It returns a descriptor that the queue does not have.
    NoDescriptor,
    /// It claims to have returned this many more requests than it has.
    Ahead(i16),
}

/// A request as the device received it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    /// 0 PLUG, 1 UNPLUG, 2 UNPLUG_ALL, 3 STATE.
    pub kind: u16,
    /// The first address.
    pub address: u64,
    /// The number of blocks.
    pub blocks: u16,
    /// The device's verdict: 0 ACK, 1 NACK, 2 BUSY, 3 ERROR. It may have answered something else.
    pub verdict: u16,
}

/// The device.
#[derive(Debug)]
pub struct Device {
    pub offer: Offer,
    pub answers: Answers,
    pub replies: VecDeque<Reply>,
    /// Whether the device ignores what the driver writes, and answers nothing.
    pub is_hostile: bool,
    /// Whether every request is answered with BUSY.
    pub is_busy: bool,
    /// Whether the configuration always seems to have just changed.
    pub is_unsteady: bool,
    /// Whether no change is announced, not even by the generation.
    pub is_quiet: bool,
    pub generation: u32,
    pub line: Line,
    configuration: [u8; CONFIGURATION_BYTES],
    waiting: VecDeque<Chain>,
    /// Whether the waiting requests will never be answered.
    is_lost: bool,
    /// Where the driver wants the latest answer.
    answer_at: Option<Piece>,
    /// The numbers of the plugged blocks.
    pub plugged: BTreeSet<u64>,
    pub asked: Vec<Asked>,
}

impl Device {
    pub fn new(offer: Offer) -> Self {
        let mut device = Self {
            offer,
            answers: Answers::AtOnce,
            replies: VecDeque::new(),
            is_hostile: false,
            is_busy: false,
            is_unsteady: false,
            is_quiet: false,
            generation: 0,
            line: Line::new(),
            configuration: [0; CONFIGURATION_BYTES],
            waiting: VecDeque::new(),
            is_lost: false,
            answer_at: None,
            plugged: BTreeSet::new(),
            asked: Vec::new(),
        };
        device.set_field(BLOCK_SIZE, offer.block_bytes);
        device.set_field(NODE, offer.node.into());
        device.set_field(ADDRESS, offer.address);
        device.set_field(REGION_SIZE, offer.region_bytes);
        device
    }

    pub fn field(&self, offset: usize) -> u64 {
        u64::from_le_bytes(self.configuration[offset..offset + 8].try_into().expect("8 bytes"))
    }

    pub fn set_field(&mut self, offset: usize, value: u64) {
        self.configuration[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
    }

    /// Announces a change of the configuration with an interrupt.
    pub fn announce(&mut self) {
        if !self.is_quiet {
            self.generation += 1;
            self.line.interrupts |= 2;
        }
    }

    /// Requests this plugged size; the usable part of the region grows with it.
    pub fn request(&mut self, bytes: u64) {
        assert!(bytes <= self.offer.region_bytes && bytes.is_multiple_of(self.offer.block_bytes));
        self.set_field(REQUESTED_SIZE, bytes);
        let usable = self.usable_for(bytes).max(self.field(USABLE_SIZE));
        self.set_field(USABLE_SIZE, usable);
        self.announce();
    }

    fn usable_for(&self, requested: u64) -> u64 {
        let spare = (requested + SPARE_BYTES).next_multiple_of(self.offer.block_bytes);
        if requested == 0 { 0 } else { spare.min(self.offer.region_bytes) }
    }

    /// Takes the requests that the driver has made available.
    pub fn look(&mut self) {
        let Some(ring) = self.line.rings.get_mut(&0) else { return };
        while let Some(chain) = ring.take() {
            let [asked, answer] = chain.pieces.as_slice() else {
                panic!("a request of {} parts", chain.pieces.len())
            };
            assert!(!asked.writable && asked.bytes == 24, "{asked:?}");
            assert!(answer.writable && answer.bytes == 10, "{answer:?}");
            FakeHal::set_device_s(asked.address, true);
            self.answer_at = Some(*answer);
            self.waiting.push_back(chain);
            assert_eq!(self.waiting.len(), 1, "more than one request at a time");
        }
    }

    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Answers the request. Returns false if there is none, or the device does not run.
    pub fn answer(&mut self) -> bool {
        if !self.line.is_running() || self.is_lost {
            return false;
        }
        let Some(chain) = self.waiting.pop_front() else { return false };
        let (mut asked, blocks) = self.read(&chain);
        let reply = self.replies.pop_front();
        asked.verdict = if self.is_busy { BUSY } else { self.verdict(&asked, blocks.as_ref()) };
        self.asked.push(asked);
        let blocks = blocks.unwrap_or_default();
        let mut said = (asked.verdict, self.state(&blocks));
        match reply {
            Some(Reply::Answer(answer)) => said.0 = answer,
            Some(Reply::NackPlug) if asked.kind == PLUG => said.0 = NACK,
            Some(Reply::State(state)) => said = (ACK, state),
            Some(Reply::Claim(answer)) => {
                self.carry_out(&asked, &blocks);
                said.0 = answer;
            }
            Some(Reply::Half) => {
                let half: Vec<u64> = blocks.iter().copied().take(blocks.len() / 2).collect();
                self.carry_out(&asked, &half);
            }
            _ => self.carry_out(&asked, &blocks),
        }
        if reply == Some(Reply::Lose) {
            self.waiting.push_front(chain);
            self.is_lost = true;
            return true;
        }
        let bytes: Vec<u8> = [said.0.to_le_bytes(), [0; 2], [0; 2], [0; 2], said.1.to_le_bytes()]
            .into_iter()
            .flatten()
            .collect();
        DeviceRing::write(chain.pieces[1], &bytes);
        FakeHal::set_device_s(chain.pieces[0].address, false);
        let head = u32::from(chain.head);
        let ring = self.line.rings.get_mut(&0).expect("a request came from it");
        match reply {
            Some(Reply::Twice) => {
                ring.put(head, 10);
                ring.put(head, 10);
            }
            Some(Reply::Wrote(bytes)) => ring.put(head, bytes),
            Some(Reply::OtherDescriptor) => ring.put((head + 1) % u32::from(ring.size), 10),
            Some(Reply::NoDescriptor) => ring.put(head | 0x1_0000, 10),
            Some(Reply::Ahead(by)) => {
                ring.put(head, 10);
                ring.advance(by);
            }
            _ => ring.put(head, 10),
        }
        self.line.interrupts |= 1;
        true
    }

    /// Answers the driver's request, if there is one, with these numbers.
    pub fn forge(&mut self, descriptor: u32, written: u32, answer: u16, state: u16) {
        if let (Some(ring), Some(at)) = (self.line.rings.get_mut(&0), self.answer_at) {
            DeviceRing::write(at, &answer.to_le_bytes());
            DeviceRing::write(Piece { address: at.address + 8, ..at }, &state.to_le_bytes());
            ring.put(descriptor, written);
        }
    }

    /// The request, and the blocks that it is about if all of them exist.
    fn read(&self, chain: &Chain) -> (Asked, Option<Vec<u64>>) {
        let bytes: Vec<u8> = (0..24).map(|at| load_u8(chain.pieces[0].address + at)).collect();
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let address = u64::from_le_bytes(bytes[8..16].try_into().expect("8 bytes"));
        let asked = Asked { kind: half(0), address, blocks: half(16), verdict: ACK };
        let block_bytes = self.offer.block_bytes;
        let first = address.checked_sub(self.offer.address).map(|offset| offset / block_bytes);
        let usable = self.field(USABLE_SIZE) / block_bytes;
        let blocks = first
            .filter(|first| {
                address.is_multiple_of(block_bytes)
                    && asked.blocks > 0
                    && first + u64::from(asked.blocks) <= usable
            })
            .map(|first| (first..first + u64::from(asked.blocks)).collect());
        (asked, blocks)
    }

    /// 0 if all blocks are plugged, 1 if none is, else 2.
    fn state(&self, blocks: &[u64]) -> u16 {
        match blocks.iter().filter(|block| self.plugged.contains(block)).count() {
            count if count == blocks.len() => 0,
            0 => 1,
            _ => 2,
        }
    }

    fn verdict(&self, asked: &Asked, blocks: Option<&Vec<u64>>) -> u16 {
        if asked.kind == UNPLUG_ALL {
            return ACK;
        }
        let Some(blocks) = blocks else { return ERROR };
        let size = blocks.len() as u64 * self.offer.block_bytes;
        let is_too_much = self.plugged_bytes() + size > self.field(REQUESTED_SIZE);
        match asked.kind {
            STATE => ACK,
            PLUG if is_too_much => NACK,
            PLUG if self.state(blocks) == 1 => ACK,
            UNPLUG if self.state(blocks) == 0 => ACK,
            _ => ERROR,
        }
    }

    fn carry_out(&mut self, asked: &Asked, blocks: &[u64]) {
        if asked.verdict != ACK {
            return;
        }
        match asked.kind {
            PLUG => self.plugged.extend(blocks),
            UNPLUG => {
                for block in blocks {
                    self.plugged.remove(block);
                }
            }
            UNPLUG_ALL => {
                self.plugged.clear();
                let usable = self.usable_for(self.field(REQUESTED_SIZE));
                self.set_field(USABLE_SIZE, usable);
            }
            _ => {}
        }
        self.set_field(PLUGGED_SIZE, self.plugged_bytes());
    }

    pub fn plugged_bytes(&self) -> u64 {
        self.plugged.len() as u64 * self.offer.block_bytes
    }
}

impl Side for Device {
    const KIND: DeviceType = DeviceType::Memory;

    fn line(&mut self) -> &mut Line {
        &mut self.line
    }

    fn offered(&self) -> u64 {
        self.offer.features
    }

    fn queue_size(&self, queue: u16) -> u32 {
        if queue == 0 { self.offer.queue_size } else { 0 }
    }

    fn turned(&mut self, turn: Turn) {
        match turn {
            Turn::None => {}
            // Blocks stay plugged.
            Turn::Reset => {
                self.is_lost = false;
                for chain in std::mem::take(&mut self.waiting) {
                    FakeHal::set_device_s(chain.pieces[0].address, false);
                }
            }
            Turn::Started => assert!(self.line.rings.contains_key(&0), "the queue was not set up"),
        }
    }

    fn notify(&mut self, _: u16) {
        if self.is_hostile {
            return;
        }
        self.look();
        if self.answers == Answers::AtOnce {
            self.answer();
        }
    }

    fn read_configuration(&mut self, offset: usize, bytes: &mut [u8]) -> bool {
        assert!(bytes.len() <= 4 && offset.is_multiple_of(bytes.len()), "{bytes:?} at {offset}");
        assert!(offset != NODE || self.line.driver_features & 1 != 0, "a node without ACPI_PXM");
        let field =
            self.configuration[..self.offer.configuration_bytes].get(offset..offset + bytes.len());
        field.is_some_and(|field| {
            bytes.copy_from_slice(field);
            true
        })
    }

    fn write_configuration(&mut self, offset: usize, bytes: &[u8]) -> bool {
        panic!("the driver writes {bytes:?} at {offset} of a configuration that it may only read")
    }

    fn generation(&mut self) -> u32 {
        if self.is_unsteady {
            self.generation += 1;
        }
        self.generation
    }
}
