//! Helpers in special processes: under a real CPU quota, without privileges, after privileges were
//! dropped, without room for threads, and after a fork.
//!
//! Each test runs this program again; an environment variable names its role.

use framewright_jobs::{Helpers, Job};
use framewright_jobs_linux::HostedHelpers;
use framewright_jobs_linux::{CpuQuota, LONGEST_CHUNK_NS, Priority};
use std::convert::Infallible;
use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Reports on the terminal, past the test harness, what this machine or user does not allow; `cargo
/// xtask test` counts the lines.
macro_rules! not_possible {
    ($($what:tt)*) => {{
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), "\nNOT POSSIBLE HERE: {}", format_args!($($what)*));
    }};
}

const ROLE: &str = "FRAMEWRIGHT_TEST_ROLE";
const GROUP: &str = "FRAMEWRIGHT_TEST_GROUP";
const NOBODY: u32 = 65534;

fn is_root() -> bool {
    // SAFETY: takes nothing and touches no memory of the process.
    unsafe { libc::geteuid() == 0 }
}

fn breathe() {
    std::thread::sleep(Duration::from_micros(50));
}

/// Lets one test run at a time: a child of another test would hold the copy of the program open
/// while it is written.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A copy of this program at a path where every user can run it.
struct Program(PathBuf);

impl Program {
    fn new(name: &str) -> Self {
        let copy = std::env::temp_dir().join(format!("framewright-{name}-{}", std::process::id()));
        fs::copy(std::env::current_exe().expect("a path"), &copy).expect("a copy");
        Self(copy)
    }

    fn playing(&self, role: &str) -> Command {
        let mut command = Command::new(&self.0);
        command.args(["--exact", "role", "--nocapture"]).env(ROLE, role).current_dir("/");
        command
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn ended_well(output: &Output) {
    let (text, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{text}\n{errors}", output.status);
    errors
        .lines()
        .filter_map(|line| line.strip_prefix("NOT POSSIBLE HERE: "))
        .for_each(|what| not_possible!("{what}"));
}

/// Not a test by itself: the program, run again, does its role here.
#[test]
fn role() {
    match std::env::var(ROLE).as_deref() {
        Ok("quota of one") => under_quota(1),
        Ok("quota of two") => under_quota(2),
        Ok("unprivileged") => unprivileged(),
        Ok("dropping") => dropping(),
        Ok("full") => full(),
        Ok(other) => panic!("there is no role {other}"),
        Err(_) => {}
    }
}

/// A job of two chunks whose caller waits for a helper; returns how many threads took part.
/// `on_helper` ends before the job does.
fn threads_of_a_job(helpers: &HostedHelpers, on_helper: impl Fn() + Sync) -> u32 {
    let possible = helpers.allowance() > 0;
    let (inside, begun) = (AtomicBool::new(false), AtomicBool::new(false));
    let summary = Job::new(0..2).min_chunk(1).max_threads(2).run(helpers, |_, worker| {
        if worker.index() != 0 {
            inside.store(true, Ordering::Release);
            on_helper();
            // Otherwise the helper might do both chunks before the caller begins one.
            while !begun.load(Ordering::Acquire) {
                breathe();
            }
        }
        begun.store(true, Ordering::Release);
        while possible && !inside.load(Ordering::Acquire) {
            breathe();
        }
        Ok::<_, Infallible>(())
    });
    summary.map_or(0, |summary| summary.threads)
}

fn under_quota(cpus: usize) {
    let group = std::env::var(GROUP).expect("a group");
    fs::write(Path::new(&group).join("cgroup.procs"), std::process::id().to_string())
        .expect("to move there");
    assert_eq!(CpuQuota::read(Path::new("/")).map(CpuQuota::cpus), Some(cpus));
    let helpers = HostedHelpers::new().with_helpers(8);
    let free = std::thread::available_parallelism().map_or(1, usize::from);
    assert_eq!(helpers.allowance(), cpus.min(free) - 1);
    assert_eq!(threads_of_a_job(&helpers, || {}), if cpus == 1 || free == 1 { 1 } else { 2 });
    // The limit also holds for several callers at once: a quota of two CPUs allows one helper in
    // all.
    let (working, most) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let job = Job::new(0..64).min_chunk(1);
                    let result = job.run(&helpers, |_, worker| {
                        if worker.index() != 0 {
                            let now = working.fetch_add(1, Ordering::SeqCst) + 1;
                            most.fetch_max(now, Ordering::SeqCst);
                            breathe();
                            working.fetch_sub(1, Ordering::SeqCst);
                        }
                        Ok::<_, Infallible>(())
                    });
                    assert!(result.is_ok());
                }
            });
        }
    });
    assert!(most.into_inner() < cpus as u64);
}

/// A control group with a quota, of the cgroup version of this system; removed when dropped.
struct QuotaGroup(PathBuf);

