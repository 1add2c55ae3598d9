//! The manager's state for memory shortages.

use crate::block::MigrateType;
use crate::manager::request::{Reserves, Search};
use crate::manager::state::numa::{NumaMisses, PerNode};
use crate::memblock::NodeChoice;
use crate::platform::Platform;
use crate::sync::table_atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{DrainEpoch, SpinLock};
use crate::units::{MAX_NODES, NodeId, NodeMask, Order};
use crate::zone::ZoneKind;

/// How many requests that are known to fail are refused before compaction is tried again, as many
/// as [`Defer`](crate::zone::Defer) skips at most.
const REFUSED_REQUESTS: u64 = 64;
/// How many tasks can be in the hook at once; other requests go on without the hook.
const RECLAIM_TASKS: usize = 16;
/// How many failed requests of unusual kinds are remembered.
const FAILURES: usize = 4;
/// How many failures of usual requests are remembered; several orders share a place.
const USUAL_FAILURES: usize = 8;
/// How many nodes share a word of [`background`](PressureState::background).
pub(crate) const NODES_PER_WORD: usize = 16;
/// Stands for the task in the hook on a platform that cannot tell its tasks apart.
const SOMEBODY: u64 = u64::MAX;

/// What a request lacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shortage {
    /// The order of the run that was not found.
    pub order: Order,
    /// How many pages are missing; for a request for many pages, more than one run of `order`.
    pub pages: u64,
    /// Where memory is wanted.
    pub node: NodeChoice,
    /// The nodes that will do: memory freed elsewhere does not help. Some may not exist.
    pub nodes: NodeMask,
    /// The highest suitable zone.
    pub zone: ZoneKind,
    /// One past the highest suitable address.
    pub max_address: u64,
    /// What the memory is for.
    pub migrate_type: MigrateType,
    /// How often this request has called the hook before.
    pub round: u32,
}

/// A component that can give up memory when it is short: a page cache, a balloon, an object cache.
///
/// The manager calls it for requests that find too little and for
/// [`Pressure::reclaim_in_background`](crate::manager::Pressure::reclaim_in_background), with no
/// lock held, not pinned, with interrupts on, and only where [`Platform::can_wait`] says that the
/// context may wait. Where [`Platform::current_task`] tells tasks apart, up to 16 tasks may be in
/// the hook at once, each for a request of its own; others go on without it. Elsewhere only one can
/// be, and requests that run out of memory meanwhile go on without the hook.
///
/// The hook may free and allocate. A request that runs out of memory inside the hook does not call
/// the hook again but fails. A caller that holds a lock which the hook takes sets
/// [`Request::fail_fast`](crate::Request::fail_fast).
pub trait Reclaim: Sync {
    /// Frees memory, preferably what `wanted` lacks, and returns how many pages it freed anywhere.
    /// After a 0 the request stops asking.
    fn reclaim(&self, wanted: &Shortage) -> u64;
}

/// The properties of a request that decide whether memory is found for it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    order: Order,
    first: NodeId,
    nodes: NodeMask,
    highest: ZoneKind,
    max_address: u64,
    migrate_type: MigrateType,
    reserves: Reserves,
}

/// Bits of a [`usual`] word for order and type.
const ORDER_BITS: u32 = 5;
const TYPE_BITS: u32 = 3;

/// Encodes in one unique word that a usual request, near any node, failed in the epoch `epoch`;
/// `None` if that number has become too large. The node does not matter: the request asks the same
/// zones down to the same watermarks, only in another order.
#[inline]
fn usual(epoch: u64, order: Order, migrate_type: MigrateType) -> Option<u64> {
    let what = u64::from(order.get()) << TYPE_BITS | migrate_type as u64;
    (epoch >> (64 - ORDER_BITS - TYPE_BITS) == 0)
        .then_some(epoch << (ORDER_BITS + TYPE_BITS) | what)
}

