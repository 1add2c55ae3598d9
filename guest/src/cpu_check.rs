//! Checks that all CPUs work together (`check=cpus` on the command line): a job that all help with,
//! calls from each CPU to all others at once, barriers, TLB flushes, timers.
//!
//! Orders of memory: Relaxed, because the counters are read only after the calls or the job that
//! increment them have ended, which orders the accesses.

use crate::console::log;
use crate::platform::PLATFORM;
use crate::smp::{self, GuestHelpers, MAX_CPUS, TlbShootdown};
use core::convert::Infallible;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use framewright::platform::Platform;
use framewright_arch::paging::{FlushRequest, FlushTlb, VirtualRange};
use framewright_jobs::Job;

/// Units of the job per CPU.
const UNITS: u64 = 8;
/// How long one unit takes.
const UNIT_NS: u64 = 200_000;
/// Rounds of calls that each CPU makes.
const ROUNDS: u32 = 20;
/// Timer interrupts a second, and how many of them each CPU waits for.
const TIMER_HZ: u64 = 1000;
const TICKS: u64 = 3;
/// How long a CPU waits for them at most.
const PATIENCE_NS: u64 = 5_000_000_000;

/// What each CPU did: units of the job, and calls received.
static UNITS_DONE: [AtomicU32; MAX_CPUS] = [const { AtomicU32::new(0) }; MAX_CPUS];
static CALLED: [AtomicU32; MAX_CPUS] = [const { AtomicU32::new(0) }; MAX_CPUS];

/// Runs all checks and logs the results. Returns false if one of them failed.
pub fn run() -> bool {
    let cpus = smp::online().count();
    let before = Sums::read();
    let job = job(u64::from(cpus));
    let calls = calls(cpus);
    let timers = !smp::has_timer() || timers();
    before.log_since();
    job && calls && timers
}

/// Runs a job of equal units. Any CPUs may take part, but each unit must be done exactly once.
fn job(cpus: u64) -> bool {
    let units = cpus * UNITS;
    let result = Job::new(0..units).min_chunk(1).run(&GuestHelpers, |chunk, _worker| {
        let done = u32::try_from(chunk.end - chunk.start).unwrap_or(0);
        UNITS_DONE[smp::index() as usize].fetch_add(done, Ordering::Relaxed);
        for _ in chunk {
            let began = PLATFORM.now_ns();
            while PLATFORM.now_ns().zip(began).is_some_and(|(now, began)| now - began < UNIT_NS) {
                PLATFORM.relax();
            }
        }
        Ok::<_, Infallible>(())
    });
    let done: u32 = UNITS_DONE.iter().map(|done| done.load(Ordering::Relaxed)).sum();
    let took_part = UNITS_DONE.iter().filter(|done| done.load(Ordering::Relaxed) != 0).count();
    log!("check: a job of {units} units was done by {took_part} of {cpus} CPUs");
    result.is_ok() && u64::from(done) == units
}

/// Each CPU calls all others, makes them execute a barrier, and flushes translations, all at once.
fn calls(cpus: u32) -> bool {
    let calls = AtomicU64::new(0);
    let each = || {
        for round in 0..ROUNDS {
            let called = smp::call_on(smp::others(), &|| {
                CALLED[smp::index() as usize].fetch_add(1, Ordering::Relaxed);
            });
            calls.fetch_add(u64::from(called), Ordering::Relaxed);
            PLATFORM.cpu_barrier();
            let pages = [VirtualRange { start: 0, end: 0x2000 }];
            let request = if round % 2 == 0 {
                FlushRequest::Ranges(&pages)
            } else {
                FlushRequest::Everything
            };
            TlbShootdown { global: true }.flush(request);
        }
    };
    smp::run_on(smp::others(), &each, each);
    let expected = ROUNDS * (cpus - 1);
    let wrong = smp::online()
        .iter()
        .filter(|&cpu| CALLED[cpu as usize].load(Ordering::Relaxed) != expected)
        .count();
    let calls = calls.load(Ordering::Relaxed);
    log!("check: {calls} calls, {wrong} CPUs were not called {expected} times");
    wrong == 0 && calls == u64::from(expected) * u64::from(cpus)
}

/// Checks that the timer of every CPU interrupts it.
fn timers() -> bool {
    let silent = AtomicU32::new(0);
    let each = || {
        let ticks = || smp::this().counters.timer.load(Ordering::Relaxed);
        let (began, before) = (PLATFORM.now_ns(), ticks());
        smp::start_timer(TIMER_HZ);
        let too_late =
            || PLATFORM.now_ns().zip(began).is_some_and(|(now, began)| now - began > PATIENCE_NS);
        while ticks() - before < TICKS && !too_late() {
            PLATFORM.relax();
        }
        smp::stop_timer();
        if ticks() - before < TICKS {
            silent.fetch_add(1, Ordering::Relaxed);
        }
    };
    smp::run_on(smp::others(), &each, each);
    let silent = silent.load(Ordering::Relaxed);
    log!("check: the timers of {silent} CPUs do not interrupt");
    silent == 0
}

/// Sums of all CPUs' counters.
struct Sums {
    flushes: u64,
    flushes_received: u64,
    flushed_whole: u64,
    flushed_single: u64,
    flush_cycles: u64,
    timer: u64,
    calls: u64,
    wakes: u64,
    errors: u64,
    sent: u64,
}

impl Sums {
    /// Reads the counters.
    fn read() -> Self {
        let sum = |counter: fn(&smp::Counters) -> &AtomicU64| -> u64 {
            smp::all().map(|cpu| counter(&cpu.counters).load(Ordering::Relaxed)).sum()
        };
        Self {
            flushes: sum(|counters| &counters.flushes),
            flushes_received: sum(|counters| &counters.flushes_received),
            flushed_whole: sum(|counters| &counters.flushed_whole),
            flushed_single: sum(|counters| &counters.flushed_single),
            flush_cycles: sum(|counters| &counters.flush_cycles),
            timer: sum(|counters| &counters.timer),
            calls: sum(|counters| &counters.calls),
            wakes: sum(|counters| &counters.wakes),
            errors: sum(|counters| &counters.errors),
            sent: sum(|counters| &counters.sent),
        }
    }

    /// Logs what was counted since `self` was read, under Linux's names.
    fn log_since(&self) {
        let now = Self::read();
        let flushes = now.flushes - self.flushes;
        log!(
            "check: nr_tlb_remote_flush {flushes}, nr_tlb_remote_flush_received {}, \
             nr_tlb_local_flush_all {}, \
             nr_tlb_local_flush_one {}, {} cycles a flush",
            now.flushes_received - self.flushes_received,
            now.flushed_whole - self.flushed_whole,
            now.flushed_single - self.flushed_single,
            (now.flush_cycles - self.flush_cycles).checked_div(flushes).unwrap_or(0),
        );
        log!(
            "check: interrupts: {} timer, {} call, {} wake, {} error; {} sent",
            now.timer - self.timer,
            now.calls - self.calls,
            now.wakes - self.wakes,
            now.errors - self.errors,
            now.sent - self.sent,
        );
    }
}
