//! The manager's state for memory that comes and goes.
//!
//! Orders of memory: the Acquire of a task that begins a change pairs with the Release of the task
//! that ended the change before.

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

/// A step of adding or removing memory. Ranges are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HotplugEvent {
    /// The node is about to get its first memory.
    AddingFirst(NodeId),
    /// The memory is about to become available to requests.
    GoingOnline(PhysRange),
    /// A notifier refused, or memory for tables could not be accepted.
    CancelOnline(PhysRange),
    /// A notifier refused, or memory for tables could not be accepted.
    CancelFirst(NodeId),
    /// The node has its first memory.
    AddedFirst(NodeId),
    /// The memory is available to requests.
    Online(PhysRange),
    /// The node is about to lose its last memory.
    RemovingLast(NodeId),
    /// The memory is about to be taken out of use.
    GoingOffline(PhysRange),
    /// A notifier refused, or the memory could not be vacated.
    CancelOffline(PhysRange),
    /// The node keeps some memory.
    CancelLast(NodeId),
    /// The node has no memory any more.
    RemovedLast(NodeId),
    /// The memory is out of use.
    Offline(PhysRange),
}

/// A notifier's refusal to let memory come or go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Veto;

impl fmt::Display for Veto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a listener refused")
    }
}

/// A component that is told of memory that comes and goes (Linux: `memory_notify`, `node_notify`).
/// The manager calls it with no lock held, and it may allocate and free. If it adds, removes or
/// releases memory itself, that call is refused as busy or, without
/// [`Platform::current_task`](crate::Platform::current_task), never ends.
pub trait HotplugNotifier: Sync {
    /// Takes note of an event. A refusal counts only for events that say that something is about to
    /// happen; for all others the result is ignored.
    ///
    /// # Errors
    /// [`Veto`].
    fn notify(&self, event: HotplugEvent) -> Result<(), Veto>;
}

/// The hotplug settings that can be changed at run time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HotplugSettings {
    /// `auto_online_blocks`, at boot `memhp_default_state=`.
    pub auto_online: OnlineType,
    /// `memory_hotplug.online_policy=`.
    pub policy: OnlinePolicy,
    /// `memory_hotplug.auto_movable_ratio=`: how many pages may be for movable contents only, for
    /// each 100 pages for any request. 0 means none.
    pub auto_movable_ratio: u64,
    /// `memory_hotplug.auto_movable_numa_aware=`: the ratio must hold on each node, too.
    pub auto_movable_numa_aware: bool,
    /// `memory_hotplug.memmap_on_memory=`: memory that is added may hold its own tables.
    pub memmap_on_memory: bool,
    /// Bytes of a memory block as the sysfs files show it, a power of two.
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

/// A range of addresses whose memory comes and goes together: a device that adds memory bit by bit,
/// or a memory module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Group {
    /// Its addresses.
    pub region: PhysRange,
    /// The node of its memory.
    pub node: NodeId,
    /// How many bytes a device adds or removes at a time; absent for a module, which comes as a
    /// whole.
    pub unit_bytes: Option<u64>,
}

/// Bytes of a section of Linux.
pub(crate) const SECTION_BYTES: u64 = 128 << 20;
/// How many devices and modules the manager can tell apart.
const MOST_GROUPS: usize = if cfg!(feature = "hotplug") { 32 } else { 0 };
/// How many interrupted searches the manager remembers.
const MOST_SEARCHES: usize = 4;

/// See the module documentation.
pub(crate) struct HotplugState {
    /// How many zones bring-up made: the zones after these are windows.
    pub(crate) first_window: usize,
    /// The one segment of each window.
    pub(crate) segments: Growing<Segment>,
    /// For each window, how many blocks at its start hold its own tables.
    pub(crate) own_tables: Growing<u32>,
    /// The task that adds, removes or releases memory, one at a time; zero while there is none.
    pub(crate) changer: atomic::AtomicU64,
    /// The range that is being taken out of use; empty if there is none.
    pub(crate) going: SpinLock<PhysRange>,
    pub(crate) searches: SpinLock<Searches>,
    pub(crate) notifier: SpinLock<Option<&'static dyn HotplugNotifier>>,
    pub(crate) settings: SpinLock<HotplugSettings>,
    pub(crate) groups: SpinLock<Groups>,
    /// `movable_node`.
    pub(crate) movable_node: bool,
    /// What the page descriptors of windows need.
    pub(crate) readers: &'static [Readers],
    pub(crate) descriptors_are_wanted: bool,
    /// Memory in use at bring-up was allocated as soon as it was known.
    pub(crate) adopts_at_once: bool,
    /// Where the tables are that belong to no zone.
    pub(crate) tables: [PhysRange; MOST_RANGES],
    /// Bytes that the tables of windows take.
    pub(crate) table_bytes: AtomicU64,
    /// Frames that were released after bring-up.
    pub(crate) released_pages: AtomicU64,
}

