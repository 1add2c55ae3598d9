//! The manager's state, in parts that do not depend on the manager.
//!
//! Orders of memory: Relaxed: a count that is only reported.

pub(crate) mod accept;
pub(crate) mod areas;
pub(crate) mod debug;
pub(crate) mod fallback;
pub(crate) mod hotplug;
pub(crate) mod isolations;
pub(crate) mod moving;
pub(crate) mod numa;
pub(crate) mod pools;
pub(crate) mod pressure;
pub(crate) mod tunables;
pub(crate) mod vmemmap;

use crate::block::{BlockEntry, BlockState};
use crate::manager::init::seed::ShuffleSeed;
use crate::manager::reporting::Reporting;
use crate::manager::state::accept::AcceptState;
use crate::manager::state::debug::DebugState;
use crate::manager::state::fallback::Fallback;
use crate::manager::state::hotplug::HotplugState;
use crate::manager::state::isolations::Isolations;
use crate::manager::state::moving::MovingState;
use crate::manager::state::numa::NumaSettings;
use crate::manager::state::pools::Pools;
use crate::manager::state::pressure::PressureState;
use crate::manager::state::tunables::{Settings, Tunables};
use crate::manager::state::vmemmap::{SectionLocks, VmemmapState};
use crate::page::CpuCache;
use crate::platform::Platform;
use crate::sync::table_atomic::{AtomicBool, Ordering};
use crate::sync::{Growing, SpinLock};
use crate::units::{NodeId, PfnRange};
use crate::vmemmap::VmemmapFallback;
use crate::vmemmap_space::BlockNumber;
use crate::zone::{Counts, Fault, Segment, Zone, ZoneId, ZoneParts};

/// The manager's record of one node.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    /// Its number.
    pub id: NodeId,
    /// How many CPUs firmware lists on the node.
    pub cpus: u32,
    /// From the first frame of memory that the node had at bring-up to its last, holes included;
    /// empty if it had none.
    pub span: PfnRange,
    /// The nodes that have or once had memory, in the order in which requests ask them: the node
    /// itself, then by tier, and in each tier the nearest first.
    pub fallback: Fallback,
    /// The distance to each node in the units of ACPI, in which the node itself is at 10.
    pub distances: &'static [u8],
    /// How long it took to make the node's free memory available, from the memblock allocator's
    /// ranges to blocks in the free lists of the node's zones. For the policy *on demand*, this
    /// corresponds to initialising a node's deferred pages under other policies.
    pub init_ns: Option<u64>,
    /// How long all other work for this node alone took: counting its memory, reporting what is
    /// reserved, recording and describing blocks in pieces and, under *eager*, describing all other
    /// blocks, too. Work that is done once for the machine, such as measuring it and placing
    /// tables, is in neither.
    pub bookkeeping_ns: Option<u64>,
    /// Why the vmemmap array does not describe the node's memory although it should; the
    /// descriptors are then made on demand.
    pub vmemmap_fallback: Option<VmemmapFallback>,
}

impl Node {
    /// Returns the node of this number, with nothing known about it yet.
    pub(crate) fn without_memory(index: usize) -> Self {
        Self {
            id: NodeId::new(index).unwrap_or_default(),
            cpus: 0,
            span: PfnRange::new(0, 0),
            fallback: Fallback::NONE,
            distances: &[],
            init_ns: None,
            bookkeeping_ns: None,
            vmemmap_fallback: None,
        }
    }
}

/// When bring-up reached each stage, in nanoseconds since it began. All times are absent if the
/// platform has no clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BringUpTimes {
    /// All tables have been placed and have their memory.
    pub tables_ns: Option<u64>,
    /// A block was allocated and freed again, so memory can be handed out.
    pub first_alloc_ns: Option<u64>,
    /// Bring-up is over; withheld memory follows
    /// ([`Vmemmap::initialise_deferred`](crate::manager::Vmemmap::initialise_deferred)).
    pub bring_up_ns: Option<u64>,
    /// All memory is available: at the end of bring-up, or as soon as no memory is withheld any
    /// more.
    pub all_memory_ns: Option<u64>,
}

/// All memory of a machine.
///
/// The value is small because it gets moved: to the adopter, and to where the adopter keeps it.
/// Large parts, and those that CPUs change, lie in the memory of the tables.
pub struct Manager<P: Platform> {
    pub(crate) platform: &'static P,
    /// The parts of all zones. Those that bring-up made come first; among them the parts of one
    /// zone are neighbours, ascending.
    pub(crate) zones: Growing<Zone>,
    /// For each [`ZoneId`], which of `zones` are its parts that bring-up made.
    pub(crate) slots: &'static [ZoneSlots],
    pub(crate) nodes: &'static [Node],
    /// All segments of bring-up, ascending.
    pub(crate) directory: &'static [Segment],
    pub(crate) hotplug: &'static HotplugState,
    /// One for each CPU.
    pub(crate) caches: &'static [CpuCache],
    /// The only zone of boot whose frames the CPU caches keep, if there is just one such zone.
    /// Windows that were added may be homes of CPUs besides.
    pub(crate) sole: Option<&'static Zone>,
    /// Whether any zone has several parts.
    pub(crate) is_divided: bool,
    /// A call that adds or removes a CPU is in progress.
    pub(crate) changing_cpus: AtomicBool,
    pub(crate) pressure: PressureState,
    pub(crate) numa: NumaSettings,
    pub(crate) debug: DebugState,
    pub(crate) isolations: &'static SpinLock<Isolations>,
    pub(crate) moving: &'static mut MovingState,
    pub(crate) tunables: &'static SpinLock<Tunables>,
    pub(crate) settings: Settings,
    pub(crate) reporting: Reporting,
    pub(crate) vmemmap: VmemmapState,
    pub(crate) accept: AcceptState,
    pub(crate) section_locks: SectionLocks,
    pub(crate) pools: &'static Pools,
    /// The seed of the first zone's shuffle, and where it came from.
    pub(crate) shuffle: Option<(u64, ShuffleSeed)>,
    pub(crate) metadata_bytes: u64,
    pub(crate) times: BringUpTimes,
}

