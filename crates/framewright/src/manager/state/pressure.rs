//! What is remembered of memory being short.

use crate::block::MigrateType;
use crate::manager::request::{Reserves, Search};
use crate::manager::state::numa::{NumaMisses, PerNode};
use crate::memblock::NodeChoice;
use crate::platform::Platform;
use crate::sync::table_atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{DrainEpoch, SpinLock};
use crate::units::{MAX_NODES, NodeId, NodeMask, Order};
use crate::zone::ZoneKind;

/// Tasks that can be in the hook at once; others go on without it.
const RECLAIM_TASKS: usize = 16;
/// Requests of unusual kinds that are remembered to have failed.
const FAILURES: usize = 4;
/// Failures of usual requests that are remembered, one place for some orders.
const USUAL_FAILURES: usize = 8;
/// Nodes in a word of [`background`](PressureState::background).
pub(crate) const NODES_PER_WORD: usize = 16;
/// Who is in the hook on a platform that cannot tell its tasks apart.
const SOMEBODY: u64 = u64::MAX;

/// What a request lacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shortage {
    /// The order of the run that was not found.
    pub order: Order,
    /// How many pages are missing; more than one run of `order` for a request for many.
    pub pages: u64,
    /// Where memory is wanted.
    pub node: NodeChoice,
    /// The nodes that will do: what is freed elsewhere does not help. Some may not exist.
    pub nodes: NodeMask,
    /// The highest zone that will do.
    pub zone: ZoneKind,
    /// One past the highest address that will do.
    pub max_address: u64,
    /// What for.
    pub migrate_type: MigrateType,
    /// How often this request has asked before.
    pub round: u32,
}

/// Somebody who can give memory up when it is short: a page cache, a balloon, an object cache.
///
/// The manager calls it for requests that find too little and for
/// [`Pressure::reclaim_in_background`](crate::manager::Pressure::reclaim_in_background), with no
/// lock held, not pinned, interrupts on, and only where
/// [`Platform::can_wait`] says that the context may wait. Several CPUs may be in it at once, each
/// for a request of its own, where [`Platform::current_task`] tells tasks apart; where it does not,
/// one at a time, and requests that run out of memory meanwhile go on without.
///
/// It may free and allocate. A request that runs out of memory inside the hook does not call it
/// again but fails. A caller that holds a lock which the hook takes sets
/// [`Request::fail_fast`](crate::Request::fail_fast).
pub trait Reclaim: Sync {
    /// Frees memory, preferably what `wanted` lacks, and says how many pages it freed, anywhere.
    /// With 0 the request stops asking.
    fn reclaim(&self, wanted: &Shortage) -> u64;
}

/// A request as far as it decides whether memory is found.
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

/// A usual request, near some node, that failed in the epoch of this number, in one word that no
/// other has; nothing when the number has become too large. Which node does not matter: the same
/// zones are asked down to the same marks, only in another order.
#[inline]
fn usual(epoch: u64, order: Order, migrate_type: MigrateType) -> Option<u64> {
    let what = u64::from(order.get()) << TYPE_BITS | migrate_type as u64;
    (epoch >> (64 - ORDER_BITS - TYPE_BITS) == 0)
        .then_some(epoch << (ORDER_BITS + TYPE_BITS) | what)
}

impl Key {
    /// Who wants it does not matter.
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

    /// Its word, if it is a usual request.
    fn usual(&self, epoch: u64) -> Option<u64> {
        let near =
            Self::of(self.order, &Search::near(self.first, self.migrate_type), Reserves::None);
        if *self == near { usual(epoch, self.order, self.migrate_type) } else { None }
    }
}

/// Failed requests; each holds for the epoch of its number.
pub(crate) struct Failures {
    kept: [Option<(u64, Key)>; FAILURES],
    next: usize,
}

/// Who is asked for memory.
type Hook = SpinLock<Option<&'static dyn Reclaim>>;

/// What is behind a lock, and with it too large to be moved.
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
    /// Requests that found too little above the ordinary marks, by the highest zone that would do.
    pub stalls: [u64; ZoneKind::COUNT],
    /// Of those, the ones that failed in the end.
    pub failures: u64,
    /// Times that the caches of CPUs were emptied, all or as many as it took, for a request or
    /// because somebody asked.
    pub drains: u64,
    /// Times that the reclaim hook was called for a request.
    pub reclaim_calls: u64,
    /// Pages that it said it freed then.
    pub reclaim_pages: u64,
    /// Times that a node was found below its low watermarks after it had been above the high ones,
    /// or after reclaim in the background had left it short; requests that may not have graded
    /// memory count by themselves.
    pub background_wakes: u64,
    /// Pages that the hook said it freed in the background.
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
    // Relaxed: nothing else is read by what a counter says.
    counter.fetch_add(by, Ordering::Relaxed);
}

/// See the module documentation.
pub(crate) struct PressureState {
    pub(crate) counters: Counters,
    /// Whose memory requests got, which is not the wanted node's when that is short.
    pub(crate) numa: NumaMisses,
    pub(crate) epoch: DrainEpoch,
    pub(crate) failures: &'static SpinLock<Failures>,
    /// Usual requests that failed, by order: who fails again and again takes no lock. Each word
    /// says for itself in which epoch that was; none is 0, the first epoch's number being 1.
    pub(crate) usual_failures: [AtomicU64; USUAL_FAILURES],
    pub(crate) hook: &'static Hook,
    /// Whether there is a hook, for whoever would fail at once without one.
    pub(crate) has_hook: AtomicBool,
    /// Nodes that reclaim in the background should look after, four bits each (`background`).
    pub(crate) background: [AtomicU64; MAX_NODES.div_ceil(NODES_PER_WORD)],
    /// Who is in the hook, and who compacts; 0 is nobody.
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

    /// Whether a usual request is known to fail and there is nobody to ask. Small, as this is all
    /// that is done for it.
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

    /// Lets a task into the hook, unless it is there already or compacts, or too many others are
    /// there.
    pub(crate) fn enter_hook(&self, task: Option<u64>) -> Option<InHook<'_>> {
        self.enter(task, 0)
    }

    /// Whether a task is in the hook.
    pub(crate) fn is_in_hook(&self, task: Option<u64>) -> bool {
        let task = task.unwrap_or(SOMEBODY);
        self.tasks[0].iter().any(|place| place.load(Ordering::Relaxed) == task)
    }

    /// Lets a task compact, unless it does already or is in the hook, or too many others do. Who
    /// compacts keeps nobody else from the hook.
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

/// A task is in the hook while this lives.
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
