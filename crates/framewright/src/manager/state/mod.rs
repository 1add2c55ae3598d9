//! Everything that a manager keeps, in parts that know nothing of it.
//!
//! Orders of memory: Relaxed: a count that is only told.

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

/// One node, as the manager keeps it.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    /// Its number.
    pub id: NodeId,
    /// CPUs that firmware counted on it.
    pub cpus: u32,
    /// From its first frame of memory to its last, holes included; empty when it has none.
    pub span: PfnRange,
    /// Nodes with memory: itself, then by tier, of each the nearest first.
    pub fallback: Fallback,
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
    pub vmemmap_fallback: Option<VmemmapFallback>,
}

impl Node {
    /// The node of this number, of which nothing is known yet.
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

/// When bring-up reached what, in nanoseconds since it began. All are absent when the platform has
/// no clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BringUpTimes {
    /// All tables have their memory and their place.
    pub tables_ns: Option<u64>,
    /// A block was allocated and freed again: memory can be handed out.
    pub first_alloc_ns: Option<u64>,
    /// Bring-up is over; memory that is withheld follows
    /// ([`Vmemmap::initialise_deferred`](crate::manager::Vmemmap::initialise_deferred)).
    pub bring_up_ns: Option<u64>,
    /// All memory is available: at the end of bring-up, or when nothing was withheld any more.
    pub all_memory_ns: Option<u64>,
}

/// All memory of a machine.
///
/// Small, as it is moved: into the adopter's hands, and to where these keep it. What is large, and
/// what CPUs change, lies in the memory that its tables lie in.
pub struct Manager<P: Platform> {
    pub(crate) platform: &'static P,
    /// The parts of all zones; those of bring-up come first, and of these a zone's follow one
    /// another, ascending.
    pub(crate) zones: Growing<Zone>,
    /// Which of `zones` are the parts of a [`ZoneId`] that bring-up made.
    pub(crate) slots: &'static [ZoneSlots],
    pub(crate) nodes: &'static [Node],
    /// All segments of bring-up, ascending.
    pub(crate) directory: &'static [Segment],
    pub(crate) hotplug: &'static HotplugState,
    /// One for each CPU.
    pub(crate) caches: &'static [CpuCache],
    /// The zone that the caches of all CPUs keep frames of, where there is one.
    pub(crate) sole: Option<&'static Zone>,
    /// Whether any zone has several parts.
    pub(crate) is_divided: bool,
    /// A call says that a CPU comes or goes.
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
    /// The seed of the first zone's shuffle, and what it is.
    pub(crate) shuffle: Option<(u64, ShuffleSeed)>,
    pub(crate) metadata_bytes: u64,
    pub(crate) times: BringUpTimes,
}

/// Which of a manager's zones are the parts of one.
#[derive(Clone, Copy)]
pub(crate) struct ZoneSlots {
    pub(crate) first: u16,
    pub(crate) parts: u16,
}

impl ZoneSlots {
    /// Of a zone without memory.
    pub(crate) const NONE: Self = Self { first: u16::MAX, parts: 0 };

    /// They, of all.
    pub(crate) fn of(self, zones: &[Zone]) -> &[Zone] {
        let first = usize::from(self.first);
        zones.get(first..first + usize::from(self.parts)).unwrap_or(&[])
    }
}

impl<P: Platform> Manager<P> {
    /// The platform under it.
    #[must_use]
    pub const fn platform(&self) -> &'static P {
        self.platform
    }

    /// All zones with memory, each as its parts: nodes ascending, kinds ascending in each, parts
    /// ascending in each; then the windows of memory that was added later, in the order in which
    /// they came. Most zones have one part. [`views`](Self::views) has each zone as a whole.
    #[must_use]
    #[inline]
    pub fn zones(&self) -> &'static [Zone] {
        self.zones.as_slice()
    }

    /// All nodes.
    #[must_use]
    pub const fn nodes(&self) -> &'static [Node] {
        self.nodes
    }

    /// The parts of a zone; none when it has no memory.
    pub(crate) fn parts(&self, id: ZoneId) -> ZoneParts<'static> {
        let zones = self.zones();
        let first = self.slots.get(id.index()).map_or(&[][..], |slots| slots.of(zones));
        ZoneParts::new(id, first, zones.get(self.hotplug.first_window..).unwrap_or(&[]))
    }

    /// Everything that the manager kept after bring-up, in bytes: tables, maps, zones, directory,
    /// the vmemmap, and itself. Tables are counted whole, also the parts that were never
    /// touched. Page descriptors that lie inside blocks are not among it: [`totals`](Self::totals)
    /// has their frames.
    #[must_use]
    pub fn metadata_bytes(&self) -> u64 {
        self.metadata_bytes + self.hotplug.table_bytes.load(Ordering::Relaxed)
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

    /// Recounts everything from the tables and checks the invariants 5 to 10, 21, 34, 36,
    /// 41, 45 and 46.
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

    /// What the block that holds a frame is; nothing for a hole.
    pub fn block_state(&self, block: BlockNumber) -> Option<BlockState> {
        let segment = self.segment_of(block)?;
        self.zones().get(usize::from(segment.zone))?.state_of(self.platform, block)
    }

    /// What the command line set for good.
    #[must_use]
    pub const fn settings(&self) -> Settings {
        self.settings
    }

    /// What the order of the shuffle began with; nothing where it is off.
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

    /// Memory became free again.
    pub(crate) fn note_free(&self) {
        self.pressure.epoch.note_free();
    }
}

/// Bytes of table that describe one block: its entry and its free map.
pub const TABLE_BYTES_PER_BLOCK: u64 =
    (size_of::<BlockEntry>() + size_of::<crate::block::FreeMap>()) as u64;
