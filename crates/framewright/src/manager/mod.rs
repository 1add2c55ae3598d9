//! The manager: all memory of a machine behind one front door.
//!
//! [`Manager::bring_up`] builds it from the memblock allocator's free memory (`plan` measures,
//! `bring_up` fills); `allocate` serves requests across zones and nodes; `vmemmap` brings up
//! what was withheld, `hvo` gives the map of huge pages back; `pages` finds descriptors and
//! `references` counts references to what was allocated; `pools` keeps huge pages. It holds no
//! pointer that its user must keep alive: everything lies in memory that it reserved.
//!
//! # Owning memory
//!
//! **Memory is owned by number, and taking it away by number is unsafe.** A
//! [`Pfn`](crate::units::Pfn) or a [`PfnRange`] is a number that anybody can write down: having it
//! proves nothing. So
//!
//! * taking memory is safe ([`Manager::allocate`] and all its like, [`Pool::allocate`],
//!   [`Isolation::claim`]): whoever is given a range owns it, and may pass it on to others,
//!   or forget it, which leaks it;
//! * every call that takes frames, or a reference to them, away from whoever has them is `unsafe`:
//!   [`Manager::free`], [`free_order`](Manager::free_order), [`put`](References::put),
//!   [`put_testzero`](References::put_testzero), [`free_frozen`](References::free_frozen),
//!   [`freeze`](References::freeze), [`unfreeze`](References::unfreeze),
//!   [`start_references`](References::start), [`optimize_vmemmap`](Vmemmap::optimize),
//!   [`restore_vmemmap`](Vmemmap::restore), [`Pool::free`], and those of the
//!   [adapters](crate::adapters).
//!
//! The contract is one for all of them. **The caller owns every frame that it names**: this manager
//! gave it to the caller, by an allocation, by a claim, or by a reference (for what is done with
//! that reference), or its owner passed it on. **And nobody uses it afterwards**: no Rust reference
//! leads into it, no translation names it, no device writes to it. Where a call leaves the caller
//! the owner, the second half does not apply, and its documentation says so.
//!
//! Wrong arguments are answered with an error as far as they are found, and nothing has then
//! changed. What is not found (a frame that was freed and is somebody else's by now cannot be told
//! from one's own) is what the contract excludes.
//!
//! [`Frames`] is the safe way: it owns what it names, frees it when it is dropped, and gives the
//! number away only by name ([`Frames::into_range`]). Who keeps page tables or lists of millions of
//! frames works with numbers and says why each free is right.

mod aided;
mod allocate;
mod cached;
mod facets;
mod hugetlb;
mod hvo;
mod init;
mod isolate;
mod misuse;
mod node_clock;
mod numa;
mod owned;
mod pages;
mod plan;
mod pressure;
mod references;
mod reporting;
mod settings;
mod shortfall;
mod vmemmap;
mod zone_view;

pub use allocate::{AllocateError, Request};
pub use cached::CpuCacheInfo;
pub use facets::{
    Caches, Debugging, Hugetlb, Isolation, Numa, Pressure, References, Sysctl, Vmemmap,
};
pub(crate) use hugetlb::Loan;
pub use hugetlb::{BootFill, BootPool, Poisoned, Pool, PoolBatch, PoolVmemmap, Resized};
pub use hvo::{MapChange, MapError};
pub use init::{BringUp, BringUpError, BringUpFailed, PlatformFault, ShuffleSeed};
pub use numa::NumaCounts;
pub use owned::Frames;
pub use pressure::{PressureEvents, Reclaim, Shortage};
pub use references::ReferenceError;
pub(crate) use reporting::add;
pub use reporting::{Reporting, ReportingCounters};
pub use settings::{Settings, SettingsError};
pub use shortfall::Shortfall;
pub use vmemmap::DeferredNode;
pub use zone_view::ZoneView;

use self::isolate::Isolations;
use crate::block::{BlockEntry, BlockState};
use crate::page::CpuCache;
use crate::platform::Platform;
use crate::sync::SpinLock;
use crate::units::{NodeId, PfnRange};
use crate::vmemmap::MapFallback;
use crate::vmemmap_space::BlockNumber;
use crate::zone::{Counts, Fault, Segment, Zone, ZoneId, ZoneKind, segment};
use aided::Debug;
use hugetlb::Pools;
use hvo::SectionLocks;
use pressure::PressureState;
use settings::Tunables;
use vmemmap::MapPolicy;

/// One node, as the manager keeps it.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    /// Its number.
    pub id: NodeId,
    /// CPUs that firmware counted on it.
    pub cpus: u32,
    /// From its first frame of memory to its last, holes included; empty when it has none.
    pub span: PfnRange,
    /// Nodes with memory, nearest first.
    pub fallback: &'static [NodeId],
    /// How far each node is, in the units of ACPI, where 10 is the node itself.
    pub distances: &'static [u8],
    /// How long it took to make its free memory available: from the memblock allocator's ranges to
    /// blocks in the free lists of its zones. This is to the policy *on demand* what initialising a
    /// node's deferred pages is to others.
    pub init_ns: Option<u64>,
    /// How long else was worked for the node alone: its memory was counted, what is reserved was
    /// said, blocks in pieces were noted and described, and under *eager* all others, too. What is
    /// done once for the machine, such as measuring it and placing tables, is in neither.
    pub bookkeeping_ns: Option<u64>,
    /// Why the array does not describe the node's memory, where it should: its descriptors come on
    /// demand.
    pub map_fallback: Option<MapFallback>,
}

