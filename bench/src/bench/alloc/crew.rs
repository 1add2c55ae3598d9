//! Threads that work on one allocator at once, each as a CPU of its own and pinned to a CPU of the
//! host.

use crate::bench::common::failed;
use crate::bench::host;
use crate::bench::subject::Subject;
use framewright_cli::error::Error;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

/// The state that the threads of a crew share.
struct Shared {
    threads: usize,
    arrived: AtomicUsize,
    /// How often all threads have met.
    meetings: AtomicUsize,
    stop: AtomicBool,
}

/// One thread of a crew.
pub struct Member<'a> {
    /// The thread's number, from 0.
    pub index: usize,
    shared: &'a Shared,
}

impl Member<'_> {
    /// Waits until all threads of the crew have arrived. It spins, as a sleeping thread would wake
    /// long after the others have begun.
    pub fn meet(&self) {
        const SPINS: u32 = 1 << 14;
        // Pairs with the Release below: threads that leave see what the others did before they
        // arrived.
        let meeting = self.shared.meetings.load(Ordering::Acquire);
        if self.shared.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.shared.threads {
            self.shared.arrived.store(0, Ordering::Relaxed);
            self.shared.meetings.store(meeting + 1, Ordering::Release);
            return;
        }
        let mut spins = 0;
        while self.shared.meetings.load(Ordering::Acquire) == meeting {
            spins += 1;
            // A busy host may have taken the CPU from a thread that has not arrived.
            if spins < SPINS { std::hint::spin_loop() } else { thread::yield_now() }
        }
    }

    /// Asks all threads to stop at the next decision.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }

    /// Waits for all threads and says whether to go on: all get one answer.
    pub fn goes_on(&self) -> bool {
        self.meet();
        let stop = self.shared.stop.load(Ordering::Relaxed);
        // No thread may ask for a stop before all have read the flag.
        self.meet();
        !stop
    }
}

/// Runs `work` on `threads` threads at once, and returns the result of each.
///
/// # Errors
/// Fails if a thread cannot be pinned to its CPU; then none does any work.
pub fn run<S: Subject, T: Send>(
    subject: &S,
    threads: usize,
    work: impl Fn(&Member<'_>) -> T + Sync,
) -> Result<Vec<T>, Error> {
    run_on(std::slice::from_ref(subject), threads, |member, _| work(member))
}

/// Works like [`run`], with several allocators: each thread works on one of its own, or they take
/// turns.
///
/// # Errors
/// The errors of [`run`]; or there is no allocator.
pub fn run_on<S: Subject, T: Send>(
    subjects: &[S],
    threads: usize,
    work: impl Fn(&Member<'_>, &S) -> T + Sync,
) -> Result<Vec<T>, Error> {
    if subjects.is_empty() {
        return Err(failed("there is no allocator to work on"));
    }
    let cpus = host::cpus()?;
    let shared = Shared {
        threads,
        arrived: AtomicUsize::new(0),
        meetings: AtomicUsize::new(0),
        stop: AtomicBool::new(false),
    };
    let one = |index: usize| -> Result<Option<T>, Error> {
        let member = Member { index, shared: &shared };
        let subject = &subjects[index % subjects.len()];
        let seat = host::stay_on(cpus[index % cpus.len()])
            .and_then(|()| subject.sit(u32::try_from(index).expect("few threads")));
        if seat.is_err() {
            member.stop();
        }
        let result = member.goes_on().then(|| work(&member, subject));
        seat.map(|_seat| result)
    };
    let results = thread::scope(|scope| {
        let one = &one;
        let handles: Vec<_> = (0..threads).map(|index| scope.spawn(move || one(index))).collect();
        handles
            .into_iter()
            .map(|handle| handle.join().expect("the thread did not panic"))
            .collect::<Result<Vec<_>, _>>()
    })?;
    Ok(results.into_iter().flatten().collect())
}

/// Runs `work` once, on a thread that is CPU 0.
///
/// # Errors
/// The errors of [`run`].
pub fn alone<S: Subject, T: Send>(
    subject: &S,
    work: impl FnOnce() -> T + Send,
) -> Result<T, Error> {
    let work = Mutex::new(Some(work));
    let results =
        run(subject, 1, |_| work.lock().ok().and_then(|mut work| work.take()).map(|work| work()))?;
    let result = results.into_iter().flatten().next();
    result.ok_or_else(|| failed("a thread did not do its work"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::subject::Buddy;

    #[test]
    fn a_crew_meets_and_stops_together() {
        let count = AtomicUsize::new(0);
        let rounds = run(&Buddy::new(1 << 20), 3, |member| {
            let mut rounds = 0;
            while member.goes_on() {
                count.fetch_add(1, Ordering::Relaxed);
                member.meet();
                assert_eq!(count.load(Ordering::Relaxed) % 3, 0);
                rounds += 1;
                if member.index == 1 && rounds == 100 {
                    member.stop();
                }
            }
            rounds
        });
        assert_eq!(rounds.expect("there is no seat to be refused"), [100; 3]);
    }
}