impl Key {
    /// Returns the key of a request. It leaves out who made the request, which does not matter.
    pub(crate) const fn of(order: Order, search: &Search<'_>, reserves: Reserves) -> Self {
        Self {
            order,
            first: search.first(),
            nodes: search.nodes(),
            highest: search.highest(),
            max_address: search.max_address(),
            migrate_type: search.migrate_type(),
            reserves,
        }
    }

    /// Returns the key's word if this is a usual request.
    fn usual(&self, epoch: u64) -> Option<u64> {
        let near =
            Self::of(self.order, &Search::near(self.first, self.migrate_type), Reserves::None);
        if *self == near { usual(epoch, self.order, self.migrate_type) } else { None }
    }
}

/// Requests that failed; each entry is valid in the epoch of its number.
pub(crate) struct Failures {
    kept: [Option<(u64, Key)>; FAILURES],
    next: usize,
}

/// The hook that is asked for memory.
type Hook = SpinLock<Option<&'static dyn Reclaim>>;

/// The parts behind locks, which are kept apart because they are too large to be moved.
pub(crate) struct PressureLocks {
    failures: SpinLock<Failures>,
    hook: Hook,
}

impl PressureLocks {
    pub(crate) fn new() -> Self {
        let failures = SpinLock::new(Failures { kept: [None; FAILURES], next: 0 });
        Self { failures, hook: SpinLock::new(None) }
    }
}

/// What happened when memory was short, since bring-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PressureEvents {
    /// Requests that found too little above the ordinary watermarks, by the highest zone that would
    /// do.
    pub stalls: [u64; ZoneKind::COUNT],
    /// Those of `stalls` that failed in the end. One for many pages fails if any is missing, though
    /// it may hand out the others.
    pub failures: u64,
    /// How often the CPU caches were drained, all of them or as many as it took, for a request or
    /// on demand.
    pub drains: u64,
    /// How often the reclaim hook was called for a request.
    pub reclaim_calls: u64,
    /// Pages that the hook reported as freed in these calls.
    pub reclaim_pages: u64,
    /// How often a node was found below its low watermarks after it had been above the high ones,
    /// or after background reclaim had left it short. Requests that may not use graded memory are
    /// counted separately.
    pub background_wakes: u64,
    /// Pages that the hook reported as freed in the background.
    pub background_pages: u64,
}

/// The counters behind [`PressureEvents`].
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) stalls: [AtomicU64; ZoneKind::COUNT],
    pub(crate) failures: AtomicU64,
    pub(crate) drains: AtomicU64,
    pub(crate) reclaim_calls: AtomicU64,
    pub(crate) reclaim_pages: AtomicU64,
    pub(crate) background_wakes: AtomicU64,
    pub(crate) background_pages: AtomicU64,
}

pub(crate) fn count(counter: &AtomicU64, by: u64) {
    // Relaxed: no other reads depend on a counter.
    counter.fetch_add(by, Ordering::Relaxed);
}

/// See the module documentation.
pub(crate) struct PressureState {
    pub(crate) counters: Counters,
    /// Which nodes requests got memory from, if not from the wanted one.
    pub(crate) numa: NumaMisses,
    pub(crate) epoch: DrainEpoch,
    pub(crate) failures: &'static SpinLock<Failures>,
    /// Usual requests that failed, by order: a request that fails again and again takes no lock.
    /// Each word contains the epoch of the failure. 0 means none, as the first epoch has the number
    /// 1.
    pub(crate) usual_failures: [AtomicU64; USUAL_FAILURES],
    pub(crate) hook: &'static Hook,
    /// Whether there is a hook, for requests that fail at once without one.
    pub(crate) has_hook: AtomicBool,
    /// How many more requests are refused as known to fail until compaction is tried again; 0: as
    /// long as nothing is freed.
    refusals: AtomicU64,
    /// The nodes that background reclaim should look after, four bits each (`background`).
    pub(crate) background: [AtomicU64; MAX_NODES.div_ceil(NODES_PER_WORD)],
    /// The tasks that are in the hook, and those that compact; 0: none.
    pub(crate) tasks: [[AtomicU64; RECLAIM_TASKS]; 2],
}

