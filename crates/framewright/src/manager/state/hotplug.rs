//! What is kept of memory that comes and goes.
//!
//! Orders of memory: who begins a change acquires what the one before released.

use super::numa::PerNode;
use crate::manager::init::obtained::MOST_RANGES;
use crate::parameters::{HotplugParameters, OnlinePolicy, OnlineType};
use crate::sync::atomic;
use crate::sync::in_place::{each, write_fields};
use crate::sync::table_atomic::{AtomicU64, Ordering};
use crate::sync::{Growing, Readers, SpinLock};
use crate::units::{NodeId, PhysRange};
use crate::vmemmap_space::{BlockNumber, BlockRange};
use crate::zone::Segment;
use core::fmt;
use core::mem::MaybeUninit;
use core::num::NonZeroU64;

/// A step of memory that comes or goes. Ranges are bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HotplugEvent {
    /// The node is about to get its first memory.
    AddingFirst(NodeId),
    /// The memory is about to be handed out.
    GoingOnline(PhysRange),
    /// Somebody refused.
    CancelOnline(PhysRange),
    /// Somebody refused.
    CancelFirst(NodeId),
    /// The node has its first memory.
    AddedFirst(NodeId),
    /// The memory can be had.
    Online(PhysRange),
    /// The node is about to lose its last memory.
    RemovingLast(NodeId),
    /// The memory is about to be taken out of use.
    GoingOffline(PhysRange),
    /// Somebody refused, or it could not be vacated.
    CancelOffline(PhysRange),
    /// It keeps some.
    CancelLast(NodeId),
    /// The node has no memory any more.
    RemovedLast(NodeId),
    /// Nobody uses the memory.
    Offline(PhysRange),
}

/// Somebody who is told of memory that comes and goes does not want it so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Veto;

impl fmt::Display for Veto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a listener refused")
    }
}

/// Who is told of memory that comes and goes (Linux: `memory_notify`, `node_notify`). Called with
/// no lock held by the manager; it may allocate and free. Where it adds, removes or releases, that
/// is refused as busy, or, without [`Platform::current_task`](crate::Platform::current_task), never
/// ends.
pub trait HotplugNotifier: Sync {
    /// What is about to be done can be refused where the event says that it is about to be; of all
    /// others the answer does not count.
    ///
    /// # Errors
    /// [`Veto`].
    fn notify(&self, event: HotplugEvent) -> Result<(), Veto>;
}

/// What can be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HotplugSettings {
    /// `auto_online_blocks`, at boot `memhp_default_state=`.
    pub auto_online: OnlineType,
    /// `memory_hotplug.online_policy=`.
    pub policy: OnlinePolicy,
    /// `memory_hotplug.auto_movable_ratio=`: of 100 pages for everybody, how many can be for what
    /// can be moved. 0 means none.
    pub auto_movable_ratio: u64,
    /// `memory_hotplug.auto_movable_numa_aware=`: the ratio holds on each node, too.
    pub auto_movable_numa_aware: bool,
    /// `memory_hotplug.memmap_on_memory=`: memory that comes may hold its own tables.
    pub memmap_on_memory: bool,
    /// Bytes of a memory block of the files, a power of two.
    pub block_bytes: u64,
}

impl HotplugSettings {
    pub(crate) const fn of(parameters: &HotplugParameters, block_bytes: u64) -> Self {
        let &HotplugParameters {
            auto_online,
            policy,
            auto_movable_ratio,
            auto_movable_numa_aware,
            memmap_on_memory,
            ..
        } = parameters;
        Self {
            auto_online,
            policy,
            auto_movable_ratio,
            auto_movable_numa_aware,
            memmap_on_memory,
            block_bytes,
        }
    }
}

/// A range of addresses whose memory comes and goes together: a device that adds some by and by, or
/// a module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Group {
    /// Its addresses.
    pub region: PhysRange,
    /// The node.
    pub node: NodeId,
    /// How much at a time comes or goes, of a device; absent for a module, which comes as a whole.
    pub unit_bytes: Option<u64>,
}

/// Linux's sections.
pub(crate) const SECTION_BYTES: u64 = 128 << 20;
/// Devices and modules that can be told apart.
const MOST_GROUPS: usize = if cfg!(feature = "hotplug") { 32 } else { 0 };
/// Searches that can be told apart.
const MOST_SEARCHES: usize = 4;

/// See the module documentation.
pub(crate) struct HotplugState {
    /// How many zones bring-up made: those after them are windows.
    pub(crate) first_window: usize,
    /// The one segment of each window.
    pub(crate) segments: Growing<Segment>,
    /// Blocks of each window that hold its own tables, at its start.
    pub(crate) own_tables: Growing<u32>,
    /// The task that adds, removes or releases memory: one at a time; zero while none does.
    pub(crate) changer: atomic::AtomicU64,
    /// What is on its way out of use; else an empty range.
    pub(crate) going: SpinLock<PhysRange>,
    pub(crate) searches: SpinLock<Searches>,
    pub(crate) notifier: SpinLock<Option<&'static dyn HotplugNotifier>>,
    pub(crate) settings: SpinLock<HotplugSettings>,
    pub(crate) groups: SpinLock<Groups>,
    /// With the pages of each node that were for everybody when bring-up ended.
    pub(crate) nodes: &'static [PerNode],
    /// `movable_node`.
    pub(crate) movable_node: bool,
    /// What descriptors of windows need.
    pub(crate) readers: &'static [Readers],
    pub(crate) descriptors_are_wanted: bool,
    /// Where tables are that are no zone's.
    pub(crate) tables: [PhysRange; MOST_RANGES],
    /// What tables of windows take, in bytes.
    pub(crate) table_bytes: AtomicU64,
    /// Frames that were released since bring-up.
    pub(crate) released_pages: AtomicU64,
}

