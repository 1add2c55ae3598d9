//! What happens when a request finds too little memory: the caches are drained, memory is compacted
//! for requests of more than a page, the adopter is asked to give memory up, and only then may a
//! request that is allowed to use the reserves have them.
//!
//! All of this is off the fast path. [`DrainEpoch`] keeps it cheap when memory stays full: from the
//! beginning of a drain until the first free or refill on any CPU, the caches are known to be
//! empty, and a request that failed would fail again, so neither is tried twice.
//!
//! Orders of memory: Relaxed everywhere: counters; the words of failures, each of which names the
//! epoch in which it holds; the hook's flag, as the hook itself is read under its lock; and the
//! tasks in the hook, where a task looks only for its own number, which it stored itself.

use crate::manager::facets::Pressure;
use crate::manager::request::{Mark, ORDINARY, Request, Reserves, Search};
use crate::manager::state::Manager;
use crate::manager::state::moving::Compaction;
use crate::manager::state::pressure::count;
use crate::manager::state::pressure::{Counters, InHook, Key, PressureEvents, Reclaim, Shortage};
use crate::memblock::NodeChoice;
use crate::platform::Platform;
use crate::sync::table_atomic::{AtomicU64, Ordering};
use crate::units::Order;
use crate::zone::{Defer, Zone};

/// How often one request asks the hook, however much the hook says it freed. Linux gives up after
/// this many rounds without progress.
const RECLAIM_ROUNDS: u32 = 16;

impl<P: Platform> Pressure<'_, P> {
    /// Sets the hook that gives memory up when it is short; `None` for no hook, which is the
    /// default. The hook is called only where [`Platform::can_wait`] is true, which by default is
    /// nowhere. May be called at any time; calls that are under way finish with the hook that they
    /// began with.
    pub fn set_reclaim(self, hook: Option<&'static dyn Reclaim>) {
        let mut current = self.manager.pressure.hook.lock(self.manager.platform);
        *current = hook;
        self.manager.pressure.has_hook.store(hook.is_some(), Ordering::Relaxed);
    }

    /// Counts what happened when memory was short. Ordinary requests for one run that are known to
    /// fail again (the caches were emptied, and nothing was freed since) fail without being
    /// counted.
    #[must_use]
    pub fn events(self) -> PressureEvents {
        let Counters {
            stalls,
            failures,
            drains,
            reclaim_calls,
            reclaim_pages,
            background_wakes,
            background_pages,
        } = &self.manager.pressure.counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PressureEvents {
            stalls: [0, 1, 2].map(|kind: usize| read(&stalls[kind])),
            failures: read(failures),
            drains: read(drains),
            reclaim_calls: read(reclaim_calls),
            reclaim_pages: read(reclaim_pages),
            background_wakes: read(background_wakes),
            background_pages: read(background_pages),
        }
    }
}

impl<P: Platform> Manager<P> {
    /// Whether a request like this one has failed above the ordinary marks, and nothing was freed
    /// since. A request that this keeps from trying counts towards the next try at compaction.
    pub(super) fn is_known_to_fail(&self, search: &Search, order: Order) -> bool {
        self.pressure.has_failed(self.platform, &Key::of(order, search, Reserves::None))
            && !self.ends_refusal()
    }

    /// Counts a request that is known to fail. Returns true if runs that could not be moved when
    /// compaction failed are worth another try: they may only have been busy or pinned, and
    /// nothing says when they no longer are.
    #[inline(never)]
    pub(super) fn ends_refusal(&self) -> bool {
        if !cfg!(feature = "moving") || !self.pressure.ends_refusal() {
            return false;
        }
        for node in self.numa.nodes() {
            node.defer.lock(self.platform).iter_mut().for_each(Defer::allow);
        }
        self.pressure.epoch.end();
        true
    }

