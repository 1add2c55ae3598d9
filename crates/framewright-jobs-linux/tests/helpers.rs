//! Jobs with threads of this process: coverage, panics, nesting, many callers, and what helpers
//! inherit from their caller.

use framewright_jobs::{Helpers, Job, JobError};
use framewright_jobs_linux::HostedHelpers;
use framewright_jobs_linux::Priority;
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Reports on the terminal, past the test harness, what this machine or user does not allow; `cargo
/// xtask test` counts the lines.
macro_rules! not_possible {
    ($($what:tt)*) => {{
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), "\nNOT POSSIBLE HERE: {}", format_args!($($what)*));
    }};
}

/// Returns the CPUs on which the calling thread may run.
fn cpus() -> Vec<usize> {
    // SAFETY: a set is an array of integers, for which zero is a value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is live and of the size that is passed.
    assert_eq!(unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) }, 0);
    // SAFETY: every number is below the size of the set.
    (0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect()
}

fn stay_on(cpus: &[usize]) {
    // SAFETY: a set is an array of integers, for which zero is a value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &cpu in cpus {
        // SAFETY: the number came from a set of this size.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    // SAFETY: the set is live and of the size that is passed.
    assert_eq!(unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) }, 0);
}

/// Returns whether a helper can run at all; reports if not.
fn possible(helpers: &HostedHelpers, what: &str) -> bool {
    let possible = helpers.allowance() > 0;
    if !possible {
        not_possible!("{what}: this process may use one CPU only");
    }
    possible
}

/// Returns whether helpers can have a priority of their own; reports if not.
fn may_change_priorities(helpers: &HostedHelpers, what: &str) -> bool {
    let kept = helpers.priority() == Priority::Kept;
    if kept {
        not_possible!("{what}: {}", helpers.priority());
    }
    !kept && possible(helpers, what)
}

/// Yields the CPU to a helper, which has the lowest priority.
fn breathe() {
    std::thread::sleep(Duration::from_micros(50));
}

/// Runs a job of two chunks; the caller stays in its chunk until a helper has done the other.
fn with_helper(helpers: &HostedHelpers, on_helper: impl Fn() + Sync) {
    let came = AtomicBool::new(false);
    let summary = Job::new(0..2).min_chunk(1).max_threads(2).run(helpers, |_, worker| {
        if worker.index() != 0 {
            on_helper();
            came.store(true, Ordering::Release);
        } else {
            while !came.load(Ordering::Acquire) {
                breathe();
            }
        }
        Ok::<_, Infallible>(())
    });
    assert_eq!(summary.map(|summary| summary.units), Ok(2));
    // On a busy machine the helper may even do both before the caller gets one.
    assert!(came.into_inner(), "no helper came");
}

#[test]
fn every_unit_is_done_once() {
    let helpers = HostedHelpers::new().with_helpers(3);
    for (size, align, min_chunk) in
        [(1, 1, Some(1)), (1000, 1, Some(1)), (4096, 8, None), (100_000, 7, Some(100))]
    {
        for repetition in 0..20 {
            let done: Vec<AtomicU32> = (0..size).map(|_| AtomicU32::new(0)).collect();
            let job = Job::new(0..size).align(align);
            let job = min_chunk.map_or(job, |units| job.min_chunk(units));
            let job = if repetition % 2 == 0 { job.guided() } else { job };
            let result = job.run(&helpers, |chunk, _| {
                for unit in chunk {
                    done[usize::try_from(unit).expect("small")].fetch_add(1, Ordering::Relaxed);
                }
                Ok::<_, Infallible>(())
            });
            assert_eq!(result.map(|summary| summary.units), Ok(size));
            assert!(done.iter().all(|count| count.load(Ordering::Relaxed) == 1));
        }
    }
}

#[test]
fn helpers_are_started_when_they_are_wanted() {
    let helpers = HostedHelpers::new();
    assert!(Job::new(0..10).min_chunk(10).run(&helpers, |_, _| Ok::<_, Infallible>(())).is_ok());
    assert_eq!(helpers.started(), 0);
    if possible(&helpers, "starting a helper") {
        with_helper(&helpers, || {});
        assert!(helpers.started() >= 1);
    }
}

#[test]
fn a_panic_reaches_the_caller_with_what_was_thrown() {
    let helpers = HostedHelpers::new();
    if !possible(&helpers, "a panic on a helper") {
        return;
    }
    for round in 0..3_u32 {
        let thrown = catch_unwind(AssertUnwindSafe(|| with_helper_that_panics(&helpers, round)));
        let payload = thrown.expect_err("it panicked");
        assert_eq!(payload.downcast_ref::<u32>(), Some(&round));
        with_helper(&helpers, || {});
    }
}

fn with_helper_that_panics(helpers: &HostedHelpers, round: u32) {
    let inside = AtomicBool::new(false);
    let _ = Job::new(0..2).min_chunk(1).max_threads(2).run(helpers, |_, worker| {
        if worker.index() != 0 {
            inside.store(true, Ordering::Release);
            std::panic::resume_unwind(Box::new(round));
        }
        while !inside.load(Ordering::Acquire) {
            breathe();
        }
        Ok::<_, Infallible>(())
    });
}

