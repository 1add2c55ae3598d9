//! Acceptance in the background of a machine in this process: a thread that polls, as an idle task
//! of a kernel would.

use framewright::parameters::AcceptPolicy;
use framewright::{Manager, Platform};
use framewright_hosted::HostedPlatform;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// It looks at least so often whether it is over.
const LONGEST_WAIT: Duration = Duration::from_millis(20);

/// Calls `work` while memory is accepted in the background, where `accept_memory=background` says
/// so.
pub fn with_acceptor<R>(manager: &Manager<HostedPlatform>, work: impl FnOnce() -> R) -> R {
    if manager.acceptance().policy() != AcceptPolicy::Background {
        return work();
    }
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| drive(manager, &over));
        let _end = End(&over);
        work()
    })
}

/// Ends the thread, also where `work` has panicked.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn drive(manager: &Manager<HostedPlatform>, over: &AtomicBool) {
    let mut acceptor = manager.acceptance().acceptor();
    let started = Instant::now();
    while !over.load(Ordering::Relaxed) {
        let elapsed = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let now = manager.platform().now_ns().unwrap_or(elapsed);
        let next = acceptor.poll(now);
        thread::sleep(Duration::from_nanos(next.saturating_sub(now)).min(LONGEST_WAIT));
    }
}
