//! A platform for the tests of the memblock allocator: a page-aligned arena serves as the physical
//! memory from some base address on. An access outside the arena panics, so memory that must not be
//! touched can lie at any address.
#![allow(dead_code, reason = "each test file uses a part of it")]

use framewright::firmware::{
    MapBuilder, MapRange, MemoryAffinity, MemoryKind, MemoryMap, Topology,
};
use framewright::memblock::{Memblock, MemblockError, MemblockStorage, Region, RegionFlags};
use framewright::units::{NodeId, PAGE_SIZE, PhysRange};
use framewright::{IrqState, PinnedCpu, Platform};
use std::alloc::{Layout, alloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// The initial content of the arena.
pub const DIRT: u8 = 0xa5;

/// See the file's documentation.
pub struct FakePlatform {
    arena: NonNull<u8>,
    base: u64,
    size: u64,
    limit: AtomicU64,
    skew: u64,
}

// SAFETY: the arena is memory without owner; tests use each platform from one thread.
unsafe impl Sync for FakePlatform {}

impl FakePlatform {
    /// Makes `size` bytes of physical memory from `base`, filled with [`DIRT`].
    pub fn leak(base: u64, size: u64) -> &'static Self {
        Self::leak_skewed(base, size, 0)
    }

    /// Does what [`leak`](Self::leak) does, with the memory `skew` bytes above its alignment.
    pub fn leak_skewed(base: u64, size: u64, skew: u64) -> &'static Self {
        let bytes = usize::try_from(size + PAGE_SIZE).unwrap();
        let layout = Layout::from_size_align(bytes, 4096).unwrap();
        // SAFETY: the layout is not empty.
        let pointer = unsafe { alloc(layout) };
        let Some(arena) = NonNull::new(pointer) else { handle_alloc_error(layout) };
        // SAFETY: the arena has that many bytes.
        unsafe { arena.write_bytes(DIRT, bytes) };
        Box::leak(Box::new(Self { arena, base, size, limit: AtomicU64::new(u64::MAX), skew }))
    }

    /// Returns the whole arena.
    pub fn range(&self) -> PhysRange {
        PhysRange::new(self.base, self.base + self.size)
    }

    /// Sets the value that [`Platform::direct_limit`] returns.
    pub fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Fills `range` with `byte`.
    pub fn fill(&self, range: PhysRange, byte: u8) {
        assert!(range.end <= self.base + self.size);
        let pointer = self.at(range.start);
        // SAFETY: the range lies in the arena.
        unsafe { pointer.write_bytes(byte, usize::try_from(range.size()).unwrap()) };
    }

    /// Returns whether every byte of `range` is `byte`.
    pub fn is_full_of(&self, range: PhysRange, byte: u8) -> bool {
        assert!(range.end <= self.base + self.size);
        let len = usize::try_from(range.size()).unwrap();
        // SAFETY: the range lies in the arena, which was written when it was made.
        let bytes = unsafe { std::slice::from_raw_parts(self.at(range.start).as_ptr(), len) };
        bytes.iter().all(|&found| found == byte)
    }

    fn at(&self, pa: u64) -> NonNull<u8> {
        assert!(self.base <= pa && pa < self.base + self.size, "{pa:#x} is outside the arena");
        let offset = usize::try_from(pa - self.base + self.skew).unwrap();
        // SAFETY: inside the arena, which has a page to spare for the skew.
        unsafe { self.arena.add(offset) }
    }
}

// SAFETY: usable memory of the tests' maps that is touched lies in the arena; direct panics where
// it does not.
unsafe impl Platform for FakePlatform {
    fn direct(&self, pa: u64) -> NonNull<u8> {
        assert!(pa < self.direct_limit(), "direct({pa:#x}) above the limit");
        self.at(pa)
    }

    fn pin(&self) -> PinnedCpu {
        PinnedCpu::new(0)
    }

    fn irq_save(&self) -> IrqState {
        IrqState(0)
    }

    unsafe fn irq_restore(&self, _: IrqState) {}

    fn direct_limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }
}