#[test]
fn an_error_undoes_what_was_done() {
    let helpers = HostedHelpers::new();
    for bad in [0, 17, 63] {
        let done = AtomicU64::new(0);
        let result = Job::new(0..64).min_chunk(1).run_or_undo(
            &helpers,
            |chunk, _| {
                if chunk.contains(&bad) {
                    return Err("bad");
                }
                done.fetch_add(chunk.end - chunk.start, Ordering::Relaxed);
                Ok(())
            },
            |range| {
                done.fetch_sub(range.end - range.start, Ordering::Relaxed);
            },
        );
        assert!(matches!(result, Err(JobError::Failed { error: "bad", .. })));
        assert_eq!(done.into_inner(), 0);
    }
}

#[test]
fn jobs_in_jobs_and_from_many_threads() {
    let helpers = HostedHelpers::new().with_helpers(4);
    let sum = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..30 {
                    let outer = Job::new(0..8).min_chunk(1).run(&helpers, |outer, _| {
                        let inner = Job::new(0..100 * (outer.end - outer.start)).min_chunk(10);
                        inner.run(&helpers, |inner, _| {
                            sum.fetch_add(inner.end - inner.start, Ordering::Relaxed);
                            Ok::<_, Infallible>(())
                        })?;
                        Ok::<_, JobError<Infallible>>(())
                    });
                    assert!(outer.is_ok());
                }
            });
        }
    });
    assert_eq!(sum.into_inner(), 3 * 30 * 800);
}

#[test]
fn a_caller_on_one_cpu_gets_no_helper() {
    let helpers = HostedHelpers::new();
    let all = cpus();
    let one = all[0];
    std::thread::scope(|scope| {
        let confined = scope.spawn(|| {
            stay_on(&[one]);
            Job::new(0..1000)
                .min_chunk(1)
                .run(&helpers, |_, _| Ok::<_, Infallible>(()))
                .map(|summary| summary.threads)
        });
        assert_eq!(confined.join().expect("no panic"), Ok(1));
    });
    assert_eq!((helpers.started(), cpus()), (0, all));
}

#[test]
fn a_caller_that_may_use_more_cpus_than_before_gets_helpers() {
    let helpers = HostedHelpers::new();
    if !possible(&helpers, "a caller that may use more CPUs than before") {
        return;
    }
    let (helpers, all) = (HostedHelpers::new(), cpus());
    let threads = || {
        let result = Job::new(0..20).run(&helpers, |_, _| {
            std::thread::sleep(Duration::from_millis(1));
            Ok::<_, Infallible>(())
        });
        result.map_or(0, |summary| summary.threads)
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            stay_on(&all[..1]);
            assert_eq!(threads(), 1);
            stay_on(&all);
            assert!((0..50).any(|_| threads() > 1));
        });
    });
}

/// In each job, helpers run on the CPUs of their caller.
#[test]
fn helpers_keep_to_the_cpus_of_their_caller() {
    let helpers = HostedHelpers::new();
    let all = cpus();
    if !possible(&helpers, "a helper on its caller's CPUs") {
        return;
    }
    if all.len() < 3 {
        not_possible!("a helper that is kept from a CPU: it takes three, here are {}", all.len());
    }
    // Each pair of neighbours; with two CPUs this is all of them.
    for pair in all.windows(2).chain([&all[..]]) {
        let helpers = &helpers;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                stay_on(pair);
                for _ in 0..10 {
                    with_helper(helpers, || assert_eq!(cpus(), pair));
                }
            });
        });
    }
}

fn policy() -> Option<(libc::c_int, u64)> {
    let (mut mode, mut nodes) = (0, [0_u64; 16]);
    // SAFETY: both places are live and of the size that is passed.
    let result = unsafe {
        libc::syscall(libc::SYS_get_mempolicy, &raw mut mode, nodes.as_mut_ptr(), 1024, 0, 0)
    };
    (result == 0).then_some((mode, nodes[0]))
}

#[test]
fn helpers_get_memory_where_their_caller_does() {
    let helpers = HostedHelpers::new();
    if !possible(&helpers, "a helper with its caller's memory policy") {
        return;
    }
    for mode in [libc::MPOL_BIND, libc::MPOL_DEFAULT, libc::MPOL_INTERLEAVE] {
        std::thread::scope(|scope| {
            let helpers = &helpers;
            scope.spawn(move || {
                if let Err(error) = set_policy(mode) {
                    not_possible!("memory policy {mode}: {error}");
                    return;
                }
                let own = policy();
                assert!(own.is_some_and(|(own, _)| own == mode));
                with_helper(helpers, || assert_eq!(policy(), own));
            });
        });
    }
}

/// Sets the memory policy of the calling thread to this mode, with node 0; returns the system's
/// answer.
fn set_policy(mode: libc::c_int) -> std::io::Result<()> {
    let nodes = [u64::from(mode != libc::MPOL_DEFAULT); 1];
    // SAFETY: the mask is live and has 64 nodes.
    let set = unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, nodes.as_ptr(), 65) };
    if set == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// As a library does that binds the threads on which it is called.