/// The state of a search for memory to take out of use. The search goes down from the top of a
/// range and can continue in the next call.
#[derive(Clone, Copy, PartialEq, Default)]
pub(crate) struct Looked {
    pub(crate) within: BlockRange,
    /// This round has looked at everything above this block.
    pub(crate) down_to: BlockNumber,
    /// In the part below `down_to`, of at most `most` blocks, all blocks before this one are
    /// vacated.
    pub(crate) vacated_to: BlockNumber,
    pub(crate) most: u32,
    /// If this round finds nothing, the search ends: the whole range was looked at.
    pub(crate) is_last: bool,
}

impl Looked {
    /// Returns a search that has not looked at anything yet.
    pub(crate) const fn nothing(within: BlockRange, most: u32) -> Self {
        let (down_to, vacated_to) = (within.end, BlockNumber(0));
        Self { within, down_to, vacated_to, most, is_last: false }
    }

    /// Returns whether the search has looked at anything in this round.
    pub(crate) fn has_begun(&self) -> bool {
        self.down_to < self.within.end || self.vacated_to.0 != 0
    }
}

/// The searches that were interrupted last, one for each range: several devices may ask for memory
/// back in turns.
#[derive(Default)]
pub(crate) struct Searches {
    all: [Looked; if cfg!(feature = "hotplug") { MOST_SEARCHES } else { 0 }],
    next: usize,
}

impl Searches {
    /// Removes and returns the search of a range in parts of at most `most` blocks; a new search if
    /// none is remembered. The caller puts it back if the search is to go on.
    pub(crate) fn take(&mut self, within: BlockRange, most: u32) -> Looked {
        let known = self.all.iter_mut().find(|looked| looked.within == within);
        let mut looked = known.map_or(Looked::nothing(within, most), core::mem::take);
        if looked.most < most {
            // A longer part begins before the vacated one, so start it anew. A shorter part is the
            // end of the vacated one.
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

/// What bring-up passes on to [`HotplugState`].
pub(crate) struct HotplugInput {
    pub(crate) first_window: usize,
    pub(crate) segments: Growing<Segment>,
    pub(crate) own_tables: Growing<u32>,
    pub(crate) movable_node: bool,
    pub(crate) readers: &'static [Readers],
    pub(crate) descriptors_are_wanted: bool,
    /// Memory in use at bring-up was allocated as soon as it was known.
    pub(crate) adopts_at_once: bool,
    pub(crate) tables: [PhysRange; MOST_RANGES],
    /// Bytes of a memory block as the sysfs files show it.
    pub(crate) block_bytes: u64,
}

impl HotplugState {
    /// Writes the state of a manager whose memory has not changed since boot into `place`.
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
                movable_node: input.movable_node,
                readers: input.readers,
                descriptors_are_wanted: input.descriptors_are_wanted,
                adopts_at_once: input.adopts_at_once,
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

/// While this lives, nobody else adds, removes or releases memory.
pub(crate) struct Changing<'a>(&'a atomic::AtomicU64);

/// Stands for the changing task on a platform that cannot tell its tasks apart.
const SOMEBODY: u64 = u64::MAX;

impl HotplugState {
    /// Begins a change of memory, which excludes all others. The error says whether the caller
    /// itself is already changing memory: then the call comes from a hook inside the change, and
    /// waiting would never end.
    pub(crate) fn begin(&self, task: Option<NonZeroU64>) -> Result<Changing<'_>, bool> {
        let me = task.map_or(SOMEBODY, NonZeroU64::get);
        // Relaxed: a task knows its own number, and nothing depends on another task's.
        match self.changer.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(Changing(&self.changer)),
            Err(other) => Err(other == me && me != SOMEBODY),
        }
    }

    /// Returns whether this task is changing memory.
    pub(crate) fn is_done_by(&self, task: NonZeroU64) -> bool {
        // Relaxed: as in `begin`.
        let other = self.changer.load(Ordering::Relaxed);
        other == task.get() && other != SOMEBODY
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}
