//! Random machines and random calls against a model that keeps the state of every 32 bytes.
//!
//! The model predicts every answer exactly: the address, whether the reserved set grows and to
//! where, and which error is returned. It cannot predict the size of a grown array, so it takes the
//! size from the allocator and checks it against a lower bound.

mod any;

use super::platform::{Early, FakePlatform, Key, assert_well_formed, frame_key, node, sets};
use any::{any_call, any_machine, place_call};
use framewright::firmware::{MapBuilder, MapError, MapRange, MemoryAffinity, MemoryKind, Topology};
use framewright::memblock::{
    MemblockError, MemblockRequest, NodeChoice, Region, RegionFlags, SetName,
};
use framewright::units::{NodeId, PAGE_SIZE, PHYSICAL_ADDRESS_END, PhysRange};
use proptest::prelude::*;

/// The model's unit, in bytes; every address of a call is a multiple of it.
const UNIT: u64 = 32;
const FRAMES: u64 = 96;
const UNITS: usize = (FRAMES * PAGE_SIZE / UNIT) as usize;
const SIZE: u64 = FRAMES * PAGE_SIZE;
/// The start of the machine's memory: at address 0, in the middle, or at the end of the address
/// space.
const BASES: [u64; 3] = [0, 0x1234_5000, PHYSICAL_ADDRESS_END - SIZE];

const PLAIN: Key = Some((None, RegionFlags::NONE));

/// One call, in units from the base.
#[derive(Clone, Debug)]
enum Call {
    Reserve {
        start: u64,
        len: u64,
    },
    /// Reserves every second piece of `tooth` units, which makes hundreds of regions.
    Comb {
        start: u64,
        tooth: u64,
        count: u64,
    },
    Free {
        start: u64,
        len: u64,
    },
    Allocate {
        request: MemblockRequest,
    },
    AddMemory {
        frame: u64,
        frames: u64,
        node: usize,
        hot_pluggable: bool,
    },
    BottomUp(bool),
    MovableNode(bool),
    MarkMirrored {
        start: u64,
        len: u64,
    },
    MirroredFirst(bool),
    RaiseLimit(u64),
}

#[derive(Clone, Debug)]
struct Machine {
    base: u64,
    limit_frames: u64,
    ranges: Vec<(u64, u64, MemoryKind)>,
    claims: Vec<(u64, u64, usize, bool)>,
}

struct Model {
    base: u64,
    limit: u64,
    bottom_up: bool,
    movable_node: bool,
    mirrored_first: bool,
    unmirrored_bytes: u64,
    memory: Vec<Key>,
    reserved: Vec<Key>,
    /// What the owner wrote into the unit; nobody else may write there while it is reserved.
    stamps: Vec<Option<u8>>,
    next_stamp: u8,
    /// The array lies in a range that the adopter reserved as well.
    kept: bool,
}

/// The requirements on a place, as in the allocator but in units.
struct Wish {
    units: u64,
    align: u64,
    window: PhysRange,
    node: Option<NodeId>,
    hot_pluggable: bool,
    mirrored: bool,
}

impl Model {
    fn index(&self, address: u64) -> usize {
        usize::try_from((address - self.base) / UNIT).unwrap()
    }

    fn address(&self, index: usize) -> u64 {
        self.base + index as u64 * UNIT
    }

    fn indices(&self, range: PhysRange) -> std::ops::Range<usize> {
        let inside = range.intersection(PhysRange::new(self.base, self.base + SIZE));
        if inside.is_empty() { 0..0 } else { self.index(inside.start)..self.index(inside.end) }
    }

    fn paint(&self, regions: &[Region]) -> Vec<Key> {
        let mut keys = vec![None; UNITS];
        for region in regions {
            keys[self.indices(region.range)].fill(Some((region.node, region.flags)));
        }
        keys
    }

    /// Returns whether the unit can be handed out to this wish, and whether it can form one piece
    /// with the unit below it.
    fn is_candidate(&self, index: usize, wish: &Wish, avoid: &std::ops::Range<usize>) -> bool {
        let Some((owner, flags)) = self.memory[index] else { return false };
        self.reserved[index].is_none()
            && !avoid.contains(&index)
            && !flags.contains(RegionFlags::UNACCEPTED)
            && (!wish.mirrored || flags.contains(RegionFlags::MIRRORED))
            && (wish.hot_pluggable || !flags.contains(RegionFlags::HOT_PLUGGABLE))
            && wish.node.is_none_or(|node| owner == Some(node))
            && wish.window.start <= self.address(index)
            && self.address(index) < wish.window.end
    }