#[test]
fn what_a_chunk_does_to_its_thread_ends_with_the_job() {
    let helpers = HostedHelpers::new().with_helpers(1);
    if !possible(&helpers, "a helper that a chunk has bound") {
        return;
    }
    let (all, own) = (cpus(), policy());
    let on_helper = |seen: &Mutex<_>| {
        with_helper(&helpers, || *seen.lock().expect("no panic") = Some((cpus(), policy())));
        seen.lock().expect("no panic").take()
    };
    for _ in 0..5 {
        with_helper(&helpers, || stay_on(&all[..1]));
        assert_eq!(on_helper(&Mutex::default()), Some((all.clone(), own)));
        let set = Mutex::new(Ok(()));
        with_helper(&helpers, || {
            *set.lock().expect("no panic") = set_policy(libc::MPOL_INTERLEAVE);
        });
        if let Err(error) = set.into_inner().expect("no panic") {
            not_possible!("a helper with another memory policy: {error}");
            return;
        }
        assert_eq!(on_helper(&Mutex::default()), Some((all.clone(), own)));
    }
}

fn is_lowest() -> bool {
    // SAFETY: takes integers and touches no memory of the process.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) == 19 }
}

/// The helper runs at its caller's priority only while the caller has no work left and waits.
#[test]
fn a_caller_that_waits_lends_its_priority() {
    let helpers = HostedHelpers::new();
    if !may_change_priorities(&helpers, "lending a priority") {
        return;
    }
    for _ in 0..20 {
        let (inside, seen) = (AtomicBool::new(false), Mutex::new(Vec::new()));
        let result = Job::new(0..2).min_chunk(1).max_threads(2).run(&helpers, |_, worker| {
            if worker.index() == 0 {
                while !inside.load(Ordering::Acquire) {
                    breathe();
                }
                return Ok::<_, Infallible>(());
            }
            seen.lock().expect("no panic").push(is_lowest());
            inside.store(true, Ordering::Release);
            // This loops for ever if the caller lends no priority.
            while is_lowest() {
                breathe();
            }
            Ok(())
        });
        assert_eq!(result.map(|summary| summary.threads), Ok(2));
        assert_eq!(*seen.lock().expect("no panic"), [true]);
    }
}

/// `SCHED_IDLE` is below the helpers' usual level, to which they return for the next caller.
#[test]
fn a_helper_is_never_above_its_caller() {
    let helpers = HostedHelpers::new();
    if !may_change_priorities(&helpers, "a helper below its usual level") {
        return;
    }
    // SAFETY: takes an integer and touches no memory of the process.
    let policy = || unsafe { libc::sched_getscheduler(0) };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let zero = libc::sched_param { sched_priority: 0 };
            let idle = (libc::SCHED_IDLE, libc::SCHED_IDLE);
            let usual = (libc::SCHED_OTHER, libc::SCHED_BATCH);
            for (own, helpers_policy) in [idle, usual, idle, usual] {
                // SAFETY: the parameter is live.
                assert_eq!(unsafe { libc::sched_setscheduler(0, own, &raw const zero) }, 0);
                with_helper(&helpers, || assert_eq!(policy(), helpers_policy));
            }
        });
    });
}

/// A helper that runs a job of its own and waits for another helper passes on the priority that it
/// was lent.
#[test]
fn a_loan_is_passed_on() {
    let helpers = HostedHelpers::new().with_helpers(2);
    if helpers.allowance() < 2 || helpers.priority() == Priority::Kept {
        not_possible!("passing on a loan: it takes three CPUs and the right to raise priorities");
        return;
    }
    with_helper_waiting(&helpers, || with_helper_waiting(&helpers, || while is_lowest() {}));
}

/// Does what [`with_helper`] does, but the caller waits for its helper rather than in its chunk.
fn with_helper_waiting(helpers: &HostedHelpers, on_helper: impl Fn() + Sync) {
    let inside = AtomicBool::new(false);
    let result = Job::new(0..2).min_chunk(1).max_threads(2).run(helpers, |_, worker| {
        if worker.index() != 0 {
            inside.store(true, Ordering::Release);
            on_helper();
        }
        while !inside.load(Ordering::Acquire) {
            breathe();
        }
        Ok::<_, Infallible>(())
    });
    assert_eq!(result.map(|summary| summary.threads), Ok(2));
}

#[test]
fn helpers_see_no_signals_of_the_program() {
    let helpers = HostedHelpers::new();
    if !possible(&helpers, "a helper's signals") {
        return;
    }
    with_helper(&helpers, || {
        // SAFETY: a signal set is an array of integers, for which zero is a value.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: the set is live, and the thread's own is only read.
        let got = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut set) };
        assert_eq!(got, 0);
        for (signal, blocked) in [(libc::SIGTERM, 1), (libc::SIGUSR1, 1), (libc::SIGSEGV, 0)] {
            // SAFETY: the set is live and was filled.
            assert_eq!(unsafe { libc::sigismember(&raw const set, signal) }, blocked);
        }
    });
}
