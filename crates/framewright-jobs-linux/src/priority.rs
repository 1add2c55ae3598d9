//! How helpers are scheduled, and whether a lowered priority can be raised again: [`Priority`].

use super::system::{self, IDLE_LEVEL, LOWEST_NICE, Schedule};
use super::thread::Thread;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// How helpers are scheduled relative to everything else on the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Priority {
    /// At the lowest priority: nice 19 and `SCHED_BATCH`, so that a woken helper preempts no
    /// thread, or `SCHED_IDLE` if the caller has that policy. A caller that has run out of work
    /// lends its own priority to one helper after the other.
    Lent,
    /// At the priority of the thread that started them, because a lowered priority could not be
    /// raised again. Callers of lower priority get no helpers, and guided chunks take at most
    /// [`LONGEST_CHUNK_NS`].
    Kept,
}

/// How long a chunk may take on a helper that cannot be sped up: a millisecond.
pub const LONGEST_CHUNK_NS: u64 = 1_000_000;

impl Priority {
    /// Finds out, on a separate thread, whether a thread can go down to the lowest priority and
    /// back up to that of the calling thread. `None` if no thread can be started now, which says
    /// nothing about priorities.
    pub(super) fn probe() -> Option<Self> {
        let allowed = Arc::new(AtomicBool::new(false));
        let answer = Arc::clone(&allowed);
        let tried = Thread::start("jobs-probe", move || {
            let may = Schedule::of_this_thread().and_then(|own| {
                [IDLE_LEVEL, LOWEST_NICE].into_iter().try_for_each(system::set_level)?;
                own.give_to(0)
            });
            answer.store(may.is_ok(), Ordering::Relaxed);
        });
        // Relaxed: after the join, what the thread wrote is visible.
        tried.map(Thread::join).ok()?;
        Some(if allowed.load(Ordering::Relaxed) { Self::Lent } else { Self::Kept })
    }
}

/// One line for a log.
impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lent => {
                "helpers run at nice 19 and get their caller's nice value when it waits for them"
            }
            Self::Kept => {
                "helpers run at the priority of the thread that started them, in chunks of at most \
                 1 ms, and help no caller of lower priority, as is needed where a process may not \
                 raise priorities (RLIMIT_NICE, CAP_SYS_NICE)"
            }
        })
    }
}
