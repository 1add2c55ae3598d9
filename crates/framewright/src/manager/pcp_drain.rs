//! How frames leave the caches of CPUs: a full cache gives back some, a drain takes all, and an
//! idle cache gives back bit by bit what its CPU does not use.
//!
//! ```text
//!   return_some --> return_runs --> one zone, or sorted by zone --> Zone::drain
//! ```
//!
//! A CPU that empties another CPU's cache has it to itself (invariant 16). The zone validates all
//! frames that come back (invariant 13).

use crate::block::Lot;
use crate::block::lots::WORD_ORDERS;
use crate::manager::facets::Caches;
use crate::manager::reclaim::Attempt;
use crate::manager::request::ORDINARY;
use crate::manager::state::Manager;
use crate::page::{CpuCache, MOST_RETURNED, MOST_RUNS, MOST_WORDS, Runs};
use crate::platform::Platform;
use crate::units::{Order, PfnRange};
use crate::vmemmap_space::BlockNumber;
use crate::zone::{FreeError, Zone};

/// The most entries that leave a cache in one call of [`Caches::age`].
const MOST_AGED: usize = MOST_WORDS;
/// The most steps in which a cache is drained: enough for a full one, and some to spare.
const MOST_STEPS: usize = 32;

/// How often a drainer polls for the answers of CPUs before it interrupts them with a barrier: for
/// about 10 us. Most CPUs answer within two, when they come out of a zone. Zero in loom models,
/// where polling is too much for a model of a whole manager; `tests/loom/ownership.rs` models the
/// answers.
const ANSWER_TURNS: u32 = if cfg!(loom) {
    0
} else if cfg!(shuttle) {
    1
} else {
    256
};
/// The time limit of polling, where there is a clock: one turn may take a whole time slice of
/// others.
const ANSWER_NS: u64 = 20_000;
/// Turns between two looks at the clock.
const TURNS_PER_LOOK: u32 = 8;

impl<P: Platform> Caches<'_, P> {
    /// Tells the calling CPU's cache that some time has passed: entries that were not used since
    /// the last call begin to go back to their zones, so that idle CPUs keep no memory from others.
    /// Each CPU should call this now and then, from its timer or its idle loop. Linux does it once
    /// a second (`refresh_cpu_vm_stats` in `mm/vmstat.c`); more frequent calls return memory
    /// sooner.
    ///
    /// Half of each stack is laid aside, and used again as soon as the other half runs out, which
    /// costs the CPU a few nanoseconds. Entries still aside at the next call go back, at most about
    /// 56 in one call. So an idle cache is empty after some 30 calls, and a busy one keeps what it
    /// uses. Requests and frees execute no additional instruction for this.
    ///
    /// Returns how many pages went back. Does nothing when the CPU is inside its cache (the caller
    /// is a handler that has interrupted it) or when the cache is being drained. May be called from
    /// interrupt handlers.
    ///
    /// # Errors
    /// The first frame that was not allocated, as for [`Manager::drain`]; all others have gone
    /// back.
    pub fn age(self) -> Result<u64, FreeError> {
        self.manager.inside(|cache| self.manager.age_cache(cache)).unwrap_or(Ok(0))
    }
}

impl<P: Platform> Manager<P> {
    /// Gives the oldest `count` entries of a stack back to their zones. Returns the number of pages
    /// given back.
    pub(super) fn return_oldest(
        &self,
        cache: &CpuCache,
        order: Order,
        lot: Lot,
        count: usize,
    ) -> Result<u64, FreeError> {
        // The batch is no larger than what usually goes back: clearing a larger one takes as long
        // as a few frees.
        if order == Order::PAGE {
            return self.return_some::<MOST_WORDS>(cache, order, lot, count);
        }
        if order == Order::BLOCK {
            return self.return_some::<MOST_RETURNED>(cache, order, lot, count);
        }
        self.return_some::<MOST_RUNS>(cache, order, lot, count)
    }

    fn return_some<const MOST: usize>(
        &self,
        cache: &CpuCache,
        order: Order,
        lot: Lot,
        count: usize,
    ) -> Result<u64, FreeError> {
        let (mut gone, mut result) = (0, Ok(0));
        while gone < count {
            let mut batch = [Runs::NONE; MOST];
            let copied = cache.copy_oldest(order, lot, gone, &mut batch);
            let some = whole_blocks(&batch[..copied], (count - gone).min(copied));
            if some == 0 {
                break;
            }
            gone += some;
            if order.get() >= WORD_ORDERS && batch[0].base > batch[some - 1].base {
                // Ascending order lets runs that were freed downwards go back together, as runs
                // that were freed upwards do.
                batch[..some].reverse();
            }
            let runs: u64 = batch[..some].iter().map(|entry| entry.count()).sum();
            let returned = self.return_runs(cache, order, &batch[..some]);
            result = join(result, returned.map(|()| runs << order.get()));
        }
        // This moves the entries that stay, so it happens once. Nobody else enters the cache
        // meanwhile.
        cache.forget_oldest(order, lot, gone);
        result
    }

