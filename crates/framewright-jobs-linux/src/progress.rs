//! Whether a helper makes progress while its caller waits for it: [`Progress`].
//!
//! At the lowest priority, next to a busy process, a helper runs for some milliseconds and then
//! waits a hundred times as long, possibly in the middle of a chunk. Even if it is lent its
//! caller's priority, it continues late: it must first wait off the time by which it ran ahead of
//! its share (Linux scales that lag to the new weight in `reweight_entity`, `kernel/sched/fair.c`).
//! Another thread can see this, because the helper's CPU time stands still.

use super::system::{self, Tid};
use std::time::Duration;

/// A caller looks for the first time this long after it has gone to sleep, and again after twice
/// the previous time, up to [`LAST_LOOK_NS`].
const FIRST_LOOK_NS: u64 = 1_000_000;
const LAST_LOOK_NS: u64 = 8_000_000;

/// What was seen of a thread when it was last looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    tid: Tid,
    seen_ns: u64,
    ran_ns: Option<u64>,
    next_look_ns: u64,
}

impl Progress {
    /// Looks at thread `tid`, which may run on any CPU.
    pub fn of(tid: Tid) -> Self {
        Self {
            tid,
            seen_ns: system::now_ns(),
            ran_ns: system::cpu_time_ns(tid),
            next_look_ns: FIRST_LOOK_NS,
        }
    }

    /// Looks again, and returns whether the thread had a CPU for less than half of the time since
    /// the last look. False if the system does not say.
    pub fn stands_still(&mut self) -> bool {
        let (now_ns, ran_ns) = (system::now_ns(), system::cpu_time_ns(self.tid));
        self.compare(now_ns, ran_ns)
    }

    fn compare(&mut self, now_ns: u64, ran_ns: Option<u64>) -> bool {
        let (Some(before), Some(after)) = (self.ran_ns, ran_ns) else { return false };
        let (passed, ran) = (now_ns.saturating_sub(self.seen_ns), after.saturating_sub(before));
        (self.seen_ns, self.ran_ns) = (now_ns, ran_ns);
        ran < passed / 2
    }

    /// How long to sleep before the next look.
    pub fn until_next_look(&mut self) -> Duration {
        let next = self.next_look_ns;
        self.next_look_ns = (next * 2).min(LAST_LOOK_NS);
        Duration::from_nanos(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_thread_stands_still_that_ran_for_less_than_half_of_the_time() {
        let mut progress =
            Progress { tid: 0, seen_ns: 1_000, ran_ns: Some(70), next_look_ns: FIRST_LOOK_NS };
        assert!(!progress.compare(2_000, Some(1_070)) && progress.compare(3_000, Some(1_569)));
        // The time is measured from look to look, not from the first one.
        assert!(!progress.compare(4_000, Some(2_069)) && progress.compare(1_000_000, Some(2_069)));
        assert!(
            !progress.compare(2_000_000, None) && !progress.compare(1_000_000, Some(3_000_000))
        );
    }

    #[test]
    fn looks_become_rare() {
        let mut progress = Progress::of(system::tid());
        let millis: Vec<_> = (0..5).map(|_| progress.until_next_look().as_millis()).collect();
        assert_eq!(millis, [1, 2, 4, 8, 8]);
    }

    /// Another thread can tell that a sleeping thread gets no CPU time, and that a running one
    /// does.
    #[test]
    fn the_time_of_another_thread_can_be_read() {
        let (stop, stay) = (AtomicBool::new(false), std::sync::mpsc::channel::<()>());
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let sleeper = tell.clone();
            scope.spawn(move || {
                sleeper.send(system::tid()).expect("somebody listens");
                let _ = stay.1.recv();
            });
            let sleeper = told.recv().expect("it says");
            scope.spawn(|| {
                tell.send(system::tid()).expect("somebody listens");
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let spinner = told.recv().expect("it says");
            let begin = [sleeper, spinner].map(|tid| system::cpu_time_ns(tid).expect("it lives"));
            while system::cpu_time_ns(spinner).expect("it lives") < begin[1] + 2_000_000 {
                std::thread::yield_now();
            }
            // The thread may not have slept yet at first.
            let slept = system::cpu_time_ns(sleeper).expect("it lives") - begin[0];
            stop.store(true, Ordering::Relaxed);
            drop(stay.0);
            assert!(slept < 1_000_000, "{slept} ns");
        });
        // Linux numbers threads up to 2^22.
        assert_eq!(system::cpu_time_ns(1 << 22 | 1), None);
    }
}
