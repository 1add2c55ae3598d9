//! A helper that loses its CPU inside a chunk while its caller waits for it.

use framewright_jobs::{Helpers, Job};
use framewright_jobs_linux::HostedHelpers;
use framewright_jobs_linux::Priority;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// Reports on the terminal, past the test harness, what this machine does not allow; `cargo xtask
/// test` counts the lines.
macro_rules! not_possible {
    ($($what:tt)*) => {{
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), "\nNOT POSSIBLE HERE: {}", format_args!($($what)*));
    }};
}

type Set = libc::cpu_set_t;

/// Returns the CPUs on which the calling thread may run.
fn cpus() -> Set {
    // SAFETY: a set is an array of integers, for which zero is a value.
    let mut set: Set = unsafe { std::mem::zeroed() };
    // SAFETY: the set is live and of the size that is passed.
    assert_eq!(unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) }, 0);
    set
}

fn stay_on(set: &Set) {
    // SAFETY: the set is live and of the size that is passed.
    assert_eq!(unsafe { libc::sched_setaffinity(0, size_of_val(set), &raw const *set) }, 0);
}

fn are_equal(one: &Set, other: &Set) -> bool {
    // SAFETY: both are live.
    unsafe { libc::CPU_EQUAL(one, other) }
}

/// Returns the set that holds the CPU of the calling thread.
fn this_cpu() -> Set {
    // SAFETY: a set is an array of integers, for which zero is a value.
    let mut set: Set = unsafe { std::mem::zeroed() };
    // SAFETY: takes nothing and touches no memory of the process.
    let cpu = usize::try_from(unsafe { libc::sched_getcpu() }).expect("the system says");
    // SAFETY: the number is that of a CPU, so below the size of the set.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    set
}

/// A hundred times as many polls as a caller needs to see that its helper does not advance.
const LOOKS: u32 = 5_000;

/// Runs a job whose helper binds itself to its CPU in its chunk and gets no CPU time, as beside a
/// busy process, while its caller waits. Returns whether the helper was moved to another CPU.
fn is_fetched(helpers: &HostedHelpers) -> bool {
    let (inside, begun, was_fetched) =
        (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
    let result = Job::new(0..2).min_chunk(1).max_threads(2).run(helpers, |_, worker| {
        if worker.index() == 0 {
            begun.store(true, Ordering::Release);
            while !inside.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_micros(50));
            }
            return Ok::<_, Infallible>(());
        }
        let here = this_cpu();
        stay_on(&here);
        inside.store(true, Ordering::Release);
        // Otherwise the helper might do both chunks before the caller begins one.
        while !begun.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_micros(50));
        }
        let mut looks = 0..LOOKS;
        let fetched = looks.any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            !are_equal(&cpus(), &here)
        });
        was_fetched.store(fetched, Ordering::Relaxed);
        Ok(())
    });
    assert_eq!(result.map(|summary| summary.threads), Ok(2));
    was_fetched.into_inner()
}

#[test]
fn a_helper_that_stands_still_gets_its_callers_cpu() {
    for priority in [Priority::Lent, Priority::Kept] {
        let helpers = HostedHelpers::new().with_helpers(1).with_priority(priority);
        if helpers.allowance() == 0 {
            not_possible!("a helper that stands still: this process may use one CPU only");
            return;
        }
        let own = cpus();
        for _ in 0..3 {
            assert!(is_fetched(&helpers), "{priority:?}");
            // In the next job the helper runs on its caller's CPUs.
            let others = AtomicU32::new(0);
            let came = AtomicBool::new(false);
            let result = Job::new(0..2).min_chunk(1).max_threads(2).run(&helpers, |_, worker| {
                if worker.index() != 0 {
                    others.fetch_add(u32::from(!are_equal(&cpus(), &own)), Ordering::Relaxed);
                    came.store(true, Ordering::Release);
                }
                while !came.load(Ordering::Acquire) {
                    std::thread::sleep(Duration::from_micros(50));
                }
                Ok::<_, Infallible>(())
            });
            assert!(result.is_ok() && others.into_inner() == 0);
        }
    }
}