/// Which of a manager's zones are the parts of one zone.
#[derive(Clone, Copy)]
pub(crate) struct ZoneSlots {
    pub(crate) first: u16,
    pub(crate) parts: u16,
}

impl ZoneSlots {
    /// The slots of a zone without memory.
    pub(crate) const NONE: Self = Self { first: u16::MAX, parts: 0 };

    /// Returns these parts out of `zones`.
    pub(crate) fn of(self, zones: &[Zone]) -> &[Zone] {
        let first = usize::from(self.first);
        zones.get(first..first + usize::from(self.parts)).unwrap_or(&[])
    }
}

impl<P: Platform> Manager<P> {
    /// Returns the platform under the manager.
    #[must_use]
    pub const fn platform(&self) -> &'static P {
        self.platform
    }

    /// Returns all zones with memory, each as its parts: by node, then by kind, then by part, all
    /// ascending; after these, the windows of memory that was added later, in the order in which
    /// they came. Most zones have one part. [`views`](Self::views) has each zone as a whole.
    #[must_use]
    #[inline]
    pub fn zones(&self) -> &'static [Zone] {
        self.zones.as_slice()
    }

    /// Returns all nodes.
    #[must_use]
    pub const fn nodes(&self) -> &'static [Node] {
        self.nodes
    }

    /// Returns the parts of a zone; none if it has no memory.
    pub(crate) fn parts(&self, id: ZoneId) -> ZoneParts<'static> {
        let zones = self.zones();
        let first = self.slots.get(id.index()).map_or(&[][..], |slots| slots.of(zones));
        ZoneParts::new(id, first, zones.get(self.hotplug.first_window..).unwrap_or(&[]))
    }

    /// Returns how many bytes the manager kept for itself after bring-up: tables, maps, zones,
    /// directory, the vmemmap, and the manager itself. Tables are counted whole, including the
    /// parts that were never touched. Page descriptors inside blocks are not included:
    /// [`totals`](Self::totals) counts their frames.
    #[must_use]
    pub fn metadata_bytes(&self) -> u64 {
        self.metadata_bytes + self.hotplug.table_bytes.load(Ordering::Relaxed)
    }

    /// Returns how long bring-up took.
    #[must_use]
    pub fn times(&self) -> BringUpTimes {
        BringUpTimes {
            all_memory_ns: self.times.all_memory_ns.or_else(|| self.vmemmap().all_memory_ns()),
            ..self.times
        }
    }

    /// Returns the sums of all zones' counters. Allocated pages are computed as the managed pages
    /// that are nothing else.
    #[must_use]
    pub fn totals(&self) -> Counts {
        let mut totals = Counts::default();
        for zone in self.zones() {
            let (managed_pages, free_pages) = (zone.managed_pages(), zone.free_pages());
            let (descriptor_pages, isolated_pages) =
                (zone.descriptor_pages(), zone.isolated_pages());
            let reporting_pages = zone.reporting_pages();
            let deferred_pages = zone.deferred_pages();
            let unaccepted_pages = zone.unaccepted_pages();
            totals += Counts {
                present_pages: zone.present_pages(),
                managed_pages,
                reserved_pages: zone.reserved_pages(),
                free_pages,
                allocated_pages: managed_pages.saturating_sub(
                    free_pages + descriptor_pages + isolated_pages + reporting_pages,
                ),
                descriptor_pages,
                isolated_pages,
                reporting_pages,
                deferred_pages,
                unaccepted_pages,
            };
        }
        totals
    }

    /// Recounts everything from the tables and checks invariants 5 to 10, 21, 34, 36, 41, 45, 46
    /// and 53.
    ///
    /// # Errors
    /// The first [`Fault`] found.
    pub fn verify(&self) -> Result<Counts, Fault> {
        let mut counts = Counts::default();
        for zone in self.zones() {
            counts += zone.verify(self.platform)?;
        }
        self.verify_borders()?;
        Ok(counts)
    }

    /// Returns the state of a block; `None` for a hole.
    pub fn block_state(&self, block: BlockNumber) -> Option<BlockState> {
        let segment = self.segment_of(block)?;
        self.zones().get(usize::from(segment.zone))?.state_of(self.platform, block)
    }

    /// Returns the command-line settings that stay fixed.
    #[must_use]
    pub const fn settings(&self) -> Settings {
        self.settings
    }

    /// Returns where the seed of the shuffle came from; `None` if the shuffle is off.
    #[must_use]
    pub const fn shuffle_seed(&self) -> Option<ShuffleSeed> {
        match self.shuffle {
            Some((_, from)) => Some(from),
            None => None,
        }
    }

    pub(crate) const fn shared_reporting(&self) -> &Reporting {
        &self.reporting
    }

    /// Notes that memory became free again.
    pub(crate) fn note_free(&self) {
        self.pressure.epoch.note_free();
    }
}

/// Bytes of tables per block: its entry and its free map.
pub const TABLE_BYTES_PER_BLOCK: u64 =
    (size_of::<BlockEntry>() + size_of::<crate::block::FreeMap>()) as u64;