    /// Tries every unit as a base and takes the best.
    fn find(&self, wish: &Wish, avoid: std::ops::Range<usize>) -> Option<PhysRange> {
        let units = usize::try_from(wish.units).ok().filter(|&units| units <= UNITS)?;
        let mut best = None;
        let mut run = 0;
        for last in 0..UNITS {
            let joins = last > 0 && self.memory[last] == self.memory[last - 1];
            run = match self.is_candidate(last, wish, &avoid) {
                true if joins => run + 1,
                true => 1,
                false => 0,
            };
            if run < units {
                continue;
            }
            let base = self.address(last + 1 - units);
            if base.is_multiple_of(wish.align) {
                best = Some(PhysRange::new(base, base + wish.units * UNIT));
                if self.bottom_up {
                    break;
                }
            }
        }
        best
    }

    fn find_for(&self, request: &MemblockRequest) -> Option<PhysRange> {
        let touched = request.zeroed || !request.no_init;
        let limit = if touched { self.limit } else { u64::MAX };
        let max = request.max_address.min(limit);
        let nodes = match request.node {
            NodeChoice::Any => vec![None],
            NodeChoice::Preferred(node) => vec![Some(node), None],
            NodeChoice::Exact(node) => vec![Some(node)],
        };
        let nodes = &nodes;
        let kinds = self.hot_pluggable(request.hot_pluggable);
        let limits = kinds.iter().flat_map(|&hot| [(hot, request.min_address), (hot, 0)]);
        let limits = limits.flat_map(|(hot, min)| {
            self.mirrored().iter().map(move |&mirrored| (hot, min, mirrored))
        });
        let mut wishes = limits.flat_map(|(hot_pluggable, min, mirrored)| {
            nodes.iter().map(move |&node| Wish {
                units: request.size_bytes / UNIT,
                align: request.align_bytes.max(1),
                window: PhysRange::new(min, max),
                node,
                hot_pluggable,
                mirrored,
            })
        });
        wishes.find_map(|wish| self.find(&wish, 0..0))
    }

    fn find_array(&self, bytes: u64, avoid: std::ops::Range<usize>) -> Option<PhysRange> {
        let window = PhysRange::new(0, self.limit);
        let kinds = self.hot_pluggable(false).iter();
        let kinds = kinds.flat_map(|&hot| self.mirrored().iter().map(move |&safe| (hot, safe)));
        let mut wishes = kinds.map(|(hot_pluggable, mirrored)| Wish {
            units: bytes / UNIT,
            align: PAGE_SIZE,
            window,
            node: None,
            hot_pluggable,
            mirrored,
        });
        wishes.find_map(|wish| self.find(&wish, avoid.clone()))
    }

    fn hot_pluggable(&self, is_wanted: bool) -> &'static [bool] {
        if self.movable_node && !is_wanted { &[false, true] } else { &[true] }
    }

    /// Memory of nodes that have reservations is not hot-pluggable.
    fn keep_nodes_in_use(&mut self) {
        let is_array = |flags: RegionFlags| flags.contains(RegionFlags::KERNEL);
        let in_use =
            (0..UNITS).filter(|&at| self.reserved[at].is_some_and(|(_, flags)| !is_array(flags)));
        let nodes: Vec<_> = in_use.filter_map(|at| Some(self.memory[at]?.0)).collect();
        for (node, flags) in self.memory.iter_mut().flatten() {
            if nodes.contains(node) {
                *flags = flags.without(RegionFlags::HOT_PLUGGABLE);
            }
        }
    }

    /// Returns for each search in turn whether it is limited to mirrored memory.
    fn mirrored(&self) -> &'static [bool] {
        let is_mirrored = |key: &Key| key.is_some_and(|(_, flags)| is_mirrored(flags));
        let some = cfg!(feature = "moving") && self.memory.iter().any(is_mirrored);
        if self.mirrored_first && some { &[true, false] } else { &[false] }
    }

    /// Returns the number of regions in the reserved set if it covered these units.
    fn regions(&self, reserved: &[Key]) -> usize {
        let starts = (0..UNITS).filter(|&index| {
            reserved[index].is_some() && (index == 0 || reserved[index - 1] != reserved[index])
        });
        starts.count() + usize::from(self.base != 0)
    }
}

fn is_mirrored(flags: RegionFlags) -> bool {
    flags.contains(RegionFlags::MIRRORED)
}

