//! The memblock allocator itself. See the [module documentation](super).

use super::accept::EarlyAccepted;
use super::error::{MemblockError, SetName};
use super::region::{EarlyMirror, Region, RegionFlags};
use super::request::{MemblockRequest, NodeChoice, Tables};
use super::search::{Place, Query};
use super::set::{FIXED_REGIONS, RegionSet};
use crate::firmware::{MemoryKind, MemoryMap, NodeRange, Topology, node_ranges};
use crate::platform::Platform;
use crate::units::{NodeId, PAGE_SIZE, PHYSICAL_ADDRESS_END, PfnRange, PhysRange};
use core::fmt;

/// The alignment in bytes of a request that names none: a cache line.
const CACHE_LINE_BYTES: u64 = 64;

/// Frame 0: address 0 means failure to too many callers, so it is reserved from the start and never
/// freed.
const FRAME_ZERO: PhysRange = PhysRange::new(0, PAGE_SIZE);

/// Room for the first 128 regions of each set, some 6 KiB. The adopter lends it, so that it can be
/// in a static where stacks are small. It also keeps the allocator itself small enough to be passed
/// by value.
#[derive(Debug)]
pub struct MemblockStorage {
    memory: [Region; FIXED_REGIONS],
    reserved: [Region; FIXED_REGIONS],
}

impl MemblockStorage {
    /// Makes empty storage.
    #[must_use]
    pub const fn new() -> Self {
        Self { memory: [Region::EMPTY; FIXED_REGIONS], reserved: [Region::EMPTY; FIXED_REGIONS] }
    }

    /// Returns the room of the memory set and that of the reserved set.
    pub(crate) const fn regions(&mut self) -> (&mut [Region], &mut [Region]) {
        (&mut self.memory, &mut self.reserved)
    }
}

impl Default for MemblockStorage {
    fn default() -> Self {
        Self::new()
    }
}

/// See the [module documentation](super). It is a few words long: its first regions are in the
/// [`MemblockStorage`] that the adopter lends.
///
/// It carries what [`Manager::bring_up`](crate::Manager::bring_up) needs to know of memory and
/// nodes, and is passed to it by value. So a manager has the memory of exactly one allocator,
/// including memory that [`add_memory`](Self::add_memory) added, and no other call can use that
/// memory.
///
/// Only a caller that promises that the memory is unused can start one:
///
/// ```compile_fail,E0133
/// # use framewright::Platform;
/// # use framewright::firmware::{MemoryMap, Topology};
/// # use framewright::memblock::{Memblock, MemblockError, MemblockStorage};
/// fn start<'a, P: Platform>(
///     kernel: &'static P,
///     room: &'a mut MemblockStorage,
///     map: MemoryMap<'_>,
///     nodes: &'a Topology<'a>,
/// ) {
///     let _ = Memblock::new(kernel, room, map, nodes);
/// }
/// ```
///
/// And one allocator cannot become two managers:
///
/// ```compile_fail,E0382
/// # use framewright::{BringUp, Manager, Platform, memblock::Memblock};
/// fn twice<P: Platform>(early: Memblock<'_, P>, input: &BringUp<'_>) {
///     let first = Manager::bring_up(early, input);
///     let second = Manager::bring_up(early, input);
/// }
/// ```
pub struct Memblock<'a, P: Platform> {
    pub(super) platform: &'static P,
    pub(super) topology: &'a Topology<'a>,
    pub(super) memory: RegionSet<'a>,
    pub(super) reserved: RegionSet<'a>,
    pub(super) bottom_up: bool,
    pub(super) movable_node: bool,
    pub(super) tables: Tables,
    pub(super) discarded: bool,
    pub(super) accepted: EarlyAccepted,
    pub(super) mirror: EarlyMirror,
}

