//! The system calls that helpers need: which CPUs and which memory a thread may use, how it is
//! scheduled, and how it sleeps.

use std::ffi::CStr;
use std::io;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// A thread, as the kernel numbers it.
pub(super) type Tid = libc::pid_t;

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// The CPUs that a thread may use: up to 8192, which is the most that Linux can be built for.
#[derive(Clone)]
pub(super) struct CpuMask {
    words: [u64; 128],
    /// The number of words that the kernel uses.
    used: usize,
}

/// The words that hold `bytes`. A 32-bit kernel may use half of the last one; the other half is
/// zero, and where the least significant byte comes first, it is the second half.
const fn used_words(bytes: usize) -> usize {
    if cfg!(all(target_endian = "big", target_pointer_width = "32")) {
        return 0; // the halves are the wrong way round, so no CPU is known
    }
    let words = bytes.div_ceil(8);
    if words < 128 { words } else { 128 }
}

impl PartialEq for CpuMask {
    fn eq(&self, other: &Self) -> bool {
        self.words() == other.words()
    }
}

impl CpuMask {
    /// The CPUs that the calling thread may use.
    pub fn of_this_thread() -> io::Result<Self> {
        let mut mask = Self { words: [0; 128], used: 128 };
        let size = size_of_val(&mask.words);
        // SAFETY: the array is live and of the size that is passed.
        let bytes =
            unsafe { libc::syscall(libc::SYS_sched_getaffinity, 0, size, mask.words.as_mut_ptr()) };
        mask.used = usize::try_from(check(bytes)?).map_or(0, used_words);
        Ok(mask)
    }

    /// A mask of these CPUs; numbers from 8192 on are left out.
    pub fn of(cpus: impl IntoIterator<Item = u32>) -> Self {
        let mut mask = Self { words: [0; 128], used: 128 };
        for cpu in cpus {
            if let Some(word) = mask.words.get_mut(cpu as usize / 64) {
                *word |= 1 << (cpu % 64);
            }
        }
        mask
    }

    fn words(&self) -> &[u64] {
        self.words.get(..self.used).unwrap_or(&self.words)
    }

    pub fn count(&self) -> usize {
        self.words().iter().map(|word| word.count_ones() as usize).sum()
    }

    /// The CPUs that are in both masks.
    pub fn and(&self, other: &Self) -> Self {
        let mut both = self.clone();
        both.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word &= other);
        both
    }

    /// This mask without `cpu`.
    pub fn without(&self, cpu: u32) -> Self {
        let mut others = self.clone();
        if let Some(word) = others.words.get_mut(cpu as usize / 64) {
            *word &= !(1 << (cpu % 64));
        }
        others
    }

    /// Restricts the calling thread to these CPUs.
    pub fn adopt(&self) -> io::Result<()> {
        self.give_to(0)
    }

    /// Restricts thread `tid` to these CPUs; 0 means the caller.
    pub fn give_to(&self, tid: Tid) -> io::Result<()> {
        let words = self.words();
        // SAFETY: the slice is live and of the size that is passed.
        let result = unsafe {
            libc::syscall(libc::SYS_sched_setaffinity, tid, size_of_val(words), words.as_ptr())
        };
        check(result).map(drop)
    }
}

/// The nodes from which a thread gets memory: mode and node mask of `set_mempolicy`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct MemoryPolicy {
    mode: libc::c_int,
    nodes: [u64; 16],
}

/// The kernel subtracts one from this number (`get_nodes` in Linux's `mm/mempolicy.c`).
const POLICY_NODES: libc::c_ulong = 16 * 64 + 1;

impl MemoryPolicy {
    /// The policy of the calling thread, or `None` if the system has no policies or does not say.
    pub fn of_this_thread() -> Option<Self> {
        let mut policy = Self { mode: 0, nodes: [0; 16] };
        // SAFETY: both places are live; the mask has room for the number of nodes that is passed,
        // rounded up to a word.
        let result = unsafe {
            libc::syscall(
                libc::SYS_get_mempolicy,
                &raw mut policy.mode,
                policy.nodes.as_mut_ptr(),
                POLICY_NODES,
                0,
                0,
            )
        };
        (result == 0).then_some(policy)
    }

    /// Gives the calling thread this policy.
    pub fn adopt(&self) -> io::Result<()> {
        // SAFETY: the mask is live and has as many nodes as are passed.
        let result = unsafe {
            libc::syscall(libc::SYS_set_mempolicy, self.mode, self.nodes.as_ptr(), POLICY_NODES)
        };
        check(result).map(drop)
    }
}

/// How a thread is scheduled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Schedule {
    policy: libc::c_int,
    realtime: libc::c_int,
    pub nice: libc::c_int,
}