/// When bring-up reached what, in nanoseconds since it began. All are absent when the platform has
/// no clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BringUpTimes {
    /// All tables have their memory and their place.
    pub tables_ns: Option<u64>,
    /// A block was allocated and freed again: memory can be handed out.
    pub first_alloc_ns: Option<u64>,
    /// Bring-up is over; memory that is withheld follows ([`Vmemmap::initialise_deferred`]).
    pub bring_up_ns: Option<u64>,
    /// All memory is available: at the end of bring-up, or when nothing was withheld any more.
    pub all_memory_ns: Option<u64>,
}

/// All memory of a machine.
pub struct Manager<P: Platform> {
    platform: &'static P,
    zones: &'static [Zone],
    /// Which zone a [`ZoneId`] is; [`NO_ZONE`] when it has no memory.
    slots: &'static [u16],
    nodes: &'static [Node],
    /// All segments, ascending.
    directory: &'static [Segment],
    /// One for each CPU.
    caches: &'static [CpuCache],
    /// The zone that the caches of all CPUs keep frames of, where there is one.
    sole: Option<&'static Zone>,
    pressure: PressureState,
    debug: Debug,
    isolations: SpinLock<Isolations>,
    tunables: SpinLock<Tunables>,
    settings: Settings,
    reporting: Reporting,
    vmemmap: MapPolicy,
    section_locks: SectionLocks,
    pools: Pools,
    shuffle_seed: Option<ShuffleSeed>,
    metadata_bytes: u64,
    times: BringUpTimes,
}

const NO_ZONE: u16 = u16::MAX;

impl<P: Platform> Manager<P> {
    /// The platform under it.
    #[must_use]
    pub const fn platform(&self) -> &'static P {
        self.platform
    }

    /// All zones with memory, nodes ascending, kinds ascending in each.
    #[must_use]
    pub const fn zones(&self) -> &'static [Zone] {
        self.zones
    }

    /// All nodes.
    #[must_use]
    pub const fn nodes(&self) -> &'static [Node] {
        self.nodes
    }

    /// A zone, unless it has no memory.
    #[must_use]
    pub fn zone(&self, id: ZoneId) -> Option<&'static Zone> {
        let slot = *self.slots.get(id.index())?;
        self.zones.get(usize::from(slot))
    }

    /// Everything that the manager kept after bring-up, in bytes: tables, maps, zones, directory,
    /// the vmemmap, and itself. Tables are counted whole, also the parts that were never
    /// touched. Page descriptors that lie inside blocks are not among it: [`totals`](Self::totals)
    /// has their frames.
    #[must_use]
    pub const fn metadata_bytes(&self) -> u64 {
        self.metadata_bytes
    }

    /// How long bring-up took.
    #[must_use]
    pub fn times(&self) -> BringUpTimes {
        BringUpTimes {
            all_memory_ns: self.times.all_memory_ns.or_else(|| self.vmemmap().all_memory_ns()),
            ..self.times
        }
    }

    /// Sum over all zones, from their counters. Allocated is what is managed and nothing else.
    #[must_use]
    pub fn totals(&self) -> Counts {
        let mut totals = Counts::default();
        for zone in self.zones {
            let (managed_pages, free_pages) = (zone.managed_pages(), zone.free_pages());
            let (map_pages, isolated_pages) = (zone.map_pages(), zone.isolated_pages());
            let reporting_pages = zone.reporting_pages();
            let deferred_pages = zone.deferred_pages();
            totals += Counts {
                present_pages: zone.present_pages(),
                managed_pages,
                reserved_pages: zone.reserved_pages(),
                free_pages,
                allocated_pages: managed_pages
                    .saturating_sub(free_pages + map_pages + isolated_pages + reporting_pages),
                map_pages,
                isolated_pages,
                reporting_pages,
                deferred_pages,
            };
        }
        totals
    }

    /// Recounts everything from the tables and checks the invariants 5 to 10.
    ///
    /// # Errors
    /// The first [`Fault`] found.
    pub fn verify(&self) -> Result<Counts, Fault> {
        let mut counts = Counts::default();
        for zone in self.zones {
            counts += zone.verify(self.platform)?;
        }
        Ok(counts)
    }

    /// What the block that holds a frame is; nothing for a hole.
    pub fn block_state(&self, block: BlockNumber) -> Option<BlockState> {
        let segment = segment::find(self.directory, block)?;
        self.zones.get(usize::from(segment.zone))?.state_of(self.platform, block)
    }

    /// What the order of the shuffle began with; nothing where it is off.
    #[must_use]
    pub const fn shuffle_seed(&self) -> Option<ShuffleSeed> {
        self.shuffle_seed
    }

    pub(crate) const fn shared_reporting(&self) -> &Reporting {
        &self.reporting
    }

    /// Memory became free again.
    pub(crate) fn stir(&self) {
        self.pressure.quiet.stir();
    }

    fn zone_of_kind(&self, node: NodeId, kind: ZoneKind) -> Option<&'static Zone> {
        self.zone(ZoneId { node, kind })
    }
}

/// Bytes of table that describe one block: its entry and its free map.
pub const TABLE_BYTES_PER_BLOCK: u64 =
    (size_of::<BlockEntry>() + size_of::<crate::block::FreeMap>()) as u64;
