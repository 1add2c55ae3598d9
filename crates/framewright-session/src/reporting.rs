//! Free page reports of a machine in this process: a thread that polls, as a kernel's would.
//!
//! Orders of memory: Relaxed: that it is over is a word of its own, which brings nothing else; the
//! scope of the threads orders what both did.

use crate::background::Quiet;
use crate::error::Error;
use framewright::reporting::Reporter;
use framewright::{Manager, Platform};
use framewright_hosted::{Advice, HostedPlatform, MadviseDevice};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// It looks at least so often, for whoever wants a flush.
const LONGEST_WAIT: Duration = Duration::from_millis(20);

/// Calls `work` while free memory goes back to the system by `advice`, or just so without one.
/// `tell` is given what is worth a line in a log. Nothing is reported while somebody holds `quiet`.
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
    // SAFETY: it is registered with the manager of this platform, below.
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

/// Ends the thread, also where `work` has panicked.
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
