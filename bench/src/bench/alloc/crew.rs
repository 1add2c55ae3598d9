//! Threads that work on one allocator at the same time, each as a CPU of its own on a CPU of the
//! host.

use crate::bench::common::failed;
use crate::bench::host;
use crate::bench::subject::Subject;
use framewright_cli::error::Error;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

/// What the threads of a crew share.
struct Shared {
    threads: usize,
    arrived: AtomicUsize,
    /// How often all have met.
    meetings: AtomicUsize,
    stop: AtomicBool,
}

/// One thread of a crew.
pub struct Member<'a> {
    /// Its number, from 0.
    pub index: usize,
    shared: &'a Shared,
}

impl Member<'_> {
    /// Waits until all threads of the crew are here. It spins: a thread that sleeps wakes long
    /// after the others have begun.
    pub fn meet(&self) {
        const SPINS: u32 = 1 << 14;
        // Pairs with the Release below: what the others did before they came is seen by those that
        // leave.
        let meeting = self.shared.meetings.load(Ordering::Acquire);
        if self.shared.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.shared.threads {
            self.shared.arrived.store(0, Ordering::Relaxed);
            self.shared.meetings.store(meeting + 1, Ordering::Release);
            return;
        }
        let mut spins = 0;
        while self.shared.meetings.load(Ordering::Acquire) == meeting {
            spins += 1;
            // A host with other things to do may have taken the CPU from the one that is awaited.
            if spins < SPINS { std::hint::spin_loop() } else { thread::yield_now() }
        }
    }

    /// Asks all to stop when they next meet to decide.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }

    /// Waits for all, and says whether to go on: all get the same answer.
    pub fn goes_on(&self) -> bool {
        self.meet();
        let stop = self.shared.stop.load(Ordering::Relaxed);
        // Nobody may ask for a stop before everybody has read.
        self.meet();
        !stop
    }
}

/// Runs `work` on `threads` threads at once, and gives what each of them returned.
///
/// # Errors
/// A thread cannot be put on its CPU; then none does any work.
pub fn run<S: Subject, T: Send>(
    subject: &S,
    threads: usize,
    work: impl Fn(&Member<'_>) -> T + Sync,
) -> Result<Vec<T>, Error> {
    run_on(std::slice::from_ref(subject), threads, |member, _| work(member))
}

/// [`run`] with several allocators: each thread works on one of its own, or they take turns.
///
/// # Errors
/// As [`run`]; there is no allocator.
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
/// As [`run`].
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
