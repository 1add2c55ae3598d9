//! What happens when a request finds too little memory: caches are drained, the adopter is asked to
//! give something up, and only then may a request that is allowed to use the reserves have them.
//!
//! All of it is off the usual way. What keeps it cheap when memory stays full is [`Quiet`]: from
//! the beginning of a drain to the first free or refill on any CPU the caches are known to be
//! empty, and a request that failed fails again, so neither is tried twice.
//!
//! Orders of memory: Relaxed everywhere: counters; words of failures, each of which says for itself
//! in which quiet it holds; the hook's flag, whose hook is read under its lock; and the tasks in
//! the hook, where a task looks for its own number only, which it stored itself.

use super::allocate::{Mark, Search};
use super::numa::NumaMisses;
use super::{Manager, Pressure, Request};
use crate::block::MigrateType;
use crate::memblock::NodeChoice;
use crate::platform::Platform;
use crate::sync::table_atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Quiet, SpinLock};
use crate::units::Order;
use crate::zone::ZoneKind;

/// How often one request asks the hook, however much that says it freed; Linux gives up after as
/// many rounds without progress.
const RECLAIM_ROUNDS: u32 = 16;
/// Tasks that can be in the hook at once; others go on without it.
const RECLAIM_TASKS: usize = 16;
/// Requests of unusual kinds that are remembered to have failed.
const FAILURES: usize = 4;
/// The same for usual requests, one place for some orders.
const USUAL_FAILURES: usize = 8;
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
/// The manager calls it with no lock held, not pinned, interrupts on, and only where
/// [`Platform::can_wait`] says that the context may wait. Several CPUs may be in it at once, each
/// for a request of its own, where [`Platform::current_task`] tells tasks apart; where it does not,
/// one at a time, and requests that run out of memory meanwhile go on without.
///
/// It may free and allocate. A request that runs out of memory inside the hook does not call it
/// again but fails. A caller that holds a lock which the hook takes sets [`Request::fail_fast`].
pub trait Reclaim: Sync {
    /// Frees memory, preferably what `wanted` lacks, and says how many pages it freed, anywhere.
    /// With 0 the request stops asking.
    fn reclaim(&self, wanted: &Shortage) -> u64;
}

/// A request as far as it decides whether memory is found.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key {
    order: Order,
    search: Search,
    reserves: bool,
}

/// Bits of a [`usual`] word for order and type.
const ORDER_BITS: u32 = 5;
const TYPE_BITS: u32 = 3;

/// A usual request, near some node, that failed in the quiet of this number, in one word that no
/// other has; nothing when the number has become too large. Which node does not matter: the same
/// zones are asked down to the same marks, only in another order.
#[inline]
fn usual(quiet: u64, order: Order, migrate_type: MigrateType) -> Option<u64> {
    let what = u64::from(order.get()) << TYPE_BITS | migrate_type as u64;
    (quiet >> (64 - ORDER_BITS - TYPE_BITS) == 0)
        .then_some(quiet << (ORDER_BITS + TYPE_BITS) | what)
}

impl Key {
    /// Its word, if it is a usual request.
    fn usual(&self, quiet: u64) -> Option<u64> {
        let &Self { order, search, reserves } = self;
        let migrate_type = search.migrate_type();
        let is_usual = !reserves && search == Search::near(search.first(), migrate_type);
        if is_usual { usual(quiet, order, migrate_type) } else { None }
    }
}

/// Failed requests; each holds for the quiet of its number.
struct Failures {
    kept: [Option<(u64, Key)>; FAILURES],
    next: usize,
}

/// What happened when memory was short, since bring-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PressureEvents {
    /// Requests that found too little above the ordinary marks, by the highest zone that would do.
    pub stalls: [u64; ZoneKind::COUNT],
    /// Of those, the ones that failed in the end.
    pub failures: u64,
    /// Times that all caches were emptied, for a request or because somebody asked.
    pub drains: u64,
    /// Times that the reclaim hook was called.
    pub reclaim_calls: u64,
    /// Pages that it said it freed.
    pub reclaim_pages: u64,
}

/// The same where it is counted.
#[derive(Default)]
struct Counters {
    stalls: [AtomicU64; ZoneKind::COUNT],
    failures: AtomicU64,
    drains: AtomicU64,
    reclaim_calls: AtomicU64,
    reclaim_pages: AtomicU64,
}

fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

/// See the module documentation.
pub(super) struct PressureState {
    counters: Counters,
    /// Whose memory requests got, which is not the wanted node's when that is short.
    pub(super) numa: NumaMisses,
    pub(super) quiet: Quiet,
    failures: SpinLock<Failures>,
    /// Usual requests that failed, by order: who fails again and again takes no lock. Each word
    /// says for itself in which quiet that was; none is 0, the first quiet's number being 1.
    usual_failures: [AtomicU64; USUAL_FAILURES],
    hook: SpinLock<Option<&'static dyn Reclaim>>,
    /// Whether there is a hook, for who would fail at once without one.
    has_hook: AtomicBool,
    /// Who is in the hook; 0 is nobody.
    tasks: [AtomicU64; RECLAIM_TASKS],
}