/// An allocator and its model.
struct Pair {
    early: Early,
    platform: &'static FakePlatform,
    model: Model,
}

impl Pair {
    fn new(machine: &Machine) -> Option<Self> {
        let frame = |number: u64| machine.base + number * PAGE_SIZE;
        let platform = FakePlatform::leak(machine.base, SIZE);
        let mut storage = [MapRange::EMPTY; 64];
        let mut builder = MapBuilder::new(&mut storage);
        for &(start, frames, kind) in &machine.ranges {
            builder.add(frame(start), frames * PAGE_SIZE, kind).unwrap();
        }
        let refused = |error| assert_eq!(error, MapError::NoUsableMemory);
        let map = builder.finish().map_err(refused).ok()?;
        let mut storage = [MemoryAffinity::EMPTY; 32];
        let mut topology = Topology::new(&mut storage);
        for &(start, frames, owner, hot_pluggable) in &machine.claims {
            // Overlapping claims of different nodes are refused; the others form the topology.
            let _ = topology.add_memory(
                PhysRange::with_size(frame(start), frames * PAGE_SIZE),
                node(owner),
                hot_pluggable,
            );
        }
        let mut model = Model {
            base: machine.base,
            limit: frame(machine.limit_frames),
            bottom_up: false,
            movable_node: false,
            mirrored_first: false,
            unmirrored_bytes: 0,
            memory: vec![None; UNITS],
            reserved: vec![None; UNITS],
            stamps: vec![None; UNITS],
            next_stamp: 1,
            kept: false,
        };
        for number in 0..FRAMES {
            let bytes = PhysRange::new(frame(number), frame(number + 1));
            let units = model.indices(bytes);
            model.memory[units].fill(frame_key(map, &topology, bytes));
        }
        let frame_zero = model.indices(PhysRange::new(0, PAGE_SIZE));
        model.reserved[frame_zero].fill(PLAIN);
        platform.set_limit(model.limit);
        let early = Early::new(platform, map, &topology).unwrap();
        Some(Self { early, platform, model })
    }

    fn capacity(&self) -> usize {
        let [_, array] = self.early.storage();
        if array.is_empty() {
            128
        } else {
            usize::try_from(array.size()).unwrap() / size_of::<Region>()
        }
    }

    fn run(&mut self, call: &Call) {
        let base = self.model.base;
        let at = |units: u64| base + units * UNIT;
        match *call {
            Call::Reserve { start, len } => {
                self.reserve(PhysRange::new(at(start), at(start + len)))
            }
            Call::Comb { start, tooth, count } => {
                for index in 0..count {
                    let first = at(start + 2 * tooth * index);
                    let range = PhysRange::new(first, first + tooth * UNIT);
                    if range.end > self.model.base + SIZE {
                        break;
                    }
                    // The full check is worthwhile only for calls that may grow the set.
                    if self.early.reserved().len() + 1 < self.capacity()
                        && self
                            .early
                            .storage()
                            .iter()
                            .all(|array| array.intersection(range).is_empty())
                    {
                        self.early.reserve(range).unwrap();
                        self.stamp_uncovered(range, PLAIN);
                    } else {
                        self.reserve(range);
                    }
                }
            }
            Call::Free { start, len } => self.free(PhysRange::new(at(start), at(start + len))),
            Call::Allocate { request } => self.allocate(&request),
            Call::AddMemory { frame, frames, node: owner, hot_pluggable } => {
                let range =
                    PhysRange::with_size(self.model.base + frame * PAGE_SIZE, frames * PAGE_SIZE);
                self.early.add_memory(range, node(owner), hot_pluggable).unwrap();
                let flags =
                    if hot_pluggable { RegionFlags::HOT_PLUGGABLE } else { RegionFlags::NONE };
                for index in self.model.indices(range) {
                    self.model.memory[index].get_or_insert((Some(node(owner)), flags));
                }
            }
            Call::BottomUp(bottom_up) => {
                self.early.set_bottom_up(bottom_up);
                self.model.bottom_up = bottom_up;
            }
            Call::MovableNode(movable_node) => {
                self.early.set_movable_node(movable_node);
                if movable_node && !self.model.movable_node {
                    self.model.keep_nodes_in_use();
                }
                self.model.movable_node = movable_node;
            }
            Call::MarkMirrored { start, len } => {
                let range = PhysRange::new(at(start), at(start + len));
                self.early.mark_mirrored(range).unwrap();
                // The frames that it covers completely.
                for index in self.model.indices(range.whole_frames().to_phys()) {
                    if let Some((_, flags)) = &mut self.model.memory[index] {
                        *flags = flags.union(RegionFlags::MIRRORED);
                    }
                }
            }
            Call::MirroredFirst(first) => {
                self.early.set_mirrored_first(first);
                self.model.mirrored_first = first;
            }
            Call::RaiseLimit(frames) => {
                self.model.limit = self.model.limit.max(self.model.base + frames * PAGE_SIZE);
                self.platform.set_limit(self.model.limit);
            }
        }
        self.check();
    }

