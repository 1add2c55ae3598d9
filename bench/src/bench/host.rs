//! The CPUs of the host, threads that are pinned to them, and CPU time.

use crate::bench::common::failed;
use framewright_cli::error::Error;
pub use framewright_cli::hosted::cpu_seconds;
use std::io;

/// The CPUs on which this process may run, ascending.
///
/// # Errors
/// Fails if the system does not say.
pub fn cpus() -> Result<Vec<usize>, Error> {
    let mut set = empty();
    // SAFETY: the set is a live value of the size that is passed.
    let result = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) };
    if result != 0 {
        return Err(failed(format!("the host's CPUs are unknown: {}", io::Error::last_os_error())));
    }
    // SAFETY: every number is below the size of the set.
    let allowed = |&cpu: &usize| unsafe { libc::CPU_ISSET(cpu, &set) };
    Ok((0..libc::CPU_SETSIZE as usize).filter(allowed).collect())
}

/// Pins the calling thread to one CPU.
///
/// # Errors
/// Fails if the system refuses.
pub fn stay_on(cpu: usize) -> Result<(), Error> {
    let mut set = empty();
    // SAFETY: `cpu` comes from `cpus`, so it is below the size of the set.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    let result =
        // SAFETY: the set is a live value of the size that is passed.
        unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
    if result == 0 {
        return Ok(());
    }
    Err(failed(format!("a thread cannot be kept on CPU {cpu}: {}", io::Error::last_os_error())))
}

/// The CPU time of the calling thread.
pub fn thread_cpu_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the argument is a live value of the type that the call fills.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The number of minor page faults of this process, which needed no read from a disk.
pub fn page_faults() -> u64 {
    // SAFETY: the structure consists of integers, for which zero is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the argument is a live value of the type that the call fills.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    usage.ru_minflt.try_into().unwrap_or(0)
}

fn empty() -> libc::cpu_set_t {
    // SAFETY: a set is an array of integers, for which zero is a valid value: the empty set.
    unsafe { std::mem::zeroed() }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_thread_stays_where_it_is_put() {
        let all = super::cpus().expect("known");
        let last = *all.last().expect("at least one");
        let left =
            std::thread::spawn(move || super::stay_on(last).and_then(|()| super::cpus())).join();
        assert_eq!(left.expect("no panic").expect("allowed"), [last]);
    }
}