impl QuotaGroup {
    fn new(cpus: u32) -> Result<Self, String> {
        let name = format!("framewright-test-{}-{cpus}", std::process::id());
        let quota = (cpus * 100_000).to_string();
        let mut reasons = Vec::new();
        for (parent, files) in [
            ("/sys/fs/cgroup", vec![("cpu.max", format!("{quota} 100000"))]),
            (
                "/sys/fs/cgroup/cpu",
                vec![("cpu.cfs_period_us", "100000".into()), ("cpu.cfs_quota_us", quota)],
            ),
        ] {
            let group = Self(Path::new(parent).join(&name));
            if !Path::new(parent).join("cgroup.procs").exists() {
                reasons.push(format!("{parent} is no control group"));
                continue;
            }
            let made = fs::create_dir(&group.0).and_then(|()| {
                files.iter().try_for_each(|(file, text)| fs::write(group.0.join(file), text))
            });
            match made {
                Ok(()) => return Ok(group),
                Err(error) => reasons.push(format!("{}: {error}", group.0.display())),
            }
        }
        Err(reasons.join("; "))
    }
}

impl Drop for QuotaGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(self.0.join("inner"));
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn a_real_quota_is_kept() {
    let _alone = alone();
    let program = Program::new("quota");
    for (cpus, role) in [(1, "quota of one"), (2, "quota of two")] {
        match QuotaGroup::new(cpus) {
            Ok(group) => {
                let play = |group: &Path| {
                    ended_well(
                        &program.playing(role).env(GROUP, group).output().expect("it starts"),
                    )
                };
                play(&group.0);
                // A quota of an ancestor counts if the group itself has none.
                let inner = group.0.join("inner");
                fs::create_dir(&inner).expect("a group in the group");
                play(&inner);
                fs::remove_dir(&inner).expect("nobody is in it any more");
            }
            Err(reason) => not_possible!("a real CPU quota: {reason}"),
        }
    }
}

fn unprivileged() {
    // SAFETY: takes nothing and touches no memory of the process.
    assert_ne!(unsafe { libc::geteuid() }, 0);
    let helpers = HostedHelpers::new();
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the place is live.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NICE, &raw mut limit) }, 0);
    let expected = if limit.rlim_cur >= 20 { Priority::Lent } else { Priority::Kept };
    assert_eq!(helpers.priority(), expected, "RLIMIT_NICE is {}", limit.rlim_cur);
    if expected == Priority::Kept {
        assert_eq!(helpers.longest_chunk_ns(), LONGEST_CHUNK_NS);
        assert!(helpers.priority().to_string().contains("RLIMIT_NICE"));
    }
    let kept = expected == Priority::Kept;
    let own = schedule();
    let threads = threads_of_a_job(&helpers, || assert!(!kept || schedule() == own));
    assert_eq!(threads as usize, 1 + helpers.allowance().min(1));
    if !kept || threads == 1 {
        not_possible!("helpers that keep their priority");
        return;
    }
    // A caller gets no helper of higher priority than its own.
    // SAFETY: takes integers and touches no memory of the process.
    assert_eq!(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, own.1 + 5) }, 0);
    let helped = AtomicBool::new(false);
    for _ in 0..50 {
        let result = Job::new(0..2).min_chunk(1).max_threads(2).run(&helpers, |_, worker| {
            helped.fetch_or(worker.index() != 0, Ordering::Relaxed);
            breathe();
            Ok::<_, Infallible>(())
        });
        assert!(result.is_ok());
    }
    assert!(!helped.into_inner());
}

/// Returns policy and nice level of the calling thread.
fn schedule() -> (libc::c_int, libc::c_int) {
    // SAFETY: takes integers and touches no memory of the process.
    let policy = unsafe { libc::sched_getscheduler(0) };
    // SAFETY: takes integers and touches no memory of the process.
    (policy, unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) })
}

#[test]
fn without_privileges_helpers_keep_their_priority() {
    let _alone = alone();
    let program = Program::new("unprivileged");
    let mut command = program.playing("unprivileged");
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
        let lower_limit = || {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: the value is live.
            unsafe { libc::setrlimit(libc::RLIMIT_NICE, &raw const none) };
            Ok(())
        };
        // SAFETY: between fork and exec it does nothing but one system call.
        unsafe { command.pre_exec(lower_limit) };
    }
    ended_well(&command.output().expect("it starts"));
}

/// Lowers helpers while that is allowed, then gives up the right to raise them. The first job that
/// tries to raise one finds out, and still ends.
fn dropping() {
    let helpers = HostedHelpers::new();
    if helpers.allowance() == 0 || helpers.priority() == Priority::Kept {
        not_possible!("dropping privileges: there are none, or no helper");
        return;
    }
    assert_eq!(threads_of_a_job(&helpers, || {}), 2);
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the value is live.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NICE, &raw const none) }, 0);
    // SAFETY: takes an integer; the C library does it in all threads.
    assert_eq!(unsafe { libc::setuid(NOBODY) }, 0);
    assert_eq!(threads_of_a_job(&helpers, || while helpers.priority() == Priority::Lent {}), 2);
    // New helpers run at this thread's priority.
    let own = schedule();
    for _ in 0..3 {
        assert_eq!(threads_of_a_job(&helpers, || assert_eq!(schedule(), own)), 2);
    }
}

