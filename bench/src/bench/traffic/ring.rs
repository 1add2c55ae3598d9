//! Passes runs between threads: each thread has a ring of bursts from the previous thread and one
//! to the next.
//!
//! Both sides spin. A sleeping thread would wake long after there is something to take, and the two
//! would work in turn rather than at once.

use super::replay::Held;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};

/// The number of bursts that a ring holds.
const BURSTS: usize = 8;
/// The number of turns after which a thread yields its CPU.
const SPINS: u32 = 1 << 14;

/// The two ends that a thread has.
pub struct Ends {
    next: SyncSender<Held>,
    before: Receiver<Held>,
}

/// The ends of all threads, until the threads take them.
pub struct Rings(Mutex<Vec<Option<Ends>>>);

impl Rings {
    /// Makes rings between this many threads, including one from the last to the first.
    pub fn new(threads: usize) -> Self {
        let (nexts, mut befores): (Vec<_>, Vec<_>) =
            (0..threads).map(|_| sync_channel(BURSTS)).unzip();
        befores.rotate_right(1);
        let ends = nexts.into_iter().zip(befores);
        Self(Mutex::new(ends.map(|(next, before)| Some(Ends { next, before })).collect()))
    }

    /// The ends of thread `index`, once.
    pub fn take(&self, index: usize) -> Option<Ends> {
        self.0.lock().ok()?.get_mut(index)?.take()
    }
}

impl Ends {
    /// Gives runs to the next thread as soon as there is room.
    pub fn give(&self, runs: Held) {
        let mut left = Some(runs);
        spin(|| match self.next.try_send(left.take()?) {
            Err(TrySendError::Full(runs)) => {
                left = Some(runs);
                None
            }
            // Nobody is there to take the runs; a thread that panicked reports that itself.
            Ok(()) | Err(TrySendError::Disconnected(_)) => Some(()),
        });
    }

    /// Takes runs of the previous thread as soon as there are some.
    pub fn take(&self) -> Held {
        spin(|| match self.before.try_recv() {
            Ok(runs) => Some(runs),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Held::new()),
        })
    }
}

fn spin<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    let mut spins = 0;
    loop {
        if let Some(result) = attempt() {
            return result;
        }
        spins += 1;
        if spins < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use framewright::units::Order;

    #[test]
    fn runs_come_to_the_next_thread_in_order() {
        let rings = Rings::new(2);
        let [one, other] = [0, 1].map(|index| rings.take(index).expect("once"));
        assert!(rings.take(0).is_none() && rings.take(2).is_none());
        std::thread::scope(|scope| {
            scope.spawn(move || (0..100).for_each(|pfn| one.give(vec![(Some(pfn), Order::PAGE)])));
            for pfn in 0..100 {
                assert_eq!(other.take(), [(Some(pfn), Order::PAGE)]);
            }
        });
    }
}