impl<'a, P: Platform> Memblock<'a, P> {
    /// Makes an allocator that knows all present memory of `map`, each range with its node;
    /// reserves nothing but frame 0.
    ///
    /// A map of more than 128 ranges needs an array in memory at once, before anything can be
    /// reserved. If such a map calls memory usable that is in use (by the kernel or an initial RAM
    /// disk), use [`with_reserved`](Self::with_reserved).
    ///
    /// # Safety
    /// As for [`with_reserved`](Self::with_reserved); in addition, no usable memory is in use.
    ///
    /// # Errors
    /// [`MemblockError::NoRoomToGrow`] or [`MemblockError::MisalignedDirectMap`], for a map of more
    /// than 128 ranges.
    pub unsafe fn new(
        platform: &'static P,
        storage: &'a mut MemblockStorage,
        map: MemoryMap<'_>,
        topology: &'a Topology<'a>,
    ) -> Result<Self, MemblockError> {
        // SAFETY: the caller promises what is required; nothing needs a reservation.
        unsafe { Self::with_reserved(platform, storage, map, topology, &[]) }
    }

    /// [`new`](Self::new) with the ranges of `reserved` reserved before any memory is used.
    ///
    /// # Safety
    /// What the map calls usable and `reserved` does not name is unused RAM (invariant 1): nothing
    /// that is in use lies in it, and [`Platform::direct`] shows it below
    /// [`Platform::direct_limit`]. From now on only this allocator, those to whom it gives memory,
    /// and the manager that is made from it use that RAM, for as long as one of them is there:
    /// there is no second allocator or manager of the same memory meanwhile. What is reserved later
    /// with [`reserve`](Self::reserve) may already hold an array of the allocator's own or an
    /// allocation.
    ///
    /// # Errors
    /// As for [`new`](Self::new); the arrays may also be needed for many `reserved` ranges.
    pub unsafe fn with_reserved(
        platform: &'static P,
        storage: &'a mut MemblockStorage,
        map: MemoryMap<'_>,
        topology: &'a Topology<'a>,
        reserved: &[PhysRange],
    ) -> Result<Self, MemblockError> {
        let mut early = Self::empty(platform, storage, topology);
        // SAFETY: the caller promises the same.
        unsafe { early.start(map, reserved) }?;
        Ok(early)
    }

    /// Makes an allocator that knows no memory yet and reserves nothing but frame 0.
    #[must_use]
    pub fn empty(
        platform: &'static P,
        storage: &'a mut MemblockStorage,
        topology: &'a Topology<'a>,
    ) -> Self {
        let (memory, reserved) = storage.regions();
        Self::over(platform, memory, reserved, topology)
    }

    /// [`empty`](Self::empty) in room for any number of regions, at least one in each set.
    pub(crate) fn over(
        platform: &'static P,
        memory: &'a mut [Region],
        reserved: &'a mut [Region],
        topology: &'a Topology<'a>,
    ) -> Self {
        let memory = RegionSet::new(memory);
        let mut reserved = RegionSet::new(reserved);
        reserved.cover(&reservation(FRAME_ZERO));
        Self {
            platform,
            topology,
            memory,
            reserved,
            bottom_up: false,
            movable_node: false,
            tables: Tables::High,
            discarded: false,
            accepted: EarlyAccepted::default(),
            mirror: EarlyMirror::default(),
        }
    }

    /// Turns an [`empty`](Self::empty) allocator into one as [`with_reserved`](Self::with_reserved)
    /// returns.
    ///
    /// # Safety
    /// As for [`with_reserved`](Self::with_reserved).
    ///
    /// # Errors
    /// As there, and [`MemblockError::AlreadyStarted`] or [`MemblockError::Discarded`] when it is
    /// not empty.
    pub unsafe fn start(
        &mut self,
        map: MemoryMap<'_>,
        reserved: &[PhysRange],
    ) -> Result<(), MemblockError> {
        self.check_live()?;
        let frame_zero = reservation(FRAME_ZERO);
        if !self.memory.regions().is_empty() || self.reserved.regions() != [frame_zero] {
            return Err(MemblockError::AlreadyStarted);
        }
        let started = self.fill(map, reserved);
        if started.is_err() {
            self.memory.clear();
            self.reserved.clear();
            self.reserved.cover(&frame_zero);
        }
        started
    }