#[test]
fn a_process_that_drops_its_privileges_goes_on() {
    let _alone = alone();
    if !is_root() {
        not_possible!("dropping privileges: this user has none");
        return;
    }
    ended_well(&Program::new("dropping").playing("dropping").output().expect("it starts"));
}

/// No thread can be started for a while, because there is no room for its stack.
fn full() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the place is live.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) }, 0);
    let limit_bytes = |bytes| {
        let limit = libc::rlimit { rlim_cur: bytes, ..limit };
        // SAFETY: the value is live.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
    };
    let helpers = HostedHelpers::new();
    limit_bytes(4 << 20);
    let none = (helpers.allowance(), helpers.priority(), helpers.started());
    limit_bytes(limit.rlim_cur);
    assert_eq!(none, (0, Priority::Kept, 0));
    let others = HostedHelpers::new();
    if others.allowance() == 0 {
        not_possible!("helpers once there is room for their stacks: one CPU");
        return;
    }
    // What is tried again after a pause comes in the end.
    while helpers.allowance() == 0 {
        breathe();
    }
    assert_eq!((helpers.priority(), threads_of_a_job(&helpers, || {})), (others.priority(), 2));
}

/// That no thread could be started says nothing about what priorities are allowed.
#[test]
fn helpers_come_when_threads_can_be_started_again() {
    let _alone = alone();
    ended_well(&Program::new("full").playing("full").output().expect("it starts"));
}

/// Forks. The child calls `child` and exits with 0 if that returns true, at the latest after 30 s.
/// Returns how it ended.
fn in_child(child: impl FnOnce() -> bool) -> std::process::ExitStatus {
    // SAFETY: the child has one thread; it takes locks only of the C library's allocator, which are
    // free after a fork, and of pools of its own.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: takes an integer; the default action ends the child.
        unsafe { libc::alarm(30) };
        let well = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(false);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!well)) };
    }
    let mut status = 0;
    // SAFETY: the place is live.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    std::process::ExitStatus::from_raw(status)
}

fn sum_is_right(helpers: &HostedHelpers) -> bool {
    let sum = AtomicU64::new(0);
    let result = Job::new(0..10_000).min_chunk(10).run(helpers, |chunk, _| {
        sum.fetch_add(chunk.sum(), Ordering::Relaxed);
        Ok::<_, Infallible>(())
    });
    result.is_ok() && sum.into_inner() == 49_995_000
}

#[test]
fn a_child_starts_threads_of_its_own() {
    let _alone = alone();
    let helpers = HostedHelpers::new();
    assert!(sum_is_right(&helpers));
    let possible = helpers.allowance() > 0;
    let before = helpers.started();
    for _ in 0..5 {
        let status = in_child(|| {
            let none = helpers.started() == 0;
            let right = (0..10).all(|_| sum_is_right(&helpers));
            let helped = !possible || threads_of_a_job(&helpers, || {}) == 2;
            // A grandchild works too.
            none && right
                && helped
                && in_child(|| helpers.started() == 0 && sum_is_right(&helpers)).success()
        });
        assert!(status.success(), "{status}");
        assert!(helpers.started() >= before && sum_is_right(&helpers));
    }
    // The parent's helper threads still take part.
    assert!(!possible || threads_of_a_job(&helpers, || {}) == 2);
}

/// While a helper is inside a chunk, its caller forks inside another chunk. In the child, the job
/// goes on but cannot end.
#[test]
fn a_child_that_goes_on_with_its_parents_job_is_ended() {
    let _alone = alone();
    let helpers = HostedHelpers::new();
    if helpers.allowance() == 0 {
        not_possible!("a fork inside a job with a helper: one CPU");
        return;
    }
    for new_pool in [false, true] {
        let (inside, forked) = (AtomicBool::new(false), AtomicBool::new(false));
        let status = Mutex::new(None);
        let parent = std::process::id();
        let result = Job::new(0..2).min_chunk(1).max_threads(2).run(&helpers, |_, worker| {
            if worker.index() != 0 {
                inside.store(true, Ordering::Release);
                while !forked.load(Ordering::Acquire) {
                    breathe();
                }
                return Ok::<_, Infallible>(());
            }
            while !inside.load(Ordering::Acquire) {
                breathe();
            }
            // SAFETY: as in `in_child`.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                // SAFETY: takes an integer; the default action ends the child.
                unsafe { libc::alarm(30) };
                assert!(!new_pool || sum_is_right(&helpers));
                return Ok(());
            }
            let mut raw = 0;
            // SAFETY: the place is live.
            assert_eq!(unsafe { libc::waitpid(pid, &raw mut raw, 0) }, pid);
            *status.lock().expect("no panic") = Some(raw);
            forked.store(true, Ordering::Release);
            Ok(())
        });
        if std::process::id() != parent {
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(1) };
        }
        assert!(result.is_ok());
        let status = status.into_inner().expect("no panic").map(std::process::ExitStatus::from_raw);
        assert_eq!(status.and_then(|status| status.signal()), Some(libc::SIGABRT));
    }
}