impl Schedule {
    /// Whether the thread runs only when no other thread wants the CPU.
    pub fn is_idle(self) -> bool {
        self.policy == libc::SCHED_IDLE
    }

    /// Whether this is the schedule of a helper that was lent no priority.
    pub fn is_lowered(self) -> bool {
        self.policy == libc::SCHED_BATCH && self.nice == LOWEST_NICE
    }

    /// The schedule of the calling thread.
    pub fn of_this_thread() -> io::Result<Self> {
        let mut realtime = 0;
        // SAFETY: the call takes an integer and touches no memory of the process.
        let policy = check(unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) })?;
        // SAFETY: the parameter is one integer, and it is live.
        check(unsafe { libc::syscall(libc::SYS_sched_getparam, 0, &raw mut realtime) })?;
        let policy =
            libc::c_int::try_from(policy).unwrap_or(libc::SCHED_OTHER) & !libc::SCHED_RESET_ON_FORK;
        Ok(Self { policy, realtime, nice: nice()? })
    }

    /// Gives this schedule to thread `tid`; 0 means the caller. A deadline is not passed on.
    pub fn give_to(self, tid: Tid) -> io::Result<()> {
        if matches!(self.policy, libc::SCHED_FIFO | libc::SCHED_RR) {
            return set_policy(tid, self.policy, self.realtime);
        }
        let passed_on = matches!(self.policy, libc::SCHED_IDLE | libc::SCHED_BATCH);
        set_policy(tid, if passed_on { self.policy } else { libc::SCHED_OTHER }, 0)?;
        let id = libc::id_t::try_from(tid).unwrap_or(0);
        // SAFETY: the call takes integers and touches no memory of the process.
        check(unsafe { libc::syscall(libc::SYS_setpriority, libc::PRIO_PROCESS, id, self.nice) })
            .map(drop)
    }
}

/// The level of `SCHED_IDLE`, which is below nice 19. The level of a normally scheduled thread is
/// its nice value.
pub(super) const IDLE_LEVEL: libc::c_int = 20;

/// The level of the calling thread: -20 to [`IDLE_LEVEL`] for a normally scheduled thread, and less
/// than -20 for a realtime thread, which runs before all of those. The lower the level, the sooner
/// the thread runs.
pub(super) fn level() -> io::Result<libc::c_int> {
    let own = Schedule::of_this_thread()?;
    Ok(match own.policy {
        libc::SCHED_IDLE => IDLE_LEVEL,
        libc::SCHED_FIFO | libc::SCHED_RR => -20 - own.realtime,
        libc::SCHED_DEADLINE => libc::c_int::MIN,
        _ => own.nice,
    })
}

/// Whether the calling thread runs only when no other thread wants the CPU. False if the system
/// does not say.
pub(super) fn is_idle() -> bool {
    // SAFETY: the call takes an integer and touches no memory of the process.
    let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) };
    policy >= 0
        && policy & !libc::c_long::from(libc::SCHED_RESET_ON_FORK)
            == libc::c_long::from(libc::SCHED_IDLE)
}

/// Puts the calling thread on a level. Any thread may go to a weaker priority. At nice 19 it
/// becomes a batch thread, which preempts no thread when it is woken.
pub(super) fn set_level(level: libc::c_int) -> io::Result<()> {
    let policy = match level {
        IDLE_LEVEL => libc::SCHED_IDLE,
        LOWEST_NICE => libc::SCHED_BATCH,
        _ => libc::SCHED_OTHER,
    };
    Schedule { policy, realtime: 0, nice: level.min(LOWEST_NICE) }.give_to(0)
}

/// Makes the calling thread a realtime thread.
#[cfg(test)]
pub(super) fn set_realtime(priority: libc::c_int) -> io::Result<()> {
    set_policy(0, libc::SCHED_FIFO, priority)
}

/// The weakest nice level; only [`IDLE_LEVEL`] is weaker.
pub(super) const LOWEST_NICE: libc::c_int = 19;

fn set_policy(tid: Tid, policy: libc::c_int, realtime: libc::c_int) -> io::Result<()> {
    // SAFETY: the parameter is one integer, and it is live.
    check(unsafe { libc::syscall(libc::SYS_sched_setscheduler, tid, policy, &raw const realtime) })
        .map(drop)
}

/// The nice level of the calling thread, -20 to 19.
pub(super) fn nice() -> io::Result<libc::c_int> {
    // SAFETY: the call takes integers and touches no memory of the process.
    let raw = check(unsafe { libc::syscall(libc::SYS_getpriority, libc::PRIO_PROCESS, 0) })?;
    // The system call returns 20 - nice.
    Ok(20 - libc::c_int::try_from(raw).unwrap_or(20))
}