/// A search for memory to take out of use, from the top of a range down, that goes on in the next
/// call.
#[derive(Clone, Copy, PartialEq, Default)]
pub(crate) struct Looked {
    pub(crate) within: BlockRange,
    /// What lies above was looked at in this round.
    pub(crate) down_to: BlockNumber,
    /// Of the part below that, of at most so many blocks, what lies before this was vacated.
    pub(crate) vacated_to: BlockNumber,
    pub(crate) most: u32,
    /// Where this round finds nothing there is nothing.
    pub(crate) is_last: bool,
}

impl Looked {
    /// Nothing was looked at.
    pub(crate) const fn nothing(within: BlockRange, most: u32) -> Self {
        let (down_to, vacated_to) = (within.end, BlockNumber(0));
        Self { within, down_to, vacated_to, most, is_last: false }
    }

    /// Whether something was looked at.
    pub(crate) fn has_begun(&self) -> bool {
        self.down_to < self.within.end || self.vacated_to.0 != 0
    }
}

/// The searches that were broken off last, one for each range: as many devices may want memory
/// back in turns.
#[derive(Default)]
pub(crate) struct Searches {
    all: [Looked; if cfg!(feature = "hotplug") { MOST_SEARCHES } else { 0 }],
    next: usize,
}

impl Searches {
    /// The one of a range, in parts of at most so many blocks, which is over unless it is put back.
    pub(crate) fn take(&mut self, within: BlockRange, most: u32) -> Looked {
        let known = self.all.iter_mut().find(|looked| looked.within == within);
        let mut looked = known.map_or(Looked::nothing(within, most), core::mem::take);
        if looked.most < most {
            // A part that begins before the one that was vacated; a shorter one is the end of it.
            looked.vacated_to = BlockNumber(0);
        }
        looked.most = most;
        looked
    }

    pub(crate) fn put(&mut self, looked: Looked) {
        if looked == Looked::nothing(looked.within, looked.most) {
            return;
        }
        if let Some(place) = self.all.get_mut(self.next % MOST_SEARCHES) {
            *place = looked;
        }
        self.next = self.next.wrapping_add(1);
    }
}

/// What bring-up knows of it.
pub(crate) struct HotplugInput {
    pub(crate) first_window: usize,
    pub(crate) segments: Growing<Segment>,
    pub(crate) own_tables: Growing<u32>,
    pub(crate) nodes: &'static [PerNode],
    pub(crate) movable_node: bool,
    pub(crate) readers: &'static [Readers],
    pub(crate) descriptors_are_wanted: bool,
    pub(crate) tables: [PhysRange; MOST_RANGES],
    /// Of a memory block of the files.
    pub(crate) block_bytes: u64,
}

impl HotplugState {
    /// Nothing has come or gone yet.
    #[inline(never)]
    pub(crate) fn write<'a>(
        place: &'a mut MaybeUninit<Self>,
        parameters: &HotplugParameters,
        input: HotplugInput,
    ) -> &'a Self {
        write_fields!(
            HotplugState at place,
            {
                first_window: input.first_window,
                segments: input.segments,
                own_tables: input.own_tables,
                changer: atomic::AtomicU64::new(0),
                going: SpinLock::new(PhysRange::new(0, 0)),
                searches: SpinLock::new(Searches::default()),
                notifier: SpinLock::new(None),
                settings: SpinLock::new(HotplugSettings::of(parameters, input.block_bytes)),
                nodes: input.nodes,
                movable_node: input.movable_node,
                readers: input.readers,
                descriptors_are_wanted: input.descriptors_are_wanted,
                tables: input.tables,
                table_bytes: AtomicU64::new(0),
                released_pages: AtomicU64::new(0),
            },
            { groups: no_groups },
        )
    }
}

type Groups = [Option<Group>; MOST_GROUPS];

fn no_groups(place: &mut MaybeUninit<SpinLock<Groups>>) -> &mut SpinLock<Groups> {
    SpinLock::write(place, |groups| each(groups, |group| group.write(None)))
}

/// Nobody else adds, removes or releases memory meanwhile.
pub(crate) struct Changing<'a>(&'a atomic::AtomicU64);

/// Who changes it on a platform that cannot tell its tasks apart.
const SOMEBODY: u64 = u64::MAX;

impl HotplugState {
    /// Pages that were for everybody when bring-up ended, on one node or all.
    pub(crate) fn boot_kernel_pages(&self, on: Option<NodeId>) -> u64 {
        // Relaxed: bring-up alone changes them.
        let of = |node: &PerNode| node.boot_kernel_pages.load(Ordering::Relaxed);
        match on {
            Some(node) => self.nodes.get(node.index()).map_or(0, of),
            None => self.nodes.iter().map(of).sum(),
        }
    }

    /// Nobody else does it from now on. The error says whether whoever does is the caller himself,
    /// in what is called meanwhile, who would wait for ever.
    pub(crate) fn begin(&self, task: Option<NonZeroU64>) -> Result<Changing<'_>, bool> {
        let me = task.map_or(SOMEBODY, NonZeroU64::get);
        // Relaxed: a task knows its own number, and that of another decides nothing.
        match self.changer.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(Changing(&self.changer)),
            Err(other) => Err(other == me && me != SOMEBODY),
        }
    }

    /// Whether this task does it.
    pub(crate) fn is_done_by(&self, task: NonZeroU64) -> bool {
        // Relaxed: as above.
        let other = self.changer.load(Ordering::Relaxed);
        other == task.get() && other != SOMEBODY
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}