    pub(super) fn fill(
        &mut self,
        map: MemoryMap<'_>,
        reserved: &[PhysRange],
    ) -> Result<(), MemblockError> {
        let topology = self.topology;
        if let Some(capacity) = self.memory.capacity_to_grow_to(count_regions(map, topology)) {
            // The set does not know its memory yet, so the search for its array's place goes
            // through the map, range by range.
            let place = self.array_queries(capacity).find_map(|query| {
                if !cfg!(feature = "large-maps") {
                    return None;
                }
                let mut places = node_ranges(map, topology).filter_map(|range| {
                    query.find(&[memory_region(&range)], self.reserved.regions(), &[reserved])
                });
                if self.bottom_up { places.next() } else { places.last() }
            });
            let array = self.array_in(SetName::Memory, place, capacity)?;
            self.adopt(SetName::Memory, array);
        }
        for range in node_ranges(map, topology) {
            self.memory.cover(&memory_region(&range));
        }
        reserved.iter().try_for_each(|&range| self.reserve_avoiding(range, reserved))?;
        if self.movable_node {
            self.keep_nodes_in_use();
        }
        Ok(())
    }

    /// Adds memory that the map did not have: the whole frames in `range`. Frames already known
    /// keep their node and flags. The manager gets the new frames with the rest.
    ///
    /// # Safety
    /// These frames meet what [`with_reserved`](Self::with_reserved) requires of usable memory,
    /// except those that are reserved already; and [`Platform::direct`] is linear over them and
    /// over the memory that they touch.
    ///
    /// # Errors
    /// [`MemblockError::UnknownNode`], [`MemblockError::NoRoomToGrow`],
    /// [`MemblockError::MisalignedDirectMap`], [`MemblockError::Discarded`].
    pub unsafe fn add_memory(
        &mut self,
        range: PhysRange,
        node: NodeId,
        hot_pluggable: bool,
    ) -> Result<(), MemblockError> {
        self.check_live()?;
        let nodes = self.topology.node_count();
        if node.index() >= nodes {
            return Err(MemblockError::UnknownNode { node, nodes });
        }
        let flags = if hot_pluggable { RegionFlags::HOT_PLUGGABLE } else { RegionFlags::NONE };
        let new = Region { range: clip(range).whole_frames().to_phys(), node: Some(node), flags };
        if self.memory.append(&new) {
            return Ok(());
        }
        self.make_room(self.memory.room_to_cover(&new), 0, &[new.range])?;
        self.memory.cover(&new);
        Ok(())
    }

    /// Reserves bytes, whether they are known memory or not, clipped at the end of the address
    /// space. Parts that are already reserved stay as they are. Reserve memory that is in use
    /// before the first allocation, as [`with_reserved`](Self::with_reserved) does.
    ///
    /// # Errors
    /// [`MemblockError::NoRoomToGrow`], [`MemblockError::MisalignedDirectMap`],
    /// [`MemblockError::Discarded`].
    pub fn reserve(&mut self, range: PhysRange) -> Result<(), MemblockError> {
        self.check_live()?;
        self.reserve_avoiding(range, &[range])
    }

    /// [`reserve`](Self::reserve) of whole frames, none of which is reserved yet. Their user frees
    /// them to the manager, once there is one, like any allocation.
    pub(crate) fn reserve_in_use(&mut self, frames: PfnRange) -> Result<(), MemblockError> {
        self.check_live()?;
        let range = clip(frames.to_phys());
        let new = Region { flags: RegionFlags::IN_USE, ..reservation(range) };
        if !self.memory.has_grown() && self.reserved.append(&new) {
            return Ok(());
        }
        self.reserve_region(&new, &[range])
    }

    /// Reserves `range`. If this needs a larger array, the array is placed outside all of `avoid`.
    pub(super) fn reserve_avoiding(
        &mut self,
        range: PhysRange,
        avoid: &[PhysRange],
    ) -> Result<(), MemblockError> {
        self.reserve_region(&reservation(clip(range)), avoid)
    }

    fn reserve_region(&mut self, new: &Region, avoid: &[PhysRange]) -> Result<(), MemblockError> {
        self.make_room(0, self.reserved.room_to_cover(new), avoid)?;
        // If one of our arrays lies in the range, its bytes have two owners from now on.
        self.memory.keep_storage_in(new.range);
        self.reserved.keep_storage_in(new.range);
        self.reserved.cover(new);
        Ok(())
    }

