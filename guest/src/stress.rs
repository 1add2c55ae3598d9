//! Random traffic on the memory that was just brought up (`stress=`, `stress_operations=` on the
//! command line), on all CPUs at once. With `interrupt_storm=` their timers' handlers allocate
//! meanwhile.
//!
//! Orders of memory: arrivals are AcqRel, and a new round is stored with Release and loaded with
//! Acquire, so that everything done in a round is seen in the next, including the Relaxed counters.

use crate::console::log;
use crate::platform::{GuestPlatform, PLATFORM};
use crate::smp;
use crate::storm::{self, Storm};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use framewright::SpinLock;
use framewright::platform::Platform;
use framewright::units::{PAGE_SIZE, PfnRange};
use framewright::{Manager, Request};
use framewright_workload::{Failure, Held, Shared, Tally, Worker};

/// Most runs that each CPU holds.
const CAPACITY: usize = 512;
/// Pages for one CPU's list of its runs.
const LIST_PAGES: u64 = ((CAPACITY * size_of::<Held>()) as u64).div_ceil(PAGE_SIZE);
/// Operations of all CPUs together in a round. After each round every page is accounted for.
const ROUND: u64 = 5000;
/// Fewest operations of one CPU in a round.
const LEAST_ROUND: u64 = 500;

/// How long the traffic goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Length {
    /// This many seconds by the clock; a single round if there is no clock.
    Seconds(u64),
    /// Exactly this many operations of all CPUs together.
    Operations(u64),
}

/// What the command line asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stress {
    /// When it ends.
    pub length: Length,
    /// `stress_seed=`: the seed of all random choices.
    pub seed: u64,
    /// `interrupt_storm=`: how many times a second each CPU's timer interrupts it.
    pub storm_hz: Option<u64>,
}

/// What the CPUs share.
struct Traffic<'a> {
    manager: &'a Manager<GuestPlatform>,
    shared: &'a Shared,
    storm: Option<(&'a Storm<'a>, u64)>,
    wanted: Stress,
    /// Memory for the lists of the runs that CPUs hold.
    lists: PfnRange,
    cpus: u32,
    /// CPUs that have taken a list.
    joined: AtomicU32,
    /// How many CPUs wait for the end of the round, and how many rounds there were.
    arrived: AtomicU32,
    rounds: AtomicU32,
    pages: AtomicU64,
    operations: AtomicU64,
    over: AtomicBool,
    failure: SpinLock<Option<(u32, Failure)>>,
    tally: SpinLock<Tally>,
    started_ns: Option<u64>,
}

impl Stress {
    /// Runs the traffic, accounts for every page after each round and at the end, and logs the
    /// result. Returns false if something is wrong.
    pub fn run(self, manager: &Manager<GuestPlatform>) -> bool {
        let idle_before = idle_pages(manager) + manager.caches().pages();
        let started_ns = PLATFORM.now_ns();
        let cpus = smp::online().count();
        let plural = if cpus == 1 { "" } else { "s" };
        log!("Framewright: stress with seed {} on {cpus} CPU{plural}", self.seed);
        let lists = match manager.allocate(&Request::pages(LIST_PAGES * u64::from(cpus))) {
            Ok(lists) => lists,
            Err(error) => {
                log!("Framewright: stress failed: no memory for its own lists: {error}");
                return false;
            }
        };
        let done = self.storm_and_traffic(manager, lists, cpus, started_ns);
        // SAFETY: allocated above, and the workers that used the lists have returned (invariant
        // 42).
        if let Err(error) = unsafe { manager.free(lists) }.and_then(|()| manager.drain().map(drop))
        {
            log!("Framewright: stress failed: {error}");
            return false;
        }
        let Some(tally) = done else { return false };
        let totals = manager.totals();
        let all_back = idle_pages(manager) == idle_before;
        let ms =
            started_ns.zip(PLATFORM.now_ns()).map_or(0, |(start, end)| (end - start) / 1_000_000);
        log!("Framewright: stress: {tally}, {ms} ms");
        log!(
            "Framewright: stress: {}, {} of {} managed pages free",
            if all_back { "every page accounted for" } else { "PAGES LOST" },
            totals.free_pages,
            totals.managed_pages,
        );
        all_back
    }

    /// Does everything except allocating the lists. Returns `None` if something is wrong, which the
    /// log then says.
    fn storm_and_traffic(
        self,
        manager: &Manager<GuestPlatform>,
        lists: PfnRange,
        cpus: u32,
        started_ns: Option<u64>,
    ) -> Option<Tally> {
        let shared = Shared::new(manager);
        let storm = self.storm_hz.map(|_| Storm::begin(manager));
        let traffic = Traffic {
            manager,
            shared: &shared,
            storm: storm.as_ref().zip(self.storm_hz),
            wanted: self,
            lists,
            cpus,
            joined: AtomicU32::new(0),
            arrived: AtomicU32::new(0),
            rounds: AtomicU32::new(0),
            pages: AtomicU64::new(0),
            operations: AtomicU64::new(0),
            over: AtomicBool::new(false),
            failure: SpinLock::new(None),
            tally: SpinLock::new(Tally::default()),
            started_ns,
        };
        smp::run_on(smp::others(), &|| traffic.take_part(), || traffic.take_part());
        let failure = traffic.failure.with(&PLATFORM, |failure| *failure);
        let tally = traffic.tally.with(&PLATFORM, |tally| *tally);
        let storm = storm.map(Storm::end);
        if let Some((cpu, failure)) = failure {
            log!("Framewright: stress failed on CPU {cpu}: {failure}");
            return None;
        }
        if let Err(failure) = shared.settle(manager) {
            log!("Framewright: stress failed at the end: {failure}");
            return None;
        }
        if let Some(storm::Tally { strikes, allocations, refusals, faults }) = storm {
            log!(
                "Framewright: interrupt storm: {strikes} interrupts, {allocations} allocations, \
                 {refusals} refused, {faults} faults"
            );
            if faults != 0 {
                return None;
            }
        }
        Some(tally)
    }
}