impl PressureState {
    pub(super) fn new(aids: bool) -> Self {
        Self {
            counters: Counters::default(),
            numa: NumaMisses::new(),
            quiet: Quiet::new(aids),
            failures: SpinLock::new(Failures { kept: [None; FAILURES], next: 0 }),
            usual_failures: core::array::from_fn(|_| AtomicU64::new(0)),
            hook: SpinLock::new(None),
            has_hook: AtomicBool::new(false),
            tasks: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    pub(super) fn count_drain(&self) {
        count(&self.counters.drains, 1);
    }

    fn has_failed<P: Platform>(&self, platform: &P, key: &Key) -> bool {
        let Some(quiet) = self.quiet.number() else { return false };
        match key.usual(quiet) {
            Some(word) => self.usual_failure(key.order).load(Ordering::Relaxed) == word,
            None => self.failures.lock(platform).kept.contains(&Some((quiet, *key))),
        }
    }

    #[inline]
    fn usual_failure(&self, order: Order) -> &AtomicU64 {
        &self.usual_failures[usize::from(order.get()) % USUAL_FAILURES]
    }

    /// Whether a usual request is known to fail and there is nobody to ask. Small, as this is all
    /// that is done for it.
    #[inline(never)]
    pub(super) fn is_lost(&self, order: Order, migrate_type: MigrateType) -> bool {
        let word = self.quiet.number().and_then(|quiet| usual(quiet, order, migrate_type));
        let failed = self.usual_failure(order).load(Ordering::Relaxed);
        word == Some(failed) && !self.has_hook.load(Ordering::Relaxed)
    }

    fn note_failure<P: Platform>(&self, platform: &P, quiet: Option<u64>, key: Key) {
        let Some(quiet) = quiet else { return };
        if let Some(word) = key.usual(quiet) {
            return self.usual_failure(key.order).store(word, Ordering::Relaxed);
        }
        let mut failures = self.failures.lock(platform);
        let next = failures.next;
        failures.kept[next] = Some((quiet, key));
        failures.next = (next + 1) % FAILURES;
    }

    /// Lets a task into the hook, unless it is there already or too many others are.
    fn enter_hook(&self, task: Option<u64>) -> Option<InHook<'_>> {
        let (task, places) = match task {
            Some(task) => (task, &self.tasks[..]),
            None => (SOMEBODY, &self.tasks[..1]),
        };
        if places.iter().any(|place| place.load(Ordering::Relaxed) == task) {
            return None;
        }
        let free = |place: &&AtomicU64| {
            place.compare_exchange(0, task, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        places.iter().find(free).map(InHook)
    }
}

/// A task is in the hook while this lives.
struct InHook<'a>(&'a AtomicU64);

impl Drop for InHook<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// Marks that ordinary requests keep: first memory where there is plenty, then where it will do.
pub(super) const ORDINARY: &[Mark] = &[Mark::Low, Mark::Min];
/// What is kept for emergencies, too.
const RESERVES: &[Mark] = &[Mark::Nothing];

impl<P: Platform> Pressure<'_, P> {
    /// Says who gives memory up when it is short; `None` for nobody, as at first. May be changed at
    /// any time; calls that have begun end with the hook that they began with.
    pub fn set_reclaim(self, hook: Option<&'static dyn Reclaim>) {
        let mut current = self.manager.pressure.hook.lock(self.manager.platform);
        *current = hook;
        self.manager.pressure.has_hook.store(hook.is_some(), Ordering::Relaxed);
    }

    /// What happened when memory was short. Usual requests for one run that are known to fail again
    /// ([`Quiet`]) fail without being counted.
    #[must_use]
    pub fn events(self) -> PressureEvents {
        let Counters { stalls, failures, drains, reclaim_calls, reclaim_pages } =
            &self.manager.pressure.counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PressureEvents {
            stalls: [0, 1, 2].map(|kind: usize| read(&stalls[kind])),
            failures: read(failures),
            drains: read(drains),
            reclaim_calls: read(reclaim_calls),
            reclaim_pages: read(reclaim_pages),
        }
    }
}

impl<P: Platform> Manager<P> {
    /// Whether a request just like this one has failed above the ordinary marks and nothing was
    /// freed since.
    pub(super) fn is_hopeless(&self, search: &Search, order: Order) -> bool {
        self.pressure.has_failed(self.platform, &Key { order, search: *search, reserves: false })
    }

    /// Everything that is done once memory is short. `attempt` looks for memory above the given
    /// marks; when it does not find what it wants, it says how many pages are missing. `hopeless`
    /// as [`is_hopeless`](Self::is_hopeless) said.
    pub(super) fn press<T>(
        &self,
        request: &Request,
        search: &Search,
        order: Order,
        hopeless: bool,
        attempt: &mut dyn FnMut(&[Mark]) -> Result<T, u64>,
    ) -> Option<T> {
        count(&self.pressure.counters.stalls[request.zone as usize], 1);
        let found = self.press_uncounted(request, search, order, hopeless, attempt);
        count(&self.pressure.counters.failures, u64::from(found.is_none()));
        found
    }