    /// Gives runs back to their zones. All runs that can go back do; the error is that of the first
    /// that cannot.
    fn return_runs(&self, cache: &CpuCache, order: Order, batch: &[Runs]) -> Result<(), FreeError> {
        let Some(home) = self.zones().get(cache.zone()) else { return Ok(()) };
        if batch.iter().all(|entry| home.pfn_range().contains(entry.base)) {
            return self.return_to(home, order, batch);
        }
        self.return_to_several(home, order, batch)
    }

    /// Gives runs back zone by zone, all runs of one zone together.
    #[cold]
    #[inline(never)]
    fn return_to_several(
        &self,
        home: &'static Zone,
        order: Order,
        batch: &[Runs],
    ) -> Result<(), FreeError> {
        let mut result = Ok(());
        let mut left = [Runs::NONE; MOST_RETURNED];
        for batch in batch.chunks(MOST_RETURNED) {
            let mut count = batch.len();
            left[..count].copy_from_slice(batch);
            while let Some(first) = left[..count].first() {
                let zone = self.block_of(first.base).map_or(home, |(zone, _)| zone);
                let (mut same, mut taken, mut others) = ([Runs::NONE; MOST_RETURNED], 0, 0);
                for at in 0..count {
                    let entry = left[at];
                    // The first entry always goes, whatever it is, so that the loop ends.
                    if at == 0 || zone.pfn_range().contains(entry.base) {
                        same[taken] = entry;
                        taken += 1;
                    } else {
                        left[others] = entry;
                        others += 1;
                    }
                }
                count = others;
                result = result.and(self.return_to(zone, order, &same[..taken]));
            }
        }
        result
    }

    fn return_to(&self, zone: &Zone, order: Order, batch: &[Runs]) -> Result<(), FreeError> {
        let mut result = Ok(());
        zone.drain(self.platform, batch, order, &mut |entry| {
            // A frame in the entry is wrong, or belongs to another zone, as spans of zones may
            // overlap: free run by run.
            for start in entry.starts() {
                let freed = self.free_bare(PfnRange::of_order(start, order));
                if result.is_ok() {
                    result = freed.map_err(|error| self.explained(error));
                }
            }
        });
        result
    }

    /// Empties the caches of all CPUs into the zones, where the frames merge and any CPU can have
    /// them.
    ///
    /// Where the caller cannot wait for other CPUs ([`Platform::can_wait`]), empties only the
    /// calling CPU's cache. Returns how many pages went back.
    ///
    /// # Errors
    /// The first frame in a cache that was not allocated; all others have gone back.
    pub fn drain(&self) -> Result<u64, FreeError> {
        if !cfg!(feature = "smp") {
            return Ok(0);
        }
        if self.platform.cpus() == 1 || !self.platform.can_wait() {
            return self.drain_own();
        }
        self.drain_all()
    }

    /// Empties the caches of all CPUs. Only where waiting for them is allowed.
    pub(super) fn drain_all(&self) -> Result<u64, FreeError> {
        let mut drained = Ok(0);
        self.drain_until(Order::PAGE, &mut drained, &mut |_| Err(0));
        drained
    }

    /// Empties the caches of CPUs one after the other until `attempt` finds a run of `order`. Only
    /// where waiting for CPUs is allowed. Runs of at least `order` go first, so that smaller ones,
    /// which cannot help, stay with the CPUs that use them. Several tasks may drain at a time: none
    /// waits for another's whole drain, as that task may have been preempted. Adds the pages that
    /// went back to `drained`, and returns whether `attempt` found a run.
    #[cold]
    #[inline(never)]
    pub(super) fn drain_until(
        &self,
        order: Order,
        drained: &mut Result<u64, FreeError>,
        attempt: &mut Attempt<'_>,
    ) -> bool {
        self.pressure.count_drain();
        let number = self.pressure.epoch.begin_drain();
        if !self.keep_owners_out() {
            // Without a barrier, tasks that run on no CPU of ours were not interrupted either.
            self.pass_locks();
        }
        let mut is_found = false;
        for is_last in [false, true] {
            let least = if is_last { Order::PAGE } else { order.min(Order::BLOCK) };
            for turn in 0..self.caches.len() {
                // Each drain begins with another CPU, so that not always the same CPUs pay.
                #[expect(clippy::cast_possible_truncation, reason = "whichever")]
                let place = (number as usize).wrapping_add(turn) % self.caches.len();
                let Some(cache) = self.caches.get(place) else { continue };
                if !is_found && (is_last || order > Order::PAGE) {
                    cache.ownership.wait(self.platform);
                    is_found = self.take_from(cache, least, drained) && attempt(ORDINARY).is_ok();
                }
                if is_last {
                    cache.ownership.give_back();
                }
            }
        }
        if is_found {
            // Others may still find something.
            self.pressure.epoch.note_free();
        } else {
            self.pressure.epoch.end_drain(number);
        }
        is_found
    }