/// Counts the pages that are idle: free, not accepted yet or not acceptable, or used for
/// descriptors. The sum includes descriptors because, once everything is freed again, other blocks
/// may be split than before.
fn idle_pages(manager: &Manager<GuestPlatform>) -> u64 {
    let (totals, lost_pages) = (manager.totals(), manager.acceptance().lost_pages());
    totals.free_pages + totals.unaccepted_pages + totals.descriptor_pages + lost_pages
}

impl Traffic<'_> {
    /// Does the work of one CPU.
    fn take_part(&self) {
        let number = self.joined.fetch_add(1, Ordering::Relaxed);
        if let Some((storm, hz)) = self.storm {
            storm.join(hz);
        }
        let seed = self.wanted.seed.wrapping_add(u64::from(number) << 32);
        let mut list = self.list(number);
        // SAFETY: the list was just written, only this CPU has it, and the pages are freed when all
        // CPUs are done.
        let list = unsafe { list.as_mut() };
        let mut worker = Worker::new(self.manager, self.shared, list, seed);
        let mut left = self.share(number);
        while !self.over.load(Ordering::Acquire) {
            let round = (ROUND / u64::from(self.cpus)).max(LEAST_ROUND).min(left);
            left -= round;
            self.note(worker.run(round));
            self.pages.fetch_add(worker.pages(), Ordering::Relaxed);
            self.operations.fetch_add(round, Ordering::Relaxed);
            self.meet(|| self.end_round());
        }
        if !self.has_failed() {
            match worker.finish() {
                Ok(tally) => self.tally.with(&PLATFORM, |sum| *sum += tally),
                Err(failure) => self.note(Err(failure)),
            }
        }
        if let Some((storm, _)) = self.storm {
            storm.leave();
        }
    }

    /// Returns the list for what CPU `number` of the traffic holds, empty.
    fn list(&self, number: u32) -> NonNull<[Held; CAPACITY]> {
        let start = self.lists.start.add(u64::from(number) * LIST_PAGES);
        let list = PLATFORM.direct(start.address()).cast::<[Held; CAPACITY]>();
        // SAFETY: the pages were allocated for this, and each CPU has its own.
        unsafe { list.write([Held::NOTHING; CAPACITY]) };
        list
    }

    /// How many operations CPU `number` of the traffic does.
    fn share(&self, number: u32) -> u64 {
        match self.wanted.length {
            Length::Operations(all) => {
                let cpus = u64::from(self.cpus);
                all / cpus + u64::from(u64::from(number) < all % cpus)
            }
            Length::Seconds(_) => u64::MAX,
        }
    }

    fn has_failed(&self) -> bool {
        self.failure.with(&PLATFORM, |failure| failure.is_some())
    }

    /// Keeps the first failure.
    fn note(&self, result: Result<(), Failure>) {
        if let Err(failure) = result {
            self.failure.with(&PLATFORM, |first| {
                first.get_or_insert((smp::index(), failure));
            });
        }
    }

    /// Waits for all CPUs. The last to arrive calls `then` before any CPU goes on.
    fn meet(&self, then: impl FnOnce()) {
        let round = self.rounds.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 < self.cpus {
            smp::sleep_until(&|| self.rounds.load(Ordering::Acquire) != round);
            return;
        }
        self.arrived.store(0, Ordering::Relaxed);
        then();
        self.rounds.store(round.wrapping_add(1), Ordering::Release);
        smp::wake_all();
    }

    /// Runs while all CPUs wait: accounts for every page, and decides whether this was the last
    /// round.
    fn end_round(&self) {
        let held = self.pages.swap(0, Ordering::Relaxed);
        let account = |more| self.shared.account(self.manager, held + more).map(drop);
        let failed = self.has_failed();
        if !failed {
            self.note(match self.storm {
                Some((storm, _)) => storm.paused(account),
                None => account(0),
            });
        }
        let is_long_enough = match self.wanted.length {
            Length::Operations(all) => self.operations.load(Ordering::Relaxed) >= all,
            Length::Seconds(seconds) => {
                self.started_ns.zip(PLATFORM.now_ns()).is_none_or(|(start, now)| {
                    now.saturating_sub(start) >= seconds.saturating_mul(1_000_000_000)
                })
            }
        };
        if is_long_enough || self.has_failed() {
            self.over.store(true, Ordering::Release);
        }
    }
}