    /// Allocates the highest fitting bytes (the lowest when [bottom-up](Self::set_bottom_up))
    /// inside one memory region, and reserves them with that region's node. Bytes of another node
    /// are second choice, bytes below `min_address` third; under
    /// [`movable_node`](Self::set_movable_node) hot-pluggable memory comes last. With
    /// [`mirrored_first`](Self::set_mirrored_first) mirrored memory of any node comes before other
    /// memory of the wanted one. Memory is accepted when it is handed out
    /// ([`Platform::accept_memory`]); on each node memory that is already accepted is first choice.
    ///
    /// # Errors
    /// [`MemblockError::ZeroSize`], [`MemblockError::BadAlignment`],
    /// [`MemblockError::OutOfMemory`], [`MemblockError::NoRoomToGrow`],
    /// [`MemblockError::MisalignedDirectMap`], [`MemblockError::Discarded`].
    pub fn allocate(&mut self, request: &MemblockRequest) -> Result<PhysRange, MemblockError> {
        self.check_live()?;
        let align = if request.align_bytes == 0 { CACHE_LINE_BYTES } else { request.align_bytes };
        if request.size_bytes == 0 {
            return Err(MemblockError::ZeroSize);
        }
        if !align.is_power_of_two() {
            return Err(MemblockError::BadAlignment { align_bytes: align });
        }
        loop {
            let place = self.find(request, align)?;
            if self.secure(place.range())? {
                let taken = self.reserve_place(&place, request)?;
                self.note_unmirrored(taken);
                return Ok(taken);
            }
        }
    }

    /// Turns a place that was just found into an allocation.
    pub(super) fn reserve_place(
        &mut self,
        place: &Place,
        request: &MemblockRequest,
    ) -> Result<PhysRange, MemblockError> {
        let flags = if request.no_init { RegionFlags::NO_INIT } else { RegionFlags::NONE };
        let new = Region { range: place.range(), node: place.node(), flags };
        self.make_room(0, self.reserved.room_to_cover(&new), &[new.range])?;
        self.reserved.cover(&new);
        if request.zeroed {
            super::storage::zero(self.platform, place);
        }
        Ok(new.range)
    }

    pub(super) fn find(
        &self,
        request: &MemblockRequest,
        align: u64,
    ) -> Result<Place, MemblockError> {
        let touched = request.zeroed || !request.no_init;
        let reach = if touched { self.platform.direct_limit() } else { PHYSICAL_ADDRESS_END };
        let max_address = request.max_address.min(reach).min(PHYSICAL_ADDRESS_END);
        let (node, fallback) = match request.node {
            NodeChoice::Any => (None, false),
            NodeChoice::Preferred(node) => (Some(node), true),
            NodeChoice::Exact(node) => (Some(node), false),
        };
        let mut query = Query {
            size: request.size_bytes,
            align,
            window: PhysRange::default(),
            node,
            hot_pluggable: true,
            unaccepted: false,
            mirrored: false,
            bottom_up: self.bottom_up,
            edges: false,
        };
        let (memory, reserved) = (self.memory.regions(), self.reserved.regions());
        for &hot_pluggable in self.hot_pluggable(request.hot_pluggable) {
            query.hot_pluggable = hot_pluggable;
            for min_address in [request.min_address, 0] {
                query.window = PhysRange::new(min_address, max_address);
                for &mirrored in self.mirrored() {
                    query.mirrored = mirrored;
                    query.node = node;
                    // Accepted memory comes first, but a node's own memory comes before another's.
                    for &unaccepted in self.unaccepted() {
                        query.unaccepted = unaccepted;
                        if let Some(place) = query.find(memory, reserved, &[]) {
                            return Ok(place);
                        }
                    }
                    query.node = if fallback { None } else { node };
                    let again = if fallback { self.unaccepted() } else { &[] };
                    for &unaccepted in again {
                        query.unaccepted = unaccepted;
                        if let Some(place) = query.find(memory, reserved, &[]) {
                            return Ok(place);
                        }
                    }
                }
                if request.min_address == 0 {
                    break;
                }
            }
        }
        Err(MemblockError::OutOfMemory {
            size_bytes: request.size_bytes,
            align_bytes: align,
            max_address,
            node: request.node,
            largest_bytes: query.largest(memory, reserved),
        })
    }

