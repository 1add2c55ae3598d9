//! What a machine in this process does in the background: a thread polls, as an idle task of a
//! kernel would. It accepts memory if `accept_memory=background` was given, calls the reclaim hook
//! for nodes that are short of memory, and compacts free memory while something can be moved. Code
//! that counts what is in use can hold up this thread and the one that reports ([`Quiet`]).
//!
//! Orders of memory: Relaxed: the end flag changes once, and no other data depends on it.

use framewright::parameters::AcceptPolicy;
use framewright::{Manager, Platform};
use framewright_hosted::HostedPlatform;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// The longest time until the thread checks again whether it is to end.
const LONGEST_WAIT: Duration = Duration::from_millis(20);

/// Held by a background thread while it works, and by code that wants these threads to wait.
#[derive(Default)]
pub struct Quiet(Mutex<()>);

impl Quiet {
    /// Keeps background threads from working until the returned guard is dropped.
    pub fn hold(&self) -> MutexGuard<'_, ()> {
        // The lock guards no data that a panic could have left half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Calls `work` while a thread does the background work, except while somebody holds `quiet`.
pub fn with_background<R>(
    manager: &Manager<HostedPlatform>,
    quiet: &Quiet,
    work: impl FnOnce() -> R,
) -> R {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let driver = scope.spawn(|| drive(manager, quiet, &over));
        let _end = End(&over, driver.thread());
        work()
    })
}

/// Ends the thread on drop, even if `work` has panicked.
struct End<'a>(&'a AtomicBool, &'a Thread);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        self.1.unpark();
    }
}

fn drive(manager: &Manager<HostedPlatform>, quiet: &Quiet, over: &AtomicBool) {
    let accepts = manager.acceptance().policy() == AcceptPolicy::Background;
    let mut acceptor = accepts.then(|| manager.acceptance().acceptor());
    let mut compactor = manager.moving().compactor();
    let mut compact_ns = 0;
    let started = Instant::now();
    manager.platform().set_reclaimer(Some(thread::current()));
    while !over.load(Ordering::Relaxed) {
        let working = quiet.hold();
        manager.pressure().reclaim_in_background();
        let elapsed = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let now = manager.platform().now_ns().unwrap_or(elapsed);
        if now >= compact_ns {
            compact_ns = compactor.poll(now);
        }
        let accept_ns = acceptor.as_mut().map_or(u64::MAX, |acceptor| acceptor.poll(now));
        drop(working);
        let next = accept_ns.min(compact_ns);
        thread::park_timeout(Duration::from_nanos(next.saturating_sub(now)).min(LONGEST_WAIT));
    }
    manager.platform().set_reclaimer(None);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Session, Silent};
    use framewright::{Reclaim, Request, Shortage};
    use framewright_hosted::Machine;
    use std::sync::atomic::AtomicU64;

    /// Counts how often it is asked, and frees nothing.
    struct Asked(AtomicU64);

    impl Reclaim for Asked {
        fn reclaim(&self, _: &Shortage) -> u64 {
            self.0.fetch_add(1, Ordering::Relaxed);
            0
        }
    }

    #[test]
    fn nothing_is_done_while_somebody_wants_quiet() {
        let machine = Machine::synthetic(64 << 20, 1, 1).expect("a machine");
        let session = Session::open(&machine, "").expect("memory");
        let pass = session.bring_up(&mut Silent).expect("bring-up");
        let (manager, quiet) = (pass.manager(), Quiet::default());
        let asked: &'static Asked = Box::leak(Box::new(Asked(AtomicU64::new(0))));
        let calls = || asked.0.load(Ordering::Relaxed);
        with_background(manager, &quiet, || {
            let held = quiet.hold();
            let mut taken = Vec::new();
            while manager.pressure().background().is_none() {
                taken.push(manager.frames(&Request::pages(1)).expect("memory"));
            }
            // From here on there is something to do each time that the thread polls.
            manager.pressure().set_reclaim(Some(asked));
            thread::sleep(LONGEST_WAIT * 5);
            assert_eq!(calls(), 0);
            drop(held);
            while calls() == 0 {
                thread::yield_now();
            }
            manager.pressure().set_reclaim(None);
        });
    }
}
