//! What passes between threads: each has a ring of bursts from the thread before it and one to the
//! thread behind it.
//!
//! Both sides spin. A thread that sleeps wakes long after there is something, and the two would
//! work by turns rather than at once.

use super::replay::Held;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};

/// Bursts that a ring holds.
const BURSTS: usize = 8;
/// Turns after which a thread lets others have its CPU.
const SPINS: u32 = 1 << 14;

/// Both ends that a thread has.
pub struct Ends {
    next: SyncSender<Held>,
    before: Receiver<Held>,
}

/// The ends of all threads, until they take them.
pub struct Rings(Mutex<Vec<Option<Ends>>>);

impl Rings {
    /// Rings between so many threads, the last and the first included.
    pub fn new(threads: usize) -> Self {
        let (nexts, mut befores): (Vec<_>, Vec<_>) =
            (0..threads).map(|_| sync_channel(BURSTS)).unzip();
        befores.rotate_right(1);
        let ends = nexts.into_iter().zip(befores);
        Self(Mutex::new(ends.map(|(next, before)| Some(Ends { next, before })).collect()))
    }

    /// Those of thread `index`, once.
    pub fn take(&self, index: usize) -> Option<Ends> {
        self.0.lock().ok()?.get_mut(index)?.take()
    }
}

impl Ends {
    /// Gives runs to the next thread, as soon as there is room.
    pub fn give(&self, runs: Held) {
        let mut left = Some(runs);
        spin(|| match self.next.try_send(left.take()?) {
            Err(TrySendError::Full(runs)) => {
                left = Some(runs);
                None
            }
            // Nobody is there to take them; a thread that panicked says so itself.
            Ok(()) | Err(TrySendError::Disconnected(_)) => Some(()),
        });
    }

    /// Runs of the thread before, as soon as there are some.
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