    /// Takes and releases each zone's lock: frees that came before are visible to this drain, and
    /// frees that come after see its mark; see `DrainEpoch`.
    #[inline(never)]
    fn pass_locks(&self) {
        self.zones().iter().for_each(|zone| zone.pass_lock(self.platform));
    }

    /// Tells other drainers that the calling CPU is outside its cache, if it is, while this CPU is
    /// busy with a drain of its own.
    #[inline(never)]
    fn answer(&self) {
        if ANSWER_TURNS == 0 {
            return;
        }
        self.pinned(|cpu| {
            let own = self.caches.get(cpu as usize);
            own.into_iter().for_each(|cache| cache.ownership.answer_if_outside());
        });
    }

    /// Revokes all caches. Once this returns, their owners are out, or on their way out, until each
    /// cache is given back. Returns whether that took a barrier.
    fn keep_owners_out(&self) -> bool {
        self.caches.iter().for_each(|cache| cache.ownership.revoke());
        let needs_barrier = !self.have_owners_answered();
        if needs_barrier {
            self.platform.cpu_barrier();
        }
        needs_barrier
    }

    /// Whether all owners have answered that they know of the drain. CPUs that allocate and free
    /// all the time answer sooner than a barrier reaches them, so they are given some time.
    #[inline(never)]
    fn have_owners_answered(&self) -> bool {
        // Answers for the calling CPU's own cache, so that it does not count as silent.
        self.answer();
        if ANSWER_TURNS == 0 || self.caches.iter().any(|cache| cache.ownership.is_silent()) {
            return false;
        }
        let begun_ns = self.platform.now_ns();
        let mut left = ANSWER_TURNS;
        self.caches.iter().all(|cache| {
            loop {
                // Repeated, as drainers on other CPUs may be waiting for this CPU's answer.
                self.answer();
                if cache.ownership.has_answered() {
                    return true;
                }
                if left == 0 || left.is_multiple_of(TURNS_PER_LOOK) && self.has_waited(begun_ns) {
                    return false;
                }
                left -= 1;
                self.platform.relax();
            }
        })
    }

    /// Whether polling for answers has lasted long enough.
    #[inline(never)]
    fn has_waited(&self, begun_ns: Option<u64>) -> bool {
        let now_ns = self.platform.now_ns();
        begun_ns.zip(now_ns).is_some_and(|(begun, now)| now.saturating_sub(begun) >= ANSWER_NS)
    }

    /// Gives back what a cache, whose owner is kept out, holds of orders from `least` up. Returns
    /// whether it held anything. Works in small steps: the task that empties the cache cannot lose
    /// its CPU in one.
    fn take_from(
        &self,
        cache: &CpuCache,
        least: Order,
        drained: &mut Result<u64, FreeError>,
    ) -> bool {
        let mut had_any = false;
        loop {
            self.answer();
            let some = cache.ownership.alone(self.platform, || {
                if least == Order::PAGE {
                    cache.begin_small();
                }
                self.drain_some_from(cache, least)
            });
            if matches!(some, Ok(0)) {
                return had_any;
            }
            *drained = join(*drained, some);
            had_any = true;
        }
    }

    /// Calls `body` for the cache of each CPU, one after the other, while its owner is kept out.
    /// Only where waiting for CPUs is allowed. One barrier serves all caches.
    #[inline(never)]
    pub(super) fn with_all_caches(&self, body: &mut dyn FnMut(&CpuCache)) {
        self.keep_owners_out();
        for cache in self.caches {
            cache.ownership.wait(self.platform);
            body(cache);
            cache.ownership.give_back();
        }
    }

    /// Empties the calling CPU's cache, pinned for one step at a time. On a machine with a single
    /// CPU this is a whole drain, and begins an epoch.
    #[inline(never)]
    pub(super) fn drain_own(&self) -> Result<u64, FreeError> {
        if !cfg!(feature = "smp") {
            return Ok(0);
        }
        let epoch = &self.pressure.epoch;
        let number = (self.platform.cpus() == 1).then(|| epoch.begin_drain());
        if number.is_some() {
            // Tasks may call on CPUs that the platform does not count.
            self.pass_locks();
        }
        let mut drained = Ok(0);
        // The steps are limited, so frames that handlers and other tasks put in meanwhile may stay.
        for _ in 0..MOST_STEPS {
            let step = self.inside(|cache| (self.drain_some(cache), cache.is_empty()));
            let Some((some, is_empty)) = step else { break };
            drained = join(drained, some);
            if is_empty {
                if let Some(number) = number {
                    self.pressure.count_drain();
                    // A task that has put something in since has ended the epoch.
                    epoch.end_drain(number);
                }
                break;
            }
        }
        drained
    }