    fn press_uncounted<T>(
        &self,
        request: &Request,
        search: &Search,
        order: Order,
        hopeless: bool,
        attempt: &mut dyn FnMut(&[Mark]) -> Result<T, u64>,
    ) -> Option<T> {
        let key = |reserves| Key { order, search: *search, reserves };
        let mut missing = order.pages();
        if !request.fail_fast {
            if !hopeless {
                self.drain_for_more();
                let quiet = self.pressure.quiet.number();
                match attempt(ORDINARY) {
                    Ok(found) => return Some(found),
                    Err(pages) => missing = pages,
                }
                self.pressure.note_failure(self.platform, quiet, key(false));
            }
            if let Some(found) = self.reclaim(request, order, missing, attempt) {
                return Some(found);
            }
        }
        if !request.reserves || self.pressure.has_failed(self.platform, &key(true)) {
            return None;
        }
        let quiet = self.pressure.quiet.number();
        let found = attempt(RESERVES).ok();
        if found.is_none() {
            self.pressure.note_failure(self.platform, quiet, key(true));
        }
        found
    }

    /// Asks the hook as long as it frees something that does not suffice.
    fn reclaim<T>(
        &self,
        request: &Request,
        order: Order,
        mut missing: u64,
        attempt: &mut dyn FnMut(&[Mark]) -> Result<T, u64>,
    ) -> Option<T> {
        if !self.pressure.has_hook.load(Ordering::Relaxed) || !self.platform.can_wait() {
            return None;
        }
        let hook = (*self.pressure.hook.lock(self.platform))?;
        let task = self.platform.current_task().map(core::num::NonZeroU64::get);
        let _inside = self.pressure.enter_hook(task)?;
        for round in 0..RECLAIM_ROUNDS {
            let freed = hook.reclaim(&Shortage {
                order,
                pages: missing,
                node: request.node,
                zone: request.zone,
                max_address: request.max_address,
                migrate_type: request.migrate_type,
                round,
            });
            count(&self.pressure.counters.reclaim_calls, 1);
            count(&self.pressure.counters.reclaim_pages, freed);
            // Others may have freed meanwhile, whatever the hook says; and what it freed may be in
            // caches.
            for drained in [false, true] {
                if drained {
                    self.drain_for_more();
                }
                match attempt(ORDINARY) {
                    Ok(found) => return Some(found),
                    Err(pages) => missing = pages,
                }
            }
            if freed == 0 {
                break;
            }
        }
        None
    }

    /// Empties the caches, as what CPUs keep for themselves others lack; does nothing while they
    /// are known to be empty. Bad frames that are found there do not keep the good ones back.
    fn drain_for_more(&self) {
        if self.pressure.quiet.number().is_some() {
            return;
        }
        let own = self.platform.cpus() == 1 || !self.platform.can_wait();
        let _ = if own { self.drain_own() } else { self.drain_all() };
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::units::NodeId;
    use std::collections::BTreeSet;

    fn near(order: u8, node: usize, migrate_type: MigrateType) -> Key {
        let order = Order::new(order).expect("an order");
        let node = NodeId::new(node).expect("a node");
        Key { order, search: Search::near(node, migrate_type), reserves: false }
    }

    #[test]
    fn every_usual_request_has_a_word_of_its_own_whichever_node_is_near() {
        let types = [MigrateType::Unmovable, MigrateType::Movable, MigrateType::Isolate];
        let mut words = BTreeSet::from([0]);
        let mut keys = 1;
        for quiet in [1, 2, 1 << 40, (1 << 56) - 1] {
            for order in 0..=Order::MAX.get() {
                for kind in types {
                    let of = |node| near(order, node, kind).usual(quiet);
                    assert_eq!(of(0), of(63));
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
        assert_eq!(Key { reserves: true, ..usual }.usual(1), None);
    }

    #[test]
    fn what_is_lost_is_so_until_something_is_freed_or_somebody_can_be_asked() {
        let pressure = PressureState::new(false);
        let order = |order| Order::new(order).expect("an order");
        let is_lost = |pressure: &PressureState, of, kind| pressure.is_lost(order(of), kind);
        let movable = MigrateType::Movable;
        assert!(!is_lost(&pressure, 9, movable));
        pressure.quiet.end_drain(pressure.quiet.begin_drain());
        assert!(!is_lost(&pressure, 9, movable), "nothing has failed yet");
        let key = near(9, 1, movable);
        let word = key.usual(pressure.quiet.number().expect("quiet")).expect("usual");
        pressure.usual_failure(key.order).store(word, Ordering::Relaxed);
        assert!(is_lost(&pressure, 9, movable));
        assert!(!is_lost(&pressure, 9, MigrateType::Unmovable) && !is_lost(&pressure, 1, movable));
        pressure.has_hook.store(true, Ordering::Relaxed);
        assert!(!is_lost(&pressure, 9, movable));
        pressure.has_hook.store(false, Ordering::Relaxed);
        pressure.quiet.stir();
        assert!(!is_lost(&pressure, 9, movable));
    }
}
