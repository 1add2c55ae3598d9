//! Where a helper sleeps so that it does not start on its caller's CPU: [`Parking`].
//!
//! A woken thread is not always put on an idle CPU. In a virtual machine, Linux takes a sleeping
//! CPU for one that the host has taken away, finds no idle CPU, and leaves the thread on the CPU
//! that wakes it. The caller keeps working on that CPU, and the helper waits up to a tick for the
//! next load balancing, which is too late for jobs of 0.03 to 1.5 ms. Therefore a helper sleeps
//! with its caller's CPU left out of its mask, and takes the whole mask back before it works. This
//! costs the helper two system calls while no caller waits for it, and it costs the caller one if
//! it moved to another CPU since its last job.
//!
//! ```text
//!            helper: sleep            waker: wake              waker: CPUs are set
//!    AWAKE -----------------> ASLEEP -------------> MOVING ----------------------> AWAKE
//!      ^                        |
//!      +--- helper: has work ---+
//! ```
//!
//! Memory ordering: the state is SeqCst where a helper announces that it sleeps and then looks for
//! work, and where a waker, after its fence, looks for a sleeper, so at least one of them sees the
//! other. Relaxed loads are hints, and a Relaxed exchange is one that failed.

use super::context::Context;
use super::nodes::Nodes;
use super::system::{self, CpuMask};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// What the job in a slot says about where its helper should run.
#[derive(Clone)]
pub(super) struct Call {
    pub context: Arc<Context>,
    pub node: Option<u32>,
    /// The CPU on which the job's caller was.
    caller_cpu: u32,
}

impl PartialEq for Call {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.context, &other.context)
            && (self.node, self.caller_cpu) == (other.node, other.caller_cpu)
    }
}

impl Call {
    /// Creates a call from the calling thread.
    pub fn from_here(context: Arc<Context>, node: Option<u32>) -> Self {
        Self { context, node, caller_cpu: system::cpu() }
    }

    /// The CPUs on which the helper should start: those of the node if there are some, without its
    /// caller's. `None` if no other CPU is left.
    fn start_cpus(&self, nodes: &Nodes) -> Option<CpuMask> {
        let others = self.context.cpus.without(self.caller_cpu);
        let near = self.node.and_then(|node| nodes.cpus(node)).map(|near| others.and(near));
        near.into_iter().chain([others]).find(|cpus| cpus.count() != 0)
    }
}

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;
/// A waker is setting the CPUs on which the helper will wake up.
const MOVING: u32 = 2;

/// Where a helper sleeps; see the module documentation.
///
/// The helper runs at the lowest priority, so a thread that waited for it to release a lock might
/// wait for long. Callers do not have to wait here: the lock of `call` is held only to copy two
/// words, and `narrowed_for` belongs to the helper, or to the waker while the state is `MOVING`.
///
/// Only one thread sleeps here, and its successor begins only after it has ended. A helper that
/// sets itself from `ASLEEP` to `AWAKE` therefore cannot take another thread's wake-up.
#[derive(Default)]
pub(super) struct Parking {
    state: AtomicU32,
    /// The call of the job in the slot, set before the offer.
    call: Mutex<Option<Call>>,
    /// The call for which the helper's CPUs were narrowed since it last took the whole mask.
    narrowed_for: Mutex<Option<Call>>,
}