impl PressureState {
    pub(crate) fn new(
        aids: bool,
        nodes: &'static [PerNode],
        locks: &'static PressureLocks,
    ) -> Self {
        Self {
            counters: Counters::default(),
            numa: NumaMisses::new(nodes),
            epoch: DrainEpoch::new(aids),
            failures: &locks.failures,
            usual_failures: core::array::from_fn(|_| AtomicU64::new(0)),
            hook: &locks.hook,
            has_hook: AtomicBool::new(false),
            refusals: AtomicU64::new(0),
            background: core::array::from_fn(|_| AtomicU64::new(0)),
            tasks: core::array::from_fn(|_| core::array::from_fn(|_| AtomicU64::new(0))),
        }
    }

    pub(crate) fn count_drain(&self) {
        count(&self.counters.drains, 1);
    }

    pub(crate) fn has_failed<P: Platform>(&self, platform: &P, key: &Key) -> bool {
        let Some(epoch) = self.epoch.number() else { return false };
        match key.usual(epoch) {
            Some(word) => self.usual_failure(key.order).load(Ordering::Relaxed) == word,
            None => self.failures.lock(platform).kept.contains(&Some((epoch, *key))),
        }
    }

    #[inline]
    fn usual_failure(&self, order: Order) -> &AtomicU64 {
        &self.usual_failures[usize::from(order.get()) % USUAL_FAILURES]
    }

    /// Returns whether a usual request is known to fail and there is no hook to ask. Small, because
    /// nothing else is done for such a request.
    #[inline(never)]
    pub(crate) fn is_lost(&self, order: Order, migrate_type: MigrateType) -> bool {
        let word = self.epoch.number().and_then(|epoch| usual(epoch, order, migrate_type));
        let failed = self.usual_failure(order).load(Ordering::Relaxed);
        word == Some(failed) && !self.has_hook.load(Ordering::Relaxed)
    }

    pub(crate) fn note_failure<P: Platform>(&self, platform: &P, epoch: Option<u64>, key: Key) {
        let Some(epoch) = epoch else { return };
        if let Some(word) = key.usual(epoch) {
            return self.usual_failure(key.order).store(word, Ordering::Relaxed);
        }
        let mut failures = self.failures.lock(platform);
        let next = failures.next;
        failures.kept[next] = Some((epoch, key));
        failures.next = (next + 1) % FAILURES;
    }

    /// Lets compaction be tried again after a number of requests that are known to fail.
    pub(crate) fn begin_refusal(&self) {
        self.refusals.store(REFUSED_REQUESTS, Ordering::Relaxed);
    }

    /// Counts such a request. Returns true if it is the last. Two at once may count as one.
    #[inline]
    pub(crate) fn ends_refusal(&self) -> bool {
        let left = self.refusals.load(Ordering::Relaxed);
        if left != 0 {
            self.refusals.store(left - 1, Ordering::Relaxed);
        }
        left == 1
    }

    /// Lets a task into the hook, unless the task is in the hook already or compacts, or too many
    /// others are in it.
    pub(crate) fn enter_hook(&self, task: Option<u64>) -> Option<InHook<'_>> {
        self.enter(task, 0)
    }

    /// Returns whether a task is in the hook.
    pub(crate) fn is_in_hook(&self, task: Option<u64>) -> bool {
        let task = task.unwrap_or(SOMEBODY);
        self.tasks[0].iter().any(|place| place.load(Ordering::Relaxed) == task)
    }

    /// Lets a task compact, unless the task compacts already or is in the hook, or too many others
    /// compact. A task that compacts keeps no other task out of the hook.
    pub(crate) fn enter_compaction(&self, task: Option<u64>) -> Option<InHook<'_>> {
        self.enter(task, 1)
    }

    fn enter(&self, task: Option<u64>, which: usize) -> Option<InHook<'_>> {
        let places = &self.tasks[which];
        let (task, places) = match task {
            Some(task) => (task, &places[..]),
            None => (SOMEBODY, &places[..1]),
        };
        let is_inside = |place: &AtomicU64| place.load(Ordering::Relaxed) == task;
        let others = if task == SOMEBODY { &[] } else { &self.tasks[1 - which][..] };
        if places.iter().chain(others).any(is_inside) {
            return None;
        }
        let free = |place: &&AtomicU64| {
            place.compare_exchange(0, task, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        places.iter().find(free).map(InHook)
    }
}