    /// Ends a reservation or an allocation, or a part of one. Bytes of `range` that are not
    /// reserved stay as they are, and so does frame 0. Does nothing for an empty range.
    ///
    /// # Safety
    /// Nobody uses the memory in `range` any more, because it is free to be allocated again. So
    /// memory that was reserved because it is in use, and memory that somebody else allocated, may
    /// be freed only when its user is done with it.
    ///
    /// # Errors
    /// [`MemblockError::NotReserved`] when nothing in the range is reserved,
    /// [`MemblockError::FrameZero`] when it has nothing beyond frame 0,
    /// [`MemblockError::OwnStorage`], [`MemblockError::NoRoomToGrow`],
    /// [`MemblockError::MisalignedDirectMap`], [`MemblockError::Discarded`].
    pub unsafe fn free(&mut self, range: PhysRange) -> Result<(), MemblockError> {
        self.check_live()?;
        let given = clip(range);
        let range = PhysRange::new(given.start.max(FRAME_ZERO.end), given.end);
        if given.is_empty() {
            return Ok(());
        }
        if range.is_empty() {
            return Err(MemblockError::FrameZero);
        }
        // If our own arrays were free, another owner could write into them (invariant 3).
        if let Some(&storage) =
            self.storage().iter().find(|storage| !storage.intersection(range).is_empty())
        {
            return Err(MemblockError::OwnStorage { storage });
        }
        if !self.reserved.touches(range) {
            return Err(MemblockError::NotReserved { range: given });
        }
        self.make_room(0, self.reserved.extra_to_uncover(range), &[range])?;
        self.reserved.uncover(range);
        Ok(())
    }

    /// Sets whether to allocate from low addresses up rather than from high ones down.
    pub fn set_bottom_up(&mut self, bottom_up: bool) {
        self.bottom_up = bottom_up;
    }

    /// Returns the regions of memory, ascending. Empty after [`discard`](Self::discard).
    #[must_use]
    pub fn memory(&self) -> &[Region] {
        self.memory.regions()
    }

    /// Returns the reserved regions, ascending; not all of them need be memory. Empty after
    /// [`discard`](Self::discard).
    #[must_use]
    pub fn reserved(&self) -> &[Region] {
        self.reserved.regions()
    }

    /// Returns the number of bytes of memory.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.memory.bytes()
    }

    /// Returns the number of reserved bytes, whether memory or not.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.reserved.bytes()
    }

    /// Returns the frames that hold the grown arrays of the memory set and of the reserved set;
    /// empty for a set that has not grown.
    #[must_use]
    pub fn storage(&self) -> [PhysRange; 2] {
        [self.memory.storage(), self.reserved.storage()]
    }

    pub(super) fn check_live(&self) -> Result<(), MemblockError> {
        if self.discarded { Err(MemblockError::Discarded) } else { Ok(()) }
    }
}

impl<P: Platform> fmt::Debug for Memblock<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memblock")
            .field("memory", &self.memory())
            .field("reserved", &self.reserved())
            .field("bottom_up", &self.bottom_up)
            .field("discarded", &self.discarded)
            .finish_non_exhaustive()
    }
}

/// Clips `range` at the end of the address space. The fields are public, so its end may lie before
/// its start.
fn clip(range: PhysRange) -> PhysRange {
    PhysRange::new(range.start.min(PHYSICAL_ADDRESS_END), range.end.min(PHYSICAL_ADDRESS_END))
}

const fn reservation(range: PhysRange) -> Region {
    Region { range, node: None, flags: RegionFlags::NONE }
}

/// Returns how many regions the memory of `map` makes once neighbours are joined.
fn count_regions(map: MemoryMap<'_>, topology: &Topology<'_>) -> usize {
    let mut last = Region::EMPTY;
    let starts_a_region = |range: NodeRange| {
        let region = memory_region(&range);
        let joins = last.range.end == region.range.start && last.is_like(&region);
        last = region;
        !joins
    };
    node_ranges(map, topology).map(starts_a_region).filter(|&starts| starts).count()
}

fn memory_region(range: &NodeRange) -> Region {
    let flags = match range.kind {
        MemoryKind::HotPluggable => RegionFlags::HOT_PLUGGABLE,
        MemoryKind::Unaccepted => RegionFlags::UNACCEPTED,
        _ => RegionFlags::NONE,
    };
    Region { range: range.range.to_phys(), node: Some(range.node), flags }
}
