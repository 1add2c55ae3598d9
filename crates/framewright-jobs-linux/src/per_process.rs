//! A value that a child process does not inherit: [`PerProcess`]. After a fork the child has the
//! memory of the parent's threads, but not the threads.
//!
//! Memory ordering: the exchange that publishes a value is AcqRel; its partners are the Acquire
//! loads. The generation is Relaxed: after the fork a child has one thread, and that thread itself
//! counted the fork.

use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

/// The number of forks between the first process and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// How many forks lie between the first process and this one.
pub(super) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Whether forks are counted yet.
static COUNTS_FORKS: AtomicBool = AtomicBool::new(false);

/// Counts forks from now on. Several threads may register at once, and so may the child of a fork
/// in between; a fork then counts more than once, which does no harm. If threads waited for each
/// other here, such a child would wait for a thread of its parent.
fn count_forks(counts: &AtomicBool, register: impl FnOnce()) {
    // Acquire pairs with the Release below, so that forks are counted once this is true.
    if !counts.load(Ordering::Acquire) {
        register();
        counts.store(true, Ordering::Release);
    }
}

fn register() {
    // SAFETY: the handler only adds to an atomic, which a child may do.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

/// At most one `T` for each process, created when it is first needed. No thread waits for another
/// here, so a child can use it whatever the threads of its parent were doing.
pub(super) struct PerProcess<T> {
    made: AtomicPtr<Made<T>>,
    owns: PhantomData<T>,
}

struct Made<T> {
    generation: u32,
    value: T,
}

impl<T> Made<T> {
    /// The value, if it belongs to this process.
    #[inline]
    fn own(&self) -> Option<&T> {
        (self.generation == generation()).then_some(&self.value)
    }
}

impl<T> PerProcess<T> {
    pub const fn new() -> Self {
        Self { made: AtomicPtr::new(ptr::null_mut()), owns: PhantomData }
    }

    /// This process's value, if there is one.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        // Acquire pairs with the Release of the exchange in `make_after`.
        let made = self.made.load(Ordering::Acquire);
        // SAFETY: the pointer is null, or comes from a box that only `drop` gives up (invariant
        // 27).
        unsafe { made.as_ref() }.and_then(Made::own)
    }

    /// This process's value, created if there is none. The parent's value is left alone, because
    /// the parent's threads may have been changing it at the fork.
    pub fn get_or_make(&self, make: impl FnOnce() -> T) -> &T {
        self.make_after(|| count_forks(&COUNTS_FORKS, register), make)
    }

    /// Calls `before` and creates the value, if there is none.
    fn make_after(&self, before: impl FnOnce(), make: impl FnOnce() -> T) -> &T {
        // The exchange below replaces exactly what was loaded here, because another thread may
        // create the value meanwhile.
        let old = self.made.load(Ordering::Acquire);
        // SAFETY: as in `get`.
        if let Some(value) = unsafe { old.as_ref() }.and_then(Made::own) {
            return value;
        }
        before();
        let new = Box::into_raw(Box::new(Made { generation: generation(), value: make() }));
        let made = match self.made.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => new,
            Err(theirs) => {
                // SAFETY: the box was created above, and no other thread has seen it.
                drop(unsafe { Box::from_raw(new) });
                theirs
            }
        };
        // SAFETY: the pointer comes from a box that only `drop` gives up (invariant 27).
        unsafe { &(*made).value }
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        let made = *self.made.get_mut();
        // SAFETY: as in `get`; no reference exists while this is dropped.
        if unsafe { made.as_ref() }.is_some_and(|made| made.own().is_some()) {
            // SAFETY: the pointer came from a box, and is given up only once (invariant 27).
            drop(unsafe { Box::from_raw(made) });
        }
    }
}

// SAFETY: this type hands out shared references to a `T` and drops it, as a box would (invariant
// 27).
unsafe impl<T: Send + Sync> Sync for PerProcess<T> {}
// SAFETY: as for `Sync`: this type owns the box (invariant 27).
unsafe impl<T: Send> Send for PerProcess<T> {}

#[cfg(test)]
mod tests {
    use super::super::system;
    use super::*;
    use std::sync::Arc;

    #[test]
    fn one_is_made_and_dropped() {
        let value = Arc::new(());
        let cell = PerProcess::new();
        assert!(cell.get().is_none());
        for _ in 0..2 {
            assert!(Arc::ptr_eq(cell.get_or_make(|| Arc::clone(&value)), &value));
        }
        assert_eq!(Arc::strong_count(&value), 2);
        drop(cell);
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[test]
    fn many_threads_get_one_value() {
        for _ in 0..200 {
            let cell = PerProcess::new();
            let made: Vec<usize> = std::thread::scope(|scope| {
                let get = || scope.spawn(|| ptr::from_ref(cell.get_or_make(|| [0_u64; 4])).addr());
                [get(), get(), get()].map(|thread| thread.join().expect("no panic")).to_vec()
            });
            assert!(made.iter().all(|&address| address == made[0]));
        }
    }

    /// A thread that has found no value is stopped, and another creates the value.
    #[test]
    fn what_is_made_meanwhile_stays() {
        let cell = PerProcess::new();
        let made = cell.make_after(|| assert_eq!(*cell.get_or_make(|| 7), 7), || 8);
        assert_eq!((*made, cell.get()), (7, Some(&7)));
    }

    /// A child that is forked while a thread of its parent creates the value does not have that
    /// thread.
    #[test]
    fn a_child_does_not_wait_for_a_thread_of_its_parent() {
        let (counts, cell) = (AtomicBool::new(false), PerProcess::<u32>::new());
        for counting in [true, false] {
            let (tell, told) = std::sync::mpsc::channel();
            let (leave, stay) = std::sync::mpsc::channel::<()>();
            let hold = move || {
                tell.send(()).expect("somebody listens");
                let _ = stay.recv();
            };
            let status = std::thread::scope(|scope| {
                let (counts, cell) = (&counts, &cell);
                scope.spawn(move || match counting {
                    true => count_forks(counts, hold),
                    false => {
                        cell.get_or_make(|| {
                            hold();
                            7
                        });
                    }
                });
                told.recv().expect("it is in the middle");
                let status = system::in_child(|| {
                    count_forks(counts, || {});
                    *cell.get_or_make(|| 8) == 8
                });
                drop(leave);
                status
            });
            assert!(status.success(), "{status}");
        }
    }

    #[test]
    fn every_fork_counts() {
        count_forks(&COUNTS_FORKS, register);
        let before = generation();
        assert!(system::in_child(|| generation() > before).success());
        assert_eq!(generation(), before);
    }
}
