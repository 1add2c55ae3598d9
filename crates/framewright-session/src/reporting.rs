//! Free page reports of a machine in this process: a thread polls, as a kernel's would.
//!
//! Orders of memory: Relaxed: no other data depends on the end flag, and the scope of the threads
//! orders what both sides did.

use crate::background::Quiet;
use crate::error::Error;
use framewright::reporting::Reporter;
use framewright::{Manager, Platform};
use framewright_hosted::{Advice, HostedPlatform, MadviseDevice};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// The longest time between two polls, so that code that wants a flush is served.
const LONGEST_WAIT: Duration = Duration::from_millis(20);

/// Calls `work` while a thread gives free memory back to the system by `advice`, or without such a
/// thread if there is no advice. `tell` is called with each event that is worth a line in a log.
/// Nothing is reported while somebody holds `quiet`.
///
/// # Errors
/// The advice does not fit the machine's memory, or the manager refuses the device.
pub fn with_reports<R>(
    manager: &Manager<HostedPlatform>,
    advice: Option<Advice>,
    tell: &(dyn Fn(&str) + Sync),
    quiet: &Quiet,
    work: impl FnOnce() -> R,
) -> Result<R, Error> {
    let Some(advice) = advice else { return Ok(work()) };
    // SAFETY: the device is registered below, with the manager of this platform.
    let device = unsafe { MadviseDevice::new(manager.platform(), advice) }
        .map_err(|error| Error::Failed(format!("reporting: {error}")))?;
    let reporter = manager
        .register_reporting(device)
        .map_err(|(error, _)| Error::Usage(format!("reporting: {error}")))?;
    let over = AtomicBool::new(false);
    Ok(thread::scope(|scope| {
        let thread = scope.spawn(|| drive(manager.platform(), reporter, (&over, quiet), tell));
        let _end = End { over: &over, thread: thread.thread().clone() };
        work()
    }))
}

/// Ends the thread on drop, even if `work` has panicked.
struct End<'a> {
    over: &'a AtomicBool,
    thread: Thread,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.thread.unpark();
    }
}

fn drive(
    platform: &HostedPlatform,
    mut reporter: Reporter<'_, HostedPlatform, MadviseDevice<'_>>,
    (over, quiet): (&AtomicBool, &Quiet),
    tell: &(dyn Fn(&str) + Sync),
) {
    let started = Instant::now();
    let clock = || {
        platform
            .now_ns()
            .unwrap_or_else(|| u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    };
    loop {
        if over.load(Ordering::Relaxed) {
            reporter.close();
        }
        let now_ns = clock();
        let working = quiet.hold();
        let next_ns = reporter.poll(now_ns);
        drop(working);
        while let Some(event) = reporter.event() {
            tell(&event.to_string());
        }
        let Some(next_ns) = next_ns else { return };
        if next_ns > now_ns {
            thread::park_timeout(Duration::from_nanos(next_ns - now_ns).min(LONGEST_WAIT));
        }
    }
}