    fn reserve(&mut self, range: PhysRange) {
        let units = self.model.indices(range);
        let mut expected = self.model.reserved.clone();
        expected[units.clone()].iter_mut().for_each(|key| *key = key.or(PLAIN));
        let before = sets(&self.early);
        let result = self.early.reserve(range);
        if self.settle(&expected, units, before, result.err()) {
            let [_, array] = self.early.storage();
            self.model.kept |= !array.intersection(range).is_empty();
            self.stamp_uncovered(range, PLAIN);
        }
    }

    fn free(&mut self, range: PhysRange) {
        let before = sets(&self.early);
        let result = self.early.free(range);
        let clipped =
            PhysRange::new(range.start.max(PAGE_SIZE), range.end.min(PHYSICAL_ADDRESS_END));
        let units = self.model.indices(clipped);
        let [_, array] = before.2;
        let refused = if range.is_empty() {
            None
        } else if clipped.is_empty() {
            Some(MemblockError::FrameZero)
        } else if !array.intersection(clipped).is_empty() {
            Some(MemblockError::OwnStorage { storage: array })
        } else if self.model.reserved[units.clone()].iter().all(Option::is_none) {
            Some(MemblockError::NotReserved {
                range: PhysRange::new(range.start, range.end.min(PHYSICAL_ADDRESS_END)),
            })
        } else {
            None
        };
        if refused.is_some() {
            assert_eq!(result.err(), refused);
            assert_eq!(sets(&self.early), before);
            return;
        }
        let mut expected = self.model.reserved.clone();
        expected[units.clone()].fill(None);
        if self.settle(&expected, units.clone(), before, result.err()) {
            self.model.reserved[units.clone()].fill(None);
            self.model.stamps[units].fill(None);
        }
    }

    fn allocate(&mut self, request: &MemblockRequest) {
        let before = sets(&self.early);
        let result = self.early.allocate(request);
        let Some(place) = self.model.find_for(request) else {
            assert!(
                matches!(result, Err(MemblockError::OutOfMemory { .. })),
                "{result:?} without a place"
            );
            assert_eq!(sets(&self.early), before);
            return;
        };
        let units = self.model.indices(place);
        let (owner, kind) = self.model.memory[units.start].unwrap();
        let is_elsewhere = self.model.mirrored()[0] && !is_mirrored(kind);
        let flags = if request.no_init { RegionFlags::NO_INIT } else { RegionFlags::NONE };
        let mut expected = self.model.reserved.clone();
        expected[units.clone()].fill(Some((owner, flags)));
        if self.settle(&expected, units, before, result.err()) {
            assert_eq!(result, Ok(place));
            self.model.unmirrored_bytes += if is_elsewhere { request.size_bytes } else { 0 };
            assert_eq!(self.early.unmirrored_bytes(), self.model.unmirrored_bytes);
            assert!(!request.zeroed || self.platform.is_full_of(place, 0), "{place:?} is not zero");
            self.stamp_uncovered(place, Some((owner, flags)));
        }
    }

    /// Compares growth and failure with the model's prediction for a call after which `expected` is
    /// reserved, and updates the model's arrays. Returns whether the call succeeded.
    fn settle(
        &mut self,
        expected: &[Key],
        units: std::ops::Range<usize>,
        before: (Vec<Region>, Vec<Region>, [PhysRange; 2]),
        error: Option<MemblockError>,
    ) -> bool {
        let [_, old] = before.2;
        let capacity = if old.is_empty() {
            128
        } else {
            usize::try_from(old.size()).unwrap() / size_of::<Region>()
        };
        let needed = self.model.regions(expected);
        let grows = needed > capacity;
        match error {
            Some(MemblockError::NoRoomToGrow { set: SetName::Reserved, regions, needed_bytes }) => {
                assert!(grows, "{needed} regions fit");
                assert_eq!(regions, before.1.len());
                assert_eq!(self.model.find_array(needed_bytes, units), None);
                assert_eq!(sets(&self.early), before);
                assert_eq!(self.early.unmirrored_bytes(), self.model.unmirrored_bytes);
                false
            }
            Some(error) => panic!("{error}"),
            None => {
                let [_, new] = self.early.storage();
                assert_eq!(new != old, grows, "{needed} regions in {capacity} entries");
                if grows {
                    assert_eq!(Some(new), self.model.find_array(new.size(), units));
                    assert!(
                        new.size()
                            >= 24 * u64::try_from(needed + 1).unwrap().max(2 * capacity as u64)
                    );
                    self.move_array(old, new);
                }
                true
            }
        }
    }