/// While this lives, a task is in the hook or compacts.
pub(crate) struct InHook<'a>(&'a AtomicU64);

impl Drop for InHook<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, feature = "many-nodes", not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::boxed::Box;
    use std::collections::BTreeSet;

    fn near(order: u8, node: usize, migrate_type: MigrateType) -> Key {
        let order = Order::new(order).expect("an order");
        let node = NodeId::new(node).expect("a node");
        Key::of(order, &Search::near(node, migrate_type), Reserves::None)
    }

    #[test]
    fn who_compacts_keeps_nobody_else_from_the_hook() {
        let nodes = Box::leak(Box::new([PerNode::new()]));
        let state = PressureState::new(false, nodes, Box::leak(Box::new(PressureLocks::new())));
        let somebody = state.enter_compaction(None);
        assert!(somebody.is_some() && state.enter_compaction(None).is_none());
        assert!(state.enter_hook(None).is_some());
        let seven = state.enter_compaction(Some(7));
        assert!(seven.is_some() && state.enter_hook(Some(7)).is_none());
        assert!(state.enter_hook(Some(8)).is_some());
        drop(seven);
        let inside = state.enter_hook(Some(7));
        assert!(inside.is_some() && state.enter_compaction(Some(7)).is_none());
    }

    #[test]
    fn every_usual_request_has_a_word_of_its_own_whichever_node_is_near() {
        let types = [MigrateType::Unmovable, MigrateType::Movable, MigrateType::Isolate];
        let mut words = BTreeSet::from([0]);
        let mut keys = 1;
        for epoch in [1, 2, 1 << 40, (1 << 56) - 1] {
            for order in 0..=Order::MAX.get() {
                for kind in types {
                    let of = |node| near(order, node, kind).usual(epoch);
                    assert_eq!(of(0), of(1023));
                    words.extend(of(0));
                }
                keys += types.len();
            }
        }
        assert_eq!(words.len(), keys);
    }

    #[test]
    fn what_does_not_fit_a_word_has_none() {
        let usual = near(0, 0, MigrateType::Movable);
        assert!(usual.usual(1).is_some());
        assert_eq!(usual.usual(1 << 56), None);
        assert_eq!(Key { reserves: Reserves::All, ..usual }.usual(1), None);
    }

    #[test]
    fn what_is_lost_is_so_until_something_is_freed_or_somebody_can_be_asked() {
        let locks: &'static PressureLocks = Box::leak(Box::new(PressureLocks::new()));
        let pressure = PressureState::new(false, &[], locks);
        let order = |order| Order::new(order).expect("an order");
        let is_lost = |pressure: &PressureState, of, kind| pressure.is_lost(order(of), kind);
        let movable = MigrateType::Movable;
        assert!(!is_lost(&pressure, 9, movable));
        pressure.epoch.end_drain(pressure.epoch.begin_drain());
        assert!(!is_lost(&pressure, 9, movable), "nothing has failed yet");
        let key = near(9, 1, movable);
        let word = key.usual(pressure.epoch.number().expect("in an epoch")).expect("usual");
        pressure.usual_failure(key.order).store(word, Ordering::Relaxed);
        assert!(is_lost(&pressure, 9, movable));
        assert!(!is_lost(&pressure, 9, MigrateType::Unmovable) && !is_lost(&pressure, 1, movable));
        pressure.has_hook.store(true, Ordering::Relaxed);
        assert!(!is_lost(&pressure, 9, movable));
        pressure.has_hook.store(false, Ordering::Relaxed);
        pressure.epoch.note_free();
        assert!(!is_lost(&pressure, 9, movable));
    }
}