/// The number of the calling thread.
pub(super) fn tid() -> Tid {
    // SAFETY: the call takes nothing and touches no memory of the process.
    unsafe { libc::gettid() }
}

/// The CPU on which the calling thread runs at this moment.
pub(super) fn cpu() -> u32 {
    // SAFETY: the call takes nothing and touches no memory of the process.
    u32::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0)
}

/// The number of CPUs that the system is configured for.
pub(super) fn cpus() -> usize {
    // SAFETY: the call takes an integer and touches no memory of the process.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) }).unwrap_or(1).max(1)
}

/// `CLOCK_MONOTONIC`.
#[inline]
pub(super) fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the place is live. This clock exists, and time since boot is positive.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    ns(now)
}

fn ns(time: libc::timespec) -> u64 {
    time.tv_sec
        .cast_unsigned()
        .wrapping_mul(1_000_000_000)
        .wrapping_add(time.tv_nsec.cast_unsigned())
}

/// The CPU time of thread `tid` of this process, or `None` if there is no such thread.
pub(super) fn cpu_time_ns(tid: Tid) -> Option<u64> {
    // Linux's number for the CPU-time clock of a thread: `MAKE_THREAD_CPUCLOCK` with
    // `CPUCLOCK_SCHED` in include/linux/posix-timers_types.h.
    let clock = (!tid << 3) | 6;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the place is live.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    (result == 0).then(|| ns(time))
}

/// Reads the time stamp counter, if programs can read one here.
#[inline]
pub(super) fn counter() -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction, and it touches no memory.
    return Some(unsafe { core::arch::x86_64::_rdtsc() });
    #[cfg(not(target_arch = "x86_64"))]
    None
}

/// Whether this process may read [`counter`]; `prctl` can forbid it.
pub(super) fn may_read_counter() -> bool {
    let mut answer: libc::c_int = 0;
    // SAFETY: the call writes an integer to the given place, which is live.
    let result = unsafe { libc::prctl(libc::PR_GET_TSC, &raw mut answer) };
    result == 0 && answer == libc::PR_TSC_ENABLE
}

/// Sleeps while `word` is `seen`, at most for `longest`; may return early.
pub(super) fn sleep_while(word: &AtomicU32, seen: u32, longest: Option<Duration>) {
    let time = longest.map(|longest| libc::timespec {
        tv_sec: libc::time_t::try_from(longest.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: longest.subsec_nanos().into(),
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word lives as long as the reference, which outlives the call; the time is null or
    // live.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, seen, time) };
}

/// Wakes one thread that sleeps on `word`.
pub(super) fn wake_one(word: &AtomicU32) {
    // SAFETY: to the kernel the address is only a name.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            1,
        )
    };
}

/// Sets the calling thread's name in the system, which keeps 15 bytes of it.
pub(super) fn name_this_thread(name: &CStr) {
    // SAFETY: the name is live and ends with a zero byte.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// Writes `text` to standard error, as much as one call accepts, without taking a lock.
pub(super) fn write_stderr(text: &str) {
    // SAFETY: the bytes are live.
    unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
}

/// Calls `start` with all signals blocked except those that a thread raises by its own faults.
/// Threads started in it never get signals that are meant for the program.
pub(super) fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    const OWN: [libc::c_int; 6] =
        [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];
    // SAFETY: a signal set is an array of integers, for which zero is a valid value.
    let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
    // SAFETY: the set is live.
    unsafe { libc::sigfillset(&raw mut all) };
    for signal in OWN {
        // SAFETY: the set is live and was filled.
        unsafe { libc::sigdelset(&raw mut all, signal) };
    }
    // SAFETY: both sets are live.
    let blocked =
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) } == 0;
    let result = start();
    if blocked {
        // SAFETY: the set is live and was filled by the call above.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut())
        };
    }
    result
}

/// Forks. The child calls `child` and exits with success if that returns true; a signal ends the
/// child after 20 s. Returns how it ended.
#[cfg(test)]
pub(super) fn in_child(child: impl FnOnce() -> bool) -> std::process::ExitStatus {
    use std::os::unix::process::ExitStatusExt;
    // SAFETY: the child has one thread and calls only what a child may call, which is what is being
    // tested.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: the call takes an integer; the signal's default action ends the child.
        unsafe { libc::alarm(20) };
        // SAFETY: the call ends the child at once.
        unsafe { libc::_exit(i32::from(!child())) };
    }
    let mut status = 0;
    // SAFETY: the place is live.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    std::process::ExitStatus::from_raw(status)
}

#[cfg(test)]
mod tests {
    use super::used_words;

    #[test]
    fn a_kernel_of_32_bits_uses_half_a_word() {
        assert_eq!([0, 4, 8, 12, 1024, 4096].map(used_words), [0, 1, 1, 2, 128, 128]);
    }
}