    fn move_array(&mut self, old: PhysRange, new: PhysRange) {
        if !self.model.kept {
            let old = self.model.indices(old);
            self.model.reserved[old].fill(None);
        }
        self.model.kept = false;
        let new = self.model.indices(new);
        let (owner, _) = self.model.memory[new.start].unwrap();
        self.model.reserved[new].fill(Some((owner, RegionFlags::KERNEL)));
    }

    /// Gives the free memory in `range` to a new owner, who writes into it.
    fn stamp_uncovered(&mut self, range: PhysRange, key: Key) {
        self.model.next_stamp = self.model.next_stamp.wrapping_add(1);
        for index in self.model.indices(range) {
            if self.model.reserved[index].is_none() {
                self.model.reserved[index] = key;
                self.model.stamps[index] = Some(self.model.next_stamp);
                self.platform.fill(
                    PhysRange::with_size(self.model.address(index), UNIT),
                    self.model.next_stamp,
                );
            }
        }
    }

    fn check(&self) {
        assert_well_formed(self.early.memory());
        assert_well_formed(self.early.reserved());
        assert!(
            self.model.paint(self.early.memory()) == self.model.memory,
            "the memory set differs"
        );
        let reserved = self.model.paint(self.early.reserved());
        if let Some(index) = (0..UNITS).find(|&index| reserved[index] != self.model.reserved[index])
        {
            let address = self.model.address(index);
            panic!(
                "{address:#x}: {:?} reserved, {:?} expected",
                reserved[index], self.model.reserved[index]
            );
        }
        self.check_hand_over();
    }

    fn check_hand_over(&self) {
        let mut free: Vec<(u64, NodeId)> = Vec::new();
        let mut last_end = 0;
        self.early.for_each_free(&mut |run, owner| {
            assert!(!run.is_empty() && run.start.0 >= last_end, "runs ascend");
            last_end = run.end.0;
            free.extend((run.start.0..run.end.0).map(|pfn| (pfn, owner)));
        });
        let mut pieces = Vec::new();
        self.early.for_each_free_piece(&mut |pfn, order, owner| {
            assert!(pfn.is_aligned(order));
            pieces.extend((pfn.0..pfn.0 + order.pages()).map(|pfn| (pfn, owner)));
        });
        let expected: Vec<_> = (0..FRAMES)
            .map(|number| PhysRange::with_size(self.model.base + number * PAGE_SIZE, PAGE_SIZE))
            .filter_map(|frame| {
                let mut units = self.model.indices(frame);
                let (owner, flags) = self.model.memory[units.start]?;
                let free = !flags.contains(RegionFlags::UNACCEPTED)
                    && units.all(|index| self.model.reserved[index].is_none());
                free.then(|| (frame.start / PAGE_SIZE, owner.unwrap()))
            })
            .collect();
        assert_eq!(free, expected);
        assert_eq!(pieces, expected);
    }

    fn check_stamps(&self) {
        for index in 0..UNITS {
            if let Some(stamp) = self.model.stamps[index] {
                let unit = PhysRange::with_size(self.model.address(index), UNIT);
                assert!(self.platform.is_full_of(unit, stamp), "somebody wrote into {unit:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 40,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_answer_is_the_models(
        machine in any_machine(),
        calls in prop::collection::vec(any_call(), 1..50),
    ) {
        let Some(mut pair) = Pair::new(&machine) else { return Ok(()) };
        pair.check();
        for call in calls {
            pair.run(&place_call(call, machine.base));
        }
        pair.check_stamps();
        let storage = pair.early.storage();
        let discarded = pair.early.discard();
        prop_assert_eq!(
            discarded[1],
            if pair.model.kept { PhysRange::default() } else { storage[1] }
        );
    }
}