    /// Empties a cache to which the caller has exclusive access.
    #[inline(never)]
    pub(super) fn drain_cache(&self, cache: &CpuCache) -> Result<u64, FreeError> {
        let mut drained = Ok(0);
        while !cache.is_empty() {
            drained = join(drained, self.drain_some(cache));
        }
        drained
    }

    /// Takes about as much out of a cache as a full one gives back at once.
    pub(super) fn drain_some(&self, cache: &CpuCache) -> Result<u64, FreeError> {
        cache.begin_small();
        self.drain_some_from(cache, Order::PAGE)
    }

    /// [`drain_some`](Self::drain_some) for orders from `least` up.
    #[inline(never)]
    fn drain_some_from(&self, cache: &CpuCache, least: Order) -> Result<u64, FreeError> {
        let (mut drained, mut left) = (Ok(0), MOST_RETURNED);
        let mut turn = CpuCache::first_turn(least);
        while left != 0
            && let Some((order, lot, waiting)) = cache.next_waiting(&mut turn)
        {
            let some = waiting.min(left);
            drained = join(drained, self.return_oldest(cache, order, lot, some));
            left -= some;
        }
        if least > Order::PAGE {
            return drained;
        }
        join(drained, self.return_some_odd(&mut left, &mut || cache.give_up_odd()))
    }

    /// Frees the runs that `next` returns, at most `left` of them, and counts `left` down.
    #[inline(never)]
    fn return_some_odd(
        &self,
        left: &mut usize,
        next: &mut dyn FnMut() -> Option<PfnRange>,
    ) -> Result<u64, FreeError> {
        let mut returned = Ok(0);
        while *left != 0
            && let Some(range) = next()
        {
            returned = join(returned, self.return_odd(range));
            *left -= 1;
        }
        returned
    }

    /// See [`Caches::age`].
    fn age_cache(&self, cache: &CpuCache) -> Result<u64, FreeError> {
        let (mut gone, mut left, mut turn) = (Ok(0), MOST_AGED, 0);
        while left != 0
            && let Some((order, lot, aside)) = cache.next_aside(&mut turn)
        {
            let some = aside.min(left);
            gone = join(gone, self.return_oldest(cache, order, lot, some));
            left -= some;
        }
        gone = join(gone, self.return_some_odd(&mut left, &mut || cache.give_up_old_odd()));
        if cache.is_empty() {
            cache.begin_small();
        } else if left != 0 {
            cache.set_aside();
        }
        gone
    }

    /// Gives a run of any number of pages back to its zone. Returns that number.
    pub(super) fn return_odd(&self, range: PfnRange) -> Result<u64, FreeError> {
        let freed = self.free_bare(range).map_err(|error| self.explained(error));
        freed.map(|()| range.pages())
    }
}

/// How many runs to give back if `count` are wanted: up to half as many more if these complete the
/// block of the last run, because a block that comes back in one piece never gets into a free list.
fn whole_blocks(runs: &[Runs], count: usize) -> usize {
    let Some(last) = count.checked_sub(1).and_then(|last| runs.get(last)) else { return count };
    let block = BlockNumber::containing(last.base);
    let follow =
        runs[count..].iter().take_while(|runs| BlockNumber::containing(runs.base) == block).count();
    if follow <= count / 2 { count + follow } else { count }
}

/// The sum, or the first error.
#[inline(never)]
pub(super) fn join(
    one: Result<u64, FreeError>,
    other: Result<u64, FreeError>,
) -> Result<u64, FreeError> {
    Ok(one? + other?)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::units::Pfn;
    use std::vec::Vec;

    #[test]
    fn what_goes_back_ends_where_a_block_does_if_that_is_near() {
        let order = |order| Order::new(order).expect("small");
        let half = |number: u64| Runs::one(Pfn(number * 256), order(8));
        let odd: Vec<Runs> = (1..9).map(half).collect();
        assert_eq!(
            [0, 1, 2, 3, 4, 7, 8].map(|count| whole_blocks(&odd, count)),
            [0, 1, 3, 3, 5, 7, 8]
        );
        // The rest of the block is everything that is left.
        let small: Vec<Runs> =
            (0..16).map(|number| Runs::one(Pfn(number * 16), order(4))).collect();
        assert_eq!([4, 8, 11, 16].map(|count| whole_blocks(&small, count)), [4, 8, 16, 16]);
        assert_eq!(whole_blocks(&[], 0), 0);
    }
}
