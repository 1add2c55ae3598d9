//! What a machine in this process does in the background: a thread that polls, as an idle task of a
//! kernel would. It accepts memory, where `accept_memory=background` says so, has the reclaim hook
//! free memory of nodes that are short, and keeps free memory whole while something can be moved.
//!
//! Orders of memory: Relaxed: that it is over changes once, and nothing is read by it.

use framewright::parameters::AcceptPolicy;
use framewright::{Manager, Platform};
use framewright_hosted::HostedPlatform;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// It looks at least so often whether it is over.
const LONGEST_WAIT: Duration = Duration::from_millis(20);

/// Calls `work` while a thread does the rest.
pub fn with_background<R>(manager: &Manager<HostedPlatform>, work: impl FnOnce() -> R) -> R {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let driver = scope.spawn(|| drive(manager, &over));
        let _end = End(&over, driver.thread());
        work()
    })
}

/// Ends the thread, also where `work` has panicked.
struct End<'a>(&'a AtomicBool, &'a Thread);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        self.1.unpark();
    }
}

fn drive(manager: &Manager<HostedPlatform>, over: &AtomicBool) {
    let accepts = manager.acceptance().policy() == AcceptPolicy::Background;
    let mut acceptor = accepts.then(|| manager.acceptance().acceptor());
    let mut compactor = manager.moving().compactor();
    let mut compact_ns = 0;
    let started = Instant::now();
    manager.platform().set_reclaimer(Some(thread::current()));
    while !over.load(Ordering::Relaxed) {
        manager.pressure().reclaim_in_background();
        let elapsed = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let now = manager.platform().now_ns().unwrap_or(elapsed);
        if now >= compact_ns {
            compact_ns = compactor.poll(now);
        }
        let accept_ns = acceptor.as_mut().map_or(u64::MAX, |acceptor| acceptor.poll(now));
        let next = accept_ns.min(compact_ns);
        thread::park_timeout(Duration::from_nanos(next.saturating_sub(now)).min(LONGEST_WAIT));
    }
    manager.platform().set_reclaimer(None);
}