/// An memblock allocator over the arena, whose memory nobody uses but the test. Its unsafe calls
/// are safe here.
pub struct Early(Memblock<'static, FakePlatform>);

impl Early {
    /// Makes an allocator that knows the memory of `map`.
    pub fn new(
        platform: &'static FakePlatform,
        map: MemoryMap<'_>,
        topology: &Topology<'_>,
    ) -> Result<Self, MemblockError> {
        Self::with_reserved(platform, map, topology, &[])
    }

    /// Makes an allocator that knows the memory of `map`, with `reserved` reserved.
    pub fn with_reserved(
        platform: &'static FakePlatform,
        map: MemoryMap<'_>,
        topology: &Topology<'_>,
        reserved: &[PhysRange],
    ) -> Result<Self, MemblockError> {
        let mut early = Self::empty(platform, topology);
        early.start(map, reserved)?;
        Ok(early)
    }

    /// Makes an allocator that knows no memory.
    pub fn empty(platform: &'static FakePlatform, topology: &Topology<'_>) -> Self {
        let storage = Box::leak(Box::new(MemblockStorage::new()));
        Self(Memblock::empty(platform, storage, Box::leak(Box::new(copy_of(topology)))))
    }

    /// Adds the memory of `map`.
    pub fn start(
        &mut self,
        map: MemoryMap<'_>,
        reserved: &[PhysRange],
    ) -> Result<(), MemblockError> {
        // SAFETY: the arena is the test's alone, and what is outside it is not touched.
        unsafe { self.0.start(map, reserved) }
    }

    /// Adds more memory.
    pub fn add_memory(
        &mut self,
        range: PhysRange,
        node: NodeId,
        hot_pluggable: bool,
    ) -> Result<(), MemblockError> {
        // SAFETY: as for `start`.
        unsafe { self.0.add_memory(range, node, hot_pluggable) }
    }

    /// Ends a reservation or an allocation.
    pub fn free(&mut self, range: PhysRange) -> Result<(), MemblockError> {
        // SAFETY: the test uses none of the memory.
        unsafe { self.0.free(range) }
    }
}

impl Deref for Early {
    type Target = Memblock<'static, FakePlatform>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Early {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

/// Returns the claims of `topology`, for at least four nodes.
fn copy_of(topology: &Topology<'_>) -> Topology<'static> {
    let mut copy = Topology::new(vec![MemoryAffinity::EMPTY; topology.memory().len()].leak());
    copy.declare_node(topology.node_count().max(4) - 1).unwrap();
    for claim in topology.memory() {
        copy.add_memory(claim.range, claim.node, claim.hot_pluggable).unwrap();
    }
    copy
}

/// Node `index`.
pub fn node(index: usize) -> NodeId {
    NodeId::new(index).unwrap()
}

/// Builds the map of these ranges; its storage is leaked.
pub fn map(ranges: &[(PhysRange, MemoryKind)]) -> MemoryMap<'static> {
    let storage = vec![MapRange::EMPTY; 2 * ranges.len() + 16];
    let mut builder = MapBuilder::new(storage.leak());
    for &(range, kind) in ranges {
        builder.add(range.start, range.size(), kind).unwrap();
    }
    builder.finish().unwrap()
}

/// The nodes that own these ranges, each with whether the range is hot-pluggable.
pub fn topology(claims: &[(PhysRange, usize, bool)]) -> Topology<'static> {
    let storage = vec![MemoryAffinity::EMPTY; 2 * claims.len() + 16];
    let mut topology = Topology::new(storage.leak());
    for &(range, index, hot_pluggable) in claims {
        topology.add_memory(range, node(index), hot_pluggable).unwrap();
    }
    topology
}

/// Node and flags of bytes that a region covers.
pub type Key = Option<(Option<NodeId>, RegionFlags)>;

/// Says what kind of memory each frame is, frame by frame.
pub fn frame_key(map: MemoryMap<'_>, topology: &Topology<'_>, frame: PhysRange) -> Key {
    let entry = map.ranges().iter().find(|entry| entry.range.intersection(frame) == frame)?;
    let owner = topology.owner(frame.start);
    let flags = match entry.kind {
        MemoryKind::Unaccepted => RegionFlags::UNACCEPTED,
        MemoryKind::HotPluggable => RegionFlags::HOT_PLUGGABLE,
        MemoryKind::Conventional if owner.hot_pluggable => RegionFlags::HOT_PLUGGABLE,
        MemoryKind::Conventional => RegionFlags::NONE,
        _ => return None,
    };
    Some((Some(owner.node), flags))
}

/// Everything observable about an allocator, to compare before and after.
pub fn sets(early: &Early) -> (Vec<Region>, Vec<Region>, [PhysRange; 2]) {
    (early.memory().to_vec(), early.reserved().to_vec(), early.storage())
}

/// Checks that regions are sorted, disjoint, not empty, and joined.
pub fn assert_well_formed(regions: &[Region]) {
    for region in regions {
        assert!(region.range.start < region.range.end, "empty region {region:?}");
    }
    for pair in regions.windows(2) {
        let (low, high) = (&pair[0], &pair[1]);
        assert!(
            low.range.end <= high.range.start,
            "{low:?} and {high:?} overlap or are out of order"
        );
        let alike = low.node == high.node && low.flags == high.flags;
        assert!(low.range.end < high.range.start || !alike, "{low:?} and {high:?} are not joined");
    }
}

#[test]
#[should_panic(expected = "outside the arena")]
fn memory_outside_the_arena_cannot_be_touched() {
    let platform = FakePlatform::leak(0x1000_0000, 0x1000);
    platform.direct(0x1000_1000);
}