    /// Does everything that is done once memory is short. `attempt` keeps the memory that it finds.
    pub(super) fn direct_reclaim(&self, lacking: &Lacking<'_>, attempt: &mut Attempt<'_>) {
        let &Lacking { request, search, order, known_to_fail } = lacking;
        count(&self.pressure.counters.stalls[request.zone as usize], 1);
        let key = |reserves| Key::of(order, search, reserves);
        let is_found = 'ways: {
            // Without marks nothing is looked for, except by pools while a debug aid is on.
            let mut missing = attempt(&[]).err().unwrap_or(0);
            if !request.fail_fast {
                if !known_to_fail {
                    if self.drain_for(order, attempt) {
                        break 'ways true;
                    }
                    let epoch = self.pressure.epoch.number();
                    match attempt(ORDINARY) {
                        Ok(()) => break 'ways true,
                        Err(pages) => missing = pages,
                    }
                    let compacted = self.direct_compact(search, order, missing, attempt);
                    if matches!(compacted, Compaction::Succeeded) {
                        break 'ways true;
                    }
                    if !matches!(compacted, Compaction::NotTried) && self.has_seen_all() {
                        if matches!(compacted, Compaction::Refused) {
                            self.pressure.begin_refusal();
                        }
                        self.pressure.note_failure(self.platform, epoch, key(Reserves::None));
                    }
                }
                let wanted = shortage(request.node, search, order, missing);
                if self.reclaim(wanted, attempt) {
                    break 'ways true;
                }
            }
            let reserves = request.reserves;
            let is_out = |reserves| self.pressure.has_failed(self.platform, &key(reserves));
            if reserves == Reserves::None || is_out(reserves) {
                break 'ways false;
            }
            let epoch = self.pressure.epoch.number();
            let is_found = attempt(&[reserves.mark()]).is_ok();
            if !is_found && self.has_seen_all() {
                self.pressure.note_failure(self.platform, epoch, key(reserves));
            }
            is_found
        };
        count(&self.pressure.counters.failures, u64::from(!is_found));
    }

    /// Whether no other request would find more. A request that may not wait has skipped sections
    /// that others are bringing up.
    fn has_seen_all(&self) -> bool {
        self.platform.can_wait() || !self.zones().iter().any(Zone::has_withheld)
    }

    /// Returns the hook, if there is one and this task may call it. The task counts as inside the
    /// hook until the returned guard is dropped.
    pub(super) fn enter_hook(&self) -> Option<(&'static dyn Reclaim, InHook<'_>)> {
        if !self.pressure.has_hook.load(Ordering::Relaxed) || !self.platform.can_wait() {
            return None;
        }
        let hook = (*self.pressure.hook.lock(self.platform))?;
        let task = self.platform.current_task().map(core::num::NonZeroU64::get);
        Some((hook, self.pressure.enter_hook(task)?))
    }

    /// Calls the hook as long as it frees something and that does not suffice. Returns whether it
    /// sufficed.
    fn reclaim(&self, mut wanted: Shortage, attempt: &mut Attempt<'_>) -> bool {
        let Some((hook, _inside)) = self.enter_hook() else { return false };
        for round in 0..RECLAIM_ROUNDS {
            wanted.round = round;
            let freed = hook.reclaim(&wanted);
            count(&self.pressure.counters.reclaim_calls, 1);
            count(&self.pressure.counters.reclaim_pages, freed);
            // Others may have freed memory meanwhile, whatever the hook says; and the memory that
            // the hook freed may be in caches.
            for drained in [false, true] {
                if drained {
                    self.drain_for_more();
                }
                match attempt(ORDINARY) {
                    Ok(()) => return true,
                    Err(pages) => wanted.pages = pages,
                }
            }
            if freed == 0 {
                break;
            }
        }
        false
    }

    /// Empties caches until `attempt` finds a run of `order`. The calling CPU's cache comes first,
    /// as that interrupts no other CPU. When nothing was found all caches were emptied, or only
    /// that CPU's where waiting is not allowed. Does nothing while the caches are known to be
    /// empty. Bad frames found in a cache do not keep the good ones from going back.
    #[inline(never)]
    fn drain_for(&self, order: Order, attempt: &mut Attempt<'_>) -> bool {
        if !cfg!(feature = "smp") || self.pressure.epoch.number().is_some() {
            return false;
        }
        let own = self.drain_own();
        if self.platform.cpus() == 1 || !self.platform.can_wait() {
            return false;
        }
        !matches!(own, Ok(0)) && attempt(ORDINARY).is_ok()
            || self.drain_until(order, &mut Ok(0), attempt)
    }

    /// Empties the caches, as other CPUs cannot have the memory in them.
    pub(super) fn drain_for_more(&self) {
        self.drain_for(Order::PAGE, &mut |_| Err(0));
    }
}

/// Looks for memory above the given marks, and keeps what it finds. The error is the number of
/// pages still missing.
pub(in crate::manager) type Attempt<'a> = dyn FnMut(&[Mark]) -> Result<(), u64> + 'a;

/// A request for which there is nothing above the ordinary marks.
pub(super) struct Lacking<'r> {
    pub(super) request: &'r Request,
    /// Where the request looks.
    pub(super) search: &'r Search<'r>,
    /// The order that it looks for.
    pub(super) order: Order,
    /// What [`is_known_to_fail`](Manager::is_known_to_fail) said. If true, the request has not
    /// searched.
    pub(super) known_to_fail: bool,
}

/// Describes what a request lacks before it asks the hook for the first time.
fn shortage(node: NodeChoice, search: &Search, order: Order, pages: u64) -> Shortage {
    Shortage {
        order,
        pages,
        node,
        nodes: search.nodes(),
        zone: search.highest,
        max_address: search.max_address,
        migrate_type: search.migrate_type,
        round: 0,
    }
}