/// Locks `mutex`, even after a panic.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic leaves nothing half done under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks `mutex` as [`lock`] does, if no other thread has locked it.
pub(super) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl Parking {
    /// Sets the call for a job of the calling thread.
    pub fn prepare(&self, call: Option<Call>) {
        let mut place = lock(&self.call);
        if *place != call {
            *place = call;
        }
    }

    /// Puts the calling helper to sleep until it is woken, unless it `has_something` to do. The
    /// helper assumes that its last caller will call again, from that caller's last CPU. If the
    /// helper itself runs on that CPU, its mask stays as it is: moving a running thread costs two
    /// thread switches, and moving a sleeping one costs none.
    pub fn sleep(&self, nodes: &Nodes, has_something: impl FnOnce() -> bool) {
        self.narrow(nodes, |call, cpus| call.caller_cpu != system::cpu() && cpus.adopt().is_ok());
        let before = self.state.swap(ASLEEP, Ordering::SeqCst);
        debug_assert_eq!(before, AWAKE, "a helper sleeps where another one does");
        let stays = has_something();
        if stays
            && self
                .state
                .compare_exchange(ASLEEP, AWAKE, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok()
        {
            return;
        }
        loop {
            // Acquire pairs with the Release in `wake`.
            let state = self.state.load(Ordering::Acquire);
            if state == AWAKE {
                return;
            }
            system::sleep_while(&self.state, state, None);
        }
    }

    /// Whether the helper sleeps at this moment.
    pub fn is_asleep(&self) -> bool {
        self.state.load(Ordering::Relaxed) == ASLEEP
    }

    /// Wakes helper `tid` if it sleeps, on the CPUs of its call if it has one. A helper that sleeps
    /// has stored its thread number; before that the number may be 0, which to the system means the
    /// calling thread.
    pub fn wake(&self, tid: &AtomicI32, nodes: &Nodes) {
        // The fence in `JobSlots::offer_reserved` makes this see a helper that did not see the
        // work. From here on only this waker sets the helper's CPUs.
        let sleeps = self.state.load(Ordering::SeqCst) == ASLEEP
            && self
                .state
                .compare_exchange(ASLEEP, MOVING, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok();
        if sleeps {
            // Relaxed: the exchange above has seen the helper's swap, and the helper stored its
            // number before that.
            let tid = tid.load(Ordering::Relaxed);
            self.narrow(nodes, |_, cpus| cpus.give_to(tid).is_ok());
            self.state.store(AWAKE, Ordering::Release);
            system::wake_one(&self.state);
        }
    }

    fn narrow(&self, nodes: &Nodes, adopt: impl FnOnce(&Call, &CpuMask) -> bool) {
        let call = lock(&self.call).clone();
        let mut narrowed_for = lock(&self.narrowed_for);
        if let Some(call) = call.filter(|call| narrowed_for.as_ref() != Some(call))
            && call.start_cpus(nodes).is_some_and(|cpus| adopt(&call, &cpus))
        {
            *narrowed_for = Some(call);
        }
    }

    /// Begins the work of the calling helper: returns its call, and whether its CPUs were narrowed
    /// since the last `begin`.
    pub fn begin(&self) -> (Option<Call>, bool) {
        let call = lock(&self.call).clone();
        (call, lock(&self.narrowed_for).take().is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> CpuMask {
        CpuMask::of_this_thread().expect("the system says")
    }

    /// A call from CPU `caller_cpu`, by a thread that may use `cpus`.
    fn call(cpus: &CpuMask, caller_cpu: u32) -> Call {
        let context = Context::of_this_thread(false).expect("the system says");
        Call { context: Arc::new(context.with_cpus(cpus.clone())), node: None, caller_cpu }
    }

    /// The first two CPUs of this process, where it has two.
    fn two_cpus() -> Option<[u32; 2]> {
        let all = here();
        let mut cpus = (0..8192).filter(|&cpu| all.and(&CpuMask::of([cpu])).count() == 1);
        Some([cpus.next()?, cpus.next()?])
    }

    #[test]
    fn a_helper_starts_elsewhere_than_its_caller_if_it_may() {
        let nodes = Nodes::default();
        let start = |cpus: &[u32], caller| {
            call(&CpuMask::of(cpus.iter().copied()), caller).start_cpus(&nodes)
        };
        assert!(start(&[0, 1, 70], 1) == Some(CpuMask::of([0, 70])));
        assert!(start(&[0, 1], 2) == Some(CpuMask::of([0, 1])));
        assert!(start(&[0, 1], 9000) == Some(CpuMask::of([0, 1])));
        assert!(start(&[70], 70).is_none());
    }

    /// Does to the calling thread what `wake` does to a helper that sleeps.
    fn send(parking: &Parking) {
        parking.state.store(ASLEEP, Ordering::Relaxed);
        parking.wake(&AtomicI32::new(system::tid()), &Nodes::default());
        assert_eq!(parking.state.load(Ordering::Relaxed), AWAKE);
    }

    #[test]
    fn only_a_helper_that_sleeps_is_sent_elsewhere() {
        let Some([first, second]) = two_cpus() else { return };
        let (nodes, both) = (Nodes::default(), CpuMask::of([first, second]));
        let is = |cpu: u32| here().count() == 1 && here().and(&CpuMask::of([cpu])).count() == 1;
        // On a separate thread, because its CPUs change.
        let check = || {
            let parking = Parking::default();
            send(&parking);
            assert!(!parking.begin().1, "there was no call");
            let from_first = call(&both, first);
            parking.prepare(Some(from_first.clone()));
            parking.wake(&AtomicI32::new(system::tid()), &nodes);
            assert!(!parking.begin().1, "it was at work");
            send(&parking);
            assert!(is(second));
            // The caller has moved.
            parking.prepare(Some(call(&both, second)));
            send(&parking);
            assert!(is(first));
            let (call, narrowed) = parking.begin();
            assert!(narrowed && call.is_some_and(|call| call.caller_cpu == second));
            assert!(!parking.begin().1, "it was told once");
        };
        std::thread::scope(|scope| scope.spawn(check).join().expect("no panic"));
    }

    /// Wake-ups before, while and after the helper falls asleep: the helper misses none that came
    /// after it last looked.
    #[test]
    fn no_wake_up_is_lost() {
        const ROUNDS: u32 = 2_000;
        let (parking, nodes, wanted, seen) =
            (Parking::default(), Nodes::default(), AtomicU32::new(0), AtomicU32::new(0));
        let context = Context::of_this_thread(false).expect("the system says");
        let helper = || {
            while seen.load(Ordering::SeqCst) < ROUNDS {
                parking
                    .sleep(&nodes, || wanted.load(Ordering::SeqCst) != seen.load(Ordering::SeqCst));
                parking.begin();
                seen.store(wanted.load(Ordering::SeqCst), Ordering::SeqCst);
            }
        };
        std::thread::scope(|scope| {
            let (send, tid) = std::sync::mpsc::channel();
            scope.spawn(move || {
                send.send(system::tid()).expect("somebody listens");
                helper();
            });
            let tid = AtomicI32::new(tid.recv().expect("it says"));
            for round in 1..=ROUNDS {
                parking.prepare(Some(Call {
                    caller_cpu: round / 7 % 3,
                    ..Call::from_here(Arc::clone(&context), None)
                }));
                wanted.store(round, Ordering::SeqCst);
                (0..round % 50 * 40).for_each(|_| std::hint::spin_loop());
                parking.wake(&tid, &nodes);
                while seen.load(Ordering::SeqCst) < round {
                    std::thread::yield_now();
                }
            }
            // The helper may have gone to sleep before it saw that the test is over.
            parking.wake(&tid, &nodes);
        });
    }
}
