//! The spin lock under every interleaving that the memory model allows.

use framewright::SpinLock;
use framewright::internals::{lock, try_lock};
use framewright::{IrqState, PinnedCpu, Platform};
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::sync::{Arc, Notify};
use loom::thread;
use std::cell::Cell;
use std::ptr::NonNull;

loom::thread_local! {
    /// How many times interrupts were turned off and not yet on again on this thread.
    static IRQ_DEPTH: Cell<usize> = Cell::new(0);
}

/// A thread of the model as a CPU. It never waits busily, or the model would not end: a waiter
/// yields or, where two waiters could yield to each other for ever, sleeps until a lock is
/// released.
#[derive(Clone)]
struct Cpu {
    number: usize,
    bells: Option<Arc<Vec<Notify>>>,
}

impl Cpu {
    /// A CPU that yields: waiting orders nothing, so every order that the model sees is the lock's
    /// own.
    const fn yielding() -> Self {
        Self { number: 0, bells: None }
    }

    /// `count` CPUs that sleep. A bell that rings before anybody listens is heard, so none sleeps
    /// through a release.
    fn sleeping(count: usize) -> Vec<Self> {
        let bells = Arc::new((0..count).map(|_| Notify::new()).collect());
        (0..count).map(|number| Self { number, bells: Some(Arc::clone(&bells)) }).collect()
    }
}

// SAFETY: `direct` is never called, there are no interrupt handlers, and nothing asks for a CPU.
unsafe impl Platform for Cpu {
    fn direct(&self, pa: u64) -> NonNull<u8> {
        unreachable!("a lock has no use for address {pa:#x}")
    }

    fn pin(&self) -> PinnedCpu {
        unreachable!("a lock does not pin")
    }

    fn irq_save(&self) -> IrqState {
        IRQ_DEPTH.with(|depth| IrqState(depth.replace(depth.get() + 1)))
    }

    /// The lock has been released when it calls this function.
    unsafe fn irq_restore(&self, state: IrqState) {
        IRQ_DEPTH.with(|depth| {
            assert_eq!(depth.get(), state.0 + 1, "interrupts restored out of order");
            depth.set(state.0);
        });
        for (number, bell) in self.bells.iter().flat_map(|bells| bells.iter()).enumerate() {
            if number != self.number {
                bell.notify();
            }
        }
    }

    fn relax(&self) {
        match &self.bells {
            None => thread::yield_now(),
            Some(bells) => bells[self.number].wait(),
        }
    }
}

fn irq_depth() -> usize {
    IRQ_DEPTH.with(Cell::get)
}

/// The data that the lock guards, and a count of the threads inside that does not rely on the lock.
struct Shared {
    lock: SpinLock<[usize; 2]>,
    inside: AtomicUsize,
}

/// Adds one to both counters, which must be equal at every look.
fn section(shared: &Shared, cpu: &Cpu) {
    let mut guard = lock(&shared.lock, cpu);
    assert_eq!(irq_depth(), 1, "interrupts are on inside");
    assert_eq!(shared.inside.fetch_add(1, Ordering::Relaxed), 0, "two threads are inside");
    let [one, other] = *guard;
    assert_eq!(one, other, "half of a section is visible");
    guard[0] = one + 1;
    guard[1] = other + 1;
    shared.inside.fetch_sub(1, Ordering::Relaxed);
    drop(guard);
    assert_eq!(irq_depth(), 0, "interrupts are still off outside");
}

fn threads_exclude_one_another(
    preemptions: Option<usize>,
    cpus: impl Fn() -> Vec<Cpu> + Send + Sync + 'static,
) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = preemptions;
    model.check(move || {
        let mut cpus = cpus();
        let count = cpus.len();
        let shared = Arc::new(Shared { lock: SpinLock::new([0; 2]), inside: AtomicUsize::new(0) });
        let mine = cpus.pop().expect("at least one CPU");
        let others: Vec<_> = cpus
            .into_iter()
            .map(|cpu| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || section(&shared, &cpu))
            })
            .collect();
        section(&shared, &mine);
        for other in others {
            other.join().expect("no assertion failed");
        }
        assert_eq!(*lock(&shared.lock, &mine), [count; 2], "a section was lost");
    });
}

#[test]
fn two_threads_exclude_one_another() {
    threads_exclude_one_another(None, || vec![Cpu::yielding(), Cpu::yielding()]);
}

#[test]
fn three_threads_exclude_one_another() {
    threads_exclude_one_another(Some(3), || Cpu::sleeping(3));
}

/// A caller that does not wait gets the lock or leaves everything as it was.
#[test]
fn who_tries_excludes_others_or_goes_away() {
    fn attempt(shared: &Shared, cpu: &Cpu) -> usize {
        let Some(mut guard) = try_lock(&shared.lock, cpu) else {
            assert_eq!(irq_depth(), 0, "interrupts are still off");
            return 0;
        };
        assert_eq!(irq_depth(), 1, "interrupts are on inside");
        assert_eq!(shared.inside.fetch_add(1, Ordering::Relaxed), 0, "two threads are inside");
        let [one, other] = *guard;
        assert_eq!(one, other, "half of a section is visible");
        *guard = [one + 1; 2];
        shared.inside.fetch_sub(1, Ordering::Relaxed);
        1
    }
    loom::model(|| {
        let shared = Arc::new(Shared { lock: SpinLock::new([0; 2]), inside: AtomicUsize::new(0) });
        let other = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                section(&shared, &Cpu::yielding());
                attempt(&shared, &Cpu::yielding())
            })
        };
        let mine = attempt(&shared, &Cpu::yielding());
        let others = other.join().expect("no assertion failed");
        assert_eq!(
            *lock(&shared.lock, &Cpu::yielding()),
            [1 + mine + others; 2],
            "a section was lost"
        );
    });
}

#[test]
fn what_was_written_before_unlocking_is_seen_after_locking() {
    loom::model(|| {
        let cell = Arc::new((SpinLock::new(false), loom::cell::UnsafeCell::new(0)));
        let writer = {
            let cell = Arc::clone(&cell);
            thread::spawn(move || {
                // SAFETY: nobody reads before the flag is up; loom checks it.
                cell.1.with_mut(|value| unsafe { *value = 7 });
                *lock(&cell.0, &Cpu::yielding()) = true;
            })
        };
        let written = *lock(&cell.0, &Cpu::yielding());
        if written {
            // SAFETY: the flag is up, so the writer is done; loom checks it.
            assert_eq!(cell.1.with(|value| unsafe { *value }), 7);
        }
        writer.join().expect("no assertion failed");
    });
}

#[test]
fn locks_nest_and_restore_interrupts_in_turn() {
    loom::model(|| {
        let locks = (SpinLock::new(1), SpinLock::new(2));
        let cpu = Cpu::yielding();
        let outer = lock(&locks.0, &cpu);
        let inner = lock(&locks.1, &cpu);
        assert_eq!((irq_depth(), *outer + *inner), (2, 3));
        drop(inner);
        assert_eq!(irq_depth(), 1);
        drop(outer);
        assert_eq!(irq_depth(), 0);
    });
}
